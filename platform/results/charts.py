"""The look of all pictures, and pictures of lines, bars and dots.

Series differ by colour and also by marks, dashes and hatches. The colours are those of Okabe and
Ito 2008, "Color Universal Design", without yellow, which is too light for a line on white. Figures
grow until all their text has room.

Lines are panels of curves with bands over rounds, else with intervals that stand side by side; a
value may be infinite. Bars are horizontal, so that long names have room, and have their numbers
beside them. Dots show many values per row, with their mean and lowest value.
"""

from __future__ import annotations

import functools
import io
import itertools
import math
import os
import statistics
import textwrap
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from platform.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
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
    # Publishers refuse the fonts of the default, type 3.
    "pdf.fonttype": 42,
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
    """Return the look of the series with an index, which repeats after 252 series."""
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
    """Return a drawable text with line breaks so that every line fits; its own breaks stay."""
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


SUFFIXES: Final = (".svg", ".png", ".pdf")
_TRIALS: Final = 8
_KEY: Final = 0.7
"""Inches that a legend needs beside its text."""


@dataclass(frozen=True, kw_only=True)
class Picture(ABC):
    """Something that can be drawn: the name of its file without a suffix, its content in words."""

    name: str
    title: str

    @abstractmethod
    def figure(self) -> Figure:
        """Return the figure; the caller has set our style."""


def encoded(picture: Picture, suffix: str, source: str = "") -> bytes:
    """Return a picture as the bytes of a file; equal pictures give equal bytes.

    The suffix is one of `SUFFIXES`, and `source`, of the numbers, is for the file's metadata.
    """
    # The import takes half a second, so other commands do not pay for it.
    import matplotlib as mpl

    drawn = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure = picture.figure()
        metadata: dict[str, Any] = {"Title": picture.title}
        if source:
            metadata["Subject" if suffix == ".pdf" else "Description"] = source
        # No date, so that equal pictures give equal files.
        if suffix == ".png":
            metadata["Software"] = "Sotto"
        else:
            metadata |= {"Creator": "Sotto", "Date" if suffix == ".svg" else "CreationDate": None}
        figure.savefig(drawn, format=suffix[1:], dpi=RESOLUTION, metadata=metadata)
    return drawn.getvalue()


def require_drawable(path: Path) -> None:
    """Refuse the path of a picture that could not be written, before the work begins."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"--plot: {path.name!r} is not valid; it must end in .svg, .png or .pdf")
    # Path's own checks raise if this user may not read the folder.
    if not os.path.isdir(path.parent):
        raise ConfigError(f"--plot: there is no folder {path.parent}; valid is one that exists")
    if os.path.isdir(path):
        raise ConfigError(f"--plot: {str(path)!r} is a folder; valid is a file's path")
    place = path if os.path.exists(path) else path.parent
    if not os.access(place, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise ConfigError(
            f"--plot: {str(path)!r} cannot be written (Permission denied); valid is a file in a "
            "folder that can be written to"
        )


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure; width and height in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def fitted(figure: Figure, least: Mapping[Axes, tuple[float, float]]) -> Figure:
    """Grow a complete figure until its axes have the least width and height, in inches.

    The library gives titles and labels only the width of their axes, so the caller wraps them.
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
    """Write a legend of drawn series, by label, below all axes, in as many columns as fit."""
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


LOGARITHMIC_FROM: Final = 16.0
"""From this ratio of the largest to the smallest value on, an axis is logarithmic."""
INFINITE: Final = "∞\nnot bounded"
_WIDTH, _HEIGHT = 3.5, 2.6
_LEAST: Final = (2.7, 2.0)
"""Width and height of axes in inches; text along an axis is never longer."""
_LEAST_RANGE: Final = 2.0
"""Least range of an axis in percent: a smaller range would show rounding only."""
_CROWDED: Final = 0.05
"""Share of an axis below which two of its labels would overlap."""


@dataclass(frozen=True)
class Point:
    """One point of a line with its band, from `low` to `high`; `x` and `y` may be infinite."""

    x: float
    y: float
    low: float
    high: float


def point(x: float, y: float, deviation: float | None = None) -> Point:
    """Return a point with a band of one deviation on each side, None for no band."""
    width = deviation or 0.0
    return Point(x, y, y - width, y + width)


def percent(x: float, share: float, deviation: float | None = None) -> Point:
    """Return a point in percent for a share in [0, 1]; its band stays within 0 and 100."""
    found = point(x, 100.0 * share, 100.0 * (deviation or 0.0))
    return Point(x, found.y, max(found.low, 0.0), min(found.high, 100.0))


