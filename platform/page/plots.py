"""Where axes, points and labels of a plot lie on its canvas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from platform.page.sheets import Plot, Point

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 84, 24, 20, 64
MOST_MARKS: Final = 60
_TICKS: Final = 5


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A plot with places for everything in it.

    Attributes:
        plot: What it shows.
        across: Ticks of the horizontal axis: place and label.
        up: Ticks of the vertical axis.
        path: The line's corners, as SVG reads them.
        marks: Places of the points that have a mark, and the points.
    """

    plot: Plot
    across: tuple[tuple[float, str], ...]
    up: tuple[tuple[float, str], ...]
    path: str
    marks: tuple[tuple[float, float, Point], ...]


def drawing(plot: Plot) -> Drawing | None:
    """Return a plot with places for everything in it; None where nothing can be drawn."""
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
    return Drawing(
        plot=plot,
        across=tuple((place(step * i, 0.0)[0], f"{step * i:g}") for i in range(count + 1)),
        up=tuple((place(0.0, y)[1], f"{100 * y:.0f}%") for y in (0.0, 0.25, 0.5, 0.75, 1.0)),
        path=" ".join(f"{x},{y}" for x, y, _ in spots),
        marks=tuple(_some(spots)),
    )


def tick_step(highest: float) -> float:
    """Return a step of 1, 2 or 5 times a power of ten with which a few ticks reach the top."""
    rough = max(highest, 1e-9) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return next(n * power for n in (1.0, 2.0, 5.0, 10.0) if n * power >= rough * (1 - 1e-9))


def _some(
    spots: Sequence[tuple[float, float, Point]],
) -> list[tuple[float, float, Point]]:
    """Return every so many of the points, and the last one always."""
    every = -(-len(spots) // MOST_MARKS)
    chosen = list(spots[::every])
    return chosen if chosen[-1] is spots[-1] else [*chosen, spots[-1]]
