"""The results of a sweep: tables in the form of papers, numbers, pictures, and one document.

Rows of a table are methods with their values on the axes; columns are configurations (data sets),
or the domains that were held out with their mean. Every number is a mean over seeds, in percent.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from platform.disk.files import write_text
from platform.experiment.caveats import (
    BESIDE,
    PROTOCOLS,
    caveats_of,
    escaped,
    optimizer_document,
    optimizer_words,
)
from platform.results.numbers import (
    HEADLINES,
    HELD_OUT,
    Axes,
    Label,
    RunNumbers,
    Spread,
    group_of,
    label_of,
    short,
    spread_of,
)
from platform.results.pictures import files_of, sweep_pictures, write_pictures
from platform.results.reading import SWEEP_FILE, SweepCell, sweep_file
from platform.results.sweeping.grid import Cell, Grid
from platform.results.sweeping.running import Outcome
from platform.rounds.documents import ADVERSARIES, csv_text, in_rounds, json_number

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
class Record:
    """One finished run.

    Attributes:
        config: The name of its configuration in tables.
        dataset: The data set's name.
        method: The method's name.
        seed: The run's seed.
        axes: Its values on the axes of the sweep.
        protocol: The protocol's name.
        rounds: Number of committed rounds.
        scores: By selection, then by measure; shares in [0, 1], and differences of shares.
        privacy: The facts of `PRIVACY`, as `summary.json` states them.
        epsilon: The epsilon by adversary.
        run_id: The run.
        chosen_round: The round that validation chose, if any.
        chosen_how: The rule of that choice in words, else empty.
        warnings: The sentences of the warnings in the run's report.
        ended_early: Whether the run ended before its last round.
        training: The optimiser that it trained with, as `optimizer_document` states it.
    """

    config: str
    dataset: str
    method: str
    seed: int
    axes: Axes
    protocol: str
    rounds: int
    scores: Mapping[str, Mapping[str, float]]
    privacy: Mapping[str, Any] = field(default_factory=dict)
    epsilon: Mapping[str, float] = field(default_factory=dict)
    run_id: str = ""
    chosen_round: int | None = None
    chosen_how: str = ""
    warnings: tuple[str, ...] = ()
    ended_early: bool = False
    training: Mapping[str, Any] = field(default_factory=dict)

    def headline(self, selection: str = LAST) -> float | None:
        """Return the protocol's one number, None where it was not measured."""
        return self.scores.get(selection, {}).get(HEADLINES[self.protocol])


