"""The server of the page: its addresses, their readers, and its place.

It serves this machine only, or readers with a token over TLS.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import socket
import stat
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs

import anyio
import uvicorn
from anyio import to_thread
from markupsafe import Markup
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders, QueryParams
from starlette.requests import HTTPConnection, Request
from starlette.responses import (
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from platform.errors import ConfigError, PlatformError, UnknownRun, printable
from platform.results.page import Gauge, Records, Sheet
from platform.results.report.rendering import environment
from privacy import PrivacyError
from storage import DatabaseBusy, StorageError

COOKIE: Final = "sotto_page"
SESSION_SECONDS: Final = 12 * 3600
MOST_SESSIONS: Final = 100
SHORTEST: Final = 32
_TOKEN: Final = re.compile(rf"[A-Za-z0-9._~+/=-]{{{SHORTEST},256}}")


class Access:
    """Stores the token and the sessions, as digests only."""

    def __init__(self, token: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Store the digest of the token; `clock` returns seconds."""
        self._token = _digest(token)
        self._clock = clock
        self._sessions: dict[bytes, float] = {}

    def is_token(self, text: str) -> bool:
        """Compare a text with the token, in constant time."""
        return hmac.compare_digest(_digest(text), self._token)

    def new_session(self) -> str:
        """Return the secret of a new session; if there are too many, the oldest session ends."""
        self._forget()
        while len(self._sessions) >= MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        secret = secrets.token_urlsafe(32)
        self._sessions[_digest(secret)] = self._clock() + SESSION_SECONDS
        return secret

    def is_session(self, secret: str) -> bool:
        """Return whether a secret belongs to a session that has not ended."""
        self._forget()
        # By digests, so that the time of the search tells nothing about a secret.
        return _digest(secret) in self._sessions

    def end_session(self, secret: str) -> None:
        """End the session of a secret, if there is one."""
        self._sessions.pop(_digest(secret), None)

    def _forget(self) -> None:
        now = self._clock()
        self._sessions = {one: until for one, until in self._sessions.items() if until > now}


def read_token(file: Path) -> str:
    """Return the token in a file that only its owner may read; another file is refused."""
    try:
        # O_NONBLOCK: opening a pipe would wait forever.
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(
            f"--token-file: {str(file)!r} cannot be read ({error.strerror}); valid is a file with "
            f"a token of {SHORTEST} characters or more"
        ) from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077:
            raise ConfigError(
                f"--token-file: {str(file)!r} can be read by others, or is no file; valid is a file"
                " of mode 600"
            )
        # No error message shows the token.
        text = os.read(descriptor, 1024).decode("ascii", "replace").strip()
    finally:
        os.close(descriptor)
    if not _TOKEN.fullmatch(text):
        raise ConfigError(
            f"--token-file: {str(file)!r} holds no token; it must be one line of {SHORTEST} to 256 "
            "letters, digits or ._~+/=- such as `openssl rand -hex 32` gives"
        )
    return text


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


MOST_STREAMS: Final = 32
"""The server updates at most this many open pages; readers must reload the others."""
MOST_READERS: Final = 2
PAUSE: Final = 0.5
"""Seconds between two checks for new records."""
HEARTBEAT: Final = 15.0
_LONGEST_FORM: Final = 4096
_LARGEST_PAGE: Final = 1_000_000
_FILES: Final = {
    "/page.css": "text/css",
    "/page.js": "text/javascript",
    "/icon.svg": "image/svg+xml",
}

T = TypeVar("T")
Known = (PlatformError, PrivacyError, StorageError)

TEMPLATES: Final = Path(__file__).parent / "templates"
STATIC: Final = Path(__file__).parent / "static"

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
OPEN: Final = frozenset({"/login", *_FILES})
"""Paths that need no token."""
_HOST: Final = re.compile(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[^:\[\]]*))(?::[0-9]*)?")
_SAFE: Final = frozenset({"GET", "HEAD"})


