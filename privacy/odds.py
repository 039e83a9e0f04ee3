"""What an epsilon means in guesses: how often a fair coin can be guessed by somebody who looks.

Somebody wants to know which of two neighbouring worlds is the real one, and without looking is
right half of the time. A mechanism is (epsilon, delta)-private exactly if no test that rejects the
one world by mistake with probability a accepts it by mistake with a probability below

    f(a) = max(0, 1 - delta - e^epsilon a, e^-epsilon (1 - delta - a))

(Dong, Roth and Su 2022, Proposition 2.4, after Wasserman and Zhou 2010). Guesses are wrong with
probability (a + f(a)) / 2, which is least where the two lines cross, at a = (1 - delta) / (1 +
e^epsilon) = f(a). So at most

    1 - (1 - delta) / (1 + e^epsilon)

of all guesses are right. Under delta = 0 that is e^epsilon / (1 + e^epsilon), and it is reached by
randomised response.
"""

from __future__ import annotations

import math

from privacy._validate import require_probability


def largest_share_of_right_guesses(epsilon: float, delta: float) -> float:
    """Return which share of guesses of a fair coin can be right, at most, whatever is done.

    Args:
        epsilon: At least 0; infinity where nothing is proven.
        delta: At least 0 and below 1.

    Returns:
        From 1/2, where nothing can be learnt, to 1.

    Raises:
        ValueError: An argument is out of range.
    """
    if not epsilon >= 0.0:
        raise ValueError(f"epsilon is {epsilon}; it must not be negative")
    if delta:
        require_probability(delta=delta)
    # By the decaying exponential, which does not overflow.
    tail = math.exp(-epsilon)
    return 1.0 - (1.0 - delta) * tail / (1.0 + tail)
