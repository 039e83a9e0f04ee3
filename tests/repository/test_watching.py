"""Coverage watches some cases of every test, and other ones in the next test."""

from __future__ import annotations

import sys

import pytest

from tests._watching import WATCHED, watched


def names(test: str, count: int) -> list[str]:
    return [f"{test}[{case}]" for case in range(count)]


@pytest.mark.parametrize("count", [1, 2, WATCHED, WATCHED + 1, 57, 1000])
def test_every_test_is_watched_in_some_cases_and_in_no_more_than_a_few(count: int):
    for turns in range(5):
        before = [f"file.py::test_{turn}" for turn in range(turns)]
        marks = watched([*before, *names("file.py::test", count)])
        assert marks[:turns] == [True] * turns
        assert 1 <= sum(marks[turns:]) <= WATCHED
        assert count > WATCHED or all(marks)


def test_tests_of_the_same_cases_watch_different_ones():
    both = watched([*names("file.py::one", 100), *names("file.py::other", 100)])
    one, other = both[:100], both[100:]
    assert sum(one) == sum(other) == WATCHED
    assert not any(a and b for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("case", range(2 * WATCHED))
def test_what_is_not_watched_runs_without_a_tracer(case: int, request: pytest.FixtureRequest):
    tests = [item.nodeid for item in request.session.items]
    is_watched = dict(zip(tests, watched(tests), strict=True))[request.node.nodeid]
    # Without `--cov` nothing is measured, and there is nothing to see here.
    measures = request.config.pluginmanager.hasplugin("_cov")
    assert (sys.gettrace() is not None) == (is_watched and measures)
