"""The tables of a sweep, in the papers' form, as values; `writing` makes text of them.

Rows are methods with their values on the axes; columns are configurations (data sets), or the
domains that were held out with their mean. Every number is a mean over seeds, in percent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from platform.experiment.caveats import PROTOCOLS, optimizer_words
from platform.results.statistics import (
    HELD_OUT,
    Label,
    Spread,
    group_of,
    label_of,
    short,
    spread_of,
)
from platform.rounds.documents import ADVERSARIES
from platform.sweeping.grid import Cell, Grid
from platform.sweeping.tidy import BEST, LAST, NEW_CLIENTS, PRIVACY, SELECTIONS, Record, score

MEASURES: Final = {
    "client_mean": (("local", "accuracy"),),
    "all_classes": (("local", "All"), ("own", "Own")),
    "base_to_novel": (
        ("local", "Local"),
        ("base", "Base"),
        ("novel", "Novel"),
        ("harmonic_mean", "HM"),
    ),
    "leave_one_domain_out": (("target", "target"),),
}
"""What is shown of each protocol, and what its columns are called."""

NEWCOMER_MEASURES: Final = (("before", "before"), ("after", "after"))
AVERAGE: Final = "Avg."
SELECTED: Final = {
    LAST: "the last round, after personalising",
    BEST: "the round with the best mean validation accuracy, before personalising",
    NEW_CLIENTS: (
        "clients that never took part, on their own test examples, before and after personalising, "
        "after the last round"
    ),
}
EARLY: Final = "†"
OURS: Final = "‡"
"""Of a row whose method is a reading of ours, where its paper leaves it open."""
EPSILONS: Final = (
    "epsilon of the worst run of a row, rounded up; epsilon of one run: whoever sees several rows "
    "on the same clients sees their composition"
)
UNITS: Final = {"record": "one example of a client", "client": "a whole client"}


@dataclass(frozen=True)
class Number:
    """A cell of a table.

    Attributes:
        spread: Over seeds, None where no run has finished.
        missing: Seeds that are not in it.
        is_best: Whether no other of its column is better as it is shown.
    """

    spread: Spread | None
    missing: int = 0
    is_best: bool = False


@dataclass(frozen=True)
class Column:
    """A column of numbers.

    Attributes:
        group: The configuration or data set.
        name: What is measured there.
    """

    group: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """A method.

    Attributes:
        label: With its values on the axes.
        numbers: One a column.
        epsilon: The largest by adversary, infinity without a guarantee; None without a run.
        delta: Of the epsilons, None where no mechanism is on.
        ended_early: Whether a budget ended one of its runs before the last round.
        is_reading: Whether the method is its implementer's reading of a paper.
    """

    label: Label
    numbers: tuple[Number, ...]
    epsilon: tuple[float, ...] | None = None
    delta: float | None = None
    ended_early: bool = False
    is_reading: bool = False

    @property
    def marks(self) -> str:
        """What stands behind the method's name."""
        found = ((self.ended_early, EARLY), (self.is_reading, OURS))
        return "".join(f" {mark}" for is_marked, mark in found if is_marked)


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table.

    Attributes:
        caption: What the numbers are, in words.
        axes: Keys of the columns beside the method's.
        columns: Of numbers.
        rows: In the order of the command line.
        is_private: Whether a mechanism is on anywhere, so that epsilons are shown.
        warnings: What the runs' reports say so that their numbers are not misread, all together.
        training: The optimisers of the runs in words, and whose each is where there are several.
    """

    caption: str
    axes: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    is_private: bool
    warnings: tuple[str, ...] = ()
    training: tuple[str, ...] = ()


def build_tables(grid: Grid, records: Sequence[Record]) -> list[Table]:
    """Return one table for each protocol and selection that was measured.

    Args:
        grid: What was asked for; what has no record is shown as missing.
        records: The runs that have finished.
    """
    found = []
    for protocol in dict.fromkeys(record.protocol for record in records):
        of = [record for record in records if record.protocol == protocol]
        for selection in SELECTIONS:
            if any(selection in record.scores for record in of):
                found.append(_table(grid, of, protocol, selection))
    return found


@dataclass(frozen=True, kw_only=True)
class _Slot:
    """Where a column's numbers come from."""

    column: Column
    config: str
    measure: str
    domain: str | None = None
    domains: tuple[str, ...] = ()

    def takes(self, record: Record) -> bool:
        if record.config != self.config:
            return False
        return self.domain is None or dict(record.axes).get(HELD_OUT) == self.domain


