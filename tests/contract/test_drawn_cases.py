"""A quick run of the contract suite meets every pair of values; the slow tests have the rest."""

from __future__ import annotations

from itertools import product

import pytest

from platform.contract.cases import BY_FAMILY, EACH_CASE, all_cases, drawn, own_methods
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


def test_every_method_plays_a_round_under_some_mechanism():
    assert {case.method for case, _ in rounds_drawn()} == {case.method for case in CASES}


def test_every_way_to_ask_meets_every_kind_of_method_and_of_pool():
    """By plain loops over what there is, whatever the drawing calls a factor."""

    def network(case) -> str:
        options = {**case.options, **case.options.get("base_options", {})}
        return options.get("network", "prompts")

    def pool(case):
        policy = case.registry.serving(case.method, case.config(), 8)
        return policy and (policy.fixed, policy.fixed and policy.when)

    for kind in (network, pool):
        met = {(kind(case), asked.name) for case, asked in rounds_drawn()}
        assert met == set(product({kind(case) for case in CASES}, {a.name for a in ASKED}))


@pytest.mark.parametrize("test", sorted(EACH_CASE | BY_FAMILY | {ROUND}))
def test_each_case_or_each_method_or_each_kind_is_drawn(test: str, request: pytest.FixtureRequest):
    items = [i for i in request.session.items if getattr(i, "originalname", None) == test]
    if not items:
        pytest.skip("that file is not part of this run")
    quick = [i for i in items if i.get_closest_marker("slow") is None]
    factors = ["case"] if test in EACH_CASE else ["family"] if test in BY_FAMILY else ["method"]
    for factor in [*factors, "family", "pool"]:
        assert {i.callspec.params["case"].factors[factor] for i in quick} == {
            case.factors[factor] for case in CASES
        }
