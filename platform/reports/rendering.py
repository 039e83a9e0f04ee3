"""A report as plain data, as one HTML file, and as a tagged PDF (PDF/UA-1).

The HTML holds no script and fetches nothing. Names, sentences and details may have been written by
anybody, so the template escapes all that is put into it, and treats undefined names as errors.
WeasyPrint makes the PDF of the page. It needs Pango, a library of the operating system, so it is an
extra.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from platform.reports.blocks import (
    Basis,
    Block,
    Bullets,
    Facts,
    Figure,
    Link,
    Paragraph,
    Plot,
    Table,
    Words,
    text_of,
)
from platform.reports.evidence import proof_anchor
from platform.reports.report import SCHEMA_VERSION, Report

TEMPLATES: Final = Path(__file__).parent / "templates"

WIDTH, HEIGHT = 480, 270
LEFT, RIGHT, TOP, BOTTOM = 60, 14, 34, 48
STYLES: Final = (
    ("circle", "none", "#1b1f24"),
    ("square", "8 5", "#0b4f8a"),
    ("triangle", "2 4", "#7a1f00"),
)
"""Mark, dashes and ink of each line, which are told apart without the ink."""
_MOST_MARKS: Final = 40
_TICKS: Final = 5

Spot = tuple[float, float]


def html_page(report: Report) -> str:
    """Return a report as a whole HTML document."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.tests["figure"] = lambda value: isinstance(value, Figure)
    environment.tests["link"] = lambda value: isinstance(value, Link)
    environment.filters["kind"] = lambda value: type(value).__name__
    template = environment.get_template("report.html.jinja")
    numbers = {basis: number for number, basis in enumerate(report.bases, start=1)}
    return template.render(
        report=report,
        style=(TEMPLATES / "report.css").read_text("utf-8"),
        number_of=lambda figure: numbers[figure.basis],
        proof_anchor=proof_anchor,
        canvas=canvas,
        frame={"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT, "top": TOP},
    )


@dataclass(frozen=True, kw_only=True)
class DrawnLine:
    """One line on the canvas.

    Attributes:
        label: What it is.
        mark: The shape at its points.
        dashes: Lengths of dashes and gaps, or none.
        ink: Its colour.
        path: Its corners, as SVG reads them.
        spots: Where the marks are.
        key: Where it stands in the legend.
    """

    label: str
    mark: str
    dashes: str
    ink: str
    path: str
    spots: tuple[Spot, ...]
    key: Spot


@dataclass(frozen=True, kw_only=True)
class Canvas:
    """A plot with places for everything in it.

    Attributes:
        plot: What it shows.
        across: Ticks of the horizontal axis: place and label.
        up: Ticks of the vertical axis.
        lines: The lines.
        limit: Height of the level to be compared with; None without.
    """

    plot: Plot
    across: tuple[tuple[float, str], ...]
    up: tuple[tuple[float, str], ...]
    lines: tuple[DrawnLine, ...]
    limit: float | None


def canvas(plot: Plot) -> Canvas:
    """Return a plot with places for everything in it.

    Args:
        plot: At least one point, all finite.
    """
    rounds = sorted({x for line in plot.lines for x, _ in line.points})
    highest = max((y for line in plot.lines for _, y in line.points), default=1.0)
    if plot.limit is not None:
        highest = max(highest, plot.limit[0])
    step = 0.25 if plot.percent else _step(highest)
    top = 1.0 if plot.percent else max(step * math.ceil(highest / step - 1e-9), step)
    low, high = rounds[0], max(rounds[-1], rounds[0] + 1)

    def place(x: float, y: float) -> Spot:
        wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return (
            round(LEFT + (x - low) / (high - low) * wide, 1),
            round(TOP + (1.0 - y / top) * tall, 1),
        )

    lines = []
    for index, line in enumerate(plot.lines):
        spots = tuple(place(x, y) for x, y in line.points)
        mark, dashes, ink = STYLES[index % len(STYLES)]
        lines.append(
            DrawnLine(
                label=line.label,
                mark=mark,
                dashes=dashes,
                ink=ink,
                path=" ".join(f"{x},{y}" for x, y in spots),
                spots=spots[:: max(1, -(-len(spots) // _MOST_MARKS))],
                key=(LEFT + 4.0 + index * (WIDTH - LEFT - RIGHT) / len(plot.lines), 14.0),
            )
        )
    levels = [step * index for index in range(round(top / step) + 1)]
    return Canvas(
        plot=plot,
        across=tuple((place(x, 0.0)[0], f"{x:g}") for x in rounds[:: -(-len(rounds) // 10)]),
        up=tuple(
            (place(low, y)[1], f"{100 * y:.0f}%" if plot.percent else f"{y:.6g}") for y in levels
        ),
        lines=tuple(lines),
        limit=None if plot.limit is None else place(low, plot.limit[0])[1],
    )


def _step(highest: float) -> float:
    """Return a step of 1, 2 or 5 times a power of ten with which a few ticks reach the top."""
    rough = max(highest, 1e-9) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return next(n * power for n in (1.0, 2.0, 5.0, 10.0) if n * power >= rough * (1 - 1e-9))


VARIANT: Final = "pdf/ua-1"


def pdf_file(report: Report) -> bytes:
    """Return a report as a tagged PDF.

    Raises:
        ImportError: If WeasyPrint is not installed.
        OSError: If Pango is not installed.
    """
    weasyprint = load_weasyprint()
    # Whatever would be fetched ends the work: there is nothing in a report that would need it.
    nothing = weasyprint.urls.URLFetcher(allowed_protocols=(), fail_on_errors=True)
    page = weasyprint.HTML(string=html_page(report), url_fetcher=nothing)
    made: bytes = page.write_pdf(pdf_variant=VARIANT, finisher=_say_scopes)
    return made


def _say_scopes(document: Any, pdf: Any) -> None:
    """Say of each header cell whether it is of its column or its row (PDF/UA-1, 7.5).

    Cells name their headers, but the header above a column of headers is named by none.
    """
    found: list[Any] = [one for one in pdf.objects if isinstance(one, dict) and "S" in one]
    elements = {one.reference: one for one in found}
    for cell in elements.values():
        if cell["S"] == "/TH":
            group = elements[elements[cell["P"]]["P"]]
            cell["A"]["Scope"] = "/Column" if group["S"] == "/THead" else "/Row"


def load_weasyprint() -> Any:
    """Return the module that lays out; it loads Pango when it is imported.

    Raises:
        ImportError: If it is not installed.
        OSError: If Pango is not installed.
    """
    import weasyprint

    return weasyprint


def plain_data(report: Report) -> dict[str, Any]:
    """Return a report as plain data, warnings first; infinity as "inf"."""
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
    """Return plain text, and beside it the numbers in it where there are any."""
    figures = [
        {"text": piece.text, "value": piece.value, "rests_on": numbers[piece.basis]}
        for piece in line
        if isinstance(piece, Figure)
    ]
    return {"text": text_of(line), "numbers": figures} if figures else text_of(line)
