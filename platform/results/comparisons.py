"""The pictures of a sweep, by kind. Each line is a method with its values on the axes.

Each configuration has a panel. Bands are one sample standard deviation over seeds. The curves also
show the finished rounds of unfinished runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import yaml

from platform.pictures.canvas import Picture
from platform.pictures.charts import (
    Bar,
    BarPicture,
    CellPicture,
    DotPicture,
    Line,
    LinePicture,
    Panel,
    Point,
    Scale,
    Series,
    percent,
    point,
)
from platform.results.numbers import (
    HELD_OUT,
    Label,
    RunNumbers,
    Spread,
    adversaries_alike,
    group_of,
    label_of,
    short,
    spread_of,
)
from platform.results.run_pictures import BEFORE, EXPERTS, PERCENT, ROUND, WEIGHTS

MEASURED: Final = {
    "client_mean": PERCENT,
    "all_classes": "accuracy on all test examples in percent",
    "base_to_novel": "harmonic mean in percent",
    "leave_one_domain_out": "accuracy on the held-out domain in percent",
}
LAST: Final = "last round, after personalising"
PRICED: Final = ("privacy.target_epsilon", "privacy.noise_multiplier")
"""Axes that set epsilon: their values are points of one line, not separate lines."""
_PANELS_A_ROW: Final = 4

Runs = Sequence[RunNumbers]
Axis = tuple[str, tuple[str, ...]]
Groups = dict[str, dict[str, list[RunNumbers]]]
"""Runs by their panel's title, then by their line's name."""

MECHANISM: Final = "mechanism"
"""The key that names a whole section `privacy`."""


def sweep_pictures(runs: Runs) -> dict[str, tuple[Picture, ...]]:
    """Return the pictures of a sweep's runs by kind; a kind without numbers has no pictures.

    Args:
        runs: The runs; all runs of a sweep have values on the same axes.
    """
    if not runs:
        return {}
    ended = [run for run in runs if run.finished]
    found = {
        "curves": (_curves(runs),),
        "tradeoff": tuple(_by_protocol(ended, "tradeoff", _tradeoff)),
        "final": tuple(_by_protocol(ended, "final", _final)),
        "clients": (_clients(runs),),
        "experts": (_experts(ended),),
        "axes": tuple(_over_axes(ended)),
    }
    return {kind: tuple(p for p in made if p is not None) for kind, made in found.items()}


def _groups(runs: Runs, without: Sequence[str] = ()) -> Groups:
    """Return runs by panel and line; a line's name tells how it differs from the others."""
    left_out = (HELD_OUT, *without)
    names = line_names(list(dict.fromkeys(label_of(run, left_out) for run in runs)))
    found: Groups = {}
    for run in runs:
        lines = found.setdefault(group_of(run.config, runs), {})
        lines.setdefault(names[label_of(run, left_out)], []).append(run)
    return found


def _panels(
    groups: Groups, scales: tuple[Scale, Scale], points: Callable[[Runs], Sequence[Point]]
) -> tuple[Panel, ...]:
    """Return a panel for each group that has points."""
    across, up = scales
    panels = []
    for title, lines in groups.items():
        drawn = [Line(name, tuple(points(runs))) for name, runs in lines.items()]
        if kept := tuple(line for line in drawn if line.points):
            panels.append(Panel(title, across, up, kept))
    return tuple(panels)


def _picture(
    name: str, title: str, panels: tuple[Panel, ...], columns: int | None = None
) -> Picture | None:
    if not panels:
        return None
    wide = min(columns or len(panels), _PANELS_A_ROW)
    return LinePicture(name=name, title=title, panels=panels, columns=wide)


def _share(x: float, spread: Spread) -> Point:
    return percent(x, spread.mean, spread.deviation)


def _curves(runs: Runs) -> Picture | None:
    """Return the accuracy of every measured round, with the epsilon spent until then below."""
    up = Scale(f"accuracy on own test examples in percent\n({BEFORE})", "percent")
    groups = _groups(runs)
    rows = [_panels(groups, (ROUND, up), _accuracies)]
    for names, one in adversaries_alike(runs).items():
        label = Scale(f"epsilon for {names}\nat delta {_delta(runs)}", "amount")
        below = _panels(groups, (ROUND, label), partial(_spendings, one))
        rows.append(tuple(replace(panel, title="") for panel in below) if rows[0] else below)
    whole = [row for row in rows if len(row) == max(map(len, rows))]
    title = "Accuracy and epsilon over rounds"
    if len(whole[0]) > _PANELS_A_ROW:
        # The rows would not fit; each run's own picture shows its epsilon.
        return _picture("curves", title, whole[0])
    return _picture("curves", title, tuple(p for row in whole for p in row), len(whole[0]))


def _accuracies(runs: Runs) -> list[Point]:
    found = _over_rounds(runs, lambda run: run.curve())
    return [_share(number, spread) for number, spread in found.items()]


