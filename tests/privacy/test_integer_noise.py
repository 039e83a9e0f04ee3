"""Integer noise has exactly the law that the theorems are about, and they dominate its loss."""

from __future__ import annotations

import dataclasses
import math
import os
from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np
import pytest
from scipy import special, stats
from scipy.optimize import brentq

from privacy import (
    GAUSSIAN,
    NO_NOISE,
    DistributedNoise,
    IntegerNoise,
    UnsupportedEvent,
    UploadNoise,
    default_scale,
    epsilon,
    epsilons,
)
from privacy.accounting.adapters import first_line, second_line, tau
from privacy.accounting.composition import IntegerTerm, compose
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
from tests.privacy._rows import FACTS, release_of, released

DELTA = 1e-5
kinds = pytest.mark.parametrize("kind", ["discrete_gaussian", "skellam"])


def on_the_grid(kind, share, shares, shift, **changes):
    """A release of one coordinate whose norm after rounding is `shift` steps of the grid."""
    law = IntegerNoise(kind, share_deviation=share, shares=shares, dimension=1, corrupt=1)
    fields = {
        "mechanism": FACTS["distributed_noise"],
        "standard_deviation": share * math.sqrt(shares),
        "clipping_norm": float(shift),
        "relation": "add_or_remove_one",
        "law": law,
    }
    return released(**fields | changes)


@lru_cache
def law_of_the_sum(kind, share, shares):
    """Probabilities of the sum of the shares, by convolving the law of one with itself.

    From sums and Bessel functions that the sampler does not use.
    """
    reach = math.ceil(14 * share + 20)
    k = np.abs(np.arange(-reach, reach + 1))
    one = special.ive(k, share**2) if kind == "skellam" else np.exp(-0.5 * (k / share) ** 2)
    total = one / one.sum()
    for _ in range(shares - 1):
        total = np.convolve(total, one / one.sum())
    return np.asarray(total)


def exact_delta(law, shift, eps):
    """Hockey-stick divergence; the law is symmetric, so both directions are one."""
    p, q = np.pad(law, (0, shift)), np.pad(law, (shift, 0))
    return float(np.maximum(p - math.exp(eps) * q, 0.0).sum())


def exact_epsilon(law, shift):
    return brentq(lambda eps: exact_delta(law, shift, eps) - DELTA, 0.0, 200.0)


@kinds
@pytest.mark.parametrize(("share", "shares"), [(0.5, 2), (1.0, 3), (1.5, 1), (1.5, 12), (8.0, 20)])
@pytest.mark.parametrize("shift", [1, 8])
def test_epsilon_is_above_the_exact_one_and_not_far(kind, share, shares, shift):
    exact = exact_epsilon(law_of_the_sum(kind, share, shares), shift)
    bound = epsilon([on_the_grid(kind, share, shares, shift)], DELTA).epsilon
    assert exact <= bound
    # Concentrated DP loses 10 to 20% in its conversion; Skellam's bound is loose where the whole
    # variance is 2.25.
    if share >= 1.5:
        loose = 2.5 if kind == "skellam" and share**2 * shares < 10 else 1.3
        assert bound <= loose * exact + 0.02


@pytest.mark.parametrize(
    ("share", "expected"), [(0.5, 36_634.0), (1.0, 2.24), (1.5, 9.3e-6)], ids=str
)
def test_tau_at_the_paper_s_size(share, expected):
    assert tau(share, 90) * 8_192 / 2 == pytest.approx(expected, rel=2e-3)


def term(kind, ratio, **noise):
    fields = {"share_deviation": 2.0, "shares": 25, "dimension": 100}
    return IntegerTerm(1.0 / ratio, IntegerNoise(name=kind, **fields | noise), 1)


