"""Pictures of cells: rows by columns, dark where much is, with a number in each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from platform.pictures.bars import Bar
from platform.pictures.canvas import fitted, new_figure
from platform.pictures.style import FONT_SIZE, INK, SHADES, SMALL, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAMES: Final = 2.6
_CELL: Final = (0.62, 0.34)
_DARK: Final = 0.55
"""Share of the largest value from which a number is written in white."""


@dataclass(frozen=True, kw_only=True)
class CellPicture:
    """A number for each row and column.

    Attributes:
        name: Of the file, without a suffix.
        title: What it shows, in words.
        across: What the columns are.
        columns: Their names.
        rows: Names.
        cells: By row, then by column.
    """

    name: str
    title: str
    across: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    cells: tuple[tuple[Bar, ...], ...]

    def figure(self) -> Figure:
        """Return the figure."""
        names = [wrapped(row, _NAMES) for row in self.rows]
        lines = max(name.count("\n") + 1 for name in names)
        least = (max(_CELL[0] * len(self.columns), 2.0), max(_CELL[1], 0.16 * lines) * len(names))
        width = max(least[0] + 3.2, 4.4)
        figure = new_figure(width, least[1] + 1.1)
        axes = figure.subplots()
        _draw(axes, self)
        axes.set_xticks(range(len(self.columns)), [wrapped(n, 0.6) for n in self.columns])
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(length=0)
        axes.set_xlabel(wrapped(self.across, least[0]))
        figure.suptitle(wrapped(self.title, width - 0.4, FONT_SIZE + 1.0), fontsize=FONT_SIZE + 1.0)
        return fitted(figure, {axes: least})


def _draw(axes: Axes, picture: CellPicture) -> None:
    import numpy as np

    values = [[np.nan if c.value is None else c.value for c in row] for row in picture.cells]
    shown = np.ma.masked_invalid(np.array(values, float))
    top = float(shown.max()) or 1.0
    axes.imshow(shown, cmap=SHADES, vmin=0.0, vmax=top, aspect="auto", interpolation="nearest")
    for spine in axes.spines.values():
        spine.set_visible(False)
    for row, cells in enumerate(picture.cells):
        for column, cell in enumerate(cells):
            if cell.value is None:
                continue
            text = f"{cell.value:.1f}"
            text += "" if cell.deviation is None else f"\n± {cell.deviation:.1f}"
            ink = "white" if cell.value > _DARK * top else INK
            axes.text(column, row, text, ha="center", va="center", fontsize=SMALL, color=ink)
