"""Makes the pictures of a run, by kind, and writes pictures into a folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from platform.disk.files import write_bytes
from platform.pictures.canvas import SUFFIXES, Picture, encoded
from platform.pictures.charts import (
    Bar,
    BarPicture,
    Line,
    LinePicture,
    Panel,
    Scale,
    Series,
    percent,
    point,
)
from platform.results.numbers import RunNumbers, adversaries_alike

ROUND: Final = Scale("round", "whole")
PERCENT: Final = "accuracy in percent"
BEFORE: Final = "before personalising"
MOST_BARS: Final = 30
"""At most so many clients have a bar each; more clients become a line, ordered by accuracy."""
EXPERTS: Final = "0 is the client's own, where experts are other clients'"
WEIGHTS: Final = "mean weight in percent"
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


def run_pictures(run: RunNumbers) -> dict[str, tuple[Picture, ...]]:
    """Return the pictures of a run by kind; a kind without numbers has no pictures."""
    makers: dict[str, Callable[[RunNumbers], Picture | None]] = {
        "curves": _curves,
        "tradeoff": _tradeoff,
        "clients": _clients,
        "experts": _experts,
    }
    made = {kind: maker(run) for kind, maker in makers.items()}
    return {kind: () if picture is None else (picture,) for kind, picture in made.items()}


def _titled(run: RunNumbers, what: str) -> str:
    state = "" if run.finished else f", not finished ({len(run.rounds)} rounds so far)"
    return f"{what}: {run.method} on {run.dataset}{state}"


def _curves(run: RunNumbers) -> Picture | None:
    """Return the accuracy of every measured round, above the epsilon spent until then."""
    deviation = dict(run.curve("std"))
    means = tuple(percent(n, v, deviation.get(n)) for n, v in run.curve())
    lines = [Line("mean over clients, ± one deviation of clients", means)] if means else []
    worst = tuple(percent(n, v) for n, v in run.curve("worst"))
    lines += [Line("worst client", worst)] if worst else []
    validation = tuple(
        percent(int(document["round"]), found["mean"])
        for document in run.rounds
        if (found := document.get("validation") or {}).get("mean") is not None
    )
    lines += [Line("mean validation accuracy", validation)] if validation else []
    spent = [
        Line(f"epsilon for {names}", tuple(point(n, value) for n, value in run.spent(one)))
        for names, one in adversaries_alike([run]).items()
    ]
    spent = [line for line in spent if line.points]
    panels = []
    if lines:
        panels.append(Panel(_titled(run, run.config), ROUND, _percent(BEFORE), tuple(lines)))
    if spent:
        title = "" if lines else _titled(run, run.config)
        panels.append(Panel(title, ROUND, Scale(_spent(run), "amount"), tuple(spent)))
    if not panels:
        return None
    title = f"Accuracy and epsilon over rounds, run {run.run_id}"
    return LinePicture(name="curves", title=title, panels=tuple(panels), columns=1)


def _spent(run: RunNumbers) -> str:
    return f"epsilon so far\nat delta {run.delta:g}"


def _percent(when: str) -> Scale:
    return Scale(f"{PERCENT}\n({when})", "percent")


def _tradeoff(run: RunNumbers) -> Picture | None:
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


def _clients(run: RunNumbers) -> Picture | None:
    """Return each client's accuracy: bars with numbers, or for many clients, ordered lines."""
    found = run.clients()
    named = {_on(run, name): values for name, values in found.items()}
    if not any(value is not None for values in named.values() for value in values):
        return None
    # The sets may cover different numbers of clients.
    count = max(len(values) for values in named.values())
    when = "after personalising" if run.finished else "last round"
    title = _titled(run, "Accuracy of each client")
    if count > MOST_BARS:
        return _ordered(title, when, named)
    return BarPicture(
        name="clients",
        title=title,
        across=f"{PERCENT} ({when})",
        up="",
        rows=tuple(f"client {index}" for index in range(count)),
        series=tuple(
            Series(name, tuple(Bar(None if v is None else 100 * v) for v in values))
            for name, values in named.items()
        ),
        absent="no test examples",
    )


def _on(run: RunNumbers, name: str) -> str:
    is_common = name == "accuracy" and run.protocol == "all_classes"
    return EVERYBODYS if is_common else ON[name]


def _ordered(title: str, when: str, named: Mapping[str, Sequence[float | None]]) -> LinePicture:
    lines = []
    for name, values in named.items():
        known = sorted(100 * value for value in values if value is not None)
        label = f"{name}: mean {math.fsum(known) / len(known):.1f}, worst {known[0]:.1f}"
        places = tuple(point(place, value) for place, value in enumerate(known, 1))
        lines.append(Line(label, places))
    across = Scale("clients, in the order of their accuracy", "whole")
    panel = Panel(title, across, Scale(f"{PERCENT}\n({when})", "percent"), tuple(lines))
    return LinePicture(name="clients", title=title, panels=(panel,), columns=1)


def _experts(run: RunNumbers) -> Picture | None:
    weights = run.expert_weights()
    if not weights:
        return None
    return BarPicture(
        name="experts",
        title=f"{_titled(run, 'Weights of experts')}\n({EXPERTS})",
        across=f"{WEIGHTS}\n(after personalising, over clients)",
        up="expert",
        rows=tuple(str(index) for index in range(len(weights))),
        series=(Series("weight", tuple(Bar(100 * weight) for weight in weights)),),
    )


def files_of(
    pictures: Iterable[Picture], folder: Path, suffixes: Sequence[str] = SUFFIXES
) -> list[tuple[Picture, Path]]:
    """Return each picture with each path in a folder that it is written to."""
    return [(one, folder / f"{one.name}{suffix}") for one in pictures for suffix in suffixes]


def write_pictures(files: Iterable[tuple[Picture, Path]], source: str = "") -> list[Path]:
    """Write pictures; return the files.

    Raises:
        Unwritable: If a picture cannot be written; the files before it stay.
    """
    # Draw all pictures before writing the first.
    drawn = [(path, encoded(picture, path.suffix, source)) for picture, path in files]
    for path, data in drawn:
        write_bytes(path, data)
    return [path for path, _ in drawn]
