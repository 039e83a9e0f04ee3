"""Integer noise has exactly the law that the theorems are about, on every path of the sampler."""

from __future__ import annotations

import math
import os
from decimal import Decimal, localcontext
from functools import lru_cache, partial

import numpy as np
import pytest
from scipy import special, stats

from privacy.integer_noise import (
    FLOAT_ERROR,
    LARGEST_DEVIATION,
    UNDECIDED,
    DiscreteGaussianLaw,
    PoissonLaw,
    accept,
    block_at,
    cumulative,
    discrete_gaussian_from,
    log_factorial,
    nearest,
    skellam_from,
    table_of,
)

discrete_gaussian = partial(discrete_gaussian_from, os.urandom)
skellam = partial(skellam_from, os.urandom)

DRAWS = 1 << 20
ALPHA = 1e-9

# Below 64 (91 for Skellam) every block is one integer; the next sizes are 2, 16 and 512 integers.
DEVIATIONS = [0.25, 1.5, 64.0, 91.0, 30_000.0]


@lru_cache
def exact_pmf(kind, deviation):
    """Support and probabilities, from sums and Bessel functions that the sampler does not use."""
    reach = math.ceil(12 * deviation + 20)
    values = np.arange(-reach, reach + 1)
    if kind == "skellam":
        masses = special.ive(np.abs(values), deviation**2)
    else:
        masses = np.exp(-0.5 * (values / deviation) ** 2)
    return values, masses / masses.sum()


def seeded(seed):
    return np.random.default_rng(seed).bytes


@lru_cache
def sample(kind, deviation, source):
    if source == "os":
        return (skellam if kind == "skellam" else discrete_gaussian)(deviation, DRAWS)
    draw = skellam_from if kind == "skellam" else discrete_gaussian_from
    return draw(seeded(17), deviation, DRAWS)


def chi_square(observed, expected):
    statistic = float(np.sum((observed - expected) ** 2 / expected))
    return float(stats.chi2.sf(statistic, len(expected) - 1))


laws = pytest.mark.parametrize("kind", ["discrete_gaussian", "skellam"])


@pytest.mark.pairs
@laws
@pytest.mark.parametrize("deviation", DEVIATIONS)
@pytest.mark.parametrize("source", ["os", "seeded"])
def test_every_value_has_its_probability(kind, deviation, source):
    values, masses = exact_pmf(kind, deviation)
    # Bins of at least 1/300 of the mass: single integers for small deviations.
    bins = (np.cumsum(masses) * 300).astype(int)
    bins = np.unique(np.minimum(bins, 299), return_inverse=True)[1]
    counts = np.bincount(np.searchsorted(values, sample(kind, deviation, source)), minlength=1)
    observed = np.bincount(bins, weights=np.pad(counts, (0, values.size - counts.size)))
    assert chi_square(observed, np.bincount(bins, weights=masses) * DRAWS) > ALPHA


@laws
@pytest.mark.parametrize("deviation", [1.5, 30_000.0])
@pytest.mark.parametrize("lag", [1, 1 << 15])
@pytest.mark.parametrize("power", [1, 2])
def test_draws_are_independent(kind, deviation, lag, power):
    values = sample(kind, deviation, "os").astype(float) ** power
    standardised = (values - values.mean()) / values.std()
    products = standardised[:-lag] * standardised[lag:]
    score = float(products.sum()) / math.sqrt(products.size)
    assert abs(score) < stats.norm.isf(ALPHA / 2) * (1.2 if power == 2 else 1.0)


def test_deviations_negative_sizes_and_broken_sources_are_refused():
    for draw in (skellam, discrete_gaussian):
        for deviation in (0.2, math.nan, 2.0**21 + 1):
            with pytest.raises(ValueError, match="deviation is"):
                draw(deviation, 1)
    with pytest.raises(ValueError, match="size is -1"):
        discrete_gaussian(1.5, -1)
    with pytest.raises(ValueError, match="gave 1 bytes; 2"):
        discrete_gaussian_from(lambda count: bytes(count - 1), 1.5, 1)


def decimal_masses(law, count):
    """Probabilities of the first blocks in their order, by sums of 60 digits."""
    with localcontext() as context:
        context.prec = 60
        if isinstance(law, DiscreteGaussianLaw):
            variance = Decimal(law.deviation) ** 2
            weights = [(-Decimal(block_at(j) ** 2) / (2 * variance)).exp() for j in range(400)]
        else:
            mean = Decimal(law.deviation) ** 2 / 2
            ks = [law.centre + block_at(j) for j in range(400)]
            weights = [mean**k / math.factorial(k) if k >= 0 else Decimal(0) for k in ks]
        total = sum(weights)
        return [weight / total for weight in weights[:count]]


