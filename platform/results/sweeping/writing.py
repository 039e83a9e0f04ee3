"""A sweep's results as files and as one document: Markdown, LaTeX, CSV, JSON and pictures."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from platform.disk.files import write_text
from platform.experiment.caveats import escaped
from platform.results.numbers import EPSILON, NO_NOISE, SENDS_NOTHING, spread_of, value_words
from platform.results.pictures import files_of, sweep_pictures, write_pictures
from platform.results.reading import SWEEP_FILE, SweepCell, sweep_file
from platform.results.sweeping.grid import Grid
from platform.results.sweeping.running import Outcome
from platform.results.sweeping.tables import (
    BEST,
    GAIN,
    PRIVACY,
    Record,
    Row,
    Table,
    build_tables,
    flat_names,
    record_of,
    score,
    shown_epsilon,
    shown_number,
)
from platform.rounds.documents import ADVERSARIES, csv_text, json_number


def results_csv(records: Sequence[Record], axes: Sequence[str]) -> str:
    """Return one line a run and measure, with a column for each axis."""
    columns = (
        *(*WHICH, *axes, "protocol", "selection", "measure", "value", *PRIVACY),
        *(f"epsilon_{name}" for name in ADVERSARIES),
        *("committed_rounds", "chosen_round", "run"),
    )
    rows = [
        (
            *(*_which(record, axes), record.protocol, selection, measure, value),
            *(record.privacy[name] for name in PRIVACY),
            *(record.epsilon(name) for name in ADVERSARIES),
            len(record.rounds),
            record.document[BEST]["round"] if selection == BEST else None,
            record.run_id,
        )
        for record in records
        for selection, scores in record.scores.items()
        for measure, value in scores.items()
    ]
    return csv_text(columns, rows)


def rounds_csv(records: Sequence[Record], axes: Sequence[str]) -> str:
    """Return one line a run and committed round."""
    scores = ("mean", "weighted", "std", "worst")
    columns = (
        *(*WHICH, *axes, "round"),
        *(f"accuracy_{name}" for name in scores),
        "validation_mean",
        *(f"epsilon_{name}" for name in ADVERSARIES),
        "run",
    )
    rows = [
        (
            *(*_which(record, axes), document["round"]),
            *(document["accuracy"][name] for name in scores),
            (document.get("validation") or {}).get("mean"),
            *(document["epsilon"][name] for name in ADVERSARIES),
            record.run_id,
        )
        for record in records
        for document in record.document["rounds"]
    ]
    return csv_text(columns, rows)


WHICH: Final = ("config", "dataset", "method", "seed")


def _which(record: Record, axes: Sequence[str]) -> tuple[Any, ...]:
    values = dict(record.axes)
    return (*(getattr(record, name) for name in WHICH), *(values[key] for key in axes))


@dataclass(frozen=True)
class Results:
    """What came of a sweep: its grid, an outcome for each cell, tables, and their folder."""

    grid: Grid
    outcomes: tuple[Outcome, ...]
    tables: tuple[Table, ...]
    output: Path


TABLE_FILE: Final = "table.md"
TESTS_FILE: Final = "tests.csv"


def tests_csv(tables: Sequence[Table]) -> str:
    """Return one line a paired test, in the order of the tables; differences are in points."""
    found = [one.document() for table in tables for one in table.tests]
    told, ends = ("protocol", "selection", "column", "at", "first", "second"), ("p", "tests", "n")
    points = ("mean", "low", "high")
    columns = (*told, *(f"{name}_points" for name in points), "p_holm", "tests", "seeds")
    rows = [
        (*map(one.get, told), *(one[n] and 100 * one[n] for n in points), *map(one.get, ends))
        for one in found
    ]
    return csv_text(columns, rows)


_LATEX: Final = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"±": r"$\pm$", "∞": r"$\infty$", "<": r"$<$", ">": r"$>$"},
    **{"†": r"$\dagger$", "‡": r"$\ddagger$", "ε": r"$\varepsilon$", "δ": r"$\delta$"},
}
_NUMBER: Final = re.compile(r"(?<![\w.+-])([+-]?)(\d[\d.]*)(?:e([+-]\d+))?(?!\w)")


def markdown(tables: Sequence[Table]) -> str:
    """Return all tables, each under its caption."""
    lines: list[str] = []
    for table in tables:
        columns, rows = _texts(table, escaped, "**{}**")
        lines += [escaped(table.caption), "", _markdown_row(columns)]
        lines += ["|---|" + "---:|" * (len(columns) - 1), *map(_markdown_row, rows)]
        for title, said in (
            (
                f"Paired t-tests, corrected by Holm over all {len(table.tests)} of this table:",
                map(str, table.tests),
            ),
            ("Notes:", table.notes),
            ("Local training:", table.training),
            ("Warnings of the runs:", table.warnings),
        ):
            if items := [f"- {escaped(one)}" for one in said]:
                lines += ["", title, "", *items]
        lines.append("")
    return "\n".join(lines)


def plain_rows(table: Table) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the names of a table's columns and its rows; * marks the best number of a column."""
    return _texts(table, str, "{} *")


