"""How often a fair coin is guessed: numbers by hand, and attacks that reach the bound."""

from __future__ import annotations

import math

import numpy as np
import pytest

from privacy import largest_share_of_right_guesses

# e^epsilon = 3 and 1: (3 + delta) / 4 and (1 + delta) / 2 are done on paper.
BY_HAND = [
    (math.log(3.0), 0.0, 0.75),
    (math.log(3.0), 0.2, 0.80),
    (0.0, 0.0, 0.5),
    (0.0, 0.1, 0.55),
    (math.log(9.0), 0.0, 0.9),
    (math.log(9.0), 0.01, 0.901),
    (1.0, 0.0, 0.7310585786300049),
    # 2980.957987041728 / 2981.957987041728
    (8.0, 0.0, 0.9996646498695336),
]


@pytest.mark.parametrize(("epsilon", "delta", "share"), BY_HAND)
def test_shares_that_were_worked_out_by_hand(epsilon: float, delta: float, share: float) -> None:
    assert largest_share_of_right_guesses(epsilon, delta) == pytest.approx(share, rel=1e-14)


@pytest.mark.parametrize("epsilon", [math.inf, 1e6])
def test_where_nothing_is_proven_all_guesses_may_be_right(epsilon: float) -> None:
    assert largest_share_of_right_guesses(epsilon, 1e-5) == 1.0


@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 0.0), (0.3, 0.05), (2.0, 1e-5), (4.0, 0.3)])
def test_the_best_test_on_the_mechanism_that_has_exactly_this_claim_reaches_it(
    epsilon: float, delta: float
) -> None:
    # The canonical pair: with delta the world is shown, else randomised response at epsilon
    # (Murtagh and Vadhan 2018); the best guess takes the likelier world for each of four outcomes.
    keep = math.exp(epsilon) / (1.0 + math.exp(epsilon))
    first = np.array([delta, (1 - delta) * keep, (1 - delta) * (1 - keep), 0.0])
    right = np.maximum(first, first[::-1]).sum() / 2.0
    assert largest_share_of_right_guesses(epsilon, delta) == pytest.approx(right, rel=1e-14)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (1.5, 1e-3), (3.0, 0.1)])
def test_no_threshold_on_the_trade_off_curve_does_better(epsilon: float, delta: float) -> None:
    first = np.linspace(0.0, 1.0, 200_001)
    second = np.maximum(
        0.0,
        np.maximum(1 - delta - math.exp(epsilon) * first, math.exp(-epsilon) * (1 - delta - first)),
    )
    right = 1.0 - (first + second) / 2.0
    bound = largest_share_of_right_guesses(epsilon, delta)
    assert right.max() <= bound + 1e-15
    assert right.max() == pytest.approx(bound, abs=1e-5)


@pytest.mark.parametrize(
    ("epsilon", "delta", "said"),
    [(-0.1, 1e-5, "epsilon"), (math.nan, 1e-5, "epsilon"), (1.0, 1.0, "delta"), (1.0, -1, "delta")],
)
def test_what_is_no_epsilon_or_delta_is_refused(epsilon: float, delta: float, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said} is"):
        largest_share_of_right_guesses(epsilon, delta)
