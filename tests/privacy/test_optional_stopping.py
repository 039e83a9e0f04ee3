"""Who stops because of what was released: what an epsilon is worth then, by the exact walk."""

from __future__ import annotations

import math

import numpy as np
import pytest

from privacy import DP_SGD, BudgetExhausted, filter_of, require_affordable
from tests.privacy._rows import released
from tests.privacy._walk import delta_of, epsilon_of, excess, stopped

DELTA = 1e-5


def row(noise, number=1, *, batches=None):
    """A release with so much noise over C, of batches that are drawn with this probability."""
    drawn = {"mechanism": DP_SGD, "sampling": "poisson", "sampling_probability": batches}
    changes = {} if batches is None else drawn
    return released(noise, relation="add_or_remove_one", round_number=number, **changes)


def test_the_walk_that_nobody_stops_is_the_closed_form():
    """A stop that no walk reaches leaves all rounds, whose delta is known exactly."""
    for step, rounds in ((0.5, 10), (2.0, 4)):
        epsilon = epsilon_of(math.sqrt(rounds) * step, DELTA)
        far = 60.0 * step * math.sqrt(rounds) + rounds * step**2
        found = stopped(step, [far] * (rounds - 1) + [epsilon], [far] * (rounds - 1) + [epsilon])
        assert found == pytest.approx(DELTA, rel=1e-6)


@pytest.mark.parametrize(
    ("rounds", "step", "least", "most"),
    [
        (10, 0.5, 4.8, 5.5),
        (10, 0.25, 4.8, 5.5),
        pytest.param(100, 0.5, 9.7, 12.0, marks=pytest.mark.slow),
        pytest.param(100, 0.25, 9.7, 12.0, marks=pytest.mark.slow),
    ],
)
def test_a_stop_by_what_was_released_breaks_a_rounds_epsilon_and_not_the_plans(
    rounds, step, least, most
):
    # The epsilon of each round, as if it had been fixed beforehand.
    claims = [epsilon_of(math.sqrt(t) * step, DELTA) for t in range(1, rounds + 1)]
    naive = stopped(step, claims, claims) / DELTA
    assert least < naive < most
    # The same adversary against the epsilon of all planned rounds, and the one that waits for it.
    assert stopped(step, claims, [claims[-1]] * rounds) < DELTA
    assert stopped(step, [claims[-1]] * rounds, [claims[-1]] * rounds) < DELTA


def test_a_limit_holds_for_gaussian_noise_that_is_chosen_by_what_came_before():
    """After one release the adversary takes the rest of a budget at once, or nothing more."""
    first, budget = 0.6, 1.5
    rest = math.sqrt(budget**2 - first**2)
    limit, alone = epsilon_of(budget, DELTA), epsilon_of(first, DELTA)
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    ratios = first**2 / 2 + first * nodes
    weights = weights / math.sqrt(2 * math.pi)
    # What is stated of one release, where the first one already shows more than that.
    goes_on = ratios < alone
    claimed = np.where(
        goes_on, excess(ratios, rest, limit), np.maximum(1 - np.exp(alone - ratios), 0)
    )
    assert float(weights @ claimed) > 1.2 * DELTA
    held = np.where(goes_on, excess(ratios, rest, limit), np.maximum(1 - np.exp(limit - ratios), 0))
    assert float(weights @ held) <= DELTA * (1 + 1e-6)
    assert delta_of(limit, budget) == pytest.approx(DELTA)


def test_a_limit_on_gaussian_noise_is_one_on_mu():
    """Whatever the parts are, the same sum of squares is affordable, and nothing above it."""
    limit = epsilon_of(1.0, DELTA)
    for parts in ([1.0], [0.6, 0.8], [0.5] * 4, [0.1] * 99 + [math.sqrt(1 - 0.99)]):
        ledger = [row(1.0 / part, n) for n, part in enumerate(parts, start=1)]
        require_affordable([], ledger, DELTA, target_epsilon=limit * (1 + 1e-8))
        with pytest.raises(BudgetExhausted):
            require_affordable(ledger, [row(100.0, 500)], DELTA, target_epsilon=limit)
        assert filter_of(ledger) == "gaussian"


def test_which_limits_are_filters():
    sampled = [row(2.0, number, batches=0.1) for number in (1, 2)]
    other = row(3.0, 3, batches=0.1)
    assert filter_of(sampled) == "equal"
    assert filter_of([*sampled, other]) is None
    assert filter_of([row(0.0)]) is None
