"""Pictures of a sweep, each as SVG and PNG: learning curves, a measure over an axis, attention.

A panel a configuration, a line a method (with its values on the other axes), a band of one sample
standard deviation over seeds. Drawn without a window system, and to the same bytes for the same
numbers.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from platform.disk.files import write_bytes
from platform.rounds.phases import in_rounds
from platform.sweeping.grid import Grid, numeric
from platform.sweeping.running import Outcome
from platform.sweeping.statistics import HELD_OUT, Label, Spread, label_of, short, spread_of
from platform.sweeping.tables import group_of
from platform.sweeping.tidy import LAST, Record, record_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Panel
    from matplotlib.figure import Figure

SUFFIXES: Final = (".svg", ".png")
MEASURED: Final = {
    "client_mean": "accuracy in percent",
    "all_classes": "accuracy on all test examples in percent",
    "base_to_novel": "harmonic mean in percent",
    "leave_one_domain_out": "accuracy on the held-out domain in percent",
}
STYLE: Final[Any] = {
    "svg.hashsalt": "sotto",
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
PANELS_A_ROW: Final = 4
COLOURS: Final = 10
STYLES: Final = ("-", "--", ":", "-.")
# From this ratio of the largest to the smallest value an even axis would crowd the small ones.
_LOGARITHMIC_FROM: Final = 16.0


@dataclass(frozen=True)
class Line:
    """A line of a panel.

    Attributes:
        label: What it is called.
        points: Abscissa and number over seeds.
    """

    label: str
    points: tuple[tuple[float, Spread], ...]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One figure.

    Attributes:
        name: Of the file, without a suffix.
        abscissa: What the lines run over.
        ordinate: What they show.
        panels: Title and lines of each.
        is_bars: Whether bars are drawn instead of lines.
    """

    name: str
    abscissa: str
    ordinate: str
    panels: tuple[tuple[str, tuple[Line, ...]], ...]
    is_bars: bool = False


def pictures(grid: Grid, outcomes: Sequence[Outcome]) -> list[Picture]:
    """Return all pictures that the runs allow.

    Args:
        grid: What was asked for.
        outcomes: Those that have finished.
    """
    runs = [(record_of(outcome), outcome) for outcome in outcomes]
    found = [_curves(runs), *_over_axes(grid, [record for record, _ in runs]), _attention(runs)]
    return [picture for picture in found if any(lines for _, lines in picture.panels)]


Runs = Sequence[tuple[Record, Outcome]]


def _curves(runs: Runs) -> Picture:
    """Return accuracy of every measured round."""
    by_round = [
        (int(document["round"]), record, float(document["accuracy"]["mean"]))
        for record, outcome in runs
        for document in in_rounds((outcome.summary or {})["rounds"])
        if document["accuracy"]["mean"] is not None
    ]
    rounds: dict[int, list[tuple[Record, float]]] = {}
    for number, record, value in by_round:
        rounds.setdefault(number, []).append((record, value))
    panels = _panels([record for record, _ in runs], rounds)
    ordinate = "accuracy on own test examples in percent\n(before personalising)"
    return Picture(name="curves", abscissa="round", ordinate=ordinate, panels=panels)


def _over_axes(grid: Grid, records: Sequence[Record]) -> list[Picture]:
    found, names = [], _file_names([key for key, _ in grid.axes])
    protocols = list(dict.fromkeys(record.protocol for record in records))
    for key, values in grid.axes:
        if key == HELD_OUT or numeric(values) is None:
            continue
        for protocol in protocols:
            of = [record for record in records if record.protocol == protocol]
            suffix = "" if len(protocols) == 1 else f"-{protocol}"
            panels = _panels(of, _by_value(of, key), without=key)
            ordinate = f"{MEASURED[protocol]}\n(last round, after personalising)"
            found.append(
                Picture(
                    name=f"{names[key]}{suffix}", abscissa=key, ordinate=ordinate, panels=panels
                )
            )
    return found


def _by_value(records: Sequence[Record], key: str) -> dict[float, list[tuple[Record, float]]]:
    points: dict[float, list[tuple[Record, float]]] = {}
    for record in records:
        value = record.headline(LAST)
        if value is not None:
            points.setdefault(float(dict(record.axes)[key]), []).append((record, value))
    return points


def _attention(runs: Runs) -> Picture:
    """Return mean weight of each expert, the client's own first."""
    points: dict[int, list[tuple[Record, float]]] = {}
    carrying: list[Record] = []
    for record, outcome in runs:
        weights = (outcome.summary or {})["final"].get("expert_weights") or ()
        carrying += [record] if weights else []
        for number, weight in enumerate(weights):
            points.setdefault(number, []).append((record, float(weight)))
    panels = _panels(carrying, points)
    return Picture(
        name="attention",
        abscissa="expert, 0 the client's own",
        ordinate="mean weight in percent",
        panels=panels,
        is_bars=True,
    )


