"""Which cases a quick run draws of a test with many: every pair of values meets, not all triples.

It holds for this suite, and for tests of Sotto's own that are marked `pairs`. A fault that shows
only when three particular values meet is left to the slow tests, which run all the other cases;
drawn and left together they are the whole product.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, Final

import pytest

Pair = tuple[tuple[str, str], ...]
APART: Final = ({"case", "asked"},)
"""Factors that need not meet value by value: that would be the whole product again."""
BY_FAMILY: Final = frozenset(
    {
        # What they claim is the protocol's, and the same for all methods of a kind.
        "test_a_masked_sum_is_the_plain_sum",
        "test_upload_noise_and_masks",
        "test_a_client_keeps_its_personal_state",
        "test_central_noise_is_divided_by_the_planned_size[bare]",
        "test_one_loss_more_than_the_threshold_allows_aborts",
        "test_an_update_that_does_not_fit_is_refused_and_its_tensor_named",
        "test_noise_is_that_of_the_ledger",
        # Of our own methods these are read at review as well.
        "test_a_method_keeps_nothing_between_calls",
        "test_a_method_draws_no_noise",
        "test_personal_state_does_not_leave_in_what_is_trained",
    }
)
"""Tests that draw each kind of method, not each method: `NAME`, or `NAME[FACTOR]`.

With a factor in brackets each method is still drawn once, with whichever value of the factor.
"""


def draw(demands: Sequence[frozenset[Pair]]) -> list[bool]:
    """Return which rows to take so that whatever any of them demands is met by one that is taken.

    Greedy and without chance: the rows that meet most that is new go first, in their order.
    """
    taken, met = [False] * len(demands), set[Pair]()
    for gain in range(max(map(len, demands), default=0), 0, -1):
        for index, demand in enumerate(demands):
            if not taken[index] and len(demand - met) >= gain:
                taken[index] = True
                met |= demand
    return taken


def factors_of(params: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of a case: of a parameter its own factors, if it says them, else itself."""
    found: dict[str, str] = {}
    for name, value in params.items():
        own = getattr(value, "factors", None)
        found |= {name: repr(value)} if own is None else own
    return found


def demanded(test: str, row: Mapping[str, str]) -> frozenset[Pair]:
    """Return the values and pairs of values of a row that must be met in this test."""
    values = dict(row)
    if test in BY_FAMILY:
        values.pop("case", None)
    # A test without parameters has one case, which must be drawn as well.
    singles: set[Pair] = {(("test", test),)}
    singles |= {((name, value),) for name, value in values.items()}
    spared = {name for name in values if f"{test}[{name}]" in BY_FAMILY}
    apart = [*APART, *({"case", name} for name in spared)]
    pairs: set[Pair] = {
        (one, other)
        for one, other in combinations(sorted(values.items()), 2)
        if {one[0], other[0]} not in apart
    }
    return frozenset(singles | pairs)


def drawn(test: str, cases: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Return which of a test's cases, given by their parameters, a quick run has."""
    return draw([demanded(test, factors_of(params)) for params in cases])


def mark_undrawn(items: Iterable[pytest.Item]) -> None:
    """Mark as slow what a quick run does not draw of these tests."""
    tests: dict[str, list[pytest.Function]] = {}
    for item in items:
        # What is slow anyway does not stand for anything in a quick run.
        if isinstance(item, pytest.Function) and item.get_closest_marker("slow") is None:
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        params = [item.callspec.params if hasattr(item, "callspec") else {} for item in cases]
        for item, is_drawn in zip(cases, drawn(cases[0].originalname, params), strict=True):
            if not is_drawn:
                item.add_marker(pytest.mark.slow)
