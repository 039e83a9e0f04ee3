"""The pictures of a run, and those of a sweep, by kind; and pictures as files.

In the pictures of a sweep each line is a method with its values on the axes, and each configuration
has a panel. Bands and bars are one sample standard deviation over seeds, against epsilon the 95%
interval. The curves also show the finished rounds of unfinished runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import yaml

from platform.disk.files import write_bytes
from platform.results.charts import (
    SUFFIXES,
    Bar,
    BarPicture,
    DotPicture,
    Line,
    LinePicture,
    Panel,
    Picture,
    Point,
    Scale,
    encoded,
    percent,
    point,
)
from platform.results.numbers import (
    EPSILON,
    HELD_OUT,
    SENDS_NOTHING,
    Axes,
    Label,
    RunNumbers,
    Spread,
    adversaries_alike,
    group_of,
    label_of,
    last_parts,
    spread_of,
    value_words,
)

ROUND: Final = Scale("round", "whole")
PERCENT: Final = "accuracy in percent"
BEFORE: Final = "before personalising"
LAST: Final = "last round, after personalising"
EXPERTS: Final = "0 is the client's own, where experts are other clients'"
WEIGHTS: Final = "mean weight in percent"
MOST_BARS: Final = 30
"""At most so many clients have a bar each; more clients become a line, ordered by accuracy."""
ON: Final = {
    "accuracy": "in the federation",
    "own": "in the federation, on its own test examples",
    "local_twin": "alone (local twin)",
}
EVERYBODYS: Final = "in the federation, on all clients' test examples"
ABSENT: Final[Mapping[str, str]] = {
    "curves": "no round has finished yet",
    "tradeoff": "no round has both an accuracy and an epsilon",
    "final": "no run has an accuracy yet",
    "clients": "the accuracy of single clients is not known",
    "experts": "it has no experts, or has not finished",
    "axes": "no axis has numbers as values",
    "holdings": "the data holders keep the images",
}
"""Why a kind has no picture."""
MEASURED: Final = {
    "client_mean": PERCENT,
    "all_classes": "accuracy on all test examples in percent",
    "base_to_novel": "harmonic mean in percent",
    "leave_one_domain_out": "accuracy on the held-out domain in percent",
}
PRICED: Final = (EPSILON, "privacy.target_epsilon", "privacy.noise_multiplier")
"""Axes that set epsilon: their values are points of one line, not separate lines."""
MECHANISM: Final = "mechanism"
"""The key that names a whole section `privacy`."""
_PANELS_A_ROW: Final = 4

Runs = Sequence[RunNumbers]
Groups = dict[str, dict[str, list[RunNumbers]]]
"""Runs by their panel's title, then by their line's name."""


def run_pictures(run: RunNumbers) -> dict[str, tuple[Picture, ...]]:
    """Return the pictures of a run by kind; a kind without numbers has no pictures."""
    made = {
        "curves": _curves_of_run(run),
        "tradeoff": _tradeoff_of_run(run),
        "clients": _clients_of_run(run),
        "experts": _experts_of_run(run),
    }
    return {kind: () if picture is None else (picture,) for kind, picture in made.items()}


def _titled(run: RunNumbers, what: str) -> str:
    state = "" if run.finished else f", not finished ({len(run.rounds)} rounds so far)"
    return f"{what}: {run.method} on {run.dataset}{state}"


def _curves_of_run(run: RunNumbers) -> Picture | None:
    """Return the accuracy of every measured round, above the epsilon spent until then."""
    deviation = dict(run.curve("std"))
    drawn = {
        "mean over clients, ± one deviation of clients": tuple(
            percent(n, v, deviation.get(n)) for n, v in run.curve()
        ),
        "worst client": tuple(percent(n, v) for n, v in run.curve("worst")),
        "mean validation accuracy": tuple(
            percent(int(document["round"]), found["mean"])
            for document in run.rounds
            if (found := document.get("validation") or {}).get("mean") is not None
        ),
    }
    lines = tuple(Line(label, points) for label, points in drawn.items() if points)
    spent = (
        Line(f"epsilon for {names}", tuple(point(n, value) for n, value in run.spent(one)))
        for names, one in adversaries_alike([run]).items()
    )
    spent_lines = tuple(line for line in spent if line.points)
    panels = []
    title = _titled(run, run.config)
    if lines:
        up = Scale(f"{PERCENT}\n({BEFORE})", "percent")
        panels.append(Panel(title, ROUND, up, lines))
    if spent_lines:
        up = Scale(f"epsilon so far\nat delta {run.delta:g}", "amount")
        panels.append(Panel("" if lines else title, ROUND, up, spent_lines))
    if not panels:
        return None
    title = f"Accuracy and epsilon over rounds, run {run.run_id}"
    return LinePicture(name="curves", title=title, panels=tuple(panels), columns=1)


def _tradeoff_of_run(run: RunNumbers) -> Picture | None:
    """Return accuracy against epsilon, round by round."""
    accuracy = dict(run.curve())
    lines = [
        Line(
            f"after each round, epsilon for {names}",
            tuple(percent(spent, accuracy[n]) for n, spent in run.spent(one) if n in accuracy),
        )
        for names, one in adversaries_alike([run]).items()
    ]
    lines = [line for line in lines if line.points]
    end, spent = run.headline(), run.epsilon()
    if lines and run.finished and end is not None and spent is not None:
        lines.append(Line("at the end, after personalising", (percent(spent, end),)))
    if not lines:
        return None
    across = Scale(f"epsilon at delta {run.delta:g}", "amount")
    panel = Panel(_titled(run, run.config), across, Scale(PERCENT, "percent"), tuple(lines))
    title = f"Accuracy against epsilon, run {run.run_id}"
    return LinePicture(name="tradeoff", title=title, panels=(panel,), columns=1)


def _clients_of_run(run: RunNumbers) -> Picture | None:
    """Return each client's accuracy: bars with numbers, or for many clients, ordered lines."""
    named = {
        EVERYBODYS if name == "accuracy" and run.protocol == "all_classes" else ON[name]: values
        for name, values in run.clients().items()
    }
    if not any(value is not None for values in named.values() for value in values):
        return None
    # The sets may cover different numbers of clients.
    count = max(len(values) for values in named.values())
    measured = f"{PERCENT}{{}}({'after personalising' if run.finished else 'last round'})"
    title = _titled(run, "Accuracy of each client")
    if count <= MOST_BARS:
        return BarPicture(
            name="clients",
            title=title,
            across=measured.format(" "),
            rows=tuple(f"client {index}" for index in range(count)),
            series={
                name: [Bar(None if v is None else 100 * v) for v in values]
                for name, values in named.items()
            },
            absent="no test examples",
        )
    lines = []
    for name, values in named.items():
        known = sorted(100 * value for value in values if value is not None)
        label = f"{name}: mean {math.fsum(known) / len(known):.1f}, worst {known[0]:.1f}"
        places = tuple(point(place, value) for place, value in enumerate(known, 1))
        lines.append(Line(label, places))
    across = Scale("clients, in the order of their accuracy", "whole")
    panel = Panel(title, across, Scale(measured.format("\n"), "percent"), tuple(lines))
    return LinePicture(name="clients", title=title, panels=(panel,), columns=1)


