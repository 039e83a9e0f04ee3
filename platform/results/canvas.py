"""The look of all pictures, and figures that grow until all their text has room.

Series differ by colour and also by marks, dashes and hatches. The colours are those of Okabe and
Ito 2008, "Color Universal Design", without yellow, which is too light for a line on white.
"""

from __future__ import annotations

import functools
import io
import os
import textwrap
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from platform.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS: Final = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7"),
    *("#E69F00", "#56B4E9", "#000000"),
)
MARKS: Final = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
DASHES: Final = ("-", "--", "-.", ":")
HATCHES: Final = ("", "///", "...", "xxx", "\\\\\\", "+++", "ooo", "---")
SHADES: Final = "cividis_r"
"""The colours of cells: from light to dark, also in grey and for colour-blind readers."""
INK: Final = "#222222"
ALARM: Final = "#D55E00"
FONT_SIZE: Final = 9.0
SMALL: Final = 7.5
RESOLUTION: Final = 150
"""Pixels per inch of a PNG."""
STYLE: Final[Any] = {
    "svg.hashsalt": "sotto",
    "font.family": "DejaVu Sans",
    "font.size": FONT_SIZE,
    "axes.titlesize": FONT_SIZE + 1.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "hatch.linewidth": 0.6,
    # A "$" in a name does not begin a formula.
    "text.parse_math": False,
    # A setting of the user could turn formulas on again.
    "text.usetex": False,
}
_POINTS: Final = 72.0


@dataclass(frozen=True)
class Look:
    """The look of a series: colour, mark and dashes of its line, hatch of its bars."""

    colour: str
    mark: str
    dashes: str
    hatch: str


def look(index: int) -> Look:
    """Return the look of the series with an index.

    Mark and dashes together repeat after 36 series; with the colour, after 252 series.
    """
    return Look(
        COLOURS[index % len(COLOURS)],
        MARKS[index % len(MARKS)],
        DASHES[index % len(DASHES)],
        HATCHES[index % len(HATCHES)],
    )


def drawable(text: str) -> str:
    r"""Return a text that the font can draw; other characters as escapes such as `\u4e2d`."""
    glyphs = _glyphs()
    return "".join(
        c
        if c == "\n" or (c.isprintable() and ord(c) in glyphs)
        else c.encode("unicode_escape").decode()
        for c in text
    )


def wrapped(text: str, inches: float, size: float = FONT_SIZE) -> str:
    """Return a drawable text with line breaks, so that every line fits a width.

    Args:
        text: Any text; its own line breaks stay.
        inches: The width; at least that of a few characters.
        size: Size of the font, in points.
    """
    found: list[str] = []
    for line in drawable(text).split("\n"):
        width = width_of(line, size) if line else 0.0
        parts, count = [line], max(1, int(len(line) * inches / max(width, inches)))
        while width > inches:
            parts = textwrap.wrap(line, count, break_on_hyphens=False) or [line]
            if count == 1 or max(width_of(part, size) for part in parts) <= inches:
                break
            count = max(1, int(count * 0.9))
        found += parts
    return "\n".join(found)


