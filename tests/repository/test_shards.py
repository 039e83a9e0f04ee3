"""Slow tests in shards: each test in one, none too long; and which cases coverage watches."""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import replace

import pytest

from tests._forking import ROOT, run_tests
from tests._shards import CORES, LONGEST, PART, Durations, chosen, dealt, overfull
from tests._watching import WATCHED, watched

LISTED = Durations.read()
FEW = Durations(3, 1.0, {"a.py::long": 400.0, "b.py::many": 5.0})
CASES = ["a.py::long", *(f"b.py::many[{n}]" for n in range(120)), "c.py::one", "c.py::two"]


def test_every_case_is_in_one_shard_and_shards_are_balanced():
    shards = dealt(CASES, FEW)
    assert dealt(reversed(CASES), FEW) == shards
    assert Counter(case for shard in shards for case in shard) == Counter(CASES)
    sums = [sum(map(FEW.of, shard)) for shard in shards]
    assert sum(sums) == 1002.0
    assert max(sums) - min(sums) <= PART
    assert overfull(shards, FEW) is None


def test_shards_that_would_take_too_long_are_refused():
    often = replace(FEW, tests={**FEW.tests, "b.py::many": 5.0 * LONGEST / 100})
    assert "of 3 takes" in str(overfull(dealt(CASES, often), often))
    long = replace(FEW, tests={"a.py::long": LONGEST + 1.0})
    assert str(overfull(dealt(CASES, long), long)).startswith("a.py::long takes 601 s; valid")
    alone = replace(FEW, shards=200, tests={"a.py::long": LONGEST})
    assert overfull(dealt(CASES, alone), alone) is None


def test_a_commit_draws_a_shard_and_a_number_is_one():
    assert chosen("commit", 5) == chosen("commit", 5)
    assert 1 <= chosen("commit", 5) <= 5
    assert [chosen(str(k), 3) for k in (1, 2, 3)] == [1, 2, 3]
    for wrong in ("0", "4", "-1", "one"):
        with pytest.raises(pytest.UsageError, match=f"--shard: {wrong} is not valid"):
            chosen(wrong, 3)


def test_what_is_listed_exists():
    """A name that was changed would count as an average one."""
    for listed in LISTED.tests:
        file, _, test = listed.partition("::")
        name = test.rpartition("::")[2]
        text = (ROOT / file).read_text("utf-8")
        assert re.search(rf"^ *def {name}\(", text, re.MULTILINE), listed


@pytest.mark.slow
def test_every_slow_test_there_is_is_in_one_shard_of_at_most_ten_minutes():
    cases = collected("-m", "slow")
    assert len(cases) == len(set(cases)) > 1000
    shards = dealt(cases, LISTED)
    assert overfull(shards, LISTED) is None
    assert max(sum(map(LISTED.of, shard)) for shard in shards) <= CORES * LONGEST
    assert sorted(case for shard in shards for case in shard) == sorted(cases)
    assert collected("-m", "slow", "--shard", "2") == sorted(shards[1])


def collected(*arguments: str) -> list[str]:
    code, said = run_tests(ROOT, "--collect-only", *arguments)
    assert code == 0, said
    return sorted(line for line in said.splitlines() if re.match(r"\S+\.py::", line))


@pytest.mark.parametrize("count", [1, WATCHED, WATCHED + 1, 57])
def test_some_cases_of_every_test_are_watched_and_other_ones_of_the_next(count: int):
    for turns in range(5):
        before = [f"file.py::test_{turn}" for turn in range(turns)]
        both = [f"file.py::{test}[{case}]" for test in ("one", "two") for case in range(count)]
        marks = watched([*before, *both])
        one, two = marks[turns : turns + count], marks[turns + count :]
        assert marks[:turns] == [True] * turns
        assert 1 <= sum(one) <= WATCHED and 1 <= sum(two) <= WATCHED
        assert (count > WATCHED or all(one + two)) and (count < 57 or one != two)


@pytest.mark.parametrize("case", range(2 * WATCHED))
def test_what_is_not_watched_runs_without_a_tracer(case: int, request: pytest.FixtureRequest):
    tests = [item.nodeid for item in request.session.items]
    is_watched = dict(zip(tests, watched(tests), strict=True))[request.node.nodeid]
    # Without `--cov` nothing is measured, and there is nothing to see here.
    measures = request.config.pluginmanager.hasplugin("_cov")
    assert (sys.gettrace() is not None) == (is_watched and measures)
