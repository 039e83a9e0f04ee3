"""The picture of who has what: clients by classes, and how many examples each client has in all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from platform.data.loading import PARTS, Holding
from platform.pictures.canvas import (
    ALARM,
    SHADES,
    add_legend,
    fitted,
    look,
    new_figure,
    require_drawable,
    wrapped,
    write_picture,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["HoldingsPicture", "draw_holdings", "require_drawable"]

MOST_NAMES: Final = 40
"""More names along an axis than this would overlap; every so many is written then."""
_SMALL: Final = 7.0
_NAME: Final = 1.8
"""Inches for the name of a class."""


@dataclass(frozen=True, kw_only=True)
class HoldingsPicture:
    """Who has what.

    Attributes:
        held: At least one client.
        classes: Names of the classes that are dealt out.
        title: What stands above.
        name: Of the file, without a suffix.
    """

    held: Sequence[Holding] = field(repr=False)
    classes: Sequence[str]
    title: str
    name: str = "holdings"

    def figure(self) -> Figure:
        """Return the figure."""
        rows, columns = min(len(self.held), 60), min(len(self.classes), 60)
        width, height = max(7.0, 4.2 + 0.2 * columns), max(3.2, 1.8 + 0.18 * rows)
        figure = new_figure(width, height)
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1))
        _draw_classes(left, self.held, self.classes)
        add_legend(figure, _draw_totals(right, self.held))
        figure.suptitle(wrapped(self.title, width - 0.6, 10.0), fontsize=10.0)
        least = max(0.14 * min(len(self.held), MOST_NAMES), 1.5)
        across = max(0.13 * min(len(self.classes), MOST_NAMES), 1.5)
        return fitted(figure, {left: (across, least), right: (1.0, least)})


def draw_holdings(
    held: Sequence[Holding], classes: Sequence[str], path: Path, *, title: str
) -> None:
    """Draw the counts into a file.

    Args:
        held: At least one client.
        classes: Names of the classes that are dealt out.
        path: Ends in .svg or .png.
        title: What stands above.

    Raises:
        ConfigError: If it cannot be written.
    """
    write_picture(HoldingsPicture(held=held, classes=classes, title=title), path)


def _draw_classes(axes: Axes, held: Sequence[Holding], classes: Sequence[str]) -> None:
    from matplotlib.ticker import MaxNLocator

    counts = np.stack([holding.train for holding in held]).astype(float)
    # What nobody has stays white, so that a single example is seen.
    shown = np.ma.masked_equal(counts, 0.0)
    image = axes.imshow(
        shown,
        aspect="auto",
        cmap=SHADES,
        interpolation="nearest",
        vmin=0.0,
        vmax=max(float(counts.max()), 1.0),
    )
    bar = axes.figure.colorbar(image, ax=axes, location="left", shrink=0.8, pad=0.02)
    bar.set_ticks(MaxNLocator(nbins=6, integer=True))
    bar.set_label("training examples", fontsize=8)
    names = [_short(holding) for holding in held]
    axes.set_yticks(*_ticks(names), fontsize=_SMALL)
    axes.set_xticks(*_ticks(list(classes)), fontsize=_SMALL, rotation=90)
    old = sum(not holding.is_new for holding in held)
    if old < len(held):
        axes.axhline(old - 0.5, color=ALARM, linewidth=1.2, linestyle="--")


def _draw_totals(axes: Axes, held: Sequence[Holding]) -> dict[str, Any]:
    start, handles = np.zeros(len(held)), dict[str, Any]()
    for index, part in enumerate(PARTS):
        counts = np.array([float(getattr(holding, part).sum()) for holding in held])
        if counts.any():
            style = look(index)
            drawn = axes.barh(
                *(range(len(held)), counts),
                left=start,
                color=style.colour,
                hatch=style.hatch,
                edgecolor="white",
                linewidth=0.4,
            )
            handles[f"{part} examples"] = drawn
        start += counts
    axes.set_xlabel("examples")
    axes.tick_params(axis="y", labelleft=False)
    return handles


def _ticks(names: list[str]) -> tuple[list[int], list[str]]:
    step = -(-len(names) // MOST_NAMES)
    places = list(range(0, len(names), step))
    return places, [wrapped(names[place], _NAME, _SMALL) for place in places]


def _short(holding: Holding) -> str:
    kind, _, number = holding.client.partition("-")
    return f"new {int(number)}" if holding.is_new else f"{kind} {int(number)}"
