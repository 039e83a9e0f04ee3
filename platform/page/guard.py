"""What every request must pass, and what every answer says, before and after any page.

Sources: the WHATWG's Fetch Standard (`Sec-Fetch-Site`, `Origin`), the W3C's Content Security Policy
Level 3, RFC 6265bis (cookies), RFC 6750 (bearer tokens).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from platform.page.access import COOKIE, Access

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
OPEN: Final = frozenset({"/login", "/page.css", "/page.js", "/icon.svg"})
"""What is shown to those who have no token yet."""
_HOST: Final = re.compile(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[^:\[\]]*))(?::[0-9]*)?")
_SAFE: Final = frozenset({"GET", "HEAD"})


@dataclass(frozen=True)
class Guard:
    """Refuses what is not asked by the right name, from this page, or with the token.

    Attributes:
        app: What answers the rest.
        names: The names and addresses that the page may be called by, without ports. Another one
            means that somebody's domain leads a browser here.
        access: Who may read; None for whoever reaches the machine's own address.
    """

    app: ASGIApp
    names: Collection[str]
    access: Access | None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            # There are no web sockets here.
            return
        request = HTTPConnection(scope)
        refusal = self._refusal(request, scope["method"])

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await (refusal or self.app)(scope, receive, with_headers)

    def _refusal(self, request: HTTPConnection, method: str) -> Response | None:
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or host_name(hosts[0]) not in self.names:
            return PlainTextResponse("this server has another name\n", status_code=421)
        if method not in _SAFE and not _is_own(request, hosts[0]):
            return PlainTextResponse("only this page's own forms may send\n", status_code=403)
        if self.access is None or request.url.path in OPEN or self._is_known(request):
            return None
        if method == "GET" and "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("/login", status_code=303)
        return PlainTextResponse(
            "a token is needed\n", status_code=401, headers={"www-authenticate": "Bearer"}
        )

    def _is_known(self, request: HTTPConnection) -> bool:
        if self.access is None:
            return False
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.access.is_token(token.strip())
        return self.access.is_session(request.cookies.get(COOKIE, ""))


def host_name(host: str) -> str:
    """Return what a Host header names, without its port and in lower case; "" where it is none."""
    found = _HOST.fullmatch(host.lower())
    return "" if found is None else found["six"] or found["name"] or ""


def _is_own(request: HTTPConnection, host: str) -> bool:
    """Return whether a form was sent from this page; browsers cannot be made to lie about it."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    return request.headers.get("origin", "").partition("://")[2] == host