@pytest.mark.parametrize("law", [DiscreteGaussianLaw(1.5), PoissonLaw(1.5), PoissonLaw(2.0)])
@pytest.mark.parametrize("bits", [64, 128])
def test_thresholds_are_right_to_the_last_bits(law, bits):
    masses = decimal_masses(law, 20)
    sums = cumulative(law, bits)
    assert sums == sorted(sums)
    assert 2**bits - 2 <= sums[-1] <= 2**bits
    with localcontext() as context:
        context.prec = 60
        for position in range(20):
            assert abs(sum(masses[: position + 1]) * 2**bits - sums[position]) < 2


def test_blocks_cover_the_integers_once_and_in_order():
    assert [block_at(j) for j in range(7)] == [0, 1, -1, 2, -2, 3, -3]
    # Blocks of four: -6..-3, -2..1, 2..5; their nearest members are -3, 0 and 2.
    assert [nearest(block, 2) for block in (-1, 0, 1)] == [-3, 0, 2]
    assert [nearest(block, 0) for block in (-1, 0, 1)] == [-1, 0, 1]


def replay(*parts):
    """Gives recorded bytes, and fails the test if other numbers of them are asked for."""
    queue = list(parts)

    def entropy(count):
        part = queue.pop(0)
        assert len(part) == count
        return part

    return entropy


def words(*values):
    return b"".join(value.to_bytes(8, "little") for value in values)


def test_known_bytes_give_known_numbers():
    # sigma = 1.5: P(0) = 0.265962 and P(1) = 0.212965, so u = 0, 0.25, 0.3, 0.5, 0.6 choose
    # 0, 0, 1, -1, -1.
    fractions = [0.0, 0.25, 0.3, 0.5, 0.6]
    raw = np.array([int(u * 65536) for u in fractions], dtype="<u2").tobytes()
    noise = discrete_gaussian_from(replay(raw), 1.5, 5)
    assert noise.tolist() == [0, 0, 1, -1, -1]


def test_the_second_path_decides_by_64_bits():
    table = table_of(DiscreteGaussianLaw(1.5))
    threshold = int(table.thresholds[0])
    prefix = threshold >> 48
    assert table.guide[prefix] == UNDECIDED
    raw = prefix.to_bytes(2, "little")
    for step, expected in ((-(1 << 20), 0), (1 << 20, 1)):
        rest = ((threshold + step) & (2**48 - 1)) << 16
        assert discrete_gaussian_from(replay(raw, words(rest)), 1.5, 1).tolist() == [expected]


@pytest.mark.parametrize("law", [DiscreteGaussianLaw(1.5), PoissonLaw(3.0)])
@pytest.mark.parametrize("position", [0, 7])
@pytest.mark.parametrize("step", [-1, 1])
def test_the_third_path_decides_at_the_threshold_itself(law, position, step):
    # The true threshold to 256 bits; a number just below it and one just above it.
    with localcontext() as context:
        context.prec = 120
        exact = cumulative(law, 256)[position] + step * 2**100
    parts = [(exact >> shift) & (2**64 - 1) for shift in (192, 128, 64, 0)]
    table = table_of(law)
    low, middle = parts[0], replay(*(words(part) for part in parts[1:]))
    assert table.settle(low, middle) == block_at(position if step < 0 else position + 1)
    raw = replay(
        (low >> 48).to_bytes(2, "little"),
        words((low & (2**48 - 1)) << 16),
        *(words(part) for part in parts[1:]),
    )
    assert table.blocks(raw, 1).tolist() == [block_at(position if step < 0 else position + 1)]


def test_beyond_the_table_lies_the_tail():
    # All ones but for the last bits: a value that 64 bits have no threshold for.
    table = table_of(DiscreteGaussianLaw(1.5))
    far = table.settle(2**64 - 1, replay(words(2**64 - 2**30)))
    assert far not in [block_at(j) for j in range(len(table.thresholds) + 1)]
    # u is 2^-98 below 1: between what is left behind the value before and behind this one.
    masses = decimal_masses(table.law, 80)
    position = [block_at(j) for j in range(80)].index(far)
    with localcontext() as context:
        context.prec = 60
        left = 1 - sum(masses[:position])
        assert left - masses[position] < Decimal(2) ** -98 < left