def record_of(outcome: Outcome) -> Record:
    """Return the numbers of a finished cell; ValueError for another cell."""
    cell, summary = outcome.cell, outcome.summary
    if summary is None or outcome.run_id is None:
        raise ValueError(f"cell ({cell}) has not finished")
    final, best = summary["final"], summary.get(BEST) or {}
    caveats = caveats_of(summary)
    return Record(
        config=cell.config,
        dataset=summary["dataset"],
        method=cell.method,
        seed=cell.seed,
        axes=cell.axes,
        protocol=final["protocol"]["name"],
        rounds=len(in_rounds(summary["rounds"])),
        scores={name: values for name, values in _scores(summary).items() if values},
        privacy={name: summary.get(name) for name in PRIVACY},
        epsilon={name: float(final["epsilon"][name]) for name in ADVERSARIES},
        run_id=outcome.run_id,
        chosen_round=best.get("round"),
        chosen_how=summary.get("evaluation", {}).get("selection", "").partition(BESIDE)[2],
        warnings=tuple(one.text for one in caveats),
        ended_early=any(one.code == "ended-early" for one in caveats),
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


def results_csv(records: Sequence[Record], axes: Sequence[str]) -> str:
    """Return one line a run and measure, with a column for each axis."""
    columns = (
        *("config", "dataset", "method", "seed", *axes),
        *("protocol", "selection", "measure", "value", *PRIVACY),
        *(f"epsilon_{name}" for name in ADVERSARIES),
        *("committed_rounds", "chosen_round", "run"),
    )
    rows = []
    for record in records:
        values = dict(record.axes)
        who = (record.config, record.dataset, record.method, record.seed)
        for selection, scores in record.scores.items():
            for measure, value in scores.items():
                rows.append(
                    (
                        *(*who, *(values[key] for key in axes)),
                        *(record.protocol, selection, measure, value),
                        *(record.privacy.get(name) for name in PRIVACY),
                        *(record.epsilon.get(name) for name in ADVERSARIES),
                        *(record.rounds, record.chosen_round if selection == BEST else None),
                        record.run_id,
                    )
                )
    return csv_text(columns, rows)


def rounds_csv(outcomes: Sequence[Outcome], axes: Sequence[str]) -> str:
    """Return one line a run and committed round."""
    scores = ("mean", "weighted", "std", "worst")
    columns = (
        *("config", "dataset", "method", "seed", *axes, "round"),
        *(f"accuracy_{name}" for name in scores),
        "validation_mean",
        *(f"epsilon_{name}" for name in ADVERSARIES),
        "run",
    )
    rows = []
    for outcome in outcomes:
        cell, values = outcome.cell, dict(outcome.cell.axes)
        summary = outcome.summary or {"rounds": []}
        for document in summary["rounds"]:
            rows.append(
                (
                    *(cell.config, summary["dataset"], cell.method, cell.seed),
                    *(values[key] for key in axes),
                    document["round"],
                    *(document["accuracy"][name] for name in scores),
                    (document.get("validation") or {}).get("mean"),
                    *(document["epsilon"][name] for name in ADVERSARIES),
                    outcome.run_id,
                )
            )
    return csv_text(columns, rows)


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
"""The measures of each protocol in tables, and the names of their columns."""

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
"""Marks a method that is a reading of ours, because its paper leaves something open."""
EPSILONS: Final = (
    "epsilon of the worst run of a row, rounded up; epsilon of one run: whoever sees several rows "
    "on the same clients sees their composition"
)
UNITS: Final = {"record": "one example of a client", "client": "a whole client"}


@dataclass(frozen=True)
class Number:
    """A cell of a table.

    Attributes:
        spread: The spread over seeds, None without a finished run.
        missing: Number of seeds without a finished run.
        is_best: Whether the printed number is the best of its column.
    """

    spread: Spread | None
    missing: int = 0
    is_best: bool = False


@dataclass(frozen=True)
class Column:
    """A column of numbers: the configuration or data set, and the measure."""

    group: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """A method.

    Attributes:
        label: The method with its values on the axes.
        numbers: One number for each column.
        epsilon: The largest by adversary, infinity without a guarantee; None without a run.
        delta: The delta of the epsilons, None without a mechanism.
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
        """The marks behind the method's name."""
        found = ((self.ended_early, EARLY), (self.is_reading, OURS))
        return "".join(f" {mark}" for is_marked, mark in found if is_marked)


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table.

    Attributes:
        caption: The meaning of the numbers, in words.
        axes: Keys of the columns beside the method's.
        columns: The columns of numbers.
        rows: In the order of the command line.
        is_private: Whether any run has a mechanism, so that the table shows epsilons.
        warnings: The warnings of all runs' reports.
        training: The optimisers of the runs in words, with their runs where they differ.
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

    Cells without a record are shown as missing.
    """
    found = []
    for protocol in dict.fromkeys(record.protocol for record in records):
        of = [record for record in records if record.protocol == protocol]
        for selection in SELECTIONS:
            if any(selection in record.scores for record in of):
                found.append(_table(grid, of, protocol, selection))
    return found


class _Slot(NamedTuple):
    """The source of a column's numbers."""

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
        _row(label, slots, grid, records, selection=selection, is_reading=label.method in readings)
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
    is_reading: bool,
) -> Row:
    of = [record for record in records if label_of(record) == label]
    numbers = []
    for slot in slots:
        runs = [record for record in of if slot.takes(record)]
        spread = spread_of(runs, score(selection, slot.measure), parts=slot.domains)
        # Without `--seed` each configuration has its own seed.
        own = (slot.config, label.method)
        seeds = {cell.seed for cell in grid.cells if (cell.config, cell.method) == own}
        missing = 0 if spread is None else len(seeds) - len(spread.values)
        numbers.append(Number(spread, missing))
    worst = tuple(max(r.epsilon.get(name, 0.0) for r in of) for name in ADVERSARIES) if of else None
    deltas = [record.privacy["delta"] for record in of if record.privacy.get("unit")]
    return Row(
        label=label,
        numbers=tuple(numbers),
        epsilon=worst,
        delta=max(deltas, default=None),
        ended_early=any(record.ended_early for record in of),
        is_reading=is_reading,
    )