def _spendings(adversary: str, runs: Runs) -> list[Point]:
    found = _over_rounds(runs, lambda run: run.spent(adversary))
    # If seeds differ, the largest epsilon counts, as in tables.
    return [point(number, max(spread.values)) for number, spread in found.items()]


def _over_rounds(
    runs: Runs, curve: Callable[[RunNumbers], Iterable[tuple[int, float]]]
) -> dict[int, Spread]:
    """Return a number over seeds, for every round in which at least one run has it."""
    values = {run.run_id: dict(curve(run)) for run in runs}
    rounds = sorted({number for of in values.values() for number in of})

    def of_round(number: int) -> Callable[[RunNumbers], float | None]:
        return lambda run: values[run.run_id].get(number)

    spreads = {number: spread_of(runs, of_round(number)) for number in rounds}
    return {number: spread for number, spread in spreads.items() if spread is not None}


def _delta(runs: Runs) -> str:
    return ", ".join(f"{delta:g}" for delta in sorted({run.delta for run in runs}))


def _by_protocol(
    runs: Runs, name: str, make: Callable[[Runs, str, str], Picture | None]
) -> list[Picture | None]:
    """Return a picture for each protocol: numbers of two protocols are not comparable."""
    protocols = list(dict.fromkeys(run.protocol for run in runs))
    return [
        make(
            [run for run in runs if run.protocol == protocol],
            name if len(protocols) == 1 else f"{name}-{protocol}",
            MEASURED[protocol],
        )
        for protocol in protocols
    ]


def _tradeoff(runs: Runs, name: str, measured: str) -> Picture | None:
    """Return the final accuracy against the final epsilon, by adversary."""
    up, groups = Scale(f"{measured}\n({LAST})", "percent"), _groups(runs, PRICED)
    panels: tuple[Panel, ...] = ()
    for names, one in adversaries_alike(runs).items():
        across = Scale(f"epsilon for {names}\nat delta {_delta(runs)}", "amount")
        panels += _panels(groups, (across, up), partial(_traded, one))
    return _picture(name, "Accuracy against epsilon", panels)


def _traded(adversary: str, runs: Runs) -> list[Point]:
    """Return a point for each privacy setting of a line's runs."""
    settings: dict[Label, list[RunNumbers]] = {}
    for run in runs:
        settings.setdefault(label_of(run), []).append(run)
    points = []
    for of in settings.values():
        spent = [value for run in of if (value := run.epsilon(adversary)) is not None]
        spread = spread_of(of, lambda run: run.headline())
        if spent and spread is not None:
            # The largest epsilon of all seeds, as in tables.
            points.append(_share(max(spent), spread))
    return sorted(points, key=lambda found: found.x)


def _final(runs: Runs, name: str, measured: str) -> Picture | None:
    """Return the final accuracy of each line, as bars with numbers."""
    groups = _groups(runs)
    names = list(dict.fromkeys(name for lines in groups.values() for name in lines))
    values = {
        title: [_bar(spread_of(lines.get(name, ()), lambda run: run.headline())) for name in names]
        for title, lines in groups.items()
    }
    if all(bar.value is None for bars in values.values() for bar in bars):
        return None
    return BarPicture(
        name=name,
        title=f"Accuracy at the end{_over_seeds(runs)}",
        across=f"{measured} ({LAST})",
        up="",
        rows=tuple(names),
        series=tuple(Series(title, tuple(bars)) for title, bars in values.items()),
    )


def _over_seeds(runs: Runs) -> str:
    seeds = len({run.seed for run in runs})
    return f", mean ± deviation over {seeds} seeds" if seeds > 1 else ""


def _bar(spread: Spread | None, factor: float = 100.0) -> Bar:
    if spread is None:
        return Bar(None)
    return Bar(
        factor * spread.mean, None if spread.deviation is None else factor * spread.deviation
    )


def _clients(runs: Runs) -> Picture | None:
    """Return dots for all clients of all seeds, one row per line."""
    groups, rows = _groups(runs), {}
    for title, lines in groups.items():
        for name, of in lines.items():
            values = [100 * v for run in of for v in _own(run) if v is not None]
            if values:
                row = name if len(groups) == 1 else f"{title}: {name}"
                rows[row] = tuple(values)
    if not rows:
        return None
    return DotPicture(
        name="clients",
        title="Accuracy of each client" + (" of all seeds" if _over_seeds(runs) else ""),
        across="accuracy on own test examples in percent",
        rows=tuple(rows),
        values=tuple(rows.values()),
    )


def _own(run: RunNumbers) -> Sequence[float | None]:
    found = run.clients()
    return found.get("own", found.get("accuracy", ()))


