"""A quick run of the contract suite meets every pair of values; the slow tests have the rest."""

from __future__ import annotations

from itertools import product

import pytest

from platform.contract.cases import BY_FAMILY, all_cases, drawn, own_methods
from platform.contract.mechanisms import ASKED

CASES = all_cases(own_methods())
ROUND = "test_a_round_is_right_or_refused"


def test_every_pair_of_plain_values_meets_in_half_the_product():
    cases = [dict(zip("abc", row, strict=True)) for row in product(range(4), repeat=3)]
    taken = [c for c, is_drawn in zip(cases, drawn("test", cases), strict=True) if is_drawn]
    for one, other in (("a", "b"), ("a", "c"), ("b", "c")):
        assert {(c[one], c[other]) for c in taken} == set(product(range(4), repeat=2))
    assert len(taken) <= len(cases) // 2


def rounds_drawn():
    rows = [(case, asked) for case in CASES for asked in ASKED]
    marks = drawn(ROUND, [{"case": case, "asked": asked} for case, asked in rows])
    return [row for row, is_drawn in zip(rows, marks, strict=True) if is_drawn]


def test_every_method_meets_every_mechanism_masked_and_bare_and_every_noise():
    """By plain loops over what there is, whatever the drawing calls a factor."""
    taken = rounds_drawn()
    for case in CASES:
        mine = [asked for one, asked in taken if one is case]
        assert {asked.mechanism for asked in mine} == {asked.mechanism for asked in ASKED}
        assert {asked.masks for asked in mine} == {True, False}
        assert {asked.decoupled for asked in mine} == {True, False}
        noises = {asked.privacy.get("noise_distribution") for asked in ASKED}
        assert {asked.privacy.get("noise_distribution") for asked in mine} == noises


def test_every_way_to_ask_meets_every_kind_of_method():
    def kind(case) -> str:
        options = {**case.options, **case.options.get("base_options", {})}
        return options.get("network", "prompts")

    met = {(kind(case), asked.name) for case, asked in rounds_drawn()}
    assert met == set(product({kind(case) for case in CASES}, {a.name for a in ASKED}))


@pytest.mark.parametrize("test", sorted(BY_FAMILY))
def test_what_is_drawn_by_kind_exists_and_keeps_a_case_of_each_kind(test, request):
    name, _, factor = test.partition("[")
    items = [i for i in request.session.items if getattr(i, "originalname", None) == name]
    if not items:
        pytest.skip("that file is not part of this run")
    quick = [i for i in items if i.get_closest_marker("slow") is None]
    assert {i.callspec.params["case"].factors["family"] for i in quick} == {
        case.factors["family"] for case in CASES
    }
    if factor:
        assert {i.callspec.params["case"].name for i in quick} == {c.name for c in CASES}
        assert factor.rstrip("]") in quick[0].callspec.params