def _with_best(rows: Sequence[Row]) -> Iterator[Row]:
    """Mark the best number of each column with several numbers."""
    best: list[float | None] = []
    for index in range(len(rows[0].numbers)):
        means = [mean for row in rows if (mean := _shown(row.numbers[index])) is not None]
        best.append(max(means) if len(means) > 1 else None)
    for row in rows:
        numbers = tuple(
            Number(n.spread, n.missing, top is not None and _shown(n) == top)
            for n, top in zip(row.numbers, best, strict=True)
        )
        yield replace(row, numbers=numbers)


def _shown(number: Number) -> float | None:
    """Return the mean in percent as printed: means that look equal count as equal."""
    return None if number.spread is None else round(100 * number.spread.mean, 2)


def _caption(
    cells: Sequence[Cell], records: Sequence[Record], protocol: str, selection: str
) -> str:
    seeds = sorted({record.seed for record in records})
    rounds = sorted({record.rounds for record in records})
    many = len(seeds) > 1
    selected = SELECTED[selection]
    if selection == BEST:
        # In the words of the runs' reports.
        found = dict.fromkeys(r.chosen_how for r in records if selection in r.scores)
        selected = " or ".join(words or selected for words in found)
    parts = [
        f"Percent; {PROTOCOLS[protocol]}",
        selected,
        f"rounds: {_listed(rounds)}",
        f"{'mean ± sample standard deviation over seeds' if many else 'seed'} {_listed(seeds)}",
        f"privacy: {_privacy_words(records)}",
    ]
    if len(cells) > len(records):
        parts.append(f"{len(cells) - len(records)} of {len(cells)} runs are missing")
    if any(record.ended_early for record in records):
        parts.append(f"{EARLY} a run of the row ended early")
    readings = dict.fromkeys((cell.method, cell.reading) for cell in cells if cell.reading)
    parts += [f"{OURS} {method} is a reading of ours: {why}" for method, why in readings]
    return "; ".join(parts) + "."


def _privacy_words(records: Sequence[Record]) -> str:
    """Return the unit, mechanism and assumptions of the epsilons, in words."""
    of = [record.privacy for record in records if record.privacy.get("unit")]
    if not of:
        return "none"
    found: dict[str, None] = {}
    for privacy in of:
        unit, known = str(privacy["unit"]), {name: privacy.get(name) or "-" for name in PRIVACY}
        words = (
            f"{known['mechanism']}, unit {UNITS.get(unit, unit)}, {known['relation']}, sampling "
            f"{known['sampling']}, accountant {known['accountant']}, "
            f"{known['noise_distribution']} noise, source {known['noise_source']}"
        )
        found.setdefault(words)
    others = ", others without" if len(of) < len(records) else ""
    parts = [f"{' and '.join(found)}{others}"]
    if any(privacy.get("noise_source") == "seeded" for privacy in of):
        parts.append("noise from a seed: protects nobody")
    return "; ".join((*parts, EPSILONS))


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


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


PRIVACY_COLUMNS: Final = ("epsilon (server / peers / observer)", "delta")
_LATEX: Final = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"±": r"$\pm$", "∞": r"$\infty$", "<": r"$<$", ">": r"$>$"},
    **{"†": r"$\dagger$", "‡": r"$\ddagger$"},
}


def markdown(tables: Sequence[Table]) -> str:
    """Return all tables, each under its caption."""
    lines: list[str] = []
    for table in tables:
        names = _flat_names(table.columns)
        private = PRIVACY_COLUMNS if table.is_private else ()
        titles = ("method", *map(escaped, (*table.axes, *names)), *private)
        lines += [escaped(table.caption), "", _markdown_row(titles)]
        right = len(names) + len(private)
        lines.append("|" + "---|" * (1 + len(table.axes)) + "---:|" * right)
        for row in table.rows:
            shown = ((shown_number(one), one.is_best) for one in row.numbers)
            numbers = (f"**{text}**" if is_best else text for text, is_best in shown)
            axes = (escaped(value) for _, value in row.label.axes)
            method = f"`{row.label.method}`{row.marks}"
            lines.append(_markdown_row((method, *axes, *numbers, *_privacy(table, row))))
        if table.training:
            lines += ["", "Local training:", ""]
            lines += [f"- {escaped(line)}" for line in table.training]
        if table.warnings:
            lines += ["", "Warnings of the runs:", ""]
            lines += [f"- {escaped(warning)}" for warning in table.warnings]
        lines.append("")
    return "\n".join(lines)


