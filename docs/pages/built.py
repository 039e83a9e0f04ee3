"""What is wrong with a built site: `python -m docs.pages.built FOLDER` says, and fails if anything.

Every link within the site leads to a page and a place on it, and nothing but links leads out: a
page that loads a script or a font from elsewhere could not be read without a network.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "source": "src", "iframe": "src", "link": "href"}
"""What a browser loads by itself, by the attribute that says from where."""
LISTS = {"canonical", "prev", "next", "search", "index"}
"""Kinds of `link` that load nothing."""


@dataclass
class Page(HTMLParser):
    """What a page links to, loads, and can be linked to by.

    Attributes:
        links: Targets of its links.
        loaded: What is loaded with it.
        anchors: Its places.
    """

    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Start to read."""
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take down one element."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        place = given.get(LOADED.get(tag, ""), "")
        if place and not set(given.get("rel", "").split()) & LISTS:
            self.loaded.append(place)


def read(folder: Path) -> dict[Path, Page]:
    """Return all pages by their files."""
    pages = {}
    for path in sorted(folder.rglob("*.html")):
        pages[path] = Page()
        pages[path].feed(path.read_text("utf-8"))
    return pages


def wrong(folder: Path) -> Iterator[str]:
    """Yield one line for each thing that is wrong."""
    folder = folder.resolve()
    pages = read(folder)
    if not pages:
        yield f"{folder.name}: there is no page"
    for path, page in pages.items():
        name = path.relative_to(folder)
        for link in page.loaded:
            if urlsplit(link).scheme not in ("", "data") or urlsplit(link).netloc:
                yield f"{name}: {link} is loaded from elsewhere"
        for link in (*page.links, *page.loaded):
            if not _leads(path, link, pages):
                yield f"{name}: {link} leads nowhere"


def _leads(path: Path, link: str, pages: Mapping[Path, Page]) -> bool:
    split = urlsplit(link)
    if split.scheme or split.netloc:
        return True
    target = (path.parent / unquote(split.path)).resolve() if split.path else path
    if target not in pages:
        return target.is_file()
    return not split.fragment or unquote(split.fragment) in pages[target].anchors


if __name__ == "__main__":
    found = list(wrong(Path(sys.argv[1])))
    if found:
        sys.exit("\n".join(found))