def _texts(
    table: Table, escape: Callable[[str], str], best: str
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the names of a table's columns and its rows; `best` is the form of a best number."""
    against, rows = table.adversaries, []
    beside = [f"ε ({' / '.join(against)})" if len(against) > 1 else "ε"] * bool(against)
    beside += ["δ"] * (len({row.delta for row in table.rows} - {None}) > 1)
    gain_names = [GAIN] * table.has_gains
    places = [ADVERSARIES.index(first) for first in against.values()]
    for row in table.rows:
        spent = " / ".join(shown_epsilon(row.epsilon[n]) for n in places) if row.epsilon else "-"
        prices = (spent, "-" if row.delta is None else f"{row.delta:g}")[: len(beside)]
        numbers = ((escape(shown_number(one)), one.is_best) for one in row.numbers)
        gain = "-" if row.gain is None else f"{row.gain.points()} ({row.gain.bounds()})"
        gain += "" if row.gain is None or row.gain.is_beyond_chance else " n.s."
        rows.append(
            (
                escape(f"{_name_beside(row) if against else row.name}{row.marks}"),
                *map(escape, prices),
                *(best.format(text) if is_best else text for text, is_best in numbers),
                *(escape(gain) for _ in gain_names),
            )
        )
    return ("Method", *map(escape, (*beside, *flat_names(table.columns), *gain_names))), rows


def _name_beside(row: Row) -> str:
    """Return a row's name without a target of epsilon that the row states as spent."""
    target = dict(row.label.axes).get(EPSILON)
    if target in (None, SENDS_NOTHING) or row.epsilon is None:
        return row.name
    wanted = math.inf if target == NO_NOISE else float(target)
    is_spent = shown_epsilon(wanted) == shown_epsilon(max(row.epsilon))
    return row.name.replace(f", {value_words(EPSILON, target)}", "", 1) if is_spent else row.name


def _markdown_row(cells: Sequence[str]) -> str:
    # A pipe within a cell would end it.
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def latex(tables: Sequence[Table]) -> str:
    """Return all tables, each a floating `table`; they need the package booktabs."""
    made = (_latex_table(table, f"tab:sotto-{n}") for n, table in enumerate(tables, 1))
    return "\n".join(("% Needs \\usepackage{booktabs}.", *made))


def _latex_table(table: Table, label: str) -> str:
    columns, rows = _texts(table, escape, r"\textbf{{{}}}")
    return "\n".join(
        (
            r"\begin{table}",
            r"  \centering",
            f"  \\caption{{{escape(table.caption)}}}",
            f"  \\label{{{label}}}",
            f"  \\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
            r"    \toprule",
            *_latex_head(table, columns),
            r"    \midrule",
            *_latex_rows(table, rows),
            r"    \bottomrule",
            r"  \end{tabular}",
            *(f"  % Local training: {line}" for line in table.training),
            r"\end{table}",
            "",
        )
    )


def _latex_rows(table: Table, rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield the rows; where methods have several, a space parts them and a name stands once."""
    methods, before = [row.label.method for row in table.rows], ""
    for index, (name, *cells) in enumerate(rows):
        if index and methods[index] != methods[index - 1] and len(set(methods)) < len(methods):
            yield r"    \addlinespace"
        yield _latex_cells(("" if name == before else name, *cells))
        before = name


def _latex_head(table: Table, columns: Sequence[str]) -> Iterator[str]:
    """Yield one line, or two where each of several groups has several columns."""
    groups = [
        (name, len(list(of))) for name, of in itertools.groupby(c.group for c in table.columns)
    ]
    if len(groups) == 1 or len({column.name for column in table.columns}) == 1:
        yield _latex_cells(columns)
        return
    spans = [f"\\multicolumn{{{width}}}{{c}}{{{escape(name)}}}" for name, width in groups]
    after = [GAIN] * table.has_gains
    before = columns[: len(columns) - len(table.columns) - len(after)]
    yield _latex_cells((*[""] * len(before), *spans, *[""] * len(after)))
    ends = list(itertools.accumulate((width for _, width in groups), initial=len(before)))
    rules = [f"\\cmidrule(lr){{{a + 1}-{b}}}" for a, b in itertools.pairwise(ends)]
    yield f"    {' '.join(rules)}"
    yield _latex_cells((*before, *(escape(column.name) for column in table.columns), *after))


def _latex_cells(cells: Sequence[str]) -> str:
    return f"    {' & '.join(cells)} \\\\"


def escape(text: str) -> str:
    """Return text as LaTeX prints it: signed numbers and powers of ten as formulas."""
    found = "".join(_LATEX.get(character, character) for character in text)
    return _NUMBER.sub(_formula, found)


def _formula(found: re.Match[str]) -> str:
    sign, number, power = found.groups()
    if power is not None:
        factor = "" if number == "1" else rf"{number} \cdot "
        number = f"{factor}10^{{{int(power)}}}"
    return f"${sign}{number}$" if sign or power else number


def publish(grid: Grid, outcomes: tuple[Outcome, ...], output: Path) -> Results:
    """Write `results.csv`, `rounds.csv`, `tests.csv`, `table.md`, `table.tex` and the pictures.

    Without a finished run there is no table, and nothing is written.
    """
    done = [outcome for outcome in outcomes if outcome.summary is not None]
    records, axes = [record_of(outcome) for outcome in done], [key for key, _ in grid.axes]
    if not records:
        return Results(grid, outcomes, (), output)
    tables = tuple(build_tables(grid, records))
    write_text(output / "results.csv", results_csv(records, axes))
    write_text(output / "rounds.csv", rounds_csv(records, axes))
    write_text(output / TESTS_FILE, tests_csv(tables))
    write_text(output / TABLE_FILE, markdown(tables))
    write_text(output / "table.tex", latex(tables))
    # Pictures name a method by its title.
    made = sweep_pictures([replace(record_of(one), method=one.cell.title) for one in done])
    drawn = itertools.chain.from_iterable(made.values())
    write_pictures(files_of(drawn, output), f"sweep {grid.digest[:16]}")
    return Results(grid, outcomes, tables, output)


def announce(grid: Grid, output: Path, databases: Sequence[str | None]) -> None:
    """Write the list of a sweep's cells before the first runs; databases are below `output`."""
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


def document(found: Results) -> dict[str, Any]:
    """Return a sweep as one JSON document: means and deviations over seeds, tests, failures."""
    records = [record_of(outcome) for outcome in found.outcomes if outcome.summary is not None]
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault((record.config, record.method, record.axes), []).append(record)
    return {
        "output": str(found.output),
        "grid": found.grid.digest,
        "cells": [_group_document(records) for records in groups.values()],
        "tests": [one.document() for table in found.tables for one in table.tests],
        "failed": [
            {"cell": str(outcome.cell), "error": outcome.error}
            for outcome in found.outcomes
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
                name: json_number(max(record.epsilon(name) or 0.0 for record in records))
                for name in ADVERSARIES
            },
        },
    }


def _union(parts: Iterable[Iterable[str]]) -> list[str]:
    """Return each text once, in the order of first occurrence."""
    return list(dict.fromkeys(itertools.chain.from_iterable(parts)))