def _table(grid: Grid, records: Sequence[Record], protocol: str, selection: str) -> Table:
    slots = list(_slots(grid, records, protocol, selection))
    cells = [cell for cell in grid.cells if cell.run.evaluation.protocol == protocol]
    labels = list(dict.fromkeys(label_of(cell) for cell in cells))
    # Stable, so that the points of a method stay in the order of the command line.
    labels.sort(key=lambda label: grid.methods.index(label.method))
    readings = {cell.method: cell.reading for cell in cells if cell.reading}
    rows = [
        replace(
            _row(label, slots, grid, records, selection=selection),
            is_reading=label.method in readings,
        )
        for label in labels
    ]
    is_private = any(record.privacy.get("unit") for record in records)
    return Table(
        caption=_caption(cells, records, protocol, selection),
        axes=tuple(short(key) for key, _ in grid.axes if key != HELD_OUT),
        columns=tuple(slot.column for slot in slots),
        rows=tuple(_with_best(rows)),
        is_private=is_private,
        warnings=tuple(dict.fromkeys(warning for record in records for warning in record.warnings)),
        training=training_notes(records),
    )


def _slots(grid: Grid, records: Sequence[Record], protocol: str, selection: str) -> Iterator[_Slot]:
    configs = [c for c in grid.configs if any(record.config == c for record in records)]
    shown = NEWCOMER_MEASURES if selection == NEW_CLIENTS else MEASURES[protocol]
    domains = dict(grid.axes).get(HELD_OUT, ())
    for config in configs:
        group = group_of(config, records)
        for measure, name in shown:
            if not domains:
                yield _Slot(column=Column(group, name), config=config, measure=measure)
                continue
            prefix = "" if len(shown) == 1 else f"{name} "
            for domain in domains:
                yield _Slot(
                    column=Column(group, f"{prefix}{domain}"),
                    config=config,
                    measure=measure,
                    domain=domain,
                )
            yield _Slot(
                column=Column(group, f"{prefix}{AVERAGE}"),
                config=config,
                measure=measure,
                domains=domains,
            )


def _row(
    label: Label,
    slots: Sequence[_Slot],
    grid: Grid,
    records: Sequence[Record],
    *,
    selection: str,
) -> Row:
    of = [record for record in records if label_of(record) == label]
    numbers = []
    for slot in slots:
        runs = [record for record in of if slot.takes(record)]
        spread = spread_of(runs, score(selection, slot.measure), parts=slot.domains)
        missing = 0 if spread is None else len(_seeds(grid, slot, label)) - len(spread.values)
        numbers.append(Number(spread, missing))
    if not of:
        return Row(label=label, numbers=tuple(numbers))
    worst = tuple(max(record.epsilon.get(name, 0.0) for record in of) for name in ADVERSARIES)
    deltas = [record.privacy["delta"] for record in of if record.privacy.get("unit")]
    early = any(record.ended_early for record in of)
    return Row(
        label=label,
        numbers=tuple(numbers),
        epsilon=worst,
        delta=max(deltas, default=None),
        ended_early=early,
    )


def _seeds(grid: Grid, slot: _Slot, label: Label) -> set[int]:
    """Return seeds that were asked for here: without `--seed` each configuration has its own."""
    return {
        cell.seed
        for cell in grid.cells
        if (cell.config, cell.method) == (slot.config, label.method)
    }


def _with_best(rows: Sequence[Row]) -> Iterator[Row]:
    """Mark the best of each column; none where there is nothing to compare."""
    best = [_best([row.numbers[index] for row in rows]) for index in range(len(rows[0].numbers))]
    for row in rows:
        numbers = tuple(
            Number(n.spread, n.missing, top is not None and _shown(n) == top)
            for n, top in zip(row.numbers, best, strict=True)
        )
        yield replace(row, numbers=numbers)


def _best(numbers: Sequence[Number]) -> float | None:
    shown = [value for number in numbers if (value := _shown(number)) is not None]
    return max(shown) if len(shown) > 1 else None