def _file_names(keys: Sequence[str]) -> dict[str, str]:
    """Return the last part of each key, or all of it where two keys end alike or it is taken."""
    ends = [*(short(key) for key in keys), "curves", "attention"]
    return {key: short(key) if ends.count(short(key)) == 1 else key for key in keys}


def _panels(
    records: Sequence[Record],
    points: Mapping[Any, Sequence[tuple[Record, float]]],
    *,
    without: str = HELD_OUT,
) -> tuple[tuple[str, tuple[Line, ...]], ...]:
    left_out = (HELD_OUT, without)
    configs = dict.fromkeys(record.config for record in records)
    panels = []
    for config in configs:
        own = [record for record in records if record.config == config]
        labels = dict.fromkeys(label_of(record, left_out) for record in own)
        lines = (_line(label, config, points, left_out) for label in labels)
        panels.append((group_of(config, records), tuple(line for line in lines if line.points)))
    return tuple(panels)


def _line(
    label: Label,
    config: str,
    points: Mapping[Any, Sequence[tuple[Record, float]]],
    left_out: Sequence[str],
) -> Line:
    found = []
    for abscissa in sorted(points):
        # By position, as two runs may be equal in everything that a record holds.
        of = [
            replace(record, scores={LAST: {"value": value}})
            for record, value in points[abscissa]
            if record.config == config and label_of(record, left_out) == label
        ]
        spread = spread_of(of, lambda record: record.scores[LAST]["value"])
        if spread is not None:
            found.append((float(abscissa), spread))
    return Line(str(label), tuple(found))


def draw(picture: Picture, folder: Path) -> list[Path]:
    """Draw a picture into `folder` as SVG and PNG; return the files."""
    # Half a second to import, which no other command shall wait for.
    import matplotlib as mpl
    from matplotlib.figure import Figure

    columns = min(len(picture.panels), PANELS_A_ROW)
    rows = -(-len(picture.panels) // columns)
    with mpl.rc_context(STYLE):
        size = (max(3.4 * columns, 4.6), 2.9 * rows + 0.9)
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False)
        for panel, content in itertools.zip_longest(panels.flat, picture.panels):
            if content is None:
                panel.set_axis_off()
            else:
                _draw_panel(panel, picture, *content)
        _legend(figure, picture)
        return [_save(figure, folder / f"{picture.name}{suffix}") for suffix in SUFFIXES]


def _save(figure: Figure, path: Path) -> Path:
    drawn = io.BytesIO()
    metadata = {"Date": None} if path.suffix == ".svg" else {}
    figure.savefig(drawn, format=path.suffix[1:], metadata=metadata, dpi=150)
    write_bytes(path, drawn.getvalue())
    return path


def _names(picture: Picture) -> list[str]:
    """Return all lines of all panels: one has the same colour everywhere."""
    return list(dict.fromkeys(line.label for _, lines in picture.panels for line in lines))


def _draw_panel(panel: Panel, picture: Picture, title: str, lines: Sequence[Line]) -> None:
    names = _names(picture)
    drawing: Callable[..., None] = _draw_bars if picture.is_bars else _draw_line
    for line in lines:
        drawing(panel, line, names.index(line.label), len(names))
    abscissas = sorted({abscissa for line in lines for abscissa, _ in line.points})
    if picture.name == "curves":
        panel.locator_params(axis="x", integer=True)
    else:
        if abscissas and abscissas[0] > 0 and abscissas[-1] / abscissas[0] >= _LOGARITHMIC_FROM:
            panel.set_xscale("log")
            panel.minorticks_off()
        panel.set_xticks(abscissas, [f"{value:g}" for value in abscissas])
    panel.set_title(title)
    panel.set_xlabel(picture.abscissa)
    panel.set_ylabel(picture.ordinate)
    panel.grid(alpha=0.3)


def _draw_line(panel: Panel, line: Line, index: int, count: int) -> None:
    del count
    x = [abscissa for abscissa, _ in line.points]
    middle = [100 * spread.mean for _, spread in line.points]
    colour, style = f"C{index % COLOURS}", STYLES[index // COLOURS % len(STYLES)]
    panel.plot(x, middle, style, color=colour, marker="o", markersize=3, label=line.label)
    width = [100 * (spread.deviation or 0.0) for _, spread in line.points]
    if any(width):
        low = [m - w for m, w in zip(middle, width, strict=True)]
        high = [m + w for m, w in zip(middle, width, strict=True)]
        panel.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def _draw_bars(panel: Panel, line: Line, index: int, count: int) -> None:
    width = 0.8 / count
    x = [abscissa - 0.4 + width * (index + 0.5) for abscissa, _ in line.points]
    heights = [100 * spread.mean for _, spread in line.points]
    errors = [100 * (spread.deviation or 0.0) for _, spread in line.points]
    shown = errors if any(errors) else None
    panel.bar(x, heights, width, yerr=shown, color=f"C{index % COLOURS}", label=line.label)


def _legend(figure: Figure, picture: Picture) -> None:
    handles: dict[str, Any] = {}
    for panel in figure.axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    columns = max(1, min(len(handles), 2 * min(len(picture.panels), PANELS_A_ROW)))
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
    )