@dataclass(frozen=True)
class Line:
    """A line of a panel: its name, which has one look in all panels, and its points in order."""

    label: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Scale:
    """An axis with ticks at whole numbers, percent, points' own values, or an amount from 0."""

    label: str
    kind: Literal["whole", "percent", "values", "amount"]


@dataclass(frozen=True)
class Panel:
    """At least one line on a horizontal axis `across` and a vertical axis `up`."""

    title: str
    across: Scale
    up: Scale
    lines: tuple[Line, ...]


_ASIDE: Final = 5.0
"""Points between two lines whose intervals stand side by side."""


@dataclass(frozen=True, kw_only=True)
class LinePicture(Picture):
    """Panels of lines, row by row, with one legend for all; `columns` are in a row."""

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
                continue
            points = [point for line in panel.lines for point in line.points]
            heights = [value for one in points for value in (one.y, one.low, one.high)]
            across = _Reach(panel.across, [one.x for one in points])
            up = _Reach(panel.up, heights)
            for place, line in enumerate(panel.lines):
                index, aside = names.index(line.label), place - (len(panel.lines) - 1) / 2
                handles[line.label] = _draw_line(axes, line, index, (across, up), aside=aside)
            across.label(axes, axes.xaxis)
            up.label(axes, axes.yaxis)
            axes.set_title(wrapped(panel.title, _LEAST[0], FONT_SIZE + 1.0))
            axes.set_xlabel(wrapped(panel.across.label, _LEAST[0]))
            axes.set_ylabel(wrapped(panel.up.label, _LEAST[1]))
            axes.grid(alpha=0.3)
        add_legend(figure, {name: handles[name] for name in names})
        return fitted(figure, {axes: _LEAST for axes in places.flat if axes.axison})


