"""The page's addresses, their readers, and the answer to an error."""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import re
import secrets
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
from anyio import to_thread
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
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
from platform.page import Cell, Gauge, Plot, Records, Sheet
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
        """Return whether a secret belongs to a session that has not ended.

        The search uses digests, so its time tells nothing about a secret.
        """
        self._forget()
        return _digest(secret) in self._sessions

    def end_session(self, secret: str) -> None:
        """End the session of a secret, if there is one."""
        self._sessions.pop(_digest(secret), None)

    def _forget(self) -> None:
        now = self._clock()
        self._sessions = {one: until for one, until in self._sessions.items() if until > now}


def read_token(file: Path) -> str:
    """Return the token in a file that only its owner may read.

    Raises:
        ConfigError: If the file cannot be read, others may read it, or it holds no token.
    """
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

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

TEMPLATES: Final = Path(__file__).parent / "templates"
STATIC: Final = Path(__file__).parent / "static"

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 84, 24, 20, 64
FRAME: Final = {
    "width": WIDTH,
    "height": HEIGHT,
    "left": LEFT,
    "right": WIDTH - RIGHT,
    "top": TOP,
    "bottom": HEIGHT - BOTTOM,
}
MOST_MARKS: Final = 60
_TICKS: Final = 5

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
"""Paths that need no token."""
_HOST: Final = re.compile(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[^:\[\]]*))(?::[0-9]*)?")
_SAFE: Final = frozenset({"GET", "HEAD"})


class Page:
    """Answers requests; it reads the records anew for every answer."""

    def __init__(
        self, records: Records, access: Access | None, is_ending: Callable[[], bool]
    ) -> None:
        """Take the records, their readers, and a function that says if the server is ending."""
        self._is_ending = is_ending
        self._records = records
        self._access = access
        self._pages = Pages(has_login=access is not None)
        self._readers = anyio.CapacityLimiter(MOST_READERS)
        self._verifying = threading.Lock()
        self._streams = 0

    def routes(self) -> list[Route]:
        """Return the routes of all addresses."""
        files = [
            Route(path, partial(_file, STATIC / path[1:], kind)) for path, kind in _FILES.items()
        ]
        return [
            Route("/", self.runs),
            Route("/run", self.run),
            Route("/clients", self.clients),
            Route("/audit", self.audit),
            Route("/verify", self.verify, methods=["GET", "POST"]),
            Route("/metrics", self.metrics),
            Route("/changes", self.changes),
            Route("/login", self.login, methods=["GET", "POST"]),
            Route("/logout", self.logout, methods=["POST"]),
            *files,
        ]

    async def runs(self, request: Request) -> Response:
        """Show all runs."""
        number = request.query_params.get("page", "1")
        page = min(int(number), _LARGEST_PAGE) if number.isdecimal() and len(number) < 9 else 1
        text = request.query_params.get("q", "")
        return await self._shown(partial(self._records.runs, text, max(page, 1)), "/")

    async def run(self, request: Request) -> Response:
        """Show one run."""
        run_id = request.query_params.get("id", "")
        return await self._shown(partial(self._records.run, run_id), "/run")

    async def clients(self, request: Request) -> Response:
        """Show the connected clients."""
        return await self._shown(self._records.clients, "/clients")

    async def audit(self, request: Request) -> Response:
        """Show entries of the audit log."""
        asked = {name: value for name, value in request.query_params.items() if value}
        return await self._shown(partial(self._records.audit, asked), "/audit")

    async def verify(self, request: Request) -> Response:
        """Show the button, or the result of the check."""
        if request.method != "POST":
            sheet = Sheet(
                title="Verify",
                lead="Compares all records with each other, as `audit verify` does.",
            )
            return HTMLResponse(self._pages.sheet(sheet, here="/verify", verifies=True))
        return await self._shown(self._verified, "/verify", verifies=True)

    def _verified(self) -> Sheet:
        if not self._verifying.acquire(blocking=False):
            text = "Another check is running; try again when it has ended."
            return Sheet(title="Verify", lead=text)
        try:
            return self._records.verified()
        finally:
            self._verifying.release()

    async def metrics(self, request: Request) -> Response:
        """Answer a monitoring system."""
        try:
            gauges = await self._read(self._records.gauges)
        except Known:
            # The page describes the fault; the monitoring system gets no number.
            return PlainTextResponse("the records cannot be read\n", status_code=503)
        return Response(exposition(gauges), media_type=CONTENT_TYPE)

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
            return HTMLResponse(self._pages.login(was_wrong=False))
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _LONGEST_FORM:
                return PlainTextResponse("the form is too long\n", status_code=413)
        given = parse_qs(body.decode("ascii", "replace")).get("token", [""])[0]
        if not self._access.is_token(given.strip()):
            return HTMLResponse(self._pages.login(was_wrong=True), status_code=403)
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
            status = _status(error)
            sheet = Sheet(title=_TITLES[status], lead=str(error), fails=True)
        text = self._pages.sheet(sheet, here=here, stamp=stamp, verifies=verifies)
        return HTMLResponse(text, status_code=status)

    async def _read(self, read: Callable[[], T]) -> T:
        return await to_thread.run_sync(read, limiter=self._readers)


