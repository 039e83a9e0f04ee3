"""Adapters to dp_accounting: our terms become its events, and its refusals become ours.

Integer noise is priced by theorems, as lines alpha -> rho alpha + xi over Renyi orders.

- **Discrete Gaussian.** n shares of deviation s on the grid do not add up to a discrete Gaussian,
  but nearly: Kairouz, Liu and Steinke 2021 bound what that costs by tau = 10 sum_{k=1}^{n-1}
  exp(-2 pi^2 s^2 k / (k+1)). With r = sensitivity / (s sqrt(n)) in L2 and r1 the same in L1, in
  dimension d, the release satisfies concentrated differential privacy with rho = e^2 / 2 and

      e^2 = min(r^2 + 2 tau d, r^2 + 2 r1 tau + tau^2 d, (r + tau sqrt(d))^2).

  Their Theorem 1 writes tau d / 2 where this has 2 tau d. Proposition 14, in the authors' own
  accounting, adds tau d to the divergence at every order, which 2 tau d covers at every order above
  1 and tau d / 2 does not; the larger is taken, as it costs nothing at s >= 1.5. A single share
  has tau = 0 and is Canonne, Kamath and Steinke 2020, Theorem 4 (and 14 for many coordinates).
- **Skellam.** A sum of Skellam shares is Skellam with their total variance m. Agarwal, Kairouz and
  Liu 2021, Theorem 3.5: at integer orders alpha > 1 the divergence is at most

      alpha D2^2 / (2 m) + min(((2 alpha - 1) D2^2 + 6 D1) / (4 m^2), 3 D1 / (2 m))

  with the sensitivities D2 in L2 and D1 in L1 in steps of the grid. Each member of the minimum is a
  line of its own.

In L1 a vector of integers is at most sqrt(d) and at most L2 times as long as in L2.

`pld_epsilon`: privacy loss distributions (Doroshenko et al. 2022). Convention: `PLDAccountant`
takes noise relative to C *and* the relation, and doubles the sensitivity itself under REPLACE_ONE.
Its discretisation rounds losses up, so the result is a bound.

`rdp_epsilon`: Renyi differential privacy (Mironov 2017). Convention: `RdpAccountant` reads a
Gaussian event's multiplier as noise over *sensitivity* under every relation and never doubles
anything, so under replace_one it is handed sd / (2C). The relation is passed along all the same: it
is how the accountant knows to refuse Poisson sampling there, and cohorts of fixed size under
add_or_remove_one. Those it bounds under replace_one by Theorem 27 of Wang, Balle and
Kasiviswanathan 2019.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    PrivacyAccountant,
    SampledWithoutReplacementDpEvent,
    UnsupportedEventError,
    ZCDpEvent,
)
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from privacy.accounting.composition import Composition, FixedSizeTerm, IntegerTerm, Term
from privacy.errors import UnsupportedEvent
from privacy.events import sensitivity_over_norm


def compose_all(accountant: PrivacyAccountant, composition: Composition, unit: float) -> None:
    """Compose every term with Gaussian noise into a fresh accountant, or `UnsupportedEvent`.

    `unit` is what this accountant measures noise in, as a multiple of C.
    """
    terms: tuple[Term | FixedSizeTerm, ...] = (*composition.terms, *composition.fixed_size_terms)
    for term in terms:
        try:
            with quiet():
                accountant.compose(_event(term, unit), term.count)
        except UnsupportedEventError as error:
            # The event's own numbers stand before and after the reason.
            reason = str(error).partition("Error: [")[2].partition("] caused by")[0]
            name = type(accountant).__name__
            raise UnsupportedEvent(f"{name} refuses a release: {reason}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Silence dp_accounting's log, which tells of Renyi orders that it leaves out.

    The bound is the best over the orders that are left and none the worse for it.
    """
    logger = logging.getLogger("absl")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def _event(term: Term | FixedSizeTerm, unit: float) -> DpEvent:
    gaussian = GaussianDpEvent(term.noise_to_clip / unit)
    if isinstance(term, FixedSizeTerm):
        return SampledWithoutReplacementDpEvent(term.population, term.size, gaussian)
    if term.sampling_probability == 1.0:
        return gaussian
    return PoissonSampledDpEvent(term.sampling_probability, gaussian)


