"""Calibration where records are sampled: few and slow evaluations in place of a closed formula.

`pld` takes tenths of a second to seconds for one noise multiplier, so the search goes by secants
between a multiplier that fits for certain and one that does not, and stops at 1e-5.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from scipy.optimize import brentq

from privacy.accounting.composition import Composition, Term, round_digits
from privacy.accounting.headline import Accountant, price
from privacy.errors import CalibrationError
from privacy.events import Relation

_PRECISION = 1e-5
_STORED_DIGITS = 10
_SMALLEST, _LARGEST = 0.2, 1e6
"""Below this one unsampled step costs 33 at delta 1e-5, and a bound takes minutes."""


@functools.lru_cache(maxsize=256)
def calibrate_sampled(
    target_epsilon: float,
    delta: float,
    term: Term,
    *,
    relation: Relation,
    accountant: Accountant,
) -> float:
    """Find a noise multiplier that fits the target, at most 2e-5 (relative) above the smallest.

    Args:
        target_epsilon: What the composition may cost, above zero.
        delta: Strictly between 0 and 1.
        term: Sampling probability and how often; its noise is what is looked for, and ignored.
        relation: Of the run.
        accountant: Who will price the run.

    Returns:
        Standard deviation of the noise over the clipping norm, with 10 significant digits.

    Raises:
        CalibrationError: No multiplier between 0.2 and 1e6 fits, or all do.
        UnsupportedEvent: The accountant cannot bound the composition.
    """

    def excess(log_z: float) -> float:
        found = Term(math.exp(log_z), term.sampling_probability, term.count)
        return price(Composition(relation, (found,)), delta, accountant).epsilon - target_epsilon

    low, high = bracket(excess)
    z = math.exp(float(brentq(excess, low, high, xtol=_PRECISION)))
    # The root is only near; what is returned has to fit.
    step = _PRECISION
    while excess(math.log(z := round_digits(z, _STORED_DIGITS))) > 0.0:
        z, step = z * (1.0 + step), 2.0 * step
    return z


def bracket(excess: Callable[[float], float]) -> tuple[float, float]:
    """Return logarithms of a multiplier that costs too much and of one that does not."""
    low = high = 0.0
    while excess(high) > 0.0:
        low, high = high, high + 0.5
        if high > math.log(_LARGEST):
            raise CalibrationError(
                f"no noise multiplier up to {_LARGEST:g} reaches the target; "
                "the accountant cannot report an epsilon this small"
            )
    while low == high or excess(low) <= 0.0:
        low, high = low - 0.25, low
        if low < math.log(_SMALLEST):
            raise CalibrationError(
                f"the target is met by noise multipliers below {_SMALLEST:g}, which protect "
                "nobody; name a smaller target or set privacy.noise_multiplier"
            )
    return low, high
