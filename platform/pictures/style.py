"""How all pictures look: told apart by colour, and without it by marks, dashes and hatches.

The colours are those of Okabe and Ito 2008, "Color Universal Design", without their yellow, which
is too light for a line on white.
"""

from __future__ import annotations

import functools
import textwrap
from dataclasses import dataclass
from typing import Any, Final

COLOURS: Final = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7"),
    *("#E69F00", "#56B4E9", "#000000"),
)
MARKS: Final = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
DASHES: Final = ("-", "--", "-.", ":")
HATCHES: Final = ("", "///", "...", "xxx", "\\\\\\", "+++", "ooo", "---")
SHADES: Final = "cividis_r"
"""Of cells: from light to dark also in grey, and the same to those who see fewer colours."""
INK: Final = "#222222"
ALARM: Final = "#D55E00"
FONT_SIZE: Final = 9.0
SMALL: Final = 7.5
RESOLUTION: Final = 150
"""Pixels an inch of a PNG."""
STYLE: Final[Any] = {
    "svg.hashsalt": "sotto",
    "font.family": "DejaVu Sans",
    "font.size": FONT_SIZE,
    "axes.titlesize": FONT_SIZE + 1.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "hatch.linewidth": 0.6,
    # Names are words: a "$" in one begins no formula.
    "text.parse_math": False,
    # An old setting of the user's would bring back what is set here.
    "text.usetex": False,
}
_POINTS: Final = 72.0


@dataclass(frozen=True)
class Look:
    """How one of several series is drawn.

    Attributes:
        colour: Of the line or the face of a bar.
        mark: At the points of a line.
        dashes: Of a line.
        hatch: Of a bar.
    """

    colour: str
    mark: str
    dashes: str
    hatch: str


def look(index: int) -> Look:
    """Return how the series of an index is drawn.

    Mark and dashes together repeat after 36 series, with the colour after 252.
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
        c if c == "\n" or (c.isprintable() and ord(c) in glyphs) else _escape(c) for c in text
    )


def wrapped(text: str, inches: float, size: float = FONT_SIZE) -> str:
    """Return a drawable text with line breaks, so that no line of it is wider than so many inches.

    Args:
        text: Any; line breaks in it stay.
        inches: At least the width of a few characters.
        size: Of the font, in points.
    """
    return "\n".join(_wrapped(line, inches, size) for line in drawable(text).split("\n"))


def width_of(line: str, size: float = FONT_SIZE) -> float:
    """Return the width of one drawable line, in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family="DejaVu Sans", size=size)
    width, _, _ = text_to_path.get_text_width_height_descent(line, font, ismath=False)
    return float(width) / _POINTS


def _wrapped(line: str, inches: float, size: float) -> str:
    width = width_of(line, size) if line else 0.0
    if width <= inches:
        return line
    count = max(1, int(len(line) * inches / width))
    while True:
        parts = textwrap.wrap(line, count, break_on_hyphens=False) or [line]
        if count == 1 or max(width_of(part, size) for part in parts) <= inches:
            return "\n".join(parts)
        count = max(1, int(count * 0.9))


@functools.cache
def _glyphs() -> frozenset[int]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return frozenset(get_font(findfont(FontProperties(family="DejaVu Sans"))).get_charmap())


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