def _experts_of_run(run: RunNumbers) -> Picture | None:
    weights = run.expert_weights()
    if not weights:
        return None
    return BarPicture(
        name="experts",
        title=f"{_titled(run, 'Weights of experts')}\n({EXPERTS})",
        across=f"{WEIGHTS}\n(after personalising, over clients)",
        up="expert",
        rows=tuple(str(index) for index in range(len(weights))),
        series={"weight": [Bar(100 * weight) for weight in weights]},
    )


def sweep_pictures(runs: Runs) -> dict[str, tuple[Picture, ...]]:
    """Return the pictures of a sweep's runs by kind; a kind without numbers has no pictures."""
    if not runs:
        return {}
    ended = [run for run in runs if run.finished]
    found = {
        "curves": (_curves(runs),),
        "tradeoff": tuple(_by_protocol(ended, "tradeoff", _tradeoff)),
        "final": tuple(_by_protocol(ended, "final", _final)),
        "clients": (_clients(runs),),
        "axes": tuple(_over_axes(ended)),
    }
    return {kind: tuple(p for p in made if p is not None) for kind, made in found.items()}


def _groups(runs: Runs, without: Sequence[str] = ()) -> Groups:
    """Return runs by panel and line; a line's name tells how it differs from the others."""
    left_out = (HELD_OUT, *without)
    names = line_names(
        list(dict.fromkeys(label_of(run.method, run.axes, left_out) for run in runs))
    )
    found: Groups = {}
    for run in runs:
        lines = found.setdefault(group_of(run.config, runs), {})
        lines.setdefault(names[label_of(run.method, run.axes, left_out)], []).append(run)
    return found