_SMALLEST_DEVIATION = 0.5
"""The theorem on sums of discrete Gaussians asks for it."""


class Line(NamedTuple):
    """Divergence at order alpha is at most rho alpha + xi, for Skellam at integer orders."""

    rho: float
    xi: float


def tau(share_deviation: float, shares: int) -> float:
    """Return tau of Kairouz, Liu and Steinke 2021, Theorem 1; 0 for a single share.

    The deviation s of a share is in steps of the grid.
    """
    k = np.arange(1, shares)
    exponent = -2.0 * (math.pi * share_deviation) ** 2
    return 10.0 * float(np.exp(exponent * (k / (k + 1))).sum())


def first_line(term: IntegerTerm, sensitivity: float) -> Line:
    """Bound one release, for Skellam by the first member of the minimum; its count does not matter.

    `sensitivity` is in L2 over the clipping norm: 2 under replace_one, else 1. `UnsupportedEvent`
    means that the theorem does not cover shares as small.
    """
    if term.noise.name == "skellam":
        ratio, ratio_l1, deviation = _ratios(term, sensitivity)
        variance = deviation * deviation
        rho = ratio * ratio / 2.0 * (1.0 + 1.0 / variance)
        # D2^2 / m^2 and D1 / m^2 in terms of the ratios; rounded up to 0, as dp_accounting asks.
        xi = (6.0 * ratio_l1 * deviation - ratio * ratio * variance) / (4.0 * variance * variance)
        return Line(rho, max(0.0, xi))
    return _discrete_gaussian_line(term, sensitivity)


def second_line(term: IntegerTerm, sensitivity: float) -> Line:
    """Bound one release like `first_line`, for Skellam by the second member of the minimum."""
    if term.noise.name == "skellam":
        ratio, ratio_l1, deviation = _ratios(term, sensitivity)
        return Line(ratio * ratio / 2.0, 1.5 * ratio_l1 / deviation)
    return _discrete_gaussian_line(term, sensitivity)


LINES: tuple[Callable[[IntegerTerm, float], Line], ...] = (first_line, second_line)


def _discrete_gaussian_line(term: IntegerTerm, sensitivity: float) -> Line:
    noise = term.noise
    if noise.share_deviation < _SMALLEST_DEVIATION and noise.shares > 1:
        raise UnsupportedEvent(
            f"share_deviation is {noise.share_deviation:g} steps of the grid; sums of discrete "
            f"Gaussians are bounded from {_SMALLEST_DEVIATION} on"
        )
    ratio, ratio_l1, _ = _ratios(term, sensitivity)
    excess, dimension = tau(noise.share_deviation, noise.shares), noise.dimension
    squares = (
        ratio * ratio + 2.0 * excess * dimension,
        ratio * ratio + 2.0 * ratio_l1 * excess + excess * excess * dimension,
        (ratio + excess * math.sqrt(dimension)) ** 2,
    )
    return Line(min(squares) / 2.0, 0.0)


def _ratios(term: IntegerTerm, sensitivity: float) -> tuple[float, float, float]:
    """Return L2 and L1 sensitivity over the deviation of the sum, and the latter on the grid."""
    deviation = term.noise.share_deviation * math.sqrt(term.noise.shares)
    ratio = sensitivity / term.noise_to_clip
    longest = min(math.sqrt(term.noise.dimension), max(1.0, ratio * deviation))
    return ratio, ratio * longest, deviation


SMALLEST_NOISE = 0.02
"""Over C. At 0.05 ten releases take a minute; time and memory grow with the inverse square."""