def test_discrete_gaussian_lines_by_hand():
    # A single share is Canonne, Kamath and Steinke 2020, Theorem 4: rho = r^2 / 2.
    assert first_line(term("discrete_gaussian", 0.3, shares=1), 1.0).rho == pytest.approx(0.045)
    # replace_one doubles the sensitivity.
    assert first_line(term("discrete_gaussian", 0.3, shares=1), 2.0).rho == pytest.approx(0.18)
    # Two shares of deviation 1, r = 10, d = 100, L1 = 10 r = 100: t = 10 exp(-pi^2); the three are
    # 100 + 200 t, 100 + 200 t + 100 t^2, (10 + 10 t)^2, of which the first is the least.
    t = 10 * math.exp(-(math.pi**2))
    coarse = term("discrete_gaussian", 10.0, share_deviation=1.0, shares=2)
    assert first_line(coarse, 1.0).rho == pytest.approx((100 + 200 * t) / 2)
    # At r = 0.5 (0.707 steps of the grid, so L1 = L2 and r1 = 0.5) the second: 0.25 + t + 100 t^2.
    fine = term("discrete_gaussian", 0.5, share_deviation=1.0, shares=2)
    assert first_line(fine, 1.0).rho == pytest.approx((0.25 + t + 100 * t * t) / 2)


def test_skellam_lines_by_hand():
    # m = 25 x 4 = 100, r = 0.5 so D2 = 5, D1 = min(10, 5) x 5 = 25.
    first, second = (line(term("skellam", 0.5), 1.0) for line in (first_line, second_line))
    for order in (2, 7):
        common = order * 25 / 200
        assert first.rho * order + first.xi == pytest.approx(
            common + ((2 * order - 1) * 25 + 6 * 25) / 40_000
        )
        assert second.rho * order + second.xi == pytest.approx(common + 3 * 25 / 200)


def test_an_additive_part_below_zero_is_rounded_up():
    # D2 = 200 and d = 1, so 6 D1 < D2^2.
    assert first_line(term("skellam", 20.0, dimension=1), 1.0).xi == 0.0


def test_the_smaller_of_skellam_s_two_bounds_speaks():
    # Variance 1 and D1 = D2 = 1: the second is far smaller at high orders.
    row = on_the_grid("skellam", 1.0, 1, 1)
    first, second = (line(*compose([row]).integer_terms, 1.0) for line in (first_line, second_line))
    orders = np.arange(2, 64)
    by_hand = [
        np.min(rho * orders + xi + np.log1p(-1 / orders) - np.log(DELTA * orders) / (orders - 1))
        for rho, xi in (first, second)
    ]
    assert by_hand[1] < by_hand[0]
    assert epsilon([row], DELTA).epsilon == pytest.approx(min(by_hand), rel=1e-9)


def test_shares_too_small_for_the_theorem_are_not_priced():
    with pytest.raises(UnsupportedEvent, match=r"share_deviation is 0.4"):
        epsilon([on_the_grid("discrete_gaussian", 0.4, 2, 1)], DELTA)
    assert epsilon([on_the_grid("discrete_gaussian", 0.4, 1, 1)], DELTA).epsilon > 0


HOW = DistributedNoise(
    clipping_norm=0.3,
    noise_multiplier=4.0,
    minimum_survivors=90,
    corrupt=3,
    scale=default_scale(0.3),
)


def row(how=HOW, dimension=2_048, **changes):
    return release_of(how, dimension, **changes)


def cost(*rows):
    return epsilon(rows, DELTA).epsilon


@kinds
@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one"])
def test_on_a_fine_grid_it_costs_what_gaussian_noise_does(kind, relation):
    integer = row(dataclasses.replace(HOW, kind=kind, relation=relation))
    plain = UploadNoise(0.3, 4.0, relation)
    gaussian = release_of(plain)
    assert cost(integer) == pytest.approx(epsilon([gaussian], DELTA, "rdp").epsilon, rel=3e-3)
    assert cost(integer) > epsilon([gaussian], DELTA).epsilon


def test_replace_one_costs_what_half_the_noise_does():
    single = dataclasses.replace(HOW, relation="add_or_remove_one", noise_multiplier=2.0)
    assert cost(row()) == pytest.approx(cost(row(single)), rel=1e-6)
    # Forgetting to double would give this, which is far less.
    assert cost(row(dataclasses.replace(HOW, relation="add_or_remove_one"))) < 0.6 * cost(row())