def _shown(number: Number) -> float | None:
    """Return the mean in percent as it is printed, so that what looks equal counts as equal."""
    return None if number.spread is None else round(100 * number.spread.mean, 2)


def _caption(
    cells: Sequence[Cell], records: Sequence[Record], protocol: str, selection: str
) -> str:
    seeds = sorted({record.seed for record in records})
    rounds = sorted({record.rounds for record in records})
    many = len(seeds) > 1
    parts = [
        f"Percent; {PROTOCOLS[protocol]}",
        _selected(records, selection),
        f"rounds: {_listed(rounds)}",
        f"{'mean ± sample standard deviation over seeds' if many else 'seed'} {_listed(seeds)}",
        f"privacy: {_privacy(records)}",
    ]
    if len(cells) > len(records):
        parts.append(f"{len(cells) - len(records)} of {len(cells)} runs are missing")
    if any(record.ended_early for record in records):
        parts.append(f"{EARLY} a run of the row ended early")
    readings = dict.fromkeys((cell.method, cell.reading) for cell in cells if cell.reading)
    parts += [f"{OURS} {method} is a reading of ours: {why}" for method, why in readings]
    return "; ".join(parts) + "."


def _selected(records: Sequence[Record], selection: str) -> str:
    """Return whose accuracy, in the words of the runs' own reports where a round was chosen."""
    if selection != BEST:
        return SELECTED[selection]
    found = dict.fromkeys(record.chosen_how for record in records if selection in record.scores)
    return " or ".join(words or SELECTED[selection] for words in found)


def _privacy(records: Sequence[Record]) -> str:
    """Return what the epsilons are about and count on, in words."""
    of = [record.privacy for record in records if record.privacy.get("unit")]
    if not of:
        return "none"
    others = ", others without" if len(of) < len(records) else ""
    parts = [f"{' and '.join(dict.fromkeys(map(_mechanism, of)))}{others}"]
    if any(privacy.get("noise_source") == "seeded" for privacy in of):
        parts.append("noise from a seed: protects nobody")
    return "; ".join((*parts, EPSILONS))


def _mechanism(privacy: Mapping[str, Any]) -> str:
    unit, known = str(privacy["unit"]), {name: privacy.get(name) or "-" for name in PRIVACY}
    return (
        f"{known['mechanism']}, unit {UNITS.get(unit, unit)}, {known['relation']}, sampling "
        f"{known['sampling']}, accountant {known['accountant']}, "
        f"{known['noise_distribution']} noise, source {known['noise_source']}"
    )


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def shown_epsilon(value: float) -> str:
    """Return epsilon, rounded up so that no less is stated than was spent; infinity as its sign."""
    if math.isinf(value):
        return "∞"
    # The small term keeps a run that was calibrated to 8 from reading 8.01.
    return f"{math.ceil(100 * value - 1e-4) / 100:.2f}"


def shown_number(number: Number) -> str:
    """Return mean and deviation in percent; how many seeds, where one is missing."""
    if number.spread is None:
        return "-"
    text, deviation = f"{100 * number.spread.mean:.2f}", number.spread.deviation
    if deviation is not None:
        text += f" ± {100 * deviation:.2f}"
    return f"{text} (n={len(number.spread.values)})" if number.missing else text


def training_notes(records: Sequence[Record]) -> tuple[str, ...]:
    """Return a line for each optimiser, beginning with whose it is where there are several."""
    runs: dict[str, list[Record]] = {}
    for record in records:
        runs.setdefault(optimizer_words(record.training), []).append(record)
    if len(runs) == 1:
        return tuple(runs)
    return tuple(f"{'; '.join(_names(of, records))}: {words}" for words, of in runs.items())


def _names(of: Sequence[Record], records: Sequence[Record]) -> list[str]:
    """Return whose runs these are: a method's name alone where all its runs are among them."""
    others = {record.method for record in records if record not in of}
    return list(dict.fromkeys(r.method if r.method not in others else _whole(r) for r in of))


def _whole(record: Record) -> str:
    values = "".join(f", {key}={value}" for key, value in record.axes)
    return f"{record.method} in {record.config}{values}"