def _experts(runs: Runs) -> Picture | None:
    carrying = [run for run in runs if run.expert_weights()]
    if not carrying:
        return None
    groups, rows = _groups(carrying), {}
    most = max(len(run.expert_weights()) for run in carrying)
    for title, lines in groups.items():
        for name, of in lines.items():
            row = name if len(groups) == 1 else f"{title}: {name}"
            rows[row] = tuple(_bar(_weight(of, index)) for index in range(most))
    return CellPicture(
        name="experts",
        title=f"Weights of experts, {WEIGHTS}{_over_seeds(carrying)}\n({EXPERTS})",
        across="expert",
        columns=tuple(str(index) for index in range(most)),
        rows=tuple(rows),
        cells=tuple(rows.values()),
    )


def _weight(runs: Runs, index: int) -> Spread | None:
    def weight(run: RunNumbers) -> float | None:
        weights = run.expert_weights()
        return weights[index] if index < len(weights) else None

    return spread_of(runs, weight)


def _over_axes(runs: Runs) -> list[Picture | None]:
    """Return a picture for each axis whose values are numbers."""
    axes = axes_of(runs)
    names, found = file_names([key for key, _ in axes]), list[Picture | None]()
    for key, values in axes:
        if key == HELD_OUT or len(values) < 2 or numeric(values) is None:
            continue

        def over(of: Runs, name: str, measured: str, key: str = key) -> Picture | None:
            scales = (Scale(key, "values"), Scale(f"{measured}\n({LAST})", "percent"))
            panels = _panels(_groups(of, (key,)), scales, lambda runs: _over_values(runs, key))
            return _picture(name, f"Accuracy over {key}", panels)

        found += _by_protocol(runs, names[key], over)
    return found


def _over_values(runs: Runs, key: str) -> list[Point]:
    values: dict[float, list[RunNumbers]] = {}
    for run in runs:
        values.setdefault(float(dict(run.axes)[key]), []).append(run)
    spreads = {
        value: spread_of(of, lambda run: run.headline()) for value, of in sorted(values.items())
    }
    return [_share(value, spread) for value, spread in spreads.items() if spread is not None]


def axes_of(runs: Runs) -> list[Axis]:
    """Return the axes that runs have values on, with all values that occur."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for key, value in run.axes:
            found.setdefault(key, {})[value] = None
    return [(key, tuple(values)) for key, values in found.items()]


def numeric(values: Sequence[str]) -> list[float] | None:
    """Return an axis's values as numbers; None if a value is not a finite number."""
    try:
        found = [float(value) for value in values]
    except ValueError:
        return None
    return found if all(map(math.isfinite, found)) else None


def file_names(keys: Sequence[str]) -> dict[str, str]:
    """Return each key's last part, or the whole key if the last part is not unique or is taken."""
    taken = ("curves", "tradeoff", "final", "clients", "experts", "axes", "holdings")
    ends = [*(short(key) for key in keys), *taken]
    return {key: short(key) if ends.count(short(key)) == 1 else key for key in keys}


def line_names(labels: Sequence[Label]) -> dict[Label, str]:
    """Return a name for each line: the method, and its values on the axes.

    If the values are whole sections, such as `{mechanism: upload_noise, ...}`, the name holds only
    the keys that differ; only the mechanism, if it distinguishes the lines.
    """
    keys = list(dict.fromkeys(key for label in labels for key, _ in label.axes))
    texts = {key: _texts(key, [dict(label.axes).get(key) for label in labels]) for key in keys}
    named = {label: _name(label, texts) for label in labels}
    if len(set(named.values())) < len(set(labels)):
        return {label: str(label) for label in labels}
    return named


def _name(label: Label, texts: Mapping[str, Mapping[str, str]]) -> str:
    parts = [texts[key][value] for key, value in label.axes]
    return ", ".join([label.method, *filter(None, parts)])


def _texts(key: str, values: Sequence[str | None]) -> dict[str, str]:
    """Return the name of each value of an axis."""
    known = list(dict.fromkeys(value for value in values if value is not None))
    sections = [_section(value) for value in known]
    plain = {value: f"{short(key)} {value}" for value in known}
    whole = [section for section in sections if section is not None]
    if len(whole) < len(known) or len(known) < 2:
        return plain
    differing = _differing(whole)
    by_mechanism = [section.get(MECHANISM) for section in whole]
    if len(set(map(repr, by_mechanism))) == len(known):
        differing = [MECHANISM]
    found = {
        value: ", ".join(f"{name} {section[name]}" for name in differing if name in section)
        for value, section in zip(known, whole, strict=True)
    }
    return found if len(set(found.values())) == len(known) else plain


def _differing(sections: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for section in sections for name in section)
    first = sorted(names, key=lambda name: name != MECHANISM)
    return [n for n in first if len({repr(section.get(n)) for section in sections}) > 1]


def _section(value: str) -> Mapping[str, Any] | None:
    if not value.startswith("{"):
        return None
    try:
        found = yaml.safe_load(value)
    except yaml.YAMLError:
        return None
    is_section = isinstance(found, dict) and all(isinstance(name, str) for name in found)
    return found if is_section else None
