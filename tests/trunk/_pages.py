"""The live page as tests ask it: over a storage's records, without a port."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from starlette.testclient import TestClient

from platform.cli.page_records import PageRecords
from platform.results.page.server import Access, make_app
from tests.trunk._runs import Storage

TOKEN = "a-token-of-forty-characters-for-tests-01"  # noqa: S105
OWN = {"sec-fetch-site": "same-origin"}
"""What a browser says of a form that it sends from the page itself."""


def page_of(
    storage: Storage, *, token: str | None = None, socket: Path | None = None
) -> TestClient:
    """Asks the page as a browser on this machine does."""
    app = make_app(
        PageRecords(storage.url, socket),
        names={"localhost", "127.0.0.1", "::1"},
        access=None if token is None else Access(token),
    )
    # By https, as the session's cookie is sent so only (browsers excuse this machine's address).
    return TestClient(app, base_url="https://localhost:8765", follow_redirects=False)


class _Reading(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def words(html: str) -> str:
    reading = _Reading()
    reading.feed(html)
    return " ".join(" ".join(reading.words).split())


def tags(html: str) -> list[tuple[str, dict[str, str | None]]]:
    reading = _Reading()
    reading.feed(html)
    return reading.tags
