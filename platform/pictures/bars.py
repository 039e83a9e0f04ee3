"""Pictures of bars, all with their numbers: lying, so that long names have room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from platform.pictures.canvas import add_legend, fitted, new_figure
from platform.pictures.style import FONT_SIZE, INK, SMALL, drawable, look, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAMES: Final = 2.6
_AXES: Final = 3.4
"""Inches for the names of rows."""
_BAR: Final = 0.17
_BETWEEN: Final = 0.1


@dataclass(frozen=True)
class Bar:
    """One bar.

    Attributes:
        value: Its length, None where there is none.
        deviation: Of the numbers that it is the mean of, None of a single one.
    """

    value: float | None
    deviation: float | None = None


@dataclass(frozen=True)
class Series:
    """Bars that look alike, one a row.

    Attributes:
        label: What they are called.
        bars: In the order of the rows.
    """

    label: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, kw_only=True)
class BarPicture:
    """Rows of bars.

    Attributes:
        name: Of the file, without a suffix.
        title: What it shows, in words.
        across: What the bars measure, in percent.
        up: What the rows are; empty where their names say it.
        rows: Names.
        series: One bar a row of each.
        absent: What stands where a bar is missing.
    """

    name: str
    title: str
    across: str
    up: str
    rows: tuple[str, ...]
    series: tuple[Series, ...]
    absent: str = "not measured"

    def figure(self) -> Figure:
        """Return the figure."""
        names = [wrapped(row, _NAMES) for row in self.rows]
        lines = max(name.count("\n") + 1 for name in names)
        row = max(_BAR * len(self.series) + _BETWEEN, 0.16 * lines + 0.04)
        tall = max(row * len(names) + 0.2, 1.0)
        figure = new_figure(6.4, tall + 1.3)
        axes = figure.subplots()
        handles = _draw(axes, self, names)
        figure.suptitle(wrapped(self.title, 6.0, FONT_SIZE + 1.0), fontsize=FONT_SIZE + 1.0)
        axes.set_xlabel(wrapped(self.across, _AXES))
        axes.set_ylabel(wrapped(self.up, tall))
        if len(handles) > 1:
            add_legend(figure, handles)
        return fitted(figure, {axes: (_AXES, tall)})


def _draw(axes: Axes, picture: BarPicture, names: Sequence[str]) -> dict[str, Any]:
    count, handles = len(picture.series), dict[str, Any]()
    width = 0.84 / count
    longest = 0.0
    for index, series in enumerate(picture.series):
        style = look(index)
        known = [(row, bar) for row, bar in enumerate(series.bars) if bar.value is not None]
        places = [row - 0.42 + width * (index + 0.5) for row in range(len(names))]
        drawn = axes.barh(
            *([places[row] for row, _ in known], [bar.value or 0.0 for _, bar in known], width),
            color=style.colour,
            hatch=style.hatch,
            edgecolor="white",
            linewidth=0.6,
        )
        handles[series.label] = drawn
        for row, bar in enumerate(series.bars):
            longest = max(longest, _number(axes, bar, places[row], picture.absent))
    axes.set_xlim(0.0, 1.05 * longest or 1.0)
    axes.set_yticks(range(len(names)), list(names))
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", alpha=0.3)
    return handles


def _number(axes: Axes, bar: Bar, place: float, absent: str) -> float:
    """Write a bar's number behind it; return how far it reaches."""
    value, width = bar.value or 0.0, bar.deviation or 0.0
    text = drawable(absent) if bar.value is None else f"{value:.1f}"
    if bar.deviation is not None:
        text += f" ± {width:.1f}"
        axes.hlines(place, max(value - width, 0.0), value + width, color=INK, linewidth=1.2)
    axes.annotate(
        text,
        (value + width, place),
        xytext=(3.0, 0.0),
        textcoords="offset points",
        va="center",
        fontsize=SMALL,
        color=INK,
        annotation_clip=False,
    )
    return value + width
