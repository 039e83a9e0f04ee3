"""The papers' tables in small: no table and no row is left out in silence, and the page says so."""

from __future__ import annotations

import re
from dataclasses import replace
from types import ModuleType

import pytest

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
    run = {line.table for line in tables.read_lines([])}
    left_out = {name: why for names, why in tables.left_out().items() for name in names.split(", ")}
    assert all(len(why.split()) > 5 for why in left_out.values())
    named = {re.match(r"[a-z-]+-\d+", name)[0] for name in (*run, *left_out)}
    assert named == {f"{paper}-{n}" for paper, count in TABLES.items() for n in range(1, count + 1)}


def test_a_number_over_settings_is_their_mean_and_of_whole_seeds_only(tables: ModuleType):
    (first, *_) = lines = tables.read_lines(["fedpgp-11"])
    runs = tables.wanted(lines, [0, 1])
    rows = [{**run, "after": str(40 + i % 2), "before": ""} for i, run in enumerate(runs[:-1])]
    found = tables.results(lines, rows, [0, 1])
    # The second seed lacks a run of the last row, so no row has it.
    assert [row.scores for row in found] == [(40.5,)] * 4
    assert tables.results([replace(first, table="other")], [], [0, 1]) == []


def test_the_page_names_what_is_out_of_order_and_what_is_not_finished(tables: ModuleType):
    def row(label: str, paper: float, *scores: float) -> object:
        return tables.Result("trip-4", label, paper, 0.01, scores)

    found = [row("`trip`", 60.0, 50.0, 51.0, 52.0), row("`promptfl`", 56.0, 60.0, 61.0, 62.5)]
    text = "\n".join(tables.page(found, tables.remarks(), tables.left_out()))
    assert "| [trip-4](#trip-4) | 2 | 3 | -1.00 | 1 of 1 pairs |" in text
    assert "| `promptfl` | `trip` | 10.2 ± 0.7 | 4.00 |" in text
    assert "- trip-3: not finished." in text
    assert "- pfedmoap-5, fedpgp-8: They count" in text
