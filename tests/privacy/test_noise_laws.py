"""Laws of noise: what is drawn follows them, and nothing prices one that no accountant knows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from privacy import (
    ACCOUNTANTS,
    CENTRAL_NOISE,
    DISTRIBUTED_NOISE,
    DP_SGD,
    GAUSSIAN,
    NO_NOISE,
    PRICED_LAWS,
    CohortSampling,
    IntegerNoise,
    NoiseLaw,
    RunningLedger,
    SeededNoise,
    SystemNoise,
    UnsupportedEvent,
    WithoutNoise,
    accountant_table,
    affordable_rounds,
    calibrate,
    claimed_epsilon,
    epsilon,
    epsilons,
    filter_of,
    require_affordable,
)
from privacy.accounting.composition import compose
from privacy.auditing import claim_of
from tests.privacy._rows import released

DELTA = 1e-5
ROW = released()
COHORT = CohortSampling(kind="poisson", size=2, population=20, is_drawn=True)
NAMES = st.text(min_size=1, max_size=20).filter(lambda name: name not in (*PRICED_LAWS, "none"))
"""All that a database may hold."""
ROWS = {
    "upload": ROW,
    "entry": dataclasses.replace(ROW, channel="pool"),
    "metric": dataclasses.replace(ROW, channel="metrics"),
    "shares": dataclasses.replace(ROW, mechanism=DISTRIBUTED_NOISE, law=NoiseLaw("other")),
    "central": dataclasses.replace(ROW, mechanism=CENTRAL_NOISE),
    "drawn in secret": dataclasses.replace(ROW, mechanism=CENTRAL_NOISE, cohort=COHORT),
    "steps": dataclasses.replace(
        ROW,
        mechanism=DP_SGD,
        relation="add_or_remove_one",
        sampling="poisson",
        sampling_probability=0.1,
        count=10,
    ),
}
LEDGER = [dataclasses.replace(ROW, round_number=n) for n in (2, 3)]
"""What is priced beside it, and hides nothing."""
PRICING = {
    **{f"epsilon, {name}": lambda r, n=name: epsilon([r], DELTA, n) for name in ACCOUNTANTS},
    **{f"epsilons, {name}": lambda r, n=name: epsilons([r], DELTA, n) for name in ACCOUNTANTS},
    **{
        f"claimed, {name}": lambda r, n=name: claimed_epsilon([r], DELTA, n) for name in ACCOUNTANTS
    },
    "composition": lambda r: compose([r]),
    "filter": lambda r: filter_of([r]),
    "table of all, prv included": lambda r: accountant_table([r], DELTA),
    "running": lambda r: RunningLedger([r]).epsilons(DELTA),
    "running, of each": lambda r: RunningLedger([r]).epsilons_of_each(DELTA),
    "running, planned": lambda r: RunningLedger().claimed_with([r], DELTA),
    "budget": lambda r: require_affordable((), [r], DELTA, target_epsilon=1e9),
    "forecast": lambda r: affordable_rounds(RunningLedger(), [r], DELTA, target_epsilon=1e9),
    "calibration": lambda r: calibrate(lambda z: [r], 1e9, DELTA, smallest=0.1),
    "audit's claim": lambda r: claim_of(r, DELTA),
}


@pytest.mark.parametrize("pricing", PRICING.values(), ids=PRICING)
@settings(max_examples=15, deadline=None)
@given(name=NAMES, kind=st.sampled_from(sorted(ROWS)))
def test_nothing_prices_a_law_that_it_does_not_know(pricing, name, kind):
    made_up = dataclasses.replace(ROWS[kind], law=NoiseLaw(name))
    with pytest.raises(UnsupportedEvent, match="no accountant prices") as refused:
        pricing(made_up)
    assert repr(name) in str(refused.value)
    assert "they know gaussian, discrete_gaussian, skellam" in str(refused.value)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_priced_rows_beside_it_hide_nothing(accountant):
    made_up = dataclasses.replace(ROW, law=NoiseLaw("laplace"))
    for beside in (LEDGER, [dataclasses.replace(ROW, standard_deviation=0.0, law=NO_NOISE)]):
        with pytest.raises(UnsupportedEvent, match="no accountant prices"):
            epsilon([*beside, made_up], DELTA, accountant)


@pytest.mark.parametrize("name", ["discrete_gaussian", "skellam"])
def test_the_name_of_a_law_without_its_shares_is_not_that_law(name):
    with pytest.raises(UnsupportedEvent, match=f"law '{name}'"):
        epsilon([dataclasses.replace(ROW, law=NoiseLaw(name))], DELTA)


def test_a_law_that_calls_itself_gaussian_and_is_another_is_not_priced():
    class Other(NoiseLaw):
        """Whatever it draws."""

    with pytest.raises(UnsupportedEvent, match="no accountant prices"):
        epsilon([dataclasses.replace(ROW, law=Other("gaussian"))], DELTA)


@pytest.mark.parametrize(
    "changes",
    [{"law": NO_NOISE}, {"standard_deviation": 0.0}, {"mechanism": DISTRIBUTED_NOISE}],
    ids=str,
)
def test_a_row_whose_law_contradicts_it_is_refused(changes):
    with pytest.raises(ValueError, match="law is"):
        dataclasses.replace(ROW, **changes)


# --- drawing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [SystemNoise(), SeededNoise(np.random.default_rng(3))])
def test_gaussian_draws_are_gaussian(source):
    drawn = source.draw(GAUSSIAN, 3.0, 20_000)
    assert stats.kstest(drawn / 3.0, "norm").pvalue > 1e-9


@pytest.mark.parametrize("name", ["discrete_gaussian", "skellam"])
def test_shares_are_integers_of_their_deviation(name):
    law = IntegerNoise(name, share_deviation=50.0, shares=3, dimension=20_000)
    drawn = SeededNoise(np.random.default_rng(5)).draw(law, 50.0, 20_000)
    assert drawn.dtype.kind == "i"
    assert stats.kstest(drawn / 50.0, "norm").pvalue > 1e-9


@pytest.mark.parametrize("law", [NO_NOISE, NoiseLaw("laplace"), NoiseLaw("skellam")])
def test_a_law_that_nothing_draws_is_not_drawn(law):
    with pytest.raises(UnsupportedEvent, match="nothing here draws"):
        SystemNoise().draw(law, 1.0, 3)


def test_who_leaves_the_noise_out_has_the_same_coins():
    quiet = WithoutNoise(SeededNoise(np.random.default_rng(7)))
    assert not quiet.draw(GAUSSIAN, 5.0, 9).any()
    same = SeededNoise(np.random.default_rng(7)).uniform_bytes(16)
    assert (quiet.uniform_bytes(16), quiet.name, quiet.protects) == (same, "seeded", False)
