"""What an audit found, as one immutable value that can be shown or stored."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from privacy.auditing.gaussian_bound import GaussianBound

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
