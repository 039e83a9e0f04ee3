"""Pictures of many values a row: one dot each, their mean, and the lowest as numbers."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from platform.pictures.canvas import fitted, new_figure
from platform.pictures.style import FONT_SIZE, INK, SMALL, look, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAMES: Final = 2.6
_AXES: Final = 3.4
_ROW: Final = 0.36
_LANES: Final = 7
"""Heights within a row, so that equal values lie beside each other."""


@dataclass(frozen=True, kw_only=True)
class DotPicture:
    """Rows of dots.

    Attributes:
        name: Of the file, without a suffix.
        title: What it shows, in words.
        across: What the dots measure, in percent.
        rows: Names.
        values: Of each row, at least one.
    """

    name: str
    title: str
    across: str
    rows: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]

    def figure(self) -> Figure:
        """Return the figure."""
        names = [wrapped(row, _NAMES) for row in self.rows]
        lines = max(name.count("\n") + 1 for name in names)
        tall = max(_ROW, 0.16 * lines + 0.06) * len(names)
        figure = new_figure(7.0, tall + 1.2)
        axes = figure.subplots()
        for row, values in enumerate(self.values):
            _draw_row(axes, row, values)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", alpha=0.3)
        figure.suptitle(wrapped(self.title, 6.6, FONT_SIZE + 1.0), fontsize=FONT_SIZE + 1.0)
        axes.set_xlabel(wrapped(f"{self.across}\n(upright line: the mean)", _AXES))
        _spread_limits(axes, [value for values in self.values for value in values])
        return fitted(figure, {axes: (_AXES, tall)})


def _draw_row(axes: Axes, row: int, values: tuple[float, ...]) -> None:
    style, mean = look(row), statistics.fmean(values)
    ordered = sorted(values)
    heights = [row + 0.09 * (place % _LANES - _LANES // 2) for place in range(len(ordered))]
    axes.plot(
        *(ordered, heights),
        linestyle="none",
        marker=style.mark,
        color=style.colour,
        markersize=3.5,
        markerfacecolor="none",
        alpha=0.75,
    )
    axes.vlines(mean, row - 0.38, row + 0.38, color=INK, linewidth=1.6)
    axes.annotate(
        f"mean {mean:.1f}, worst {ordered[0]:.1f}",
        (1.0, row),
        xycoords=axes.get_yaxis_transform(),
        xytext=(6.0, 0.0),
        textcoords="offset points",
        va="center",
        fontsize=SMALL,
        color=INK,
        annotation_clip=False,
    )


def _spread_limits(axes: Axes, values: list[float]) -> None:
    low, high = min(values), max(values)
    wide = max(high - low, 2.0)
    middle = (low + high) / 2.0
    axes.set_xlim(middle - 0.54 * wide, middle + 0.54 * wide)
