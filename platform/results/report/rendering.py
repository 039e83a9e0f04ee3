"""A report as plain data, as one HTML file, and as a tagged PDF (PDF/UA-1).

The HTML holds no script and fetches nothing. Texts may come from outside, so the template escapes
all of them, and an undefined name is an error. WeasyPrint makes the PDF from the page; it needs
Pango, a library of the operating system, so it is an extra.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from platform.results.numbers import tick_step
from platform.results.report.blocks import (
    Basis,
    Block,
    Bullets,
    Facts,
    Figure,
    Paragraph,
    Plot,
    Table,
    Words,
    text_of,
)
from platform.results.report.document import SCHEMA_VERSION, Report, proof_anchor

TEMPLATES: Final = Path(__file__).parent / "templates"

WIDTH, HEIGHT = 480, 270
LEFT, RIGHT, TOP, BOTTOM = 60, 14, 34, 48
FRAME: Final = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT}
STYLES: Final = (
    ("circle", "none", "#1b1f24"),
    ("square", "8 5", "#0b4f8a"),
    ("triangle", "2 4", "#7a1f00"),
)
"""Mark, dashes and ink of each line; mark and dashes alone tell lines apart."""
_MOST_MARKS: Final = 40
VARIANT: Final = "pdf/ua-1"


def html_page(report: Report) -> str:
    """Return a report as a whole HTML document."""
    template = environment(TEMPLATES, keep_trailing_newline=True).get_template("report.html.jinja")
    numbers = {basis: number for number, basis in enumerate(report.bases, start=1)}
    return template.render(
        report=report,
        style=(TEMPLATES / "report.css").read_text("utf-8"),
        number_of=lambda figure: numbers[figure.basis],
        proof_anchor=proof_anchor,
    )


def environment(folder: Path, **options: Any) -> Environment:
    """Return an environment whose templates escape all texts, and can draw plots."""
    found = Environment(
        loader=FileSystemLoader((folder, TEMPLATES)),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )
    found.filters["kind"] = lambda value: type(value).__name__
    found.globals.update(canvas=canvas, frame=FRAME)
    return found


def canvas(plot: Plot) -> dict[str, Any]:
    """Return the places of all parts of a plot, in pixels from the top left corner.

    Args:
        plot: A plot with at least one point; all points are finite.

    Returns:
        `across` and `up`: place and label of each tick of an axis. `limit`: height of the limit,
        or None. `lines`: for each line `label`, `mark`, `dashes`, `ink`, `path` (its corners, as
        SVG reads them), `spots` (places and notes of its marks) and `key` (place in the legend).
    """
    places = sorted({x for line in plot.lines for x, _ in line.points})
    highest = max((y for line in plot.lines for _, y in line.points), default=1.0)
    if plot.limit is not None:
        highest = max(highest, plot.limit[0])
    step = 0.25 if plot.percent else tick_step(highest)
    top = 1.0 if plot.percent else max(step * math.ceil(highest / step - 1e-9), step)
    low, high = places[0], max(places[-1], places[0] + 1)
    ticks = places[:: -(-len(places) // 10)]
    if any(x % 1.0 for x in places):
        # Not rounds, but an amount.
        wide = tick_step(places[-1])
        ticks = [wide * index for index in range(math.ceil(places[-1] / wide - 1e-9) + 1)]
        low, high = 0.0, ticks[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return (
            round(LEFT + (x - low) / (high - low) * wide, 1),
            round(TOP + (1.0 - y / top) * tall, 1),
        )

    lines = []
    for index, line in enumerate(plot.lines):
        notes = line.notes or ("",) * len(line.points)
        spots = [(*place(x, y), note) for (x, y), note in zip(line.points, notes, strict=True)]
        every = max(1, -(-len(spots) // _MOST_MARKS))
        mark, dashes, ink = STYLES[index % len(STYLES)]
        lines.append(
            {
                "label": line.label,
                "mark": mark,
                "dashes": dashes,
                "ink": ink,
                "path": " ".join(f"{x},{y}" for x, y, _ in spots),
                # The last one too.
                "spots": [*spots[:-1:every], *spots[-1:]],
                "key": (LEFT + 4.0 + index * (WIDTH - LEFT - RIGHT) / len(plot.lines), 14.0),
            }
        )
    levels = [step * index for index in range(round(top / step) + 1)]
    return {
        "across": [(place(x, 0.0)[0], f"{x:g}") for x in ticks],
        "up": [
            (place(low, y)[1], f"{100 * y:.0f}%" if plot.percent else f"{y:.6g}") for y in levels
        ],
        "lines": lines,
        "limit": None if plot.limit is None else place(low, plot.limit[0])[1],
    }


def pdf_file(report: Report) -> bytes:
    """Return a report as a tagged PDF."""
    weasyprint = load_weasyprint()

    def say_scopes(document: Any, pdf: Any) -> None:
        # Each header cell is the header of its column or its row (PDF/UA-1, 7.5).
        found: list[Any] = [one for one in pdf.objects if isinstance(one, dict) and "S" in one]
        elements = {one.reference: one for one in found}
        for cell in elements.values():
            if cell["S"] == "/TH":
                group = elements[elements[cell["P"]]["P"]]
                cell["A"]["Scope"] = "/Column" if group["S"] == "/THead" else "/Row"

    # A report needs nothing from elsewhere, so any fetch is an error.
    nothing = weasyprint.urls.URLFetcher(allowed_protocols=(), fail_on_errors=True)
    page = weasyprint.HTML(string=html_page(report), url_fetcher=nothing)
    made: bytes = page.write_pdf(pdf_variant=VARIANT, finisher=say_scopes)
    return made


def load_weasyprint() -> Any:
    """Return WeasyPrint, which loads Pango; an ImportError or OSError says which is missing."""
    import weasyprint

    return weasyprint


def plain_data(report: Report) -> dict[str, Any]:
    """Return a report as plain data: warnings first, infinity as "inf"."""
    numbers = {basis: number for number, basis in enumerate(report.bases, start=1)}
    return {
        "warnings": list(report.warnings),
        "schema_version": SCHEMA_VERSION,
        "run_id": report.run_id,
        "title": report.title,
        "lead": _block(report.lead, numbers),
        "right_guesses_of_100_at_most": {
            name: None if figure is None else figure.value for name, figure in report.odds
        },
        "sections": [
            {
                "anchor": section.anchor,
                "title": section.title,
                "blocks": [_block(block, numbers) for block in section.blocks],
            }
            for section in report.sections
        ],
        "rests_on": [
            {
                "number": number,
                "what": basis.what,
                "run": basis.run_id or None,
                "rows": [
                    {"round": round_number, "attempt": attempt, "channel": channel}
                    for round_number, attempt, channel in basis.places
                ],
                "pseudonyms": None if basis.pseudonyms is None else list(basis.pseudonyms),
                "audit_entries": list(basis.entries),
                "command": basis.check or None,
            }
            for basis, number in numbers.items()
        ],
    }


def _block(block: Block, numbers: Mapping[Basis, int]) -> dict[str, Any]:
    match block:
        case Paragraph():
            return {"kind": "paragraph", "text": _words(block.words, numbers)}
        case Bullets():
            return {"kind": "list", "items": [_words(item, numbers) for item in block.items]}
        case Facts():
            rows = [{"term": term, "is": _words(line, numbers)} for term, line in block.rows]
            return {"kind": "facts", "rows": rows}
        case Table():
            cells = [[_words(cell, numbers) for cell in row] for row in block.rows]
            head = {"caption": block.caption, "columns": list(block.columns)}
            return {"kind": "table", **head, "rows": cells, "anchors": list(block.anchors)}
        case _:
            lines = [{"label": one.label, "points": list(one.points)} for one in block.lines]
            return {"kind": "plot", "title": block.title, "says": block.says, "lines": lines}


def _words(line: Words, numbers: Mapping[Basis, int]) -> dict[str, Any] | str:
    """Return plain text; with numbers in it, return text and numbers."""
    figures = [
        {"text": piece.text, "value": piece.value, "rests_on": numbers[piece.basis]}
        for piece in line
        if isinstance(piece, Figure)
    ]
    return {"text": text_of(line), "numbers": figures} if figures else text_of(line)


ENCODERS: Final[Mapping[str, Callable[[Report], bytes]]] = {
    "json": lambda report: (
        json.dumps(plain_data(report), indent=2, allow_nan=False) + "\n"
    ).encode(),
    "html": lambda report: html_page(report).encode(),
    "pdf": pdf_file,
}
"""The forms of a report's file, by the file's ending."""
