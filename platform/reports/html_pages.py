"""A report as one HTML file: no script, nothing fetched, all text escaped, readable by all.

The template knows blocks, not runs. Undefined names in it are errors, and whatever is put into it
is escaped: names, sentences and details may have been written by anybody.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from platform.reports.blocks import Figure, Link, Plot
from platform.reports.evidence import proof_anchor
from platform.reports.report import Report

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
    template = _environment().get_template("report.html.jinja")
    numbers = {basis: number for number, basis in enumerate(report.bases, start=1)}
    return template.render(
        report=report,
        style=(TEMPLATES / "report.css").read_text("utf-8"),
        number_of=lambda figure: numbers[figure.basis],
        proof_anchor=proof_anchor,
        canvas=canvas,
        frame={"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT, "top": TOP},
    )


def _environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.tests["figure"] = _is_figure
    found.tests["link"] = _is_link
    found.filters["kind"] = _kind
    return found


def _is_figure(value: Any) -> bool:
    return isinstance(value, Figure)


def _is_link(value: Any) -> bool:
    return isinstance(value, Link)


def _kind(value: Any) -> str:
    return type(value).__name__


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

    levels = [step * index for index in range(round(top / step) + 1)]
    return Canvas(
        plot=plot,
        across=tuple((place(x, 0.0)[0], f"{x:g}") for x in _some(rounds)),
        up=tuple((place(low, y)[1], _level(y, percent=plot.percent)) for y in levels),
        lines=tuple(
            _drawn(index, len(plot.lines), line.label, [place(x, y) for x, y in line.points])
            for index, line in enumerate(plot.lines)
        ),
        limit=None if plot.limit is None else place(low, plot.limit[0])[1],
    )


def _drawn(index: int, lines: int, label: str, spots: Sequence[Spot]) -> DrawnLine:
    every = max(1, -(-len(spots) // _MOST_MARKS))
    mark, dashes, ink = STYLES[index % len(STYLES)]
    return DrawnLine(
        label=label,
        mark=mark,
        dashes=dashes,
        ink=ink,
        path=" ".join(f"{x},{y}" for x, y in spots),
        spots=tuple(spots[::every]),
        key=(LEFT + 4.0 + index * (WIDTH - LEFT - RIGHT) / lines, 14.0),
    )


def _step(highest: float) -> float:
    """Return a step of 1, 2 or 5 times a power of ten with which a few ticks reach the top."""
    rough = max(highest, 1e-9) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return next(n * power for n in (1.0, 2.0, 5.0, 10.0) if n * power >= rough * (1 - 1e-9))


def _some(rounds: Sequence[float]) -> list[float]:
    every = max(1, -(-len(rounds) // 10))
    return list(rounds[::every])


def _level(value: float, *, percent: bool) -> str:
    return f"{100 * value:.0f}%" if percent else f"{value:.6g}"
