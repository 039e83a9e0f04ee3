"""Reports of runs for tests, and a reader of their pages that is no part of what made them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import pytest

from platform.agreement.budgets import read_budget
from platform.disk.opening import open_existing
from platform.results.report.blocks import (
    Bullets,
    Facts,
    Figure,
    Paragraph,
    Section,
    Table,
    text_of,
)
from platform.results.report.document import Report, budget_report
from platform.results.report.rendering import load_weasyprint, pdf_file
from platform.results.report.subject import read_log
from tests.trunk._runs import Finished, Storage

MADE = "2026-11-23 07:00 UTC"
VOID = {"meta", "br", "line", "circle", "rect", "path", "polyline", "link", "img", "input"}


def report_on(storage: Storage, *run_ids: str) -> Report:
    """The report of the first run, beside the others."""
    with closing(open_existing(storage.url)) as database:
        first, *others = [read_budget(database, name) for name in run_ids]
        log = read_log(database, run_ids)
    return budget_report(first, others, made=MADE, log=log)


def report_of(run: Finished) -> Report:
    return report_on(run.storage, run.run_id)


def section(report: Report, anchor: str) -> Section:
    (found,) = [one for one in report.sections if one.anchor == anchor]
    return found


def sentences(part: Section) -> Iterator[str]:
    """Every sentence, cell and term of a section."""
    for block in part.blocks:
        match block:
            case Paragraph():
                yield text_of(block.words)
            case Bullets():
                yield from map(text_of, block.items)
            case Facts():
                yield from (f"{term}: {text_of(line)}" for term, line in block.rows)
            case Table():
                yield block.caption
                yield from (" | ".join(map(text_of, row)) for row in block.rows)
            case _:
                yield f"{block.title}. {block.says}"


def text(report: Report) -> str:
    parts = [line for one in report.sections for line in sentences(one)]
    return "\n".join([report.title, *report.warnings, *parts])


def figures(report: Report) -> list[Figure]:
    found: list[Figure] = []
    for one in report.sections:
        for block in one.blocks:
            match block:
                case Paragraph():
                    lines = [block.words]
                case Bullets():
                    lines = list(block.items)
                case Facts():
                    lines = [line for _, line in block.rows]
                case Table():
                    lines = [cell for row in block.rows for cell in row]
                case _:
                    lines = []
            found += [piece for line in lines for piece in line if isinstance(piece, Figure)]
    return found


def answers(report: Report) -> dict[str, tuple[str, str]]:
    """Status and reason of each hazard."""
    (table,) = [b for b in section(report, "hazards").blocks if isinstance(b, Table)]
    cells = [[text_of(cell) for cell in row] for row in table.rows]
    return {name: (status, why) for name, _, status, why in cells}


@dataclass
class Tag:
    name: str
    attributes: dict[str, str]
    text: str = ""
    inside: tuple[str, ...] = ()


@dataclass
class Page(HTMLParser):
    """A page's elements in order, by the standard library's parser."""

    tags: list[Tag] = field(default_factory=list)
    open: list[Tag] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        inside = tuple(one.name for one in self.open)
        found = Tag(tag, {name: value or "" for name, value in attrs}, inside=inside)
        self.tags.append(found)
        if tag not in VOID:
            self.open.append(found)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        assert self.open and self.open[-1].name == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        for one in self.open:
            one.text += data

    def named(self, *names: str) -> list[Tag]:
        return [tag for tag in self.tags if tag.name in names]


def read_page(html: str) -> Page:
    """A page, all of whose elements are closed where they were opened."""
    page = Page()
    page.feed(html)
    page.close()
    assert page.open == []
    return page


def read_pdf(report: Report) -> Any:
    """The report as a PDF, as a reader that had no part in making it sees it; skips without one."""
    try:
        load_weasyprint()
    except (ImportError, OSError) as error:
        pytest.skip(f"no PDF can be laid out here: {error}")
    pypdf = pytest.importorskip("pypdf", reason="pypdf is not installed")
    return pypdf.PdfReader(io.BytesIO(pdf_file(report)))
