"""What a sweep leaves behind: numbers, tables and pictures in its folder, and one document."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from platform.disk.files import write_text
from platform.results.comparisons import sweep_pictures
from platform.results.numbers import RunNumbers, spread_of
from platform.results.reading import SWEEP_FILE, SweepCell, sweep_file
from platform.results.run_pictures import files_of, write_pictures
from platform.rounds.documents import ADVERSARIES, json_number
from platform.sweeping.grid import Grid
from platform.sweeping.running import Outcome
from platform.sweeping.tables import Table, build_tables
from platform.sweeping.tidy import Record, record_of, results_csv, rounds_csv, score
from platform.sweeping.writing import latex, markdown


def publish(grid: Grid, outcomes: Sequence[Outcome], output: Path) -> list[Table]:
    """Write `results.csv`, `rounds.csv`, `table.md`, `table.tex` and the pictures.

    Args:
        grid: What was asked for.
        outcomes: One a cell.
        output: Folder; it is there.

    Returns:
        The tables; none where no run has finished, and then nothing is written.
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
    """Write which cells a sweep has, before the first of them is run.

    Args:
        grid: All of them.
        output: Folder; it is there.
        databases: Of each cell its own, as a path from `output`; None for that of the sweep.
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
    """Return the numbers of a cell that has finished, for pictures.

    Raises:
        ValueError: If it has not.
    """
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
    """Return the sweep as one JSON document: means and deviations over seeds, and what failed."""
    records = [record_of(outcome) for outcome in outcomes if outcome.summary is not None]
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault((record.config, record.method, record.axes), []).append(record)
    return {
        "output": str(output),
        "grid": grid.digest,
        "cells": [_group_document(of) for of in groups.values()],
        "failed": [
            {"cell": str(outcome.cell), "error": outcome.error}
            for outcome in outcomes
            if outcome.error is not None
        ],
    }


def _group_document(records: Sequence[Record]) -> dict[str, Any]:
    first = records[0]
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
        # Of all runs: the first may lack what others have measured.
        "selections": {
            selection: {
                measure: _statistics(records, selection, measure)
                for measure in _union(record.scores.get(selection, {}) for record in records)
            }
            for selection in _union(record.scores for record in records)
        },
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


def _statistics(records: Sequence[Record], selection: str, measure: str) -> dict[str, Any] | None:
    spread = spread_of(records, score(selection, measure))
    if spread is None:
        return None
    values = list(spread.values)
    return {
        **{"mean": spread.mean, "deviation": spread.deviation},
        **{"n": len(values), "values": values},
    }


def _union(parts: Iterable[Iterable[str]]) -> list[str]:
    """Return all that occur, in the order in which they first do."""
    return list(dict.fromkeys(itertools.chain.from_iterable(parts)))