def _draw_line(
    axes: Axes, line: Line, index: int, reaches: tuple[_Reach, _Reach], *, aside: float
) -> Any:
    from matplotlib.transforms import offset_copy

    style, (across, up) = look(index), reaches
    has_band = across.scale.kind == "whole" and len(line.points) > 1
    # Side by side, so that intervals do not lie on each other.
    shift = 0.0 if has_band else _ASIDE * aside
    where = offset_copy(axes.transData, axes.get_figure(root=True), x=shift, units="points")
    # Hollow marks leave the lines below visible.
    hollow = {"markerfacecolor": "none", "markeredgewidth": 1.2}
    common: Any = {"color": style.colour, "marker": style.mark, "markersize": 5.0, **hollow}
    common["transform"] = where
    finite = [p for p in line.points if math.isfinite(p.x) and math.isfinite(p.y)]
    others = [p for p in line.points if p not in finite]
    every = max(1, len(finite) // 12)
    (handle,) = axes.plot(
        *([p.x for p in finite], [p.y for p in finite], style.dashes),
        **common,
        markevery=every,
        linewidth=1.5,
    )
    # An infinite value is not joined to the finite ones.
    beyond = [across.place(p.x) for p in others], [up.place(p.y) for p in others]
    axes.plot(*beyond, linestyle="none", **common)
    if has_band:
        low, high = [p.low for p in finite], [p.high for p in finite]
        axes.fill_between(
            *([p.x for p in finite], low, high), color=style.colour, alpha=0.13, linewidth=0
        )
        finite = []
    bars: Any = {"fmt": "none", "ecolor": style.colour, "elinewidth": 1.0, "capsize": 2.5}
    bars["transform"] = where
    for p in (p for p in (*finite, *others) if math.isfinite(p.y) and p.high > p.low):
        axes.errorbar([across.place(p.x)], [p.y], [[p.y - p.low], [p.high - p.y]], **bars)
    return handle


class _Reach:
    """The range of an axis, with a place beyond its end for infinite values."""

    def __init__(self, scale: Scale, values: Sequence[float]) -> None:
        self.scale = scale
        self.values = finite = sorted({value for value in values if math.isfinite(value)})
        self.has_infinite = any(math.isinf(value) for value in values)
        self.is_logarithmic = (
            scale.kind in ("values", "amount")
            and len(finite) > 1
            and finite[0] > 0.0
            and finite[-1] / finite[0] >= LOGARITHMIC_FROM
        )

    def place(self, value: float) -> float:
        """Return the place of a value on the axis."""
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
        """Return the lowest and the highest value; these always differ."""
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
            # 1, 2 and 5 times powers of ten.
            powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            every = [n * 10.0**power for power in powers for n in (1.0, 2.0, 5.0)]
            within = [value for value in every if 0.99 * low <= value <= 1.01 * high]
            return list(self._apart(within or [low, high]))
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


_NAMES: Final = 2.6
"""Inches for the names of rows."""
_AXES: Final = 3.4
_BAR: Final = 0.17
_BETWEEN: Final = 0.1


@dataclass(frozen=True)
class Bar:
    """One bar; without a value if it was not measured, and a deviation if it is a single number."""

    value: float | None
    deviation: float | None = None


@dataclass(frozen=True, kw_only=True)
class BarPicture(Picture):
    """Rows of bars in percent of a quantity (`across`): by series, one bar for each row.

    `up` is the rows' title, empty if their names are enough, and `absent` stands for a missing bar.
    """

    across: str
    up: str = ""
    rows: tuple[str, ...]
    series: Mapping[str, Sequence[Bar]]
    absent: str = "not measured"

    def figure(self) -> Figure:
        """Return the figure."""
        names, lines = _row_names(self.rows)
        row = max(_BAR * len(self.series) + _BETWEEN, 0.16 * lines + 0.04)
        tall = max(row * len(names) + 0.2, 1.0)
        figure = new_figure(6.4, tall + 1.3)
        axes = figure.subplots()
        handles: dict[str, Any] = {}
        width, longest = 0.84 / len(self.series), 0.0
        for index, (label, bars) in enumerate(self.series.items()):
            style, start = look(index), width * (index + 0.5) - 0.42
            known = {row: bar.value for row, bar in enumerate(bars) if bar.value is not None}
            handles[label] = axes.barh(
                *([row + start for row in known], list(known.values()), width),
                color=style.colour,
                hatch=style.hatch,
                edgecolor="white",
                linewidth=0.6,
            )
            for row, bar in enumerate(bars):
                # Each bar has its number behind it.
                value, spread = bar.value or 0.0, bar.deviation or 0.0
                text = drawable(self.absent) if bar.value is None else f"{value:.1f}"
                if bar.deviation is not None:
                    text += f" ± {spread:.1f}"
                    ends = max(value - spread, 0.0), value + spread
                    axes.hlines(row + start, *ends, color=INK, linewidth=1.2)
                _beside(axes, text, (value + spread, row + start), 3.0)
                longest = max(longest, value + spread)
        axes.set_xlim(0.0, 1.05 * longest or 1.0)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", alpha=0.3)
        figure.suptitle(wrapped(self.title, 6.0, FONT_SIZE + 1.0), fontsize=FONT_SIZE + 1.0)
        axes.set_xlabel(wrapped(self.across, _AXES))
        axes.set_ylabel(wrapped(self.up, tall))
        if len(handles) > 1:
            add_legend(figure, handles)
        return fitted(figure, {axes: (_AXES, tall)})


def _row_names(rows: Iterable[str]) -> tuple[list[str], int]:
    """Return names in the room that rows have, and the most lines of one."""
    names = [wrapped(row, _NAMES) for row in rows]
    return names, max(name.count("\n") + 1 for name in names)


def _beside(axes: Axes, text: str, spot: tuple[float, float], gap: float, **more: Any) -> None:
    """Write a text to the right of a spot, with a gap in points."""
    axes.annotate(
        text,
        spot,
        xytext=(gap, 0.0),
        textcoords="offset points",
        va="center",
        fontsize=SMALL,
        color=INK,
        annotation_clip=False,
        **more,
    )


_ROW: Final = 0.36
_LANES: Final = 21
"""Number of heights within a row, so that equal values do not overlap; neighbours are 8 apart."""


@dataclass(frozen=True, kw_only=True)
class DotPicture(Picture):
    """Rows of dots, at least one each, in percent of a quantity (`across`)."""

    across: str
    rows: Mapping[str, Sequence[float]]

    def figure(self) -> Figure:
        """Return the figure."""
        names, lines = _row_names(self.rows)
        tall = max(_ROW, 0.16 * lines + 0.06) * len(names)
        figure = new_figure(7.0, tall + 1.2)
        axes = figure.subplots()
        for row, values in enumerate(self.rows.values()):
            style, mean, ordered = look(row), statistics.fmean(values), sorted(values)
            heights = [row + 0.03 * (8 * n % _LANES - _LANES // 2) for n in range(len(ordered))]
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
            said = f"mean {mean:.1f}, worst {ordered[0]:.1f}"
            _beside(axes, said, (1.0, row), 6.0, xycoords=axes.get_yaxis_transform())
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", alpha=0.3)
        axes.set_xlabel(wrapped(f"{self.across}\n(upright line: the mean)", _AXES))
        every = [value for values in self.rows.values() for value in values]
        wide, middle = max(max(every) - min(every), 2.0), (min(every) + max(every)) / 2.0
        axes.set_xlim(middle - 0.54 * wide, middle + 0.54 * wide)
        return fitted(figure, {axes: (_AXES, tall)})