def width_of(line: str, size: float = FONT_SIZE) -> float:
    """Return the width of one drawable line, in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family="DejaVu Sans", size=size)
    width, _, _ = text_to_path.get_text_width_height_descent(line, font, ismath=False)
    return float(width) / _POINTS


@functools.cache
def _glyphs() -> frozenset[int]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return frozenset(get_font(findfont(FontProperties(family="DejaVu Sans"))).get_charmap())


SUFFIXES: Final = (".svg", ".png")
_TRIALS: Final = 8
_KEY: Final = 0.7
"""Inches that a legend needs beside its text."""


class Picture(Protocol):
    """Something that can be drawn."""

    @property
    def name(self) -> str:
        """Name of the file, without a suffix."""
        ...

    @property
    def title(self) -> str:
        """The content in words."""
        ...

    def figure(self) -> Figure:
        """Return the figure; the caller has set our style."""
        ...


def encoded(picture: Picture, suffix: str, source: str = "") -> bytes:
    """Return a picture as the bytes of a file; equal pictures give equal bytes.

    Args:
        picture: The picture.
        suffix: `.svg` or `.png`.
        source: The source of the numbers, for the file's metadata.
    """
    # The import takes half a second, so other commands do not pay for it.
    import matplotlib as mpl

    drawn = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure = picture.figure()
        metadata: dict[str, Any] = {"Title": picture.title}
        if source:
            metadata["Description"] = source
        # No date, so that equal pictures give equal files.
        if suffix == ".svg":
            metadata |= {"Creator": "Sotto", "Date": None}
        else:
            metadata["Software"] = "Sotto"
        figure.savefig(drawn, format=suffix[1:], dpi=RESOLUTION, metadata=metadata)
    return drawn.getvalue()


def require_drawable(path: Path) -> None:
    """Check the path of a picture before the work begins.

    Raises:
        ConfigError: If the suffix is not `.svg` or `.png`, the folder does not exist or cannot be
            written to, or the path is a folder.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"--plot: {path.name!r} is not valid; it must end in .svg or .png")
    # Path's own checks raise if this user may not read the folder.
    if not os.path.isdir(path.parent):
        raise ConfigError(f"--plot: there is no folder {path.parent}; valid is one that exists")
    if os.path.isdir(path):
        raise ConfigError(f"--plot: {str(path)!r} is a folder; valid is a file's path")
    place = path if os.path.exists(path) else path.parent
    if not os.access(place, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise _not_written(path, "Permission denied")


def write_picture(picture: Picture, path: Path) -> None:
    """Draw a picture into a file.

    Raises:
        ConfigError: If the file cannot be written.
    """
    data = encoded(picture, path.suffix)
    try:
        path.write_bytes(data)
    except OSError as error:
        raise _not_written(path, str(error.strerror)) from error


def _not_written(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"--plot: {str(path)!r} cannot be written ({reason}); valid is a file in a folder that "
        "can be written to"
    )


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure; width and height in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def fitted(figure: Figure, least: Mapping[Axes, tuple[float, float]]) -> Figure:
    """Grow a figure until its axes have room beside the text around them.

    The library gives titles and labels only the width of their axes, so the caller wraps them.

    Args:
        figure: The complete figure.
        least: Least width and height of each axes, in inches.
    """
    for _ in range(_TRIALS):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            figure.draw_without_rendering()
        width, height = figure.get_size_inches()
        wide = tall = 0.0
        for axes, (least_width, least_height) in least.items():
            place, grid = axes.get_position(), axes.get_subplotspec()
            columns = 1 if grid is None else grid.get_gridspec().ncols
            rows = 1 if grid is None else grid.get_gridspec().nrows
            wide = max(wide, columns * (least_width - place.width * width))
            tall = max(tall, rows * (least_height - place.height * height))
        if any("collapsed" in str(warning.message) for warning in told):
            # The layout failed, so no size can be measured: grow both ways.
            wide, tall = max(wide, 0.5 * width), max(tall, 0.5 * height)
        if wide <= 0.02 and tall <= 0.02:
            break
        figure.set_size_inches(width + wide, height + tall)
    return figure


def add_legend(figure: Figure, handles: Mapping[str, Any]) -> None:
    """Write a legend below all axes, in as many columns as fit.

    Args:
        figure: The figure in its final width.
        handles: The drawn series, by label.
    """
    if not handles:
        return
    width = float(figure.get_size_inches()[0]) - 0.3
    labels = [wrapped(label, width - _KEY) for label in handles]
    widest = _KEY + max(width_of(line) for label in labels for line in label.split("\n"))
    columns = max(1, min(len(labels), 6, int(width / widest)))
    figure.legend(
        list(handles.values()),
        labels,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        handlelength=2.6,
        columnspacing=1.2,
        fontsize=FONT_SIZE,
    )