def _panels(
    groups: Groups, scales: tuple[Scale, Scale], points: Callable[[Runs], Sequence[Point]]
) -> tuple[Panel, ...]:
    """Return a panel for each group that has points; a single one needs no title."""
    across, up = scales
    panels = []
    for title, lines in groups.items():
        drawn = [Line(name, tuple(points(runs))) for name, runs in lines.items()]
        if kept := tuple(line for line in drawn if line.points):
            panels.append(Panel(title if len(groups) > 1 else "", across, up, kept))
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

    def over_rounds(
        runs: Runs, curve: Callable[[RunNumbers], Iterable[tuple[int, float]]]
    ) -> list[tuple[int, Spread]]:
        # A number over seeds, for every round in which at least one run has it.
        values = {run.run_id: dict(curve(run)) for run in runs}

        def of_round(number: int) -> Callable[[RunNumbers], float | None]:
            return lambda run: values[run.run_id].get(number)

        numbers = sorted({number for of in values.values() for number in of})
        spreads = ((number, spread_of(runs, of_round(number))) for number in numbers)
        return [(number, spread) for number, spread in spreads if spread is not None]

    def accuracies(runs: Runs) -> list[Point]:
        return [_share(n, spread) for n, spread in over_rounds(runs, lambda run: run.curve())]

    up = Scale(f"accuracy on own test examples in percent\n({BEFORE})", "percent")
    groups = _groups(runs)
    rows = [_panels(groups, (ROUND, up), accuracies)]
    for names, one in adversaries_alike(runs).items():

        def spendings(runs: Runs, adversary: str = one) -> list[Point]:
            # If seeds differ, the largest epsilon counts, as in tables.
            found = over_rounds(runs, lambda run: run.spent(adversary))
            return [point(number, max(spread.values)) for number, spread in found]

        below = _panels(groups, (ROUND, _amount(runs, names)), spendings)
        rows.append(tuple(replace(panel, title="") for panel in below) if rows[0] else below)
    whole = [row for row in rows if len(row) == max(map(len, rows))]
    title = "Accuracy and epsilon over rounds"
    if len(whole[0]) > _PANELS_A_ROW:
        # The rows would not fit; each run's own picture shows its epsilon.
        return _picture("curves", title, whole[0])
    return _picture("curves", title, tuple(p for row in whole for p in row), len(whole[0]))