class Page:
    """Answers requests; it reads the records anew for every answer.

    Sheets become HTML without script or style, and all text is escaped. Undefined names in a
    template are errors. Invisible characters, and those that change the direction of writing, are
    shown as escapes.
    """

    def __init__(
        self, records: Records, access: Access | None, is_ending: Callable[[], bool]
    ) -> None:
        """Take the records, their readers, and a function that says if the server is ending."""
        self._is_ending = is_ending
        self._records = records
        self._access = access
        self._templates = environment(TEMPLATES, finalize=_escaped)
        self._templates.globals["has_login"] = access is not None
        self._readers = anyio.CapacityLimiter(MOST_READERS)
        self._verifying = threading.Lock()
        self._streams = 0

    def routes(self) -> list[Route]:
        """Return the routes of all addresses."""

        async def file(path: Path, kind: str, request: Request) -> Response:
            return Response(path.read_bytes(), media_type=kind)

        def sheet(here: str, read: Callable[[QueryParams], Sheet]) -> Route:
            async def shown(request: Request) -> Response:
                return await self._shown(partial(read, request.query_params), here)

            return Route(here, shown)

        def runs(asked: QueryParams) -> Sheet:
            number = asked.get("page", "1")
            page = min(int(number), _LARGEST_PAGE) if number.isdecimal() and len(number) < 9 else 1
            return self._records.runs(asked.get("q", ""), max(page, 1))

        return [
            sheet("/", runs),
            sheet("/run", lambda asked: self._records.run(asked.get("id", ""))),
            sheet("/clients", lambda asked: self._records.clients()),
            sheet(
                "/audit", lambda asked: self._records.audit({n: v for n, v in asked.items() if v})
            ),
            Route("/verify", self.verify, methods=["GET", "POST"]),
            Route("/metrics", self.metrics),
            Route("/changes", self.changes),
            Route("/login", self.login, methods=["GET", "POST"]),
            Route("/logout", self.logout, methods=["POST"]),
            *(Route(path, partial(file, STATIC / path[1:], kind)) for path, kind in _FILES.items()),
        ]

    async def verify(self, request: Request) -> Response:
        """Show the button, or the result of the check."""

        def verified() -> Sheet:
            if not self._verifying.acquire(blocking=False):
                text = "Another check is running; try again when it has ended."
                return Sheet(title="Verify", lead=text)
            try:
                return self._records.verified()
            finally:
                self._verifying.release()

        def offered() -> Sheet:
            lead = "Compares all records with each other, as `audit verify` does."
            return Sheet(title="Verify", lead=lead)

        draw = verified if request.method == "POST" else offered
        return await self._shown(draw, "/verify", verifies=True)

    async def metrics(self, request: Request) -> Response:
        """Answer a monitoring system."""
        try:
            gauges = await self._read(self._records.gauges)
        except Known:
            # The page describes the fault; the monitoring system gets no number.
            return PlainTextResponse("the records cannot be read\n", status_code=503)
        return Response(generate_latest(_Once(gauges)), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    async def changes(self, request: Request) -> Response:
        """Send an event to a page after every write."""
        if self._streams >= MOST_STREAMS:
            return PlainTextResponse("too many pages are open\n", status_code=503)
        return StreamingResponse(self._stamps(), media_type="text/event-stream")

    async def _stamps(self) -> AsyncIterator[str]:
        self._streams += 1
        try:
            told, silent = None, 0.0
            while not self._is_ending():
                stamp = await self._read(self._records.stamp)
                if stamp != told or silent >= HEARTBEAT:
                    told, silent = stamp, 0.0
                    yield f"event: stamp\ndata: {stamp}\n\n"
                await anyio.sleep(PAUSE)
                silent += PAUSE
        finally:
            self._streams -= 1

    async def login(self, request: Request) -> Response:
        """Take the token from a form and start a session."""
        if self._access is None:
            return RedirectResponse("/", status_code=303)
        if request.method != "POST":
            return self._login(was_wrong=False)
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _LONGEST_FORM:
                return PlainTextResponse("the form is too long\n", status_code=413)
        given = parse_qs(body.decode("ascii", "replace")).get("token", [""])[0]
        if not self._access.is_token(given.strip()):
            return self._login(was_wrong=True)
        answer = RedirectResponse("/", status_code=303)
        # Browsers accept a secure cookie from localhost without TLS.
        answer.set_cookie(
            COOKIE,
            self._access.new_session(),
            max_age=SESSION_SECONDS,
            secure=True,
            httponly=True,
            samesite="strict",
        )
        return answer

    def _login(self, *, was_wrong: bool) -> Response:
        text = self._templates.get_template("login.html.jinja").render(was_wrong=was_wrong)
        return HTMLResponse(text, status_code=403 if was_wrong else 200)

    async def logout(self, request: Request) -> Response:
        """End the session."""
        if self._access is not None:
            self._access.end_session(request.cookies.get(COOKIE, ""))
        answer = RedirectResponse("/login", status_code=303)
        answer.delete_cookie(COOKIE, secure=True, httponly=True, samesite="strict")
        return answer

    async def _shown(
        self, draw: Callable[[], Sheet], here: str, *, verifies: bool = False
    ) -> Response:
        # The stamp is read first: a write during the reading then changes it.
        stamp = await self._read(self._records.stamp)
        status = 200
        try:
            sheet = await self._read(draw)
        except Known as error:
            _, status, title = next(one for one in _FAULTS if isinstance(error, one[0]))
            sheet = Sheet(title=title, lead=str(error), fails=True)
        template = self._templates.get_template("sheet.html.jinja")
        text = template.render(sheet=sheet, here=here, stamp=stamp, verifies=verifies)
        return HTMLResponse(text, status_code=status)

    async def _read(self, read: Callable[[], T]) -> T:
        return await to_thread.run_sync(read, limiter=self._readers)


_FAULTS: Final = (
    (UnknownRun, 404, "Nothing there"),
    (ConfigError, 400, "Nothing can match"),
    (DatabaseBusy, 503, "The database is busy"),
    (Exception, 500, "The records do not hold"),
)
"""Status and title of the answer to each error; the first that fits counts."""


def make_app(
    records: Records,
    *,
    names: Collection[str],
    access: Access | None,
    is_ending: Callable[[], bool] = lambda: False,
) -> ASGIApp:
    """Return the whole page, guarded, under the server's names; without access anyone may read.

    `is_ending` returns whether the server is about to end, so that open pages stop waiting.
    """
    routes = Page(records, access, is_ending).routes()
    return Guard(Starlette(routes=routes), frozenset(names), access)


class _Once(Collector):
    """Collects the numbers of one answer; unlike the library's own gauges, it keeps no state."""

    def __init__(self, gauges: Sequence[Gauge]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Yield all numbers."""
        for gauge in self._gauges:
            family = GaugeMetricFamily(gauge.name, gauge.help, labels=gauge.labels)
            for labels, value in gauge.values:
                family.add_metric([printable(label) for label in labels], value)
            yield family


def _escaped(value: Any) -> Any:
    """Return a text with escapes; the templates' own markup stays."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value)
    return value


@dataclass(frozen=True)
class Guard:
    """Refuses requests under a wrong name, from another page, or without the token.

    Sources: the WHATWG's Fetch Standard (`Sec-Fetch-Site`, `Origin`), the W3C's Content Security
    Policy Level 3, RFC 6265bis (cookies), RFC 6750 (bearer tokens).

    Attributes:
        app: The application that answers the other requests.
        names: Names and addresses of the page, without ports. Another name in a request means that
            a foreign domain leads a browser here.
        access: The token and the sessions; None if anyone may read.
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
            # The page has no web sockets.
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
        if method not in _SAFE:
            # A foreign page cannot make a browser lie about these.
            site = request.headers.get("sec-fetch-site")
            origin = request.headers.get("origin", "").partition("://")[2]
            if not (origin == hosts[0] if site is None else site == "same-origin"):
                return PlainTextResponse("only this page's own forms may send\n", status_code=403)
        if self.access is None or request.url.path in OPEN:
            return None
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            is_known = self.access.is_token(token.strip())
        else:
            is_known = self.access.is_session(request.cookies.get(COOKIE, ""))
        if is_known:
            return None
        if method == "GET" and "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("/login", status_code=303)
        return PlainTextResponse(
            "a token is needed\n", status_code=401, headers={"www-authenticate": "Bearer"}
        )


def host_name(host: str) -> str:
    """Return the name in a Host header, without port, in lower case; "" if it is not valid."""
    found = _HOST.fullmatch(host.lower())
    return "" if found is None else found["six"] or found["name"] or ""


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
    """Return the guard of the page; refuse a place without the token, TLS or name it needs."""
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
    """Serve until SIGINT or SIGTERM; `tell` gets the page's address."""
    access = require_safe(place)
    try:
        family, _, _, _, address = socket.getaddrinfo(
            place.host, place.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.create_server(address[:2], family=family)
    except OSError as error:
        raise ConfigError(
            f"--host: the page cannot be served at {place.host!r}, port {place.port} "
            f"({error.strerror}); valid is an address of this machine and a port that is free"
        ) from error
    with listening:
        config = uvicorn.Config(
            make_app(
                records,
                names=place.known_names,
                access=access,
                is_ending=lambda: server.should_exit,
            ),
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
        server: uvicorn.Server = uvicorn.Server(config)
        scheme = "http" if place.certificate is None else "https"
        shown = f"[{place.host}]" if ":" in place.host else place.host
        tell(f"{scheme}://{shown}:{listening.getsockname()[1]}/")
        server.run(sockets=[listening])


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