_TITLES: Final = {
    400: "Nothing can match",
    404: "Nothing there",
    500: "The records do not hold",
    503: "The database is busy",
}


def _status(error: Exception) -> int:
    match error:
        case UnknownRun():
            return 404
        case ConfigError():
            return 400
        case DatabaseBusy():
            return 503
        case _:
            return 500


async def _file(path: Path, kind: str, request: Request) -> Response:
    return Response(path.read_bytes(), media_type=kind)


def make_app(
    records: Records,
    *,
    names: Collection[str],
    access: Access | None,
    is_ending: Callable[[], bool] = lambda: False,
) -> ASGIApp:
    """Return the whole page, guarded.

    Args:
        records: The records.
        names: The names of the server.
        access: The token and the sessions; None if anyone may read.
        is_ending: Returns whether the server is about to end, so that open pages stop waiting.
    """
    routes = Page(records, access, is_ending).routes()
    return Guard(Starlette(routes=routes), frozenset(names), access)


class _Once(Collector):
    """Collects the numbers of one answer."""

    def __init__(self, gauges: Sequence[Gauge]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Yield all numbers."""
        for gauge in self._gauges:
            family = GaugeMetricFamily(gauge.name, gauge.help, labels=gauge.labels)
            for labels, value in gauge.values:
                family.add_metric([printable(label) for label in labels], value)
            yield family


def exposition(gauges: Sequence[Gauge]) -> bytes:
    """Return the numbers as Prometheus reads them."""
    registry = CollectorRegistry()
    registry.register(_Once(gauges))
    return generate_latest(registry)


class Pages:
    """Writes sheets as HTML without script or style; all text is escaped.

    Undefined names in a template are errors. Invisible characters, and those that change the
    direction of writing, are shown as escapes.
    """

    def __init__(self, *, has_login: bool) -> None:
        """Read the templates; `has_login` says whether the page shows a button to log out."""
        self._environment = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_shown,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.tests["cell"] = lambda value: isinstance(value, Cell)
        self._environment.tests["plot"] = lambda value: isinstance(value, Plot)
        self._environment.globals.update(drawing=drawing, frame=FRAME, has_login=has_login)

    def sheet(self, sheet: Sheet, *, here: str, stamp: str = "", verifies: bool = False) -> str:
        """Return a sheet as a whole document.

        Args:
            sheet: The sheet.
            here: Path of the page.
            stamp: The records' stamp before they were read.
            verifies: Whether the page has the button that checks all records.
        """
        template = self._environment.get_template("sheet.html.jinja")
        return template.render(sheet=sheet, here=here, stamp=stamp, verifies=verifies)

    def login(self, *, was_wrong: bool) -> str:
        """Return the page that asks for the token."""
        return self._environment.get_template("login.html.jinja").render(was_wrong=was_wrong)


def _shown(value: Any) -> Any:
    """Return a text with escapes; the templates' own markup stays."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value)
    return value


def drawing(plot: Plot) -> dict[str, Any] | None:
    """Return the places of all parts of a plot; None if it has no finite point.

    Returns:
        `across` and `up`: place and label of each tick of an axis. `path`: the line's corners, as
        SVG reads them. `marks`: places of the points that have a mark, and these points.
    """
    points = [p for p in plot.points if math.isfinite(p.x) and math.isfinite(p.y)]
    if not points:
        return None
    step = tick_step(max(point.x for point in points))
    count = max(1, math.ceil(max(point.x for point in points) / step - 1e-9))
    top = step * count

    def place(x: float, y: float) -> tuple[float, float]:
        wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        shown = min(max(y, 0.0), 1.0)
        return round(LEFT + x / top * wide, 1), round(TOP + (1.0 - shown) * tall, 1)

    spots = [(*place(point.x, point.y), point) for point in points]
    marks = spots[:: -(-len(spots) // MOST_MARKS)]
    return {
        "across": [(place(step * i, 0.0)[0], f"{step * i:g}") for i in range(count + 1)],
        "up": [(place(0.0, y)[1], f"{100 * y:.0f}%") for y in (0.0, 0.25, 0.5, 0.75, 1.0)],
        "path": " ".join(f"{x},{y}" for x, y, _ in spots),
        "marks": marks if marks[-1] is spots[-1] else [*marks, spots[-1]],
    }


def tick_step(highest: float) -> float:
    """Return a step of 1, 2 or 5 times a power of ten with which a few ticks reach the top."""
    rough = max(highest, 1e-9) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return next(n * power for n in (1.0, 2.0, 5.0, 10.0) if n * power >= rough * (1 - 1e-9))


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
    """Return the name in a Host header, without port, in lower case; "" if it is not valid."""
    found = _HOST.fullmatch(host.lower())
    return "" if found is None else found["six"] or found["name"] or ""


def _is_own(request: HTTPConnection, host: str) -> bool:
    """Return whether this page sent a form; a foreign page cannot make a browser lie about it."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    return request.headers.get("origin", "").partition("://")[2] == host
