"""What an epsilon means in guesses.

Somebody wants to know which of two neighbouring worlds is the real one, and holds one of them for
real with a known probability, the prior. A mechanism is (epsilon, delta)-private exactly if no test
that rejects the one world by mistake with probability a accepts it by mistake with a probability
below

    f(a) = max(0, 1 - delta - e^epsilon a, e^-epsilon (1 - delta - a))

(Dong, Roth and Su 2022, Proposition 2.4, after Wasserman and Zhou 2010). Guesses are right with
probability (1 - prior)(1 - a) + prior (1 - f(a)), which is largest at a corner of f. At prior 1/2
that is where the two lines cross, so at most 1 - (1 - delta) / (1 + e^epsilon) of all guesses are
right. Under delta = 0 randomised response reaches it.

What a mechanism proves at every delta together is its trade-off curve, and says more than one pair
of epsilon and delta: each pair bounds the guesses, so the least of these bounds holds. Where delta
is known exactly at every epsilon, the best guess is right with probability

    m + (1 - m) delta(log(m / (1 - m))),    m the larger of prior and 1 - prior

which is Phi(mu / 2) for Gaussian noise at prior 1/2.
"""

from __future__ import annotations

import functools
import math

from privacy._validate import require_probability
from privacy.accounting import gaussian
from privacy.accounting.accountants import Accountant, EpsilonResult, price
from privacy.accounting.composition import Composition


def largest_share_of_right_guesses(epsilon: float, delta: float, prior: float = 0.5) -> float:
    """Return the largest share of right guesses under (epsilon, delta).

    Args:
        epsilon: At least 0; infinity where nothing is proven.
        delta: At least 0 and below 1.
        prior: Of one of the two worlds, strictly between 0 and 1.

    Returns:
        From the larger prior, where nothing can be learnt, to 1.

    Raises:
        ValueError: An argument is out of range.
    """
    if not epsilon >= 0.0:
        raise ValueError(f"epsilon is {epsilon}; it must not be negative")
    require_probability(prior=prior)
    if delta:
        require_probability(delta=delta)
    # By the decaying exponential, which does not overflow.
    tail = math.exp(-epsilon)
    crossing = 1.0 - (1.0 - delta) * tail / (1.0 + tail)
    return max(crossing, 1.0 - prior + prior * delta, prior + (1.0 - prior) * delta)


@functools.lru_cache(maxsize=4096)
def log_odds(composition: Composition, prior: float, accountant: Accountant) -> EpsilonResult:
    """Return the largest logarithm of the odds of a right guess, in the place of epsilon.

    Like epsilon it is infinite where nothing is proven. It follows from what the accountant that
    states epsilon proves: `exact` and `pld` know delta at every epsilon, `rdp` bounds epsilon.
    """
    name = price(composition, 0.5, accountant).accountant
    likelier = max(prior, 1.0 - prior)
    odds = math.log(likelier / (1.0 - likelier))
    if not composition.is_noised:
        return EpsilonResult(math.inf, name)
    if composition.is_empty or name == "exact":
        delta = math.exp(gaussian.log_delta_at(odds, gaussian.total_mu(composition)))
        share = likelier + (1.0 - likelier) * delta
    elif name == "pld":
        from privacy.accounting.adapters import pld_delta

        share = likelier + (1.0 - likelier) * pld_delta(composition, odds)
    else:
        share = _least_share(composition, prior)
    return EpsilonResult(math.log(share / (1.0 - share)) if share < 1.0 else math.inf, name)


def _least_share(composition: Composition, prior: float) -> float:
    from scipy.optimize import minimize_scalar

    def bound(logit: float) -> float:
        delta = 1.0 / (1.0 + math.exp(-logit))
        epsilon = price(composition, delta, "rdp").epsilon
        return largest_share_of_right_guesses(epsilon, delta, prior)

    # Whatever the search finds is a bound; it only may not be the least.
    found = minimize_scalar(bound, bounds=(-30.0, 10.0), method="bounded", options={"xatol": 1e-9})
    return float(found.fun)
