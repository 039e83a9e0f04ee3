"""What an audit tries to refute (`Claim`), and what it found (`AuditResult`).

A claim is a trade-off between wrong guesses, and an epsilon.

mu is the scale on which a build is judged. Whoever guesses a fair coin through a mechanism of total
variation TV errs with probability at least (1 - TV) / 2, whatever the attack (Neyman-Pearson), and
TV = delta(0), the delta of the mechanism at epsilon 0. mu is defined by that bound,

    (1 - TV) / 2 = Phi(-mu / 2),

so that for an unsampled Gaussian mechanism it is sensitivity over standard deviation, which is the
mu of Gaussian differential privacy (Dong, Roth and Su 2022, Definition 2.6).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from scipy.optimize import brentq
from scipy.special import ndtri

from privacy._validate import require_not_negative, require_positive, require_probability
from privacy.accounting.accountants import Accountant, price
from privacy.accounting.adapters import compose_all
from privacy.accounting.composition import Composition, compose, no_cohort
from privacy.accounting.gaussian import epsilon_at
from privacy.auditing.bounds import GaussianBound
from privacy.events import Release

_SMALLEST_MU, _LARGEST_MU = 1e-6, 1e3


@dataclass(frozen=True)
class Claim:
    """The privacy that a build says it has; made by `gaussian_claim` or `sampled_claim`.

    Attributes:
        mu: Two standard normal deviates: nobody guesses a fair coin with an error below
            Phi(-mu / 2).
        epsilon: Claimed at `delta`.
        delta: Strictly between 0 and 1.
        is_gaussian: Whether the whole trade-off curve is claimed to lie above that of a Gaussian
            with this mu, not only its middle.
    """

    mu: float
    epsilon: float
    delta: float
    is_gaussian: bool

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        require_positive(mu=self.mu)
        require_not_negative(epsilon=self.epsilon)
        require_probability(delta=self.delta)


def gaussian_claim(mu: float, delta: float) -> Claim:
    """Claim mu-GDP, as unsampled Gaussian releases have it.

    Args:
        mu: Sensitivity over standard deviation of one release; over T releases that are audited as
            one, the root of the summed squares.
        delta: At which epsilon is stated; epsilon is exact (Balle and Wang 2018, Theorem 8).

    Raises:
        ValueError: `mu` is not finite and positive, or `delta` no probability.
    """
    require_positive(mu=mu)
    return Claim(mu, epsilon_at(mu, delta), delta, is_gaussian=True)


def sampled_claim(*, total_variation: float, epsilon: float, delta: float) -> Claim:
    """Claim the epsilon that an accountant gives a mechanism that is not plain Gaussian.

    A Poisson sample's trade-off curve has a heavier tail than the Gaussian that touches it in the
    middle, so only the middle is claimed, and only balanced errors are compared with it.

    Args:
        total_variation: The accountant's delta at epsilon 0, an upper bound. One Poisson-sampled
            Gaussian step has sampling_probability (2 Phi(mu / 2) - 1).
        epsilon: The accountant's epsilon at `delta`.
        delta: Strictly between 0 and 1.

    Raises:
        ValueError: A probability is not strictly between 0 and 1, or epsilon is negative.
    """
    require_probability(total_variation=total_variation)
    mu = 2.0 * float(ndtri((1.0 + total_variation) / 2.0))
    return Claim(mu, epsilon, delta, is_gaussian=False)


def claim_of(release: Release, delta: float, accountant: Accountant = "auto") -> Claim:
    """Claim the ledger's epsilon of one release, without amplification by the draw of cohorts.

    A release makes two claims: its row states noise and sensitivity, and an accountant prices it.
    Both must hold, so the smaller mu is claimed: a price that forgets that replacing a client moves
    an upload by 2C is refuted although the row is right, and a row that states too much noise is
    refuted whatever it is priced at. A row's integer noise counts as the Gaussian of its standard
    deviation, of which it falls short by less than any audit sees on grids that are not refused.

    Args:
        release: The row, noised.
        delta: At which epsilon is stated.
        accountant: Who prices.

    Raises:
        UnsupportedEvent: The accountant does not know such a release.
        ValueError: The release carries no noise, or `delta` is no probability.
    """
    require_probability(delta=delta)
    require_positive(standard_deviation=release.standard_deviation)
    composition = compose([release], no_cohort)
    epsilon = price(composition, delta, accountant).epsilon
    if composition.is_sampled:
        total_variation = _total_variation(composition)
        return sampled_claim(total_variation=total_variation, epsilon=epsilon, delta=delta)
    stated = math.sqrt(release.count) * release.sensitivity / release.standard_deviation
    return Claim(min(stated, mu_of(epsilon, delta)), epsilon, delta, is_gaussian=True)


def mu_of(epsilon: float, delta: float) -> float:
    """Return the mu of the Gaussian mechanism that has this epsilon at this delta."""
    if epsilon >= epsilon_at(_LARGEST_MU, delta):
        return math.inf
    if epsilon <= epsilon_at(_SMALLEST_MU, delta):
        return _SMALLEST_MU
    found: float = brentq(lambda mu: epsilon_at(mu, delta) - epsilon, _SMALLEST_MU, _LARGEST_MU)
    return found


def _total_variation(composition: Composition) -> float:
    """Return an upper bound on delta at epsilon 0, by privacy loss distributions."""
    # dp_accounting takes half a second to import, and unsampled claims need none of it.
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(NeighboringRelation[composition.relation.upper()])
    compose_all(accountant, composition, 1.0)
    return float(accountant.get_delta(0.0))


Unit = Literal["client", "record"]


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """What an audit found.

    Attributes:
        unit: Whose presence the canaries stand for.
        claimed_mu: What the ledger's numbers amount to (`Claim.mu`).
        estimated_mu: From the balanced error of the guesses, without confidence.
        mu_interval: Lower and upper bound at the family-wise error. The lower one is a fact about
            the build; the upper one describes this attack only and proves no privacy.
        epsilon_lower_bound_95: From the one-run theorem; above the truth at most one time in
            twenty, so it is shown and decides nothing.
        claimed_epsilon: At `delta`.
        delta: Of both epsilons.
        clip_respected: Whether over-long canaries moved the release no further than others; None
            where that was not tested apart from the rest.
        canaries: Guessed coins; over-long ones and calibration runs come on top.
        power: Probability that a build with twice the claimed mu (half the noise) would have
            failed with as many canaries. Where it is low, `passed` means little.
        passed: Whether nothing contradicts the claim at the family-wise error.
        reasons: One sentence for each contradiction; empty where it passed.
        array: The released array that these numbers are about, where several were looked at.
        gaussian: What the means of scores show beside the guesses; None where no Gaussian law is
            claimed.
    """

    unit: Unit
    claimed_mu: float
    estimated_mu: float
    mu_interval: tuple[float, float]
    epsilon_lower_bound_95: float
    claimed_epsilon: float
    delta: float
    clip_respected: bool | None
    canaries: int
    power: float
    passed: bool
    reasons: tuple[str, ...]
    array: str | None = None
    gaussian: GaussianBound | None = None

    @property
    def is_tight(self) -> bool:
        """Whether the attack saw as much as is claimed; a passed audit that is not saw less."""
        return self.mu_interval[0] <= self.claimed_mu <= self.mu_interval[1]

    def document(self) -> dict[str, Any]:
        """Return plain values for JSON; infinity becomes "inf"."""
        low, high = self.mu_interval
        return {
            "unit": self.unit,
            "claimed_mu": self.claimed_mu,
            "estimated_mu": self.estimated_mu,
            "mu_interval": [_plain(low), _plain(high)],
            "epsilon_lower_bound_95": self.epsilon_lower_bound_95,
            "claimed_epsilon": _plain(self.claimed_epsilon),
            "delta": self.delta,
            "clip_respected": self.clip_respected,
            "canaries": self.canaries,
            "power": self.power,
            "is_tight": self.is_tight,
            "passed": self.passed,
            "reasons": list(self.reasons),
            "array": self.array,
            "gaussian": None if self.gaussian is None else asdict(self.gaussian),
        }


def _plain(value: float) -> float | str:
    """Return a number that strict JSON can hold."""
    return "inf" if math.isinf(value) else value