def _amount(runs: Runs, names: str) -> Scale:
    """Return the axis of epsilon for adversaries with equal numbers."""
    deltas = ", ".join(f"{delta:g}" for delta in sorted({run.delta for run in runs}))
    return Scale(f"epsilon for {names}\nat delta {deltas}", "amount")


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
    up = Scale(f"{measured}{_over_seeds(runs, '95% interval')}\n({LAST})", "percent")
    groups = _groups(runs, PRICED)
    panels: tuple[Panel, ...] = ()
    for names, one in adversaries_alike(runs).items():
        # A study runs a method that sends nothing once, for every epsilon of the others.
        everywhere = {
            run.axes: spent for run in runs if run.sends and (spent := run.epsilon(one)) is not None
        }

        def traded(
            runs: Runs, adversary: str = one, everywhere: Mapping[Any, float] = everywhere
        ) -> list[Point]:
            # A point for each privacy setting of a line's runs.
            settings: dict[Label, list[RunNumbers]] = {}
            for run in runs:
                settings.setdefault(label_of(run.method, run.axes), []).append(run)
            points = []
            for of in settings.values():
                spent = [value for run in of if (value := run.epsilon(adversary)) is not None]
                spread = spread_of(of, lambda run: run.headline())
                if spent and spread is not None:
                    # The largest epsilon of all seeds, as in tables.
                    places = {max(spent)}
                    if len(settings) == 1 and not any(run.sends for run in of):
                        places = {*everywhere.values()} or places
                    points += [percent(x, spread.mean, spread.margin) for x in places]
            return sorted(points, key=lambda found: found.x)

        panels += _panels(groups, (_amount(runs, names), up), traded)
    return _picture(name, "Accuracy against epsilon", panels)


def _final(runs: Runs, name: str, measured: str) -> Picture | None:
    """Return each line's final accuracy as bars; of one configuration, by method and setting."""
    groups = _groups(runs)
    axes = list(dict.fromkeys(label_of("", run.axes).axes for run in runs))
    if len(groups) == 1 and len(axes) > 1:
        settings, groups = line_names([Label("", one) for one in axes]), {}
        for run in runs:
            lines = groups.setdefault(run.method, {})
            for one in _settings(label_of("", run.axes).axes, axes):
                lines.setdefault(settings[Label("", one)], []).append(run)
    names = list(dict.fromkeys(name for lines in groups.values() for name in lines))
    values = {
        title: [_bar(spread_of(lines.get(name, ()), lambda run: run.headline())) for name in names]
        for title, lines in groups.items()
    }
    if all(bar.value is None for bars in values.values() for bar in bars):
        return None
    return BarPicture(
        name=name,
        title="",
        across=f"{measured}{_over_seeds(runs)}\n({LAST})",
        rows=tuple(names),
        series=values,
    )


def _settings(own: Axes, every: Sequence[Axes]) -> list[Axes]:
    """Return the settings a run counts for: at every epsilon, if its method sends nothing."""
    if (silent := (EPSILON, SENDS_NOTHING)) not in own:
        return [own]
    rest = set(own) - {silent}
    return [one for one in every if silent not in one and rest < set(one)] or [own]


def _over_seeds(runs: Runs, what: str = "mean ± deviation") -> str:
    seeds = len({run.seed for run in runs})
    return f", {what} over {seeds} seeds" if seeds > 1 else ""


def _bar(spread: Spread | None) -> Bar:
    if spread is None:
        return Bar(None)
    return Bar(100 * spread.mean, None if spread.deviation is None else 100 * spread.deviation)


def _clients(runs: Runs) -> Picture | None:
    """Return dots for all clients of all seeds, one row per line."""
    rows: dict[str, Sequence[float]] = {}
    groups = _groups(runs)
    for title, name, of in ((t, n, of) for t, lines in groups.items() for n, of in lines.items()):
        measured = (run.clients() for run in of)
        own = (found.get("own", found.get("accuracy", ())) for found in measured)
        if values := tuple(100 * v for clients in own for v in clients if v is not None):
            rows[name if len(groups) == 1 else f"{title}: {name}"] = values
    if not rows:
        return None
    return DotPicture(
        name="clients",
        title="Accuracy of each client",
        across="accuracy of each client on own test examples in percent"
        + (", all seeds" if _over_seeds(runs) else ""),
        rows=rows,
    )


