"""The server of the page: for this machine only, or over TLS for readers with a token."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvicorn

from platform.errors import ConfigError
from platform.page import Records
from platform.page.app import Access, make_app, read_token

MOST_CONNECTIONS: Final = 64
LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of the server, as the user asked for it.

    Attributes:
        host: An address of this machine, or its name.
        port: Port; 0 for any free port.
        names: Further names of the page, such as those of a proxy in front of it.
        token_file: File with the token; None for no token.
        certificate: Certificate chain for TLS; None for no TLS.
        key: Private key of the certificate.
    """

    host: str
    port: int
    names: Sequence[str] = ()
    token_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the address."""
        return _is_loopback(self.host)

    @property
    def known_names(self) -> frozenset[str]:
        """The names of the server that requests may use."""
        own = LOCAL_NAMES if self.is_local else {self.host.lower()} - _EVERYWHERE
        return frozenset({*own, *(name.lower() for name in self.names)})


def require_safe(place: Place) -> Access | None:
    """Return the token and sessions that guard the page; None for a local page without a token.

    Raises:
        ConfigError: If the place needs a token, TLS or a name that was not given.
    """
    if (place.certificate is None) != (place.key is None):
        raise ConfigError("--certificate: goes with --key; valid: both or none")
    for option, file in (("--certificate", place.certificate), ("--key", place.key)):
        if file is not None and not file.is_file():
            raise ConfigError(f"{option}: {str(file)!r} is no file; valid is one in PEM form")
    others = [name for name in place.names if not _is_loopback(name)]
    if place.token_file is None and (others or not place.is_local):
        option, value = ("--host", place.host) if not place.is_local else ("--name", others[0])
        raise ConfigError(
            f"{option}: {value!r} is reached by others, so --token-file is needed; valid without "
            "a token: localhost"
        )
    if not place.is_local and place.certificate is None:
        raise ConfigError(
            f"--host: {place.host!r} is reached over a network, which would see token and records;"
            " valid: with --certificate and --key, or localhost behind a proxy with TLS"
        )
    if not place.known_names:
        raise ConfigError(
            f"--host: {place.host!r} is no name; --name must give the name of the page"
        )
    return None if place.token_file is None else Access(read_token(place.token_file))


def serve(records: Records, place: Place, tell: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        records: The records.
        place: The place.
        tell: Gets the page's address.

    Raises:
        ConfigError: If the page cannot be served at this place.
    """
    access = require_safe(place)
    with closing(_listen(place)) as listening:
        port = listening.getsockname()[1]
        scheme = "http" if place.certificate is None else "https"
        shown = f"[{place.host}]" if ":" in place.host else place.host
        server = _server(records, place, access)
        tell(f"{scheme}://{shown}:{port}/")
        server.run(sockets=[listening])


def _server(records: Records, place: Place, access: Access | None) -> uvicorn.Server:
    made: list[uvicorn.Server] = []
    app = make_app(
        records,
        names=place.known_names,
        access=access,
        is_ending=lambda: made[0].should_exit,
    )
    config = uvicorn.Config(
        app,
        # An access log would store the searches, which are in the addresses.
        access_log=False,
        log_level="warning",
        server_header=False,
        date_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        http="h11",
        loop="asyncio",
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=3,
        ssl_certfile=place.certificate,
        ssl_keyfile=place.key,
    )
    try:
        config.load()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--certificate: {str(place.certificate)!r} and its key cannot be used"
        ) from error
    made.append(uvicorn.Server(config))
    return made[0]


def _listen(place: Place) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            place.host, place.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise ConfigError(
            f"--host: the page cannot be served at {place.host!r}, port {place.port} "
            f"({error.strerror}); valid is an address of this machine and a port that is free"
        ) from error


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
