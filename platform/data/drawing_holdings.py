"""The picture of who has what: clients by classes, and how many examples each client has in all.

Drawn without a window system, and to the same bytes for the same counts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from platform.data.holdings import PARTS, Holding
from platform.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".svg", ".png")
MOST_NAMES = 40
"""More names along an axis than this would overlap; every so many is written then."""
COLOURS = {"train": "#1f6fb2", "validation": "#e6ab02", "test": "#d95f02"}
STYLE: Any = {
    "svg.hashsalt": "sotto",
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    # Names of classes are words: a "$" in one begins no formula.
    "text.parse_math": False,
}


def require_drawable(path: Path) -> None:
    """Check where a picture is to go, before the work begins.

    Raises:
        ConfigError: If the suffix is none that is drawn, there is no such folder, nothing can be
            written to it, or the path is a folder itself.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"--plot: {path.name!r} is not valid; it must end in .svg or .png")
    # Unlike Path's own, these do not raise where this user may not look.
    if not os.path.isdir(path.parent):
        raise ConfigError(f"--plot: there is no folder {path.parent}; valid is one that exists")
    if os.path.isdir(path):
        raise ConfigError(f"--plot: {str(path)!r} is a folder; valid is a file's path")
    place = path if os.path.exists(path) else path.parent
    if not os.access(place, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise _not_written(path, "Permission denied")


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
    # Half a second to import, which no other command shall wait for.
    import matplotlib as mpl
    from matplotlib.figure import Figure

    rows, columns = min(len(held), 60), min(len(classes), 60)
    with mpl.rc_context(STYLE):
        size = (max(7.0, 4.2 + 0.2 * columns), max(3.2, 1.8 + 0.18 * rows))
        figure = Figure(figsize=size, layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1))
        _draw_classes(left, held, classes)
        _draw_totals(right, held)
        figure.suptitle(title, fontsize=10)
        # No date, so that equal counts give equal files.
        metadata: dict[str, Any] = {"Date": None} if path.suffix == ".svg" else {}
        try:
            figure.savefig(path, dpi=110, metadata=metadata)
        except OSError as error:
            raise _not_written(path, str(error.strerror)) from error


def _not_written(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"--plot: {str(path)!r} cannot be written ({reason}); valid is a file in a folder that can "
        "be written to"
    )


def _draw_classes(axes: Axes, held: Sequence[Holding], classes: Sequence[str]) -> None:
    counts = np.stack([holding.train for holding in held]).astype(float)
    # What nobody has stays white, so that a single example is seen.
    shown = np.ma.masked_equal(counts, 0.0)
    image = axes.imshow(shown, aspect="auto", cmap="viridis_r", interpolation="nearest", vmin=0.0)
    bar = axes.figure.colorbar(image, ax=axes, location="left", shrink=0.8, pad=0.02)
    bar.set_label("training examples", fontsize=8)
    names = [_short(holding) for holding in held]
    axes.set_yticks(*_ticks(names), fontsize=7)
    axes.set_xticks(*_ticks(list(classes)), fontsize=7, rotation=90)
    old = sum(not holding.is_new for holding in held)
    if old < len(held):
        axes.axhline(old - 0.5, color="#c0143c", linewidth=1.2, linestyle="--")


def _draw_totals(axes: Axes, held: Sequence[Holding]) -> None:
    start = np.zeros(len(held))
    for part in PARTS:
        counts = np.array([float(getattr(holding, part).sum()) for holding in held])
        if counts.any():
            axes.barh(range(len(held)), counts, left=start, color=COLOURS[part], label=part)
        start += counts
    axes.set_xlabel("examples")
    axes.tick_params(axis="y", labelleft=False)
    axes.legend(fontsize=7, frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3)


def _ticks(names: list[str]) -> tuple[list[int], list[str]]:
    step = -(-len(names) // MOST_NAMES)
    places = list(range(0, len(names), step))
    return places, [names[place] for place in places]


def _short(holding: Holding) -> str:
    kind, _, number = holding.client.partition("-")
    return f"new {int(number)}" if holding.is_new else f"{kind} {int(number)}"