def _over_axes(runs: Runs) -> list[Picture | None]:
    """Return a picture for each axis whose values are numbers."""
    axes: dict[str, dict[str, None]] = {}
    for run in runs:
        for key, value in run.axes:
            axes.setdefault(key, {})[value] = None
    names, found = last_parts(list(axes), ABSENT), list[Picture | None]()
    for key, values in axes.items():
        try:
            is_numeric = all(math.isfinite(float(value)) for value in values)
        except ValueError:
            is_numeric = False
        if key == HELD_OUT or len(values) < 2 or not is_numeric:
            continue
        found += _by_protocol(runs, names[key], _along(key))
    return found


def _along(key: str) -> Callable[[Runs, str, str], Picture | None]:
    """Return the maker of the picture of one axis."""

    def points(runs: Runs) -> list[Point]:
        by_value: dict[float, list[RunNumbers]] = {}
        for run in runs:
            by_value.setdefault(float(dict(run.axes)[key]), []).append(run)
        spreads = (
            (value, spread_of(of, lambda run: run.headline()))
            for value, of in sorted(by_value.items())
        )
        return [_share(value, spread) for value, spread in spreads if spread is not None]

    def over(runs: Runs, name: str, measured: str) -> Picture | None:
        scales = (Scale(key, "values"), Scale(f"{measured}\n({LAST})", "percent"))
        panels = _panels(_groups(runs, (key,)), scales, points)
        return _picture(name, f"Accuracy over {key}", panels)

    return over


def line_names(labels: Sequence[Label]) -> dict[Label, str]:
    """Return a name for each line: the method, and its values on the axes.

    If the values are whole sections, such as `{mechanism: upload_noise, ...}`, the name holds only
    the keys that differ; only the mechanism, if it distinguishes the lines.
    """
    keys = list(dict.fromkeys(key for label in labels for key, _ in label.axes))
    texts = {key: _texts(key, [dict(label.axes).get(key) for label in labels]) for key in keys}
    named = {
        label: ", ".join(
            filter(None, (label.method, *(texts[key][value] for key, value in label.axes)))
        )
        for label in labels
    }
    if len(set(named.values())) < len(set(labels)):
        return {label: str(label) for label in labels}
    return named


def _texts(key: str, values: Sequence[str | None]) -> dict[str, str]:
    """Return the name of each value of an axis."""
    known = list(dict.fromkeys(value for value in values if value is not None))
    plain = {value: value_words(key, value) for value in known}
    sections = [section for value in known if (section := _section(value)) is not None]
    if len(sections) < len(known) or len(known) < 2:
        return plain
    keys = dict.fromkeys(name for section in sections for name in section)
    first = sorted(keys, key=lambda name: name != MECHANISM)
    differing = [n for n in first if len({repr(section.get(n)) for section in sections}) > 1]
    if len({repr(section.get(MECHANISM)) for section in sections}) == len(known):
        differing = [MECHANISM]
    found = {
        value: ", ".join(f"{name} = {section[name]}" for name in differing if name in section)
        for value, section in zip(known, sections, strict=True)
    }
    return found if len(set(found.values())) == len(known) else plain


def _section(value: str) -> Mapping[str, Any] | None:
    if not value.startswith("{"):
        return None
    try:
        found = yaml.safe_load(value)
    except yaml.YAMLError:
        return None
    is_section = isinstance(found, dict) and all(isinstance(name, str) for name in found)
    return found if is_section else None


def files_of(pictures: Iterable[Picture], folder: Path) -> list[tuple[Picture, Path]]:
    """Return each picture with each path in a folder that it is written to."""
    return [(one, folder / f"{one.name}{suffix}") for one in pictures for suffix in SUFFIXES]


def write_pictures(files: Iterable[tuple[Picture, Path]], source: str = "") -> list[Path]:
    """Write pictures; return the files."""
    # Draw all pictures before writing the first.
    drawn = [(path, encoded(picture, path.suffix, source)) for picture, path in files]
    for path, data in drawn:
        write_bytes(path, data)
    return [path for path, _ in drawn]