def plain_rows(table: Table) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the names of a table's columns and its rows; * marks the best number of a column."""
    private = PRIVACY_COLUMNS if table.is_private else ()
    rows = [
        (
            f"{row.label.method}{row.marks}",
            *(value for _, value in row.label.axes),
            *(f"{shown_number(one)}{' *' * one.is_best}" for one in row.numbers),
            *_privacy(table, row),
        )
        for row in table.rows
    ]
    return ("method", *table.axes, *_flat_names(table.columns), *private), rows


def _markdown_row(cells: Sequence[str]) -> str:
    # A pipe within a cell would end it.
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _flat_names(columns: Sequence[Column]) -> list[str]:
    """Return one heading a column: its group and its name, each only if it differs by column."""
    groups = {column.group for column in columns}
    names = {column.name for column in columns}
    if len(groups) == 1:
        return [column.name for column in columns]
    return [c.group if len(names) == 1 else f"{c.group} {c.name}" for c in columns]


def _privacy(table: Table, row: Row) -> tuple[str, ...]:
    if not table.is_private:
        return ()
    if row.epsilon is None:
        return ("-", "-")
    delta = "-" if row.delta is None else f"{row.delta:g}"
    return " / ".join(map(shown_epsilon, row.epsilon)), delta


def latex(tables: Sequence[Table]) -> str:
    """Return all tables, each a floating `table`; they need the package booktabs."""
    return "\n".join(("% Needs \\usepackage{booktabs}.", *map(_latex_table, tables)))


def _latex_table(table: Table) -> str:
    private = PRIVACY_COLUMNS if table.is_private else ()
    left = 1 + len(table.axes)
    numbers = len(table.columns) + len(private)
    rows = []
    for row in table.rows:
        method = f"{row.label.method}{row.marks}"
        cells = [escape(text) for text in (method, *(value for _, value in row.label.axes))]
        for number in row.numbers:
            text = escape(shown_number(number))
            cells.append(f"\\textbf{{{text}}}" if number.is_best else text)
        cells += [escape(text) for text in _privacy(table, row)]
        rows.append(f"    {' & '.join(cells)} \\\\")
    lines = [
        r"\begin{table}",
        r"  \centering",
        f"  \\caption{{{escape(table.caption)}}}",
        f"  \\begin{{tabular}}{{{'l' * left}{'r' * numbers}}}",
        r"    \toprule",
        *_latex_head(table, left, private),
        r"    \midrule",
        *rows,
        r"    \bottomrule",
        r"  \end{tabular}",
        *(f"  % Local training: {line}" for line in table.training),
        r"\end{table}",
        "",
    ]
    return "\n".join(lines)


def _latex_head(table: Table, left: int, private: Sequence[str]) -> Iterator[str]:
    """Yield one line, or two where each of several groups has several columns."""
    groups = [
        (name, len(list(of))) for name, of in itertools.groupby(c.group for c in table.columns)
    ]
    first = ("method", *table.axes)
    if len(groups) == 1 or len({column.name for column in table.columns}) == 1:
        yield _latex_cells((*first, *_flat_names(table.columns), *private))
        return
    spans = [f"\\multicolumn{{{width}}}{{c}}{{{escape(name)}}}" for name, width in groups]
    yield f"    {' & '.join([''] * left + spans + [''] * len(private))} \\\\"
    ends = list(itertools.accumulate((width for _, width in groups), initial=left))
    rules = [f"\\cmidrule(lr){{{a + 1}-{b}}}" for a, b in itertools.pairwise(ends)]
    yield f"    {' '.join(rules)}"
    yield _latex_cells((*first, *(column.name for column in table.columns), *private))