@pytest.mark.parametrize(("follow", "expected"), [(0, True), (2**64 - 1, False)])
def test_acceptance_at_the_limit_asks_for_more_bits(follow, expected):
    # p = 1/3: the first 32 bits of u are those of p, the next 64 are all below or all above.
    third = (2**32 - 1) // 3
    chance = lambda digits: Decimal(1) / Decimal(3)  # noqa: E731
    assert accept(chance, third, 32, replay(words(follow))) is expected
    assert accept(chance, third - 2, 32, replay()) is True
    assert accept(chance, third + 2, 32, replay()) is False


@pytest.mark.parametrize("law", [DiscreteGaussianLaw(100.0), PoissonLaw(200.0)])
def test_undecided_proposals_are_settled_by_decimals(law):
    # Block 5, last member, kept with probability p; 32 bits of u that equal those of p.
    bits = law.block_bits
    first = (5 << bits) - (1 << bits >> 1)
    offset = first + (1 << bits) - 1
    p = (law.log_weight(offset, 40) - law.log_weight(nearest(5, bits), 40)).exp()
    table = table_of(law)
    prefix = int(np.flatnonzero(table.guide == 5)[0]).to_bytes(2, "little")
    inside, word = b"\xff\xff", int(p * 2**32).to_bytes(4, "little")
    low = [prefix, inside, word, words(0)]
    again = [prefix, bytes(2), bytes(4)]
    if isinstance(law, DiscreteGaussianLaw):
        # The largest of a block is always kept.
        largest = replay(prefix, bytes(2), b"\xff" * 4)
        assert discrete_gaussian_from(largest, 100.0, 1).tolist() == [first]
        assert discrete_gaussian_from(replay(*low), 100.0, 1).tolist() == [offset]
        high = [prefix, inside, word, words(2**64 - 1)]
        assert discrete_gaussian_from(replay(*high, *again), 100.0, 1).tolist() == [first]
    else:
        pair = [2 * part for part in (prefix, inside, word)]
        assert skellam_from(replay(*pair, words(0), words(0)), 200.0, 1).tolist() == [0]


# The smallest deviations with blocks of more than one integer, and the largest of all.
@pytest.mark.parametrize(
    "law",
    [DiscreteGaussianLaw(deviation) for deviation in (64.0, LARGEST_DEVIATION)]
    + [PoissonLaw(deviation) for deviation in (90.6, LARGEST_DEVIATION)],
    ids=str,
)
def test_float_weights_are_within_their_bound(law):
    table, bits = table_of(law), law.block_bits
    assert bits > 0
    reach = table.curves.shape[1] // 2
    blocks = np.array([-reach + 1, -reach // 2, -3, -1, 0, 1, 2, 40, reach - 1], dtype=np.int32)
    for inside in {0, 1, (1 << bits) // 3, (1 << bits) - 1}:
        chances = table.chances(blocks, np.full(blocks.size, inside, dtype=np.uint16))
        for block, chance in zip(blocks.tolist(), chances, strict=True):
            offset = (block << bits) - (1 << bits >> 1) + inside
            exact = law.log_weight(offset, 30) - law.log_weight(nearest(block, bits), 30)
            assert abs(float(exact.exp()) - chance) < FLOAT_ERROR / 4


def test_weights_far_from_the_mean_are_left_to_decimals():
    far = np.array([10_000, -10_000], dtype=np.int32)
    table = table_of(DiscreteGaussianLaw(100.0))
    assert np.isnan(table.chances(far, np.zeros(2, dtype=np.uint16))).all()
    law = PoissonLaw(91.0)
    assert np.isnan(law.log_weights(np.array([-law.centre, law.centre]))).all()
    assert law.log_weight(-law.centre - 1, 30) == Decimal("-Infinity")
    # k = 0 against the mode: ln(mode!) - mode ln(mean).
    expected = math.lgamma(law.centre + 1) - law.centre * math.log(91.0**2 / 2)
    assert float(law.log_weight(-law.centre, 30)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("k", [0, 2, 1000])
def test_stirling_against_factorials(k):
    with localcontext() as context:
        context.prec = 60
        exact = Decimal(math.factorial(k)).ln()
        # ln sqrt(2 pi), 50 digits.
        constant = Decimal("0.91893853320467274178032973640561763986139747363778")
        assert abs(log_factorial(k, 40) + constant - exact) < Decimal(10) ** -40
