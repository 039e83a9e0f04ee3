"""What an audit is to refute: a trade-off between wrong guesses, and an epsilon.

mu is the scale on which a build is judged. Whoever guesses a fair coin through a mechanism of total
variation TV errs with probability at least (1 - TV) / 2, whatever the attack (Neyman-Pearson), and
TV = delta(0), the delta of the mechanism at epsilon 0. mu is defined by that bound,

    (1 - TV) / 2 = Phi(-mu / 2),

so that for an unsampled Gaussian mechanism it is sensitivity over standard deviation, which is the
mu of Gaussian differential privacy (Dong, Roth and Su 2022, Definition 2.6).
"""

from __future__ import annotations

from dataclasses import dataclass

from scipy.special import ndtri

from privacy._validate import require_not_negative, require_positive, require_probability
from privacy.accounting.gaussian import epsilon_at


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
        """Refuse numbers that mean nothing."""
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
    """Claim what an accountant says of a mechanism that is no Gaussian, such as a sampled one.

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
