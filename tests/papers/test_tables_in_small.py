"""The papers' tables in small: no table and no row is left out in silence, and the page says so."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from platform.config import load_config
from platform.data.homonyms import CLASSES
from tests.papers._published import PAPERS

ROOT = PAPERS.parents[1]
# How many tables each paper has.
TABLES = {"pfedmoap": 9, "fedpgp": 11, "trip": 7, "pm-moe": 4}


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import paper_tables

    return paper_tables


def test_every_table_of_the_papers_is_run_or_left_out_with_a_reason(tables: ModuleType):
    run = {line.table for line in tables.read_lines([]) if line.paper is not None}
    left_out = {name: why for names, why in tables.left_out().items() for name in names.split(", ")}
    assert all(len(why.split()) > 5 for why in left_out.values())
    named = {re.match(r"[a-z-]+-\d+", name)[0] for name in (*run, *left_out)}
    assert named == {f"{paper}-{n}" for paper, count in TABLES.items() for n in range(1, count + 1)}


def test_all_rows_have_one_budget_and_enough_images(tables: ModuleType):
    lines = tables.read_lines([])
    document = yaml.safe_load(Path(tables.__file__).with_suffix(".yaml").read_text("utf-8"))
    assert not set(tables.tuning_seeds()) & set(range(max(line.seeds for line in lines)))
    for line in lines:
        method = json.loads(_last(line, "method"))
        assert len(line.rates) == (1 if method["name"] in document["untrained"] else 4), line
        styles = 1 if not line.turns else len(line.turns)
        assert int(_last(line, "task.test_per_class")) * len(CLASSES) >= 300 * styles, line
    shown = {(line.group, line.label): line.runs(0.1, 0) for line in lines}
    assert all(shown[line.group, line.label] == line.runs(0.1, 0) for line in lines)


def test_the_gate_pools_features_as_much_as_the_papers(tables: ModuleType):
    lines = [line for line in tables.read_lines([]) if line.table != "pfedmoap-9"]
    gates = [(line, json.loads(_last(line, "method"))) for line in lines]
    pooled = [(line, method["gate_dim"]) for line, method in gates if method["name"] == "pfedmoap"]
    for line, here in pooled:
        there = load_config(Path(line.config), [])
        width = {"RN50-quickgelu": 1024, "ViT-B-16-quickgelu": 512}[there.task.model.name]
        assert there.method.gate_dim / width == here / 128, line
    assert len(pooled) > 10


def test_a_row_takes_the_rate_that_is_best_on_tuning_seeds(tables: ModuleType):
    (line, *_) = tables.read_lines(["fedpgp-11"])
    line = replace(line, rates=(0.5, 0.2, 0.1))
    # Two settings each: means of 50, 60 and 60, and of equals the lowest rate counts.
    numbers = {0.5: (40, 60), 0.1: (70, 50), 0.2: (60, 60)}
    known = {
        tables.key_of(run, tables.KEY): {**run, "after": str(number), "before": ""}
        for rate, each in numbers.items()
        for run, number in zip(line.runs(rate, 7), each, strict=True)
    }
    assert line.chosen(known, [7]) == 0.1
    assert line.chosen(known, [7, 8]) is None


def test_a_number_over_settings_is_their_mean_and_of_whole_seeds_only(tables: ModuleType):
    lines = tables.read_lines(["fedpgp-11"])
    tuned = [
        {**run, "after": str(9 - i % 2), "before": ""} for i, run in enumerate(tables.tuning(lines))
    ]
    known = {tables.key_of(row, tables.KEY): row for row in tuned}
    runs = tables.wanted(lines, known, 2)
    rows = [{**run, "after": str(40 + i % 2), "before": ""} for i, run in enumerate(runs[:-1])]
    found = tables.results(lines, [*tuned, *rows], range(2))
    # The second seed lacks a run of the last row, so no row has it.
    assert [row.scores for row in found] == [(40.5,)] * 4
    assert tables.results(lines, rows, range(2)) == []


def test_tau_is_of_seeds_with_an_interval(tables: ModuleType):
    def taus(*columns: tuple[float, ...]) -> str:
        papers = range(len(columns[0]), 0, -1)
        rows = [
            _row(tables, str(p), p, *scores) for p, *scores in zip(papers, *columns, strict=True)
        ]
        tau_words = sys.modules[tables.page.__module__].tau_words
        return tau_words([*rows, _row(tables, "ours", None, *[99.0] * len(columns))])

    # One pair of three is swapped in the second seed: (3 - 0) / 3, (2 - 1) / 3, 1; t is 4.303.
    assert taus((3, 2, 1), (2, 3, 1), (3, 2, 1)) == "0.78 [-0.18, 1.00]"
    assert taus((1, 2, 3), (1, 2, 3)) == "-1.00 [-1.00, -1.00]"
    # One pair is tied: 2 / sqrt(3 * 2).
    assert taus((3, 1, 1)) == "0.82"
    assert taus((5, 5)) == "0.00"


def test_the_page_names_what_is_out_of_order_and_what_is_not_finished(tables: ModuleType):
    found = [
        _row(tables, "`trip`", 60.0, 50.0, 51.0, 52.0),
        _row(tables, "`promptfl`", 56.0, 60.0, 61.0, 62.5, rate=0.2),
        _row(tables, "`promptfl`, ours", None, 70.0, 71.0, 72.0),
    ]
    text = "\n".join(tables.page(found, tables.remarks(), tables.left_out()))
    assert "| [trip-4](#trip-4) | 2 | 3 | -1.00 [-1.00, -1.00] | 1 of 1 pairs |" in text
    assert "| `promptfl` | 0.2 | 61.2 ± 1.3 | 56.00 (2 / 1) |" in text
    assert "| `promptfl`, ours | 0.1* | 71.0 ± 1.0 | - |" in text
    assert "- `promptfl`: `trip`" in text
    unfinished = re.search(r"- 0 of 3 seeds: (.*)\.", text)[1].split(", ")
    assert "trip-5" in unfinished and "trip-4" not in unfinished
    assert "- pfedmoap-5, fedpgp-8: They count" in text


def _row(
    tables: ModuleType, label: str, paper: float | None, *scores: float, rate: float = 0.1
) -> object:
    return tables.Result(
        table="trip-4",
        group="trip-4",
        label=label,
        paper=paper,
        rate=rate,
        rates=(0.1, 0.2, 0.3),
        scores=scores,
    )


def _last(line: Any, name: str) -> str:
    """The last value of a setting, which counts."""
    return next(s for s in reversed(line.settings) if s.startswith(f"{name}=")).split("=", 1)[1]
