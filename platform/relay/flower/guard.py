"""In front of SuperLink, in its own process: who may connect at all, and who may ask for what.

Stock SuperLink asks nobody for a certificate, and its one port is also that of operators and apps.
Its server can do both, so it is told to: connections need a certificate that leads to the root, and
from other machines only what nodes ask for is passed on.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

NODES: Final = "/v1/fleet/"
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


@dataclass(frozen=True)
class Guard:
    """Passes on what nodes ask for, and anything from this machine.

    Attributes:
        app: SuperLink.
    """

    app: App

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request, or have it answered."""
        if scope["type"] == "lifespan" or _may_ask(scope):
            await self.app(scope, receive, send)
            return
        headers = [(b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": b"only this machine may ask for this"})


def _may_ask(scope: Message) -> bool:
    if scope["type"] != "http":
        return False
    path, client = str(scope["path"]), scope.get("client")
    if path.startswith(NODES) and ".." not in path:
        return True
    return client is not None and ipaddress.ip_address(client[0]).is_loopback


def guarded(serve: Callable[..., Any], root: Path | None) -> Callable[..., None]:
    """Return how SuperLink is served, with a guard before it.

    Args:
        serve: Serves an app, as `uvicorn.run` does.
        root: What certificates of those who connect must lead to; None asks nobody for one.
    """

    def serve_guarded(app: App, **options: Any) -> None:
        # Whoever connects could otherwise say from where.
        options["proxy_headers"] = False
        if root is not None:
            options |= {"ssl_ca_certs": str(root), "ssl_cert_reqs": ssl.CERT_REQUIRED}
        serve(app=Guard(app), **options)

    return serve_guarded
