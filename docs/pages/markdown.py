"""Pieces of Markdown that the pages are made of."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

LINK = re.compile(r"\]\((?![a-z]+:)([^)\s#]*)(#[^)\s]+)?\)")
HEADING = re.compile(r"^#+ ", re.MULTILINE)
CODE = re.compile(r"(^```.*?^```$|(?<!`)`[^`\n]+`)", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def table(rows: Iterable[Sequence[str]]) -> str:
    """Return rows, of which the first is the head, as a table."""
    head, *rest = rows
    lines = (head, ["---"] * len(head), *rest)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def begun(title: str, beside: Path, told: str, folder: Path) -> str:
    """Return the head of a page for a folder: its title, and what a page of the manual tells."""
    return f"# {title}\n\n[{beside.name}]({os.path.relpath(beside, folder)}) {told}\n"


def slug(heading: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def fenced(text: str, language: str) -> str:
    """Return text as a block whose fence nothing in it ends."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}\n"


def relinked(text: str, lead: Callable[[str], str]) -> str:
    """Return a page with its relative links changed, but for those in code.

    Args:
        text: Markdown.
        lead: Gives a link's new target, without what comes after `#`.
    """

    def led(link: re.Match[str]) -> str:
        return f"]({lead(link[1]) if link[1] else ''}{link[2] or ''})"

    pieces = CODE.split(text)
    pieces[::2] = [LINK.sub(led, each) for each in pieces[::2]]
    return "".join(pieces)


def merged(paths: Sequence[Path], folder: Path, read: Callable[[Path], str]) -> str:
    """Return files one after another as one page.

    Args:
        paths: The files; the headings of all but the first go down by one level.
        folder: Where the page will lie, from which links are to lead.
        read: Gives a file's text.
    """
    titles = {path: path.read_text("utf-8").splitlines()[0].removeprefix("# ") for path in paths}

    def led(link: re.Match[str], path: Path) -> str:
        target = (path.parent / link[1]).resolve() if link[1] else path
        if target in titles:
            return f"]({link[2] or '#' + slug(titles[target])})"
        return f"]({os.path.relpath(target, folder)}{link[2] or ''})"

    def text(path: Path) -> str:
        pieces = FENCE.split(LINK.sub(lambda link: led(link, path), read(path)))
        # What is fenced is at the odd places, and a comment there is no heading.
        down = "" if path == paths[0] else "#"
        pieces[::2] = [HEADING.sub(lambda heading: down + heading[0], each) for each in pieces[::2]]
        return "".join(pieces)

    return "\n".join(map(text, paths))
