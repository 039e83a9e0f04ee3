"""Direct tests of noise, which notice faults that no guessing game notices.

Each returns its p-value and raises `AuditError` where that is below alpha. They are exact for
independent Gaussian coordinates of mean zero (the Kolmogorov-Smirnov one up to scipy's own series).
The noise is what was released minus what was clipped: rounding to a grid of step h adds h^2 / 12 to
the variance, which is nothing as long as h is far below the standard deviation.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr
from scipy.stats import binomtest, chi2, kstest, norm

from privacy._validate import finite_vector, require_positive, require_probability
from privacy.errors import NonFiniteUpdate, PrivacyError


class AuditError(PrivacyError):
    """Noise failed a test that correct noise fails with probability at most the stated alpha.

    Attributes:
        p_value: How likely right noise looks at least as wrong, before any correction for the
            number of comparisons.
    """

    def __init__(self, message: str, *, p_value: float) -> None:
        """Keep the number beside the sentence, for reports."""
        super().__init__(message)
        self.p_value = p_value


_TAIL = 3.0


def verify_noise_variance(samples: NDArray[Any], standard_deviation: float, alpha: float) -> float:
    """Check that the sum of squares fits the promised variance, from both sides.

    The mean is zero by promise, so n degrees of freedom are left and a shifted mean counts as
    variance: sum x^2 / sd^2 is chi-square with n degrees.

    Args:
        samples: Noise of shape (n,), in the units of the update, n at least 1.
        standard_deviation: As the ledger has it.
        alpha: Probability that right noise is refused.

    Returns:
        The two-sided p-value.

    Raises:
        AuditError: The p-value is below `alpha`.
        NonFiniteUpdate: A sample is NaN or infinite.
        ValueError: There are no samples, or a number is out of range.
    """
    scaled = _scaled(samples, standard_deviation, alpha)
    total = float(scaled @ scaled)
    tail = min(chi2.cdf(total, scaled.size), chi2.sf(total, scaled.size))
    p_value = float(min(1.0, 2.0 * tail))
    if p_value < alpha:
        raise AuditError(
            f"the noise's variance is {total / scaled.size:.4g} of the promised one over "
            f"{scaled.size} samples; it must be 1",
            p_value=p_value,
        )
    return p_value


def verify_distribution(samples: NDArray[Any], standard_deviation: float, alpha: float) -> float:
    """Check that noise has the promised normal law, in the middle and in the tails.

    Kolmogorov and Smirnov's test is weak in the tails, so the number of samples beyond three
    standard deviations is held against its binomial law as well; each test gets half of `alpha`.
    For continuous noise, or a grid far finer than the standard deviation.

    Args:
        samples: Noise of shape (n,).
        standard_deviation: As the ledger has it.
        alpha: Probability that right noise is refused.

    Returns:
        Twice the smaller of the two p-values, at most 1.

    Raises:
        AuditError: It is below `alpha`.
        NonFiniteUpdate: A sample is NaN or infinite.
        ValueError: There are no samples, or a number is out of range.
    """
    scaled = _scaled(samples, standard_deviation, alpha)
    middle = float(kstest(scaled, "norm").pvalue)
    beyond = int(np.count_nonzero(np.abs(scaled) > _TAIL))
    tails = float(binomtest(beyond, scaled.size, 2.0 * float(norm.sf(_TAIL))).pvalue)
    p_value = min(1.0, 2.0 * min(middle, tails))
    if p_value < alpha:
        raise AuditError(
            f"the noise is not normal with the promised deviation: {beyond} of {scaled.size} "
            f"samples lie beyond {_TAIL:g} of them",
            p_value=p_value,
        )
    return p_value


def verify_independence(rounds_of_noise: NDArray[Any], alpha: float) -> float:
    """Check that no two noise vectors are equal, opposite or correlated.

    Rows may be rounds, clients, attempts or channels. For independent Gaussian vectors r = x.y /
    (|x| |y|) has the law of one coordinate on a sphere, so r sqrt((n - 1) / (1 - r^2)) is Student's
    t with n - 1 degrees of freedom, exactly; pairs are corrected by Bonferroni. A repeated vector
    has r = 1 and p = 0. Correlation at a shift, or within a vector, is not looked for.

    Args:
        rounds_of_noise: Of shape (k, n) or (rounds, clients, n), at least two vectors of at least
            two coordinates.
        alpha: Probability that right noise is refused.

    Returns:
        The smallest p-value times the number of pairs, at most 1.

    Raises:
        AuditError: It is below `alpha`; the message names the pair and never the noise.
        NonFiniteUpdate: A sample is NaN or infinite.
        ValueError: The shape does not fit, or `alpha` is no probability.
    """
    require_probability(alpha=alpha)
    rows = _rows(rounds_of_noise)
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    if not norms.all():
        raise AuditError("a noise vector is zero: nothing protects it", p_value=0.0)
    units = rows / norms[:, None]
    correlations = np.abs(np.triu(units @ units.T, k=1))
    first, second = np.unravel_index(int(correlations.argmax()), correlations.shape)
    strongest = float(correlations[first, second])
    pairs = len(rows) * (len(rows) - 1) // 2
    unit, other = units[first], units[second]
    cosine = float(unit @ other)
    # The sine from the residual: 1 - r^2 would round equal and nearly equal vectors alike.
    residual = unit - cosine * other
    sine = math.sqrt(float(residual @ residual))
    freedom = unit.size - 1
    statistic = math.sqrt(freedom) * abs(cosine) / sine if sine > 0.0 else math.inf
    p_value = min(1.0, pairs * (2.0 * float(stdtr(freedom, -statistic))))
    if p_value < alpha:
        raise AuditError(
            f"noise vectors {first} and {second} are correlated with |r| = {strongest:.4g}; noise "
            "must be drawn afresh",
            p_value=p_value,
        )
    return p_value


def _scaled(samples: NDArray[Any], standard_deviation: float, alpha: float) -> NDArray[np.float64]:
    require_positive(standard_deviation=standard_deviation)
    require_probability(alpha=alpha)
    vector = finite_vector(samples)
    if not vector.size:
        raise ValueError("samples is empty; at least one is needed")
    return vector / standard_deviation


def _rows(rounds_of_noise: NDArray[Any]) -> NDArray[np.float64]:
    noise = np.asarray(rounds_of_noise, dtype=np.float64)
    if noise.ndim not in (2, 3):
        raise ValueError(f"rounds_of_noise has {noise.ndim} axes; it must have 2 or 3")
    rows = noise.reshape(-1, noise.shape[-1])
    if rows.shape[0] < 2 or rows.shape[1] < 2:
        raise ValueError(f"rounds_of_noise has shape {noise.shape}; two vectors of two are needed")
    if not np.isfinite(rows).all():
        raise NonFiniteUpdate("rounds_of_noise has a value that is not finite; all must be")
    return rows
