"""The page's addresses: what each of them shows, and what an error becomes."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Collection
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import parse_qs

import anyio
from anyio import to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp

from platform.errors import ConfigError, PlatformError, UnknownRun
from platform.page.access import COOKIE, SESSION_SECONDS, Access
from platform.page.gauges import CONTENT_TYPE, exposition
from platform.page.guard import Guard
from platform.page.pages import STATIC, Pages
from platform.page.sheets import Records, Sheet
from privacy import PrivacyError
from storage import DatabaseBusy, StorageError

MOST_STREAMS: Final = 32
"""Pages that may be kept up to date at once; the others must be loaded again."""
MOST_READERS: Final = 2
PAUSE: Final = 0.5
"""Seconds between two looks at whether something was written."""
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


class Page:
    """Answers requests; every answer is drawn up anew."""

    def __init__(
        self, records: Records, access: Access | None, is_ending: Callable[[], bool]
    ) -> None:
        """Take who draws up sheets, who may read them, and whether the server is about to end."""
        self._is_ending = is_ending
        self._records = records
        self._access = access
        self._pages = Pages(has_login=access is not None)
        self._readers = anyio.CapacityLimiter(MOST_READERS)
        self._verifying = threading.Lock()
        self._streams = 0

    def routes(self) -> list[Route]:
        """Return all addresses."""
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
        """Show who is connected."""
        return await self._shown(self._records.clients, "/clients")

    async def audit(self, request: Request) -> Response:
        """Show entries of the audit log."""
        asked = {name: value for name, value in request.query_params.items() if value}
        return await self._shown(partial(self._records.audit, asked), "/audit")

    async def verify(self, request: Request) -> Response:
        """Show the button, or what it found."""
        if request.method != "POST":
            sheet = Sheet(
                title="Verify",
                lead="Holds every record against all others, as `audit verify` does.",
            )
            return HTMLResponse(self._pages.sheet(sheet, here="/verify", verifies=True))
        return await self._shown(self._verified, "/verify", verifies=True)

    def _verified(self) -> Sheet:
        if not self._verifying.acquire(blocking=False):
            text = "Somebody is verifying just now; try again once that is over."
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
            # What is wrong is the page's to tell; no number is stated of such records.
            return PlainTextResponse("the records cannot be read\n", status_code=503)
        return Response(exposition(gauges), media_type=CONTENT_TYPE)

    async def changes(self, request: Request) -> Response:
        """Tell a page whenever something was written."""
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
        """Take the token from a form, and give a session for it."""
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
        # Browsers keep it although this machine's own address has no TLS, and send it nowhere else.
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
        # Before reading, so that nothing written meanwhile is missed.
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
        records: Who draws up sheets.
        names: What the server may be called by.
        access: Who may read; None for whoever reaches it.
        is_ending: Whether the server is about to end, and waits for pages that are kept up to date.
    """
    routes = Page(records, access, is_ending).routes()
    return Guard(Starlette(routes=routes), frozenset(names), access)
