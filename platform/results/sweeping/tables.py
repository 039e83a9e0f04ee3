"""The results of a sweep: tables in the form of papers, numbers, pictures, and one document.

Rows of a table are methods with their values on the axes, such as "PromptFL, epsilon = 2"; columns
are configurations (data sets), or the domains that were held out with their mean. Every number is a
mean over seeds, in percent. It is bold if it is better than those of all rows at the same epsilon
beyond doubt: by paired t-tests over seeds, corrected for their number.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from platform.config import RunConfig
from platform.experiment.caveats import BESIDE, caveats_of, optimizer_document, optimizer_words
from platform.results.inference import Interval, gains, holm, interval
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
    spread_of,
    value_words,
)
from platform.results.pictures import PRICED, line_names
from platform.results.sweeping.grid import Cell, Grid
from platform.results.sweeping.running import Outcome
from platform.rounds.documents import ADVERSARIES

LAST: Final = "last"
BEST: Final = "best_on_validation"
NEW_CLIENTS: Final = "new_clients"
SELECTIONS: Final = (LAST, BEST, NEW_CLIENTS)
"""Accuracies: after the last round, at the round that validation chose, and of new clients."""

PRIVACY: Final = (
    *("unit", "mechanism", "relation", "delta"),
    *("sampling", "accountant", "noise_distribution", "noise_source"),
)
"""The facts that belong to an epsilon, as `summary.json` names them."""
_SPREAD: Final = ("weighted", "std", "worst")


@dataclass(frozen=True, kw_only=True)
class Record(RunNumbers):
    """One finished run, with what tables show beside its summary's own numbers.

    Attributes:
        scores: By selection, then by measure; shares in [0, 1], and differences of shares.
        warnings: The sentences of the warnings in the run's report.
        gain: The gain over each client alone, over clients; None if it is not known by client.
        training: The optimiser that it trained with, as `optimizer_document` states it.
    """

    scores: Mapping[str, Mapping[str, float]]
    warnings: tuple[str, ...]
    ended_early: bool
    gain: Interval | None
    training: Mapping[str, Any]

    @property
    def privacy(self) -> dict[str, Any]:
        """The facts of `PRIVACY`, as `summary.json` states them."""
        return {name: self.document.get(name) for name in PRIVACY}


def record_of(outcome: Outcome) -> Record:
    """Return the numbers of a finished cell; ValueError for another cell."""
    cell, summary = outcome.cell, outcome.summary
    if summary is None or outcome.run_id is None:
        raise ValueError(f"cell ({cell}) has not finished")
    caveats = caveats_of(summary)
    return Record(
        run_id=outcome.run_id,
        config=cell.config,
        dataset=summary["dataset"],
        method=cell.method,
        seed=cell.seed,
        axes=cell.axes,
        protocol=summary["final"]["protocol"]["name"],
        document=summary,
        scores={name: values for name, values in _scores(summary).items() if values},
        warnings=tuple(one.text for one in caveats),
        ended_early=any(one.code == "ended-early" for one in caveats),
        gain=gains(summary)["gain_over_local"],
        training=optimizer_document(cell.run),
    )


def _scores(summary: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    final, twins = summary["final"], summary.get("local", {})
    last = _measured(final)
    last |= _known({"local_twin": (twins.get("accuracy") or {}).get("mean")})
    last |= _known({name: summary[name] for name in ("gain_over_local", "worth_of_sharing")})
    last |= _known({"validation": (final.get("validation") or {}).get("mean")})
    best, new = summary.get(BEST), final.get(NEW_CLIENTS)
    chosen: dict[str, float] = {}
    if best is not None:
        chosen = _measured(best) | _known({"validation": best["validation"]})
    newcomers: dict[str, Any] = {}
    for when in ("before", "after") if new is not None else ():
        newcomers |= {when: new[when]["mean"]}
        newcomers |= {f"{when}_{name}": new[when].get(name) for name in _SPREAD}
    return {LAST: last, BEST: chosen, NEW_CLIENTS: _known(newcomers)}


def _measured(document: Mapping[str, Any]) -> dict[str, float]:
    """Return accuracy and the protocol's numbers from a document with both."""
    accuracy, protocol = document["accuracy"], document["protocol"]
    found = {"local": accuracy["mean"], **{name: accuracy[name] for name in _SPREAD}}
    found |= {name: protocol.get(name) for name in ("base", "novel", "harmonic_mean")}
    target = protocol.get("target") or {}
    found |= {"target": target.get("mean")}
    found |= {f"target_{name}": target.get(name) for name in ("std", "worst")}
    found |= {"own": (protocol.get("own") or {}).get("mean")}
    return _known(found)


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def score(selection: str, measure: str) -> Callable[[Record], float | None]:
    """Return a function that takes a measure from a run."""
    return lambda record: record.scores.get(selection, {}).get(measure)