def test_pool_entries_with_their_own_gaussian_noise_add_up():
    entry = release_of(UploadNoise(0.3, 8.0), channel="pool")
    both = epsilons([row(), entry], DELTA)
    assert both.server == both.peers == cost(row(), entry) > max(cost(row()), cost(entry))
    # The entry becomes an expert of others, whose uploads reach the final parameters.
    assert both.observer == both.server
    assert both.accountant == "rdp"


def test_peers_know_their_own_share():
    alone = dataclasses.replace(HOW, corrupt=0, minimum_survivors=87)
    result = epsilons([row(alone)], DELTA)
    assert result.peers == math.inf
    assert result.server == result.observer == cost(row(alone)) == cost(row())
    told = epsilons([row()], DELTA)
    assert told.server == told.peers == told.observer == cost(row())


def test_what_never_left_bares_nothing_to_peers():
    alone = dataclasses.replace(HOW, corrupt=0)
    gone = dataclasses.replace(row(alone), status="aborted", left_client=False)
    assert epsilons([gone], DELTA).peers == 0.0
    assert epsilons([gone, row()], DELTA).peers == cost(row())
    kept = dataclasses.replace(row(alone), status="aborted")
    assert epsilons([kept], DELTA).peers == math.inf


@pytest.mark.parametrize(
    "changes",
    [{"name": "laplace"}, {"share_deviation": 0.0}, {"shares": 0}, {"corrupt": -1}],
    ids=str,
)
def test_integer_noise_that_means_nothing_is_refused(changes):
    right = IntegerNoise("skellam", share_deviation=2.0, shares=3, dimension=4)
    with pytest.raises(ValueError, match=next(iter(changes))):
        dataclasses.replace(right, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"law": GAUSSIAN}, "shares of noise are integers under 'distributed_noise'"),
        ({"law": NO_NOISE}, "it must be 'none' exactly where standard_deviation is 0"),
        ({"mechanism": FACTS["none"], "standard_deviation": 0.0}, "law is 'discrete_gaussian'"),
        ({"standard_deviation": 0.0}, "it must be 'none' exactly where standard_deviation is 0"),
    ],
)
def test_rows_that_contradict_themselves_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(row(), **changes)


DRAWS = 1 << 20
ALPHA = 1e-9


@lru_cache
def sample(kind, deviation, source):
    draw = skellam_from if kind == "skellam" else discrete_gaussian_from
    entropy = os.urandom if source == "os" else np.random.default_rng(17).bytes
    return draw(entropy, deviation, DRAWS)


@pytest.mark.pairs
@kinds
# Below 64 (91 for Skellam) every block is one integer; the next sizes are 2, 16 and 512 integers.
@pytest.mark.parametrize("deviation", [0.25, 1.5, 64.0, 91.0, 30_000.0])
@pytest.mark.parametrize("source", ["os", "seeded"])
def test_every_value_has_its_probability(kind, deviation, source):
    masses = law_of_the_sum(kind, deviation, 1)
    # Bins of at least 1/300 of the mass: single integers for small deviations.
    bins = (np.cumsum(masses) * 300).astype(int)
    bins = np.unique(np.minimum(bins, 299), return_inverse=True)[1]
    places = sample(kind, deviation, source) + masses.size // 2
    observed = np.bincount(bins, weights=np.bincount(places, minlength=masses.size))
    assert stats.chisquare(observed, np.bincount(bins, weights=masses) * DRAWS).pvalue > ALPHA


@kinds
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
    for draw in (skellam_from, discrete_gaussian_from):
        for deviation in (0.2, math.nan, 2.0**21 + 1):
            with pytest.raises(ValueError, match="deviation is"):
                draw(os.urandom, deviation, 1)
    with pytest.raises(ValueError, match="size is -1"):
        discrete_gaussian_from(os.urandom, 1.5, -1)
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


def test_more_bits_are_asked_for_where_a_threshold_may_be_on_either_side():
    law = DiscreteGaussianLaw(1.5)
    near = cumulative(law, 128)[0] - 2
    parts = iter([words(near & (2**64 - 1)), words(0)])
    assert table_of(law).settle(near >> 64, lambda size: next(parts)) == 0
    assert next(parts, None) is None


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