def pld_epsilon(composition: Composition, delta: float) -> float:
    """Bound epsilon by privacy loss distributions; `UnsupportedEvent` if dp_accounting refuses.

    The bound is within about 1e-4 times the root of the number of terms.
    """
    if composition.integer_terms:
        # dp_accounting would say so too, in words that name its own types only.
        raise UnsupportedEvent("PLDAccountant refuses concentrated DP, which prices integer noise")
    if composition.fixed_size_terms:
        raise UnsupportedEvent("PLDAccountant refuses cohorts of fixed size")
    if min(term.noise_to_clip for term in composition.terms) < SMALLEST_NOISE:
        raise UnsupportedEvent(
            f"PLDAccountant takes gigabytes at noise below {SMALLEST_NOISE:g} of the clipping norm"
        )
    return float(_pld_accountant(composition).get_epsilon(delta))


def pld_delta(composition: Composition, epsilon: float) -> float:
    """Bound delta at an epsilon; the composition is one that `pld_epsilon` prices."""
    return float(_pld_accountant(composition).get_delta(epsilon))


# To compose takes seconds and to ask for another delta milliseconds.
@functools.lru_cache(maxsize=8)
def _pld_accountant(composition: Composition) -> PLDAccountant:
    accountant = PLDAccountant(NeighboringRelation[composition.relation.upper()])
    compose_all(accountant, composition, 1.0)
    return accountant


_FINE_ORDERS = (
    *(1.0 + tenth / 10.0 for tenth in range(1, 100)),
    *range(11, 64),
    *(round(64 * 2 ** (step / 4)) for step in range(41)),
)
"""dp_accounting's own orders and a finer row from 64 to 65,536, for bounds that cost nothing."""


_FIXED_SIZE_NOISE = (1e-6, 1e3)
"""Over sensitivity. In between dp_accounting's alternating sums of the theorem on cohorts of fixed
size undercut it by less than 1e-8; below they overflow, and from 5,000 on they lose their digits.
"""


def rdp_epsilon(composition: Composition, delta: float) -> float:
    """Bound epsilon by Renyi divergences at dp_accounting's default orders, looser than `pld`.

    `UnsupportedEvent` means that dp_accounting refuses a term, or would be inaccurate, as for a
    cohort of fixed size with very little or very much noise.
    """
    sensitivity = sensitivity_over_norm(composition.relation)
    low, high = _FIXED_SIZE_NOISE
    for term in composition.fixed_size_terms:
        if not low <= term.noise_to_clip / sensitivity <= high:
            raise UnsupportedEvent(
                f"RdpAccountant bounds cohorts of fixed size for noise from {low:g} to {high:g} "
                f"times the sensitivity only, not {term.noise_to_clip / sensitivity:g}"
            )
    return min(float(one.get_epsilon(delta)) for one in _rdp_accountants(composition))


@functools.lru_cache(maxsize=64)
def _rdp_accountants(composition: Composition) -> tuple[RdpAccountant, ...]:
    """Return accountants of one composition, each of which gives a bound."""
    relation = NeighboringRelation[composition.relation.upper()]
    sensitivity = sensitivity_over_norm(composition.relation)
    if not composition.integer_terms:
        accountant = RdpAccountant(neighboring_relation=relation)
        compose_all(accountant, composition, sensitivity)
        return (accountant,)
    whole = any(term.noise.name == "skellam" for term in composition.integer_terms)
    orders = [order for order in _FINE_ORDERS if not whole or order == int(order)]
    found = []
    # Each choice bounds every release, so the smaller epsilon holds.
    for line in LINES:
        accountant = RdpAccountant(orders, relation)
        compose_all(accountant, composition, sensitivity)
        for term in composition.integer_terms:
            rho, xi = line(term, sensitivity)
            accountant.compose(ZCDpEvent(rho, xi), term.count)
        found.append(accountant)
    return tuple(found)