MEASURES: Final = {
    "client_mean": (("local", "Accuracy"),),
    "all_classes": (("local", "All"), ("own", "Own")),
    "base_to_novel": (
        ("local", "Local"),
        ("base", "Base"),
        ("novel", "Novel"),
        ("harmonic_mean", "HM"),
    ),
    "leave_one_domain_out": (("target", "Target"),),
}
"""The measures of each protocol in tables, and the names of their columns."""

NEWCOMER_MEASURES: Final = (("before", "Before"), ("after", "After"))
AVERAGE: Final = "Avg."
TESTED_ON: Final = {
    "client_mean": "each on its own test examples",
    "all_classes": "each on the test examples of all clients (All) and on its own (Own)",
    "base_to_novel": "on own examples, all base and all novel classes; HM: their harmonic mean",
    "leave_one_domain_out": "each on a domain that no client trained on",
    NEW_CLIENTS: "that never took part, on own test examples before and after personalising",
}
CHOSEN: Final = "the round with the best mean validation accuracy, before personalising"
EARLY: Final = "†"
OURS: Final = "‡"
"""Marks a method that is a reading of ours, because its paper leaves something open."""
FOLDERS: Final = ("images", "folders", "client_folders")
BOLD: Final = "Bold: best for its data and ε (paired t-tests over seeds, Holm-corrected, p < 0.05)"
CHANCE: Final = "n.s.: not beyond chance"
GAIN: Final = "Gain over alone"
UNITS: Final = {
    ("record", "replace_one"): "one example of a client (exchanged for another)",
    ("record", "add_or_remove_one"): "one example of a client (added or removed)",
    ("client", "replace_one"): "a whole client (its data exchanged for others)",
    ("client", "add_or_remove_one"): "a whole client (its update exchanged for zeros)",
}
AGAINST: Final = {"peers": "the other clients", "observer": "whoever gets the final model"}


@dataclass(frozen=True)
class Number:
    """A cell of a table.

    Attributes:
        spread: The spread over seeds, None without a finished run.
        missing: Number of seeds without a finished run.
        is_best: Whether it is beyond doubt the best of its column with its data and epsilon.
    """

    spread: Spread | None
    missing: int = 0
    is_best: bool = False


@dataclass(frozen=True)
class Column:
    """A column of numbers, and where they come from.

    Attributes:
        group: The configuration or data set in words.
        name: The measure, and the held-out domain if there is one.
        measure: The key of its number in `Record.scores`.
        domains: The held-out domains of its runs, of which it has the mean; empty for all runs.
    """

    group: str
    name: str
    config: str
    measure: str
    domains: tuple[str, ...] = field(default=(), kw_only=True)

    def takes(self, record: RunNumbers) -> bool:
        """Return whether a run counts in this column."""
        if record.config != self.config:
            return False
        return not self.domains or dict(record.axes).get(HELD_OUT) in self.domains


