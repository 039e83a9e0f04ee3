"""Pictures of lines: panels of curves with bands, also towards an infinite value."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from platform.pictures.canvas import add_legend, fitted, new_figure
from platform.pictures.style import FONT_SIZE, INK, look, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOGARITHMIC_FROM: Final = 16.0
"""From this ratio of the largest to the smallest value an even axis would crowd the small ones."""
INFINITE: Final = "∞\nnot bounded"
_WIDTH, _HEIGHT = 3.5, 2.6
_LEAST: Final = (2.7, 2.0)
"""Width and height of axes, inches; what is written along them is no longer."""
_LEAST_RANGE: Final = 2.0
"""Of what is in percent: a smaller range would make a picture of rounding."""
_CROWDED: Final = 0.05
"""Share of an axis below which two of its labels would overlap."""


@dataclass(frozen=True)
class Point:
    """One point of a line, and how far the values reach that it stands for.

    Attributes:
        x: Infinite where nothing bounds it.
        y: Likewise.
        low: Lower end of its band.
        high: Upper end.
    """

    x: float
    y: float
    low: float
    high: float


def point(x: float, y: float, deviation: float | None = None) -> Point:
    """Return a point with a band of one deviation on each side, None for no band."""
    width = deviation or 0.0
    return Point(x, y, y - width, y + width)


def percent(x: float, share: float, deviation: float | None = None) -> Point:
    """Return a point for a share in [0, 1], its band no wider than there are shares."""
    found = point(x, 100.0 * share, 100.0 * (deviation or 0.0))
    return Point(x, found.y, max(found.low, 0.0), min(found.high, 100.0))


@dataclass(frozen=True)
class Line:
    """A line of a panel.

    Attributes:
        label: What it is called; one label looks the same in all panels.
        points: In the order in which they are joined.
    """

    label: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Scale:
    """An axis.

    Attributes:
        label: What it measures.
        kind: Whole numbers, percent, the very values of the points, or any amount from 0.
    """

    label: str
    kind: Literal["whole", "percent", "values", "amount"]


@dataclass(frozen=True)
class Panel:
    """Lines on common axes.

    Attributes:
        title: What stands above.
        across: The horizontal axis.
        up: The vertical one.
        lines: At least one.
    """

    title: str
    across: Scale
    up: Scale
    lines: tuple[Line, ...]


@dataclass(frozen=True, kw_only=True)
class LinePicture:
    """Panels of lines with one legend for all.

    Attributes:
        name: Of the file, without a suffix.
        title: What it shows, in words.
        panels: Row by row.
        columns: Panels a row.
    """

    name: str
    title: str
    panels: tuple[Panel, ...]
    columns: int

    def figure(self) -> Figure:
        """Return the figure."""
        columns = min(self.columns, len(self.panels))
        rows = -(-len(self.panels) // columns)
        figure = new_figure(max(_WIDTH * columns, 5.2), _HEIGHT * rows + 1.0)
        places = figure.subplots(rows, columns, squeeze=False)
        names = list(dict.fromkeys(line.label for one in self.panels for line in one.lines))
        handles: dict[str, Any] = {}
        for axes, panel in itertools.zip_longest(places.flat, self.panels):
            if panel is None:
                axes.set_axis_off()
            else:
                handles |= _draw_panel(axes, panel, names)
        add_legend(figure, {name: handles[name] for name in names})
        return fitted(figure, {axes: _LEAST for axes in places.flat if axes.axison})


def _draw_panel(axes: Axes, panel: Panel, names: Sequence[str]) -> dict[str, Any]:
    points = [point for line in panel.lines for point in line.points]
    across = _Reach.of(panel.across, [point.x for point in points])
    up = _Reach.of(panel.up, [v for point in points for v in (point.y, point.low, point.high)])
    handles = {
        line.label: _draw_line(axes, line, names.index(line.label), (across, up))
        for line in panel.lines
    }
    across.label(axes, axes.xaxis)
    up.label(axes, axes.yaxis)
    axes.set_title(wrapped(panel.title, _LEAST[0], FONT_SIZE + 1.0))
    axes.set_xlabel(wrapped(panel.across.label, _LEAST[0]))
    axes.set_ylabel(wrapped(panel.up.label, _LEAST[1]))
    axes.grid(alpha=0.3)
    return handles


def _draw_line(axes: Axes, line: Line, index: int, reaches: tuple[_Reach, _Reach]) -> Any:
    style, (across, up) = look(index), reaches
    common: Any = {"color": style.colour, "marker": style.mark, "markersize": 5.0}
    finite = [p for p in line.points if math.isfinite(p.x) and math.isfinite(p.y)]
    others = [p for p in line.points if p not in finite]
    # Hollow, so that of lines on top of each other more than the last is seen.
    hollow = {"markerfacecolor": "none", "markeredgewidth": 1.2}
    every = max(1, len(finite) // 12)
    (handle,) = axes.plot(
        *([p.x for p in finite], [p.y for p in finite], style.dashes),
        **(common | hollow),
        markevery=every,
        linewidth=1.5,
    )
    for p in others:
        # Not joined: there is nothing between the last number and what no number bounds.
        spots = ([across.place(p.x)], [up.place(p.y)], "none")
        axes.plot(*spots[:2], linestyle=spots[2], **(common | hollow))
        if math.isfinite(p.y) and p.high > p.low:
            axes.vlines(spots[0], p.low, p.high, color=style.colour, linewidth=1.0)
    if any(p.high > p.low for p in finite):
        low, high = [p.low for p in finite], [p.high for p in finite]
        axes.fill_between(
            *([p.x for p in finite], low, high), color=style.colour, alpha=0.13, linewidth=0
        )
        if len(finite) == 1:
            axes.vlines([finite[0].x], low, high, color=style.colour, linewidth=1.0)
    return handle


@dataclass(frozen=True, kw_only=True)
class _Reach:
    """What an axis reaches over, with a place beyond its end for what is infinite."""

    scale: Scale
    values: tuple[float, ...]
    has_infinite: bool
    is_logarithmic: bool

    @classmethod
    def of(cls, scale: Scale, values: Sequence[float]) -> _Reach:
        finite = tuple(sorted({value for value in values if math.isfinite(value)}))
        crowds = (
            scale.kind in ("values", "amount")
            and len(finite) > 1
            and finite[0] > 0.0
            and finite[-1] / finite[0] >= LOGARITHMIC_FROM
        )
        infinite = any(math.isinf(value) for value in values)
        return cls(scale=scale, values=finite, has_infinite=infinite, is_logarithmic=crowds)

    def place(self, value: float) -> float:
        """Return where a value lies."""
        return value if math.isfinite(value) else self._beyond(0.16)

    def label(self, axes: Axes, axis: Any) -> None:
        """Set limits and labels."""
        name = axis.axis_name
        if self.is_logarithmic:
            getattr(axes, f"set_{name}scale")("log")
            axes.minorticks_off()
        getattr(axes, f"set_{name}lim")(*self._limits())
        ticks = self._ticks(axis)
        labels = [f"{tick:.12g}" if self.scale.kind == "values" else f"{tick:g}" for tick in ticks]
        if self.has_infinite:
            ticks, labels = [*ticks, self.place(math.inf)], [*labels, INFINITE]
            draw = axes.axvline if name == "x" else axes.axhline
            draw(self._beyond(0.08), color=INK, linewidth=0.8, linestyle=(0, (1, 2)))
        axis.set_ticks(ticks, labels)

    def _limits(self) -> tuple[float, float]:
        low, high = self._ends()
        end = self._beyond(0.24 if self.has_infinite else 0.05)
        if self.is_logarithmic:
            return low / (high / low) ** 0.05, end
        begin = low - 0.05 * (high - low)
        return (-0.03 * (end - low) if self.scale.kind == "amount" else begin), end

    def _ends(self) -> tuple[float, float]:
        """Return lowest and highest value, apart from each other."""
        low, high = (self.values[0], self.values[-1]) if self.values else (0.0, 1.0)
        if self.scale.kind == "amount" and not self.is_logarithmic:
            low, high = 0.0, high or 1.0
        if self.scale.kind == "percent" and high - low < _LEAST_RANGE:
            middle = (low + high) / 2.0
            return middle - _LEAST_RANGE / 2.0, middle + _LEAST_RANGE / 2.0
        return (low, high) if high > low else (low - 0.5, high + 0.5)

    def _beyond(self, share: float) -> float:
        """Return a place beyond the highest value, by a share of the axis."""
        low, high = self._ends()
        if self.is_logarithmic:
            return float(high * (high / low) ** share)
        return high + share * (high - low)

    def _ticks(self, axis: Any) -> list[float]:
        if not self.values:
            return []
        if self.scale.kind == "values":
            return list(self._apart(self.values))
        low, high = self._ends()
        if self.is_logarithmic:
            return list(self._apart(_even_numbers(low, high)))
        from matplotlib.ticker import MaxNLocator

        is_whole = self.scale.kind == "whole"
        found = MaxNLocator(nbins=7, integer=is_whole, steps=[1, 2, 5, 10]).tick_values(low, high)
        begin = self.values[0] if is_whole else self._limits()[0]
        begin = 0.0 if self.scale.kind == "amount" else begin
        return [float(tick) for tick in found if begin <= tick <= self._beyond(0.05)]

    def _apart(self, values: Sequence[float]) -> Iterator[float]:
        """Yield values whose labels do not overlap."""
        low, high = self._ends()
        last: float | None = None
        for value in values:
            where = (value - low) / (high - low)
            if self.is_logarithmic:
                where = math.log(value / low) / math.log(high / low)
            if last is None or where - last >= _CROWDED:
                last = where
                yield value


def _even_numbers(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten within a range."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [n * 10.0**power for power in powers for n in (1.0, 2.0, 5.0)]
    return [value for value in every if 0.99 * low <= value <= 1.01 * high] or [low, high]
