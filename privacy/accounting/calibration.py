"""Calibration: the least noise that keeps a planned run within its target epsilon.

Where records are sampled there is no closed formula: `pld` takes tenths of a second to seconds for
one noise multiplier, so the search goes by secants between a multiplier that fits for certain and
one that does not, and stops at 1e-5.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable

from scipy.optimize import brentq

from privacy._validate import require_member, require_positive, require_probability
from privacy.accounting.accountants import ACCOUNTANTS, Accountant, price
from privacy.accounting.adversaries import claimed_epsilon
from privacy.accounting.composition import Composition, Term, round_digits
from privacy.errors import CalibrationError
from privacy.events import RELATIONS, Relation, Release

_PRECISION = 1e-6
_STORED_DIGITS = 10
_LARGEST = 1e12


def calibrate_noise_multiplier(
    target_epsilon: float,
    target_delta: float,
    *,
    releases_per_round: int,
    rounds: int,
    relation: Relation,
    accountant: Accountant = "auto",
    sampling_probability: float = 1.0,
    steps: int = 1,
) -> float:
    """Find the smallest noise multiplier with which all planned releases fit the target.

    The result never costs more than the target, is at most 1e-6 (relative) above the smallest
    that would do, and has 10 significant digits, so that it survives a YAML file and a product
    with C unchanged. Where records are sampled it is 2e-5 above at most, and results are cached.

    Args:
        target_epsilon: What the whole run may cost one client.
        target_delta: Strictly between 0 and 1.
        releases_per_round: 1 where the pool entry is the noised upload itself, 2 where it is
            noised independently.
        rounds: Planned rounds, spare attempts included.
        relation: Of the run; replace_one needs twice the noise of add_or_remove_one.
        accountant: Who will price the run.
        sampling_probability: Of the Poisson batches under dp_sgd; 1 where nothing is sampled.
        steps: Compositions of one release: the optimiser steps of a fit under dp_sgd.

    Returns:
        Standard deviation of the noise divided by the clipping norm.

    Raises:
        CalibrationError: The target is not a positive number, nothing is planned, or the
            accountant reports more than the target whatever the noise (rdp at tiny targets).
        UnsupportedEvent: The accountant cannot bound the sampling under the relation.
        ValueError: `target_delta`, `relation` or `accountant` is not valid.
    """
    require_probability(target_delta=target_delta)
    require_member(RELATIONS, relation=relation)
    require_member(ACCOUNTANTS, accountant=accountant)
    if not (math.isfinite(target_epsilon) and target_epsilon > 0):
        raise CalibrationError(
            f"privacy.target_epsilon is {target_epsilon}; it must be finite and above zero"
        )
    releases = releases_per_round * rounds * steps
    if releases_per_round < 1 or rounds < 1 or steps < 1:
        raise CalibrationError(
            f"releases_per_round is {releases_per_round}, rounds is {rounds} and steps is {steps}; "
            "all must be at least 1"
        )
    if not 0.0 < sampling_probability <= 1.0:
        raise CalibrationError(
            f"sampling_probability is {sampling_probability}; it must be above 0 and at most 1"
        )
    if sampling_probability < 1.0:
        term = Term(1.0, sampling_probability, releases)
        return calibrate_sampled(
            target_epsilon, target_delta, term, relation=relation, accountant=accountant
        )

    def fits(name: Accountant) -> Callable[[float], bool]:
        def fit(z: float) -> bool:
            composition = Composition(relation, (Term(z, 1.0, releases),))
            return price(composition, target_delta, name).epsilon <= target_epsilon

        return fit

    smallest = smallest_fit(fits("exact"), 1.0)
    if accountant in ("auto", "exact"):
        return smallest
    # The exact answer bounds the others' from below; they are slow where noise is small, so the
    # search starts there.
    return smallest_fit(fits(accountant), smallest)


def calibrate(
    planned: Callable[[float], Iterable[Release]],
    target_epsilon: float,
    target_delta: float,
    *,
    smallest: float,
    accountant: Accountant = "auto",
) -> float:
    """Find the smallest noise multiplier with which one client's planned ledger fits the target.

    What fits is judged as `require_affordable` does, so no cohort amplifies it.

    Args:
        planned: Gives every row of the ledger for a noise multiplier; more noise must never cost
            more.
        target_epsilon: What the ledger may cost.
        target_delta: Strictly between 0 and 1.
        smallest: Least multiplier that the mechanism allows, above zero; `planned` is not asked
            about smaller ones.
        accountant: Who will price the run.

    Returns:
        A multiplier with 10 significant digits, at most 1e-6 (relative) above the smallest that
        fits and is allowed.

    Raises:
        CalibrationError: The target is not a positive number, or no multiplier reaches it.
        UnsupportedEvent: The accountant cannot bound the ledger.
        ValueError: `target_delta`, `smallest` or `accountant` is not valid.
    """
    require_positive(smallest=smallest)
    if not (math.isfinite(target_epsilon) and target_epsilon > 0):
        raise CalibrationError(
            f"privacy.target_epsilon is {target_epsilon}; it must be finite and above zero"
        )

    def fits(z: float) -> bool:
        if z < smallest:
            return False
        return claimed_epsilon(planned(z), target_delta, accountant).epsilon <= target_epsilon

    return smallest_fit(fits, smallest)


def smallest_fit(fits: Callable[[float], bool], start: float) -> float:
    """Find the smallest z that fits: double or halve from `start`, then bisect.

    `fits` is false below some z and true from there on. The result has 10 digits, fits, and is at
    most 1e-6 (relative) above the smallest. `CalibrationError` if nothing up to 1e12 fits.
    """
    low, high, factor = start, start, 1.0 + _PRECISION
    while not fits(high):
        low, high, factor = high, high * factor, min(2.0, factor * factor)
        if high > _LARGEST:
            raise CalibrationError(
                f"no noise multiplier up to {_LARGEST:g} reaches the target; "
                "the accountant cannot report an epsilon this small"
            )
    factor = 1.0 + _PRECISION
    while low == high or fits(low):
        low, high, factor = low / factor, low, min(2.0, factor * factor)
        if low < 1.0 / _LARGEST:
            break
    while high / low > 1.0 + _PRECISION / 4.0:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    rounded = round_digits(high, _STORED_DIGITS)
    # Rounding down may lose the fit.
    return rounded if fits(rounded) else round_digits(high * (1.0 + 1e-9), _STORED_DIGITS)


_SAMPLED_PRECISION = 1e-5
_LEAST_SAMPLED, _LARGEST_SAMPLED = 0.2, 1e6
"""Below this one unsampled step costs 33 at delta 1e-5, and a bound takes minutes."""


@functools.lru_cache(maxsize=256)
def calibrate_sampled(
    target_epsilon: float, delta: float, term: Term, *, relation: Relation, accountant: Accountant
) -> float:
    """Find a noise multiplier that fits the target, at most 2e-5 (relative) above the smallest.

    The noise of `term` is what is looked for, and ignored. The result has 10 significant digits.
    `CalibrationError` if no multiplier between 0.2 and 1e6 fits, or all do; `UnsupportedEvent` if
    the accountant cannot bound the composition.
    """

    def excess(log_z: float) -> float:
        found = Term(math.exp(log_z), term.sampling_probability, term.count)
        return price(Composition(relation, (found,)), delta, accountant).epsilon - target_epsilon

    low, high = bracket(excess)
    z = math.exp(float(brentq(excess, low, high, xtol=_SAMPLED_PRECISION)))
    # The root is only near; what is returned has to fit.
    step = _SAMPLED_PRECISION
    while excess(math.log(z := round_digits(z, _STORED_DIGITS))) > 0.0:
        z, step = z * (1.0 + step), 2.0 * step
    return z


def bracket(excess: Callable[[float], float]) -> tuple[float, float]:
    """Return logarithms of a multiplier that costs too much and of one that does not."""
    low = high = 0.0
    while excess(high) > 0.0:
        low, high = high, high + 0.5
        if high > math.log(_LARGEST_SAMPLED):
            raise CalibrationError(
                f"no noise multiplier up to {_LARGEST_SAMPLED:g} reaches the target; "
                "the accountant cannot report an epsilon this small"
            )
    while low == high or excess(low) <= 0.0:
        low, high = low - 0.25, low
        if low < math.log(_LEAST_SAMPLED):
            raise CalibrationError(
                f"the target is met by noise multipliers below {_LEAST_SAMPLED:g}, which protect "
                "nobody; name a smaller target or set privacy.noise_multiplier"
            )
    return low, high