@dataclass(frozen=True, kw_only=True)
class Row:
    """A method.

    Attributes:
        label: The method with its values on the axes.
        name: Both in words, with the method's name in its paper.
        epsilon: The largest by adversary, infinity without a guarantee; None without a run.
        delta: The delta of the epsilons, None without a mechanism.
        ended_early: Whether a budget ended one of its runs before the last round.
        is_reading: Whether the method is its implementer's reading of a paper.
        gain: The gain over each client alone: over seeds, or of one seed over its clients.
    """

    label: Label
    name: str
    numbers: tuple[Number, ...]
    epsilon: tuple[float, ...] | None = None
    delta: float | None = None
    ended_early: bool = False
    is_reading: bool = False
    gain: Interval | None = None

    @property
    def at(self) -> Axes:
        """What only rows that are compared have in common: values that set data or epsilon."""
        return tuple(
            (key, value)
            for key, value in self.label.axes
            if key in (*PRICED, "privacy") or key.startswith("task.")
        )

    @property
    def marks(self) -> str:
        """The marks behind the method's name."""
        found = ((self.ended_early, EARLY), (self.is_reading, OURS))
        return "".join(f" {mark}" for is_marked, mark in found if is_marked)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A paired test of two rows in one column.

    Attributes:
        at: The data and the epsilon in words.
        first: Name of the row that the user named before the `second`, better or not.
        difference: First minus second, over seeds; p is corrected for all tests of the table.
        of: The number of these tests.
    """

    protocol: str
    selection: str
    column: str
    at: str
    first: str
    second: str
    difference: Interval
    of: int

    def __str__(self) -> str:
        names = [name.split(", ") for name in (self.first, self.second)]
        # What both rows have in common is said once: "at epsilon = 8".
        common = [part for part in names[0][1:] if part in names[1][1:]]
        first, second = (", ".join(p for p in parts if p not in common) for parts in names)
        where = ", ".join(filter(None, (self.column, *common)))
        said = f"{first} less {second}{f' ({where})' if where else ''}"
        return f"{said}: {self.difference.words('seeds')}, p = {self.difference.p:.2g}"

    def document(self) -> dict[str, Any]:
        """Return the test for JSON."""
        names = ("protocol", "selection", "column", "at", "first", "second")
        told = {name: getattr(self, name) for name in names}
        return {**told, **self.difference.document(), "tests": self.of}


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table.

    Attributes:
        caption: The meaning of the numbers, in sentences.
        rows: In the order of the command line.
        adversaries: Groups with equal epsilons and the first of each; empty without epsilons.
        notes: Details that the caption leaves out.
        training: The optimisers of the runs in words, with their runs where they differ.
        tests: Paired tests of the rows with the same data and epsilon.
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    adversaries: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    training: tuple[str, ...] = ()
    tests: tuple[Comparison, ...] = ()

    @property
    def title(self) -> str:
        """The first sentence of the caption: what is measured, and over how many seeds."""
        return self.caption.partition(". ")[0]

    @property
    def has_gains(self) -> bool:
        """Whether any row has a gain over each client alone."""
        return any(row.gain is not None for row in self.rows)


def build_tables(grid: Grid, records: Sequence[Record]) -> list[Table]:
    """Return a table for each measured protocol and selection; numbers may be missing."""
    found = []
    for protocol in dict.fromkeys(record.protocol for record in records):
        of = [record for record in records if record.protocol == protocol]
        for selection in SELECTIONS:
            if any(selection in record.scores for record in of):
                found.append(_table(grid, of, protocol, selection))
    return found


def _table(grid: Grid, records: Sequence[Record], protocol: str, selection: str) -> Table:
    columns = tuple(_columns(grid, records, protocol, selection))
    cells = [cell for cell in grid.cells if cell.run.evaluation.protocol == protocol]
    labels = list(dict.fromkeys(label_of(cell.method, cell.axes) for cell in cells))
    # Stable, so that the points of a method stay in the order of the command line.
    labels.sort(key=lambda label: grid.methods.index(label.method))
    readings = {cell.method: cell.reading for cell in cells if cell.reading}
    titles = {cell.method: cell.title for cell in cells}
    names = line_names([Label(titles[label.method], label.axes) for label in labels])
    rows = [
        _row(
            *(label, columns, grid, records),
            name=names[Label(titles[label.method], label.axes)],
            selection=selection,
            is_reading=label.method in readings,
        )
        for label in labels
    ]
    rows, tests = _tested(rows, columns, protocol=protocol, selection=selection)
    return Table(
        caption=_caption(cells, records, protocol, selection, rows=rows),
        columns=columns,
        rows=tuple(rows),
        tests=tuple(tests),
        adversaries=adversaries_alike(records) if any(r.privacy["unit"] for r in records) else {},
        notes=tuple(_notes(records)),
        warnings=tuple(dict.fromkeys(warning for record in records for warning in record.warnings)),
        training=(*training_notes(records), *grid.unequal),
    )


def _columns(
    grid: Grid, records: Sequence[Record], protocol: str, selection: str
) -> Iterator[Column]:
    configs = [c for c in grid.configs if any(record.config == c for record in records)]
    shown = NEWCOMER_MEASURES if selection == NEW_CLIENTS else MEASURES[protocol]
    domains = dict(grid.axes).get(HELD_OUT, ())
    for config in configs:
        group = group_of(config, records)
        for measure, name in shown:
            # A column for each held-out domain, and their mean.
            prefix = f"{name} " if domains and len(shown) > 1 else ""
            for domain in domains:
                yield Column(group, f"{prefix}{domain}", config, measure, domains=(domain,))
            title = f"{prefix}{AVERAGE}" if domains else name
            yield Column(group, title, config, measure, domains=domains)


def _row(
    label: Label,
    columns: Sequence[Column],
    grid: Grid,
    records: Sequence[Record],
    *,
    name: str,
    selection: str,
    is_reading: bool,
) -> Row:
    of = [record for record in records if label_of(record.method, record.axes) == label]
    numbers = []
    for column in columns:
        runs = [record for record in of if column.takes(record)]
        spread = spread_of(runs, score(selection, column.measure), parts=column.domains)
        # Without `--seed` each configuration has its own seed.
        own = (column.config, label.method)
        seeds = {cell.seed for cell in grid.cells if (cell.config, cell.method) == own}
        missing = 0 if spread is None else len(seeds) - len(spread.values)
        numbers.append(Number(spread, missing))
    worst = tuple(max(r.epsilon(name) or 0.0 for r in of) for name in ADVERSARIES) if of else None
    deltas = [record.privacy["delta"] for record in of if record.privacy.get("unit")]
    gain = None
    if selection == LAST:
        parts = dict(grid.axes).get(HELD_OUT, ())
        spread = spread_of(of, score(LAST, "gain_over_local"), parts=parts)
        gain = None if spread is None else interval(spread.values)
        if gain is None and len(of) == 1:
            gain = of[0].gain
    return Row(
        label=label,
        name=name,
        gain=gain,
        numbers=tuple(numbers),
        epsilon=worst,
        delta=max(deltas, default=None),
        ended_early=any(record.ended_early for record in of),
        is_reading=is_reading,
    )


def _tested(
    rows: Sequence[Row], columns: Sequence[Column], protocol: str, selection: str
) -> tuple[list[Row], list[Comparison]]:
    """Return the rows with their best numbers marked, and all tests of two rows.

    A number is the best if it is better than those of all rows that its row is compared with.
    """
    pairs = itertools.combinations(rows, 2)
    compared = [(*pair, at) for pair in pairs if (at := _shared(*pair)) is not None]
    # By epsilon, as a reader goes through them.
    ats = list(dict.fromkeys(row.at for row in rows))
    compared.sort(key=lambda found: ats.index(found[2]))
    found = [
        (index, at, one.name, other.name, test)
        for index, (one, other, at) in itertools.product(range(len(columns)), compared)
        if (test := _difference(one, other, index)) is not None
    ]
    names, tests, wins = flat_names(columns), list[Comparison](), Counter[tuple[str, int]]()
    ps = holm([difference.p for *_, difference in found])
    for (index, at, first, second, difference), p in zip(found, ps, strict=True):
        corrected = replace(difference, p=p)
        wins[first if corrected.mean > 0 else second, index] += corrected.is_beyond_chance
        tests.append(
            Comparison(
                protocol=protocol,
                selection=selection,
                column=names[index],
                at=", ".join((columns[index].group, *itertools.starmap(value_words, at))),
                first=first,
                second=second,
                difference=corrected,
                of=len(found),
            )
        )
    # A row without a number of several seeds is in no test, so nothing is better than it.
    others = Counter(row.name for *pair, _ in compared for row in pair)
    marked = []
    for row in rows:
        numbers = (
            replace(one, is_best=0 < wins[row.name, index] == others[row.name])
            for index, one in enumerate(row.numbers)
        )
        marked.append(replace(row, numbers=tuple(numbers)))
    return marked, tests


def _shared(first: Row, second: Row) -> Axes | None:
    """Return the data and epsilon at which two rows compare, or None; any if one sends nothing."""
    ats = (first.at, second.at)
    silent = [(EPSILON, SENDS_NOTHING) in at for at in ats]
    data = {tuple(pair for pair in at if pair[0] != EPSILON) for at in ats}
    return ats[silent[0]] if first.at == second.at or (any(silent) and len(data) == 1) else None


def _difference(one: Row, other: Row, index: int) -> Interval | None:
    """Return the first row's number less the second's, over common seeds."""
    spreads = [row.numbers[index].spread for row in (one, other)]
    values, others = (dict(zip(s.seeds, s.values, strict=True)) if s else {} for s in spreads)
    return interval([value - others[seed] for seed, value in values.items() if seed in others])


def _caption(
    cells: Sequence[Cell],
    records: Sequence[Record],
    protocol: str,
    selection: str,
    *,
    rows: Sequence[Row],
) -> str:
    seeds = sorted({record.seed for record in records})
    rounds = _either(sorted({len(record.rounds) for record in records}))
    when = f"after {rounds} round{'' if rounds == '1' else 's'}"
    if selection == LAST:
        when += " and personalisation"
    elif selection == BEST:
        # In the words of the runs' reports.
        rules = (
            record.document.get("evaluation", {}).get("selection", "")
            for record in records
            if selection in record.scores
        )
        when = f"at {_either(rule.partition(BESIDE)[2] or CHOSEN for rule in rules)}"
    on = TESTED_ON.get(selection, TESTED_ON[protocol])
    over = f"mean ± sample standard deviation over {len(seeds)} seeds"
    parts = [
        f"Test accuracy in percent, mean over clients, {on}, {when}; "
        + (over if len(seeds) > 1 else f"seed {seeds[0]}"),
        _data_words([cell.run for cell in cells], records),
        _privacy_words(cells, records),
    ]
    if any(number.is_best for row in rows for number in row.numbers):
        parts.append(BOLD)
    if gains_shown := [row.gain for row in rows if row.gain is not None]:
        pairs = "seeds" if len(seeds) > 1 else "clients"
        chance = f"; {CHANCE}" if not all(one.is_beyond_chance for one in gains_shown) else ""
        parts.append(f"{GAIN}: points, with the 95% interval over {pairs}{chance}")
    if len(cells) > len(records):
        parts.append(f"{len(cells) - len(records)} of {len(cells)} runs are missing")
    if any(record.ended_early for record in records):
        parts.append(f"{EARLY} A run of the row ended early")
    readings = dict.fromkeys((cell.title, cell.reading) for cell in cells if cell.reading)
    parts += [f"{OURS} {title} is a reading of ours: {why}" for title, why in readings]
    return ". ".join(parts) + "."


def _either(values: Iterable[Any], between: str = " or ") -> str:
    """Return each value once."""
    return between.join(dict.fromkeys(map(str, values)))


def _data_words(runs: Sequence[RunConfig], records: Sequence[Record]) -> str:
    """Return the data, the clients that hold them, and the frozen model, in words."""
    tasks = [run.task for run in runs]
    # The folder is the name of one's own images.
    names = (Path(t.root).name if t.dataset in FOLDERS else t.dataset for t in tasks)
    counts = _either(filter(None, (record.document.get("classes") for record in records)))
    models = _either(
        f"{model.name}{f' ({Path(model.pretrained).name})' if model.pretrained else ''}"
        for model in (task.model for task in tasks)
        if model is not None
    )
    return (
        f"Data: {_either(names)}{f' ({counts} classes)' if counts else ''}, dealt out to "
        f"{_either(task.clients for task in tasks)} clients ({_either(t.dealt for t in tasks)})"
        + (f"; frozen model {models}" if models else "")
    )


def _privacy_words(cells: Sequence[Cell], records: Sequence[Record]) -> str:
    """Return what epsilon protects and against whom, and what adds the noise, in words."""
    of = [record for record in records if record.privacy["unit"]]
    if not of:
        return "No differential privacy"
    units = _either(UNITS[record.privacy["unit"], record.privacy["relation"]] for record in of)
    names = _either(record.privacy["mechanism"].replace("_", " ") for record in of)
    trust = _either(
        f" ({s.adversary.replace('_', '-')}, with at most {s.corrupt} of the clients)"
        for s in (cell.run.secure_aggregation for cell in cells if cell.run.mechanism.needs_masks)
    )
    words = {"server": f"the server{trust}", **AGAINST}
    whom = " / ".join(adversaries_alike(records))
    whom = re.sub("|".join(words), lambda found: words[found[0]], whom)
    seeded = any(record.privacy["noise_source"] == "seeded" for record in of)
    return (
        f"Privacy: (ε, δ)-differential privacy with δ = {_either(f'{r.delta:g}' for r in of)} of "
        f"{units}, by {names}; each ε is of one run, against {whom}"
        + (". Noise from a seed: it protects nobody" if seeded else "")
    )


def _notes(records: Sequence[Record]) -> Iterator[str]:
    """Yield what a reader who checks the numbers asks for."""
    yield f"seeds: {_either(sorted({record.seed for record in records}), ', ')}"
    of = [record.privacy for record in records if record.privacy["unit"]]
    for name in PRIVACY if of else ():
        yield f"{name.replace('_', ' ')}: {_either(one[name] or '-' for one in of)}"
    if of:
        yield (
            "epsilon of the worst run of a row, rounded up; epsilon of one run: whoever sees "
            "several rows on the same clients sees their composition"
        )


def shown_epsilon(value: float) -> str:
    """Return epsilon, rounded up so that tables never state less than was spent; infinity as ∞."""
    if math.isinf(value):
        return "∞"
    # Without the small term, a run that was calibrated to 8 would read 8.01.
    return f"{math.ceil(100 * value - 1e-4) / 100:.2f}"


def shown_number(number: Number) -> str:
    """Return mean and deviation in percent; the number of seeds too, where a seed is missing."""
    if number.spread is None:
        return "-"
    text, deviation = f"{100 * number.spread.mean:.2f}", number.spread.deviation
    if deviation is not None:
        text += f" ± {100 * deviation:.2f}"
    return f"{text} (n={len(number.spread.values)})" if number.missing else text


def training_notes(records: Sequence[Record]) -> tuple[str, ...]:
    """Return a line for each optimiser; several optimisers begin with the names of their runs."""
    runs: dict[str, list[Record]] = {}
    for record in records:
        runs.setdefault(optimizer_words(record.training), []).append(record)
    if len(runs) == 1:
        return tuple(runs)
    notes = []
    for words, of in runs.items():
        others = {record.method for record in records if record not in of}
        names = dict.fromkeys(
            # A method's name alone, if all its runs are among these.
            record.method
            if record.method not in others
            else f"{record.method} in {record.config}"
            + "".join(f", {key}={value}" for key, value in record.axes)
            for record in of
        )
        notes.append(f"{'; '.join(names)}: {words}")
    return tuple(notes)


def flat_names(columns: Sequence[Column]) -> list[str]:
    """Return one heading a column: its group and its name, each only if it differs by column."""
    groups = {column.group for column in columns}
    names = {column.name for column in columns}
    if len(groups) == 1:
        return [column.name for column in columns]
    return [c.group if len(names) == 1 else f"{c.group} {c.name}" for c in columns]
