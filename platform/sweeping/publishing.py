"""What a sweep leaves behind: numbers, tables and pictures in its folder, and one document."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from platform.disk.files import write_text
from platform.rounds.documents import ADVERSARIES, json_number
from platform.sweeping.grid import Grid
from platform.sweeping.plots import draw, pictures
from platform.sweeping.running import Outcome
from platform.sweeping.statistics import score, spread_of
from platform.sweeping.tables import Table, build_tables
from platform.sweeping.tidy import Record, record_of, results_csv, rounds_csv
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
    for picture in pictures(grid, done):
        draw(picture, output)
    return tables


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