def _latex_cells(cells: Sequence[str]) -> str:
    return f"    {' & '.join(map(escape, cells))} \\\\"


def escape(text: str) -> str:
    """Return text as LaTeX prints it."""
    return "".join(_LATEX.get(character, character) for character in text)


def publish(grid: Grid, outcomes: Sequence[Outcome], output: Path) -> list[Table]:
    """Write `results.csv`, `rounds.csv`, `table.md`, `table.tex` and the pictures into a folder.

    Without a finished run there is no table, and nothing is written.
    """
    done = [outcome for outcome in outcomes if outcome.summary is not None]
    records, axes = [record_of(outcome) for outcome in done], [key for key, _ in grid.axes]
    if not records:
        return []
    tables = build_tables(grid, records)
    write_text(output / "results.csv", results_csv(records, axes))
    write_text(output / "rounds.csv", rounds_csv(done, axes))
    write_text(output / "table.md", markdown(tables))
    write_text(output / "table.tex", latex(tables))
    made = sweep_pictures([numbers_of(outcome) for outcome in done])
    drawn = itertools.chain.from_iterable(made.values())
    write_pictures(files_of(drawn, output), f"sweep {grid.digest[:16]}")
    return tables


def announce(grid: Grid, output: Path, databases: Sequence[str | None]) -> None:
    """Write the list of a sweep's cells, before the first cell runs.

    A cell's own database is a path from the output folder, None for the sweep's.
    """
    cells = [
        SweepCell(
            config=cell.config,
            method=cell.method,
            seed=cell.seed,
            axes=cell.axes,
            identity=cell.identity,
            database=database,
        )
        for cell, database in zip(grid.cells, databases, strict=True)
    ]
    write_text(output / SWEEP_FILE, sweep_file(cells))


def numbers_of(outcome: Outcome) -> RunNumbers:
    """Return the numbers of a finished cell, for pictures; ValueError for another cell."""
    cell, record = outcome.cell, record_of(outcome)
    return RunNumbers(
        run_id=record.run_id,
        config=cell.config,
        dataset=record.dataset,
        method=cell.method,
        seed=cell.seed,
        axes=cell.axes,
        protocol=record.protocol,
        document=outcome.summary or {},
    )


def document(grid: Grid, outcomes: Sequence[Outcome], output: Path) -> dict[str, Any]:
    """Return the sweep as one JSON document: means and deviations over seeds, and failures."""
    records = [record_of(outcome) for outcome in outcomes if outcome.summary is not None]
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault((record.config, record.method, record.axes), []).append(record)
    return {
        "output": str(output),
        "grid": grid.digest,
        "cells": [_group_document(records) for records in groups.values()],
        "failed": [
            {"cell": str(outcome.cell), "error": outcome.error}
            for outcome in outcomes
            if outcome.error is not None
        ],
    }


def _group_document(records: Sequence[Record]) -> dict[str, Any]:
    first, selections = records[0], dict[str, dict[str, dict[str, Any] | None]]()
    for selection in _union(record.scores for record in records):
        measures = _union(record.scores.get(selection, {}) for record in records)
        selections[selection] = dict.fromkeys(measures)
        for measure in measures:
            if (spread := spread_of(records, score(selection, measure))) is not None:
                selections[selection][measure] = {
                    **{"mean": spread.mean, "deviation": spread.deviation},
                    **{"n": len(spread.values), "values": list(spread.values)},
                }
    return {
        "config": first.config,
        "dataset": first.dataset,
        "method": first.method,
        "axes": dict(first.axes),
        "protocol": first.protocol,
        # Seeds of one group differ in nothing else.
        "training": first.training,
        "seeds": [record.seed for record in records],
        "runs": [record.run_id for record in records],
        # The measures of all runs count: the first run may lack some.
        "selections": selections,
        "ended_early": [record.run_id for record in records if record.ended_early],
        "warnings": _union(record.warnings for record in records),
        "privacy": {
            **first.privacy,
            "epsilon": {
                name: json_number(max(record.epsilon[name] for record in records))
                for name in ADVERSARIES
            },
        },
    }


def _union(parts: Iterable[Iterable[str]]) -> list[str]:
    """Return each text once, in the order of first occurrence."""
    return list(dict.fromkeys(itertools.chain.from_iterable(parts)))
