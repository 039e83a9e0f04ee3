"""The noise has the law that the accountant is told, and its two kinds cannot be confused."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
from scipy import stats

from privacy.randomness import NoiseSource, SeededNoise, SystemNoise, standard_normal_from

DRAWS = 1 << 18


# A right build fails these with the probability given: the seeded one never, the other about once
# in 10^8 runs of the suite.
LAWS = [
    pytest.param(SeededNoise(np.random.default_rng(11)).standard_normal, 1e-6, id="seeded"),
    pytest.param(SystemNoise().standard_normal, 1e-9, id="os"),
]


@pytest.mark.parametrize(("draw", "alpha"), LAWS)
def test_draws_are_standard_normal(draw, alpha):
    noise = draw(DRAWS)
    limit = stats.norm.isf(alpha / 2)
    assert abs(noise.mean()) * math.sqrt(DRAWS) < limit
    square = float(np.sum(noise**2))
    assert stats.chi2.ppf(alpha / 2, DRAWS) < square < stats.chi2.isf(alpha / 2, DRAWS)
    assert stats.kstest(noise, "norm").pvalue > alpha
    beyond = int(np.count_nonzero(np.abs(noise) > 4.0))
    assert stats.binomtest(beyond, DRAWS, 2 * stats.norm.sf(4.0)).pvalue > alpha


@pytest.mark.parametrize(("draw", "alpha"), LAWS)
@pytest.mark.parametrize("lag", [1, 8_192])
@pytest.mark.parametrize("power", [1, 2], ids=["values", "squares"])
def test_draws_are_independent(draw, alpha, lag, power):
    # Lag 1 also pairs the cosine with the sine of one Box-Muller step.
    values = draw(DRAWS) ** power
    standardised = (values - values.mean()) / values.std()
    products = standardised[:-lag] * standardised[lag:]
    score = products.sum() / math.sqrt(products.size)
    assert abs(score) < stats.norm.isf(alpha / 2) * (1.1 if power == 2 else 1.0)


def test_known_bytes_give_known_numbers():
    # u = 2^63 of 2^64 and v = 0: r = sqrt(2 ln 2), angle 0. Then u = 2^62, v = 2^62: a quarter
    # turn with r = sqrt(2 ln 4).
    words = [1 << 63, 0, 1 << 62, 1 << 62]
    raw = b"".join(word.to_bytes(8, "little") for word in words)
    numbers = standard_normal_from(lambda count: raw[:count], 4)
    expected = [math.sqrt(2 * math.log(2)), 0.0, 0.0, math.sqrt(2 * math.log(4))]
    np.testing.assert_allclose(numbers, expected, atol=1e-15)


@pytest.mark.parametrize(("byte", "radius"), [(b"\x00", 9.4925), (b"\xff", 0.0)])
def test_extreme_bytes_stay_finite(byte, radius):
    numbers = standard_normal_from(lambda count: byte * count, 2)
    assert np.isfinite(numbers).all()
    assert float(np.hypot(*numbers)) == pytest.approx(radius, abs=1e-3)


@pytest.mark.parametrize("size", [0, 1, 2, 7])
def test_size_is_exact_and_asks_for_sixteen_bytes_a_pair(size):
    asked = []

    def entropy(count):
        asked.append(count)
        return os.urandom(count)

    noise = standard_normal_from(entropy, size)
    assert noise.shape == (size,)
    assert noise.dtype == np.float64
    assert asked == [16 * ((size + 1) // 2)]


def test_short_entropy_and_negative_size_are_refused():
    with pytest.raises(ValueError, match="16 were asked for"):
        standard_normal_from(lambda count: bytes(count - 1), 2)
    with pytest.raises(ValueError, match="size is -1"):
        standard_normal_from(os.urandom, -1)


def test_sources_say_whom_they_protect():
    system = SystemNoise()
    seeded = SeededNoise(np.random.default_rng(0))
    assert (system.name, system.protects) == ("os", True)
    assert (seeded.name, seeded.protects) == ("seeded", False)


def test_one_kind_cannot_stand_in_for_the_other():
    assert not isinstance(np.random.default_rng(0), NoiseSource)
    with pytest.raises(TypeError, match=r"numpy\.random\.Generator"):
        SeededNoise(SystemNoise())
    with pytest.raises(TypeError):
        SystemNoise(np.random.default_rng(0))
