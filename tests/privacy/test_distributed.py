"""Distributed noise and counts of groups: what the sum carries is what the ledger says."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from privacy import (
    CalibrationError,
    CentralNoise,
    DistributedNoise,
    GroupCounts,
    IntegerUploadNoise,
    SensitivityViolation,
    SignedGrid,
    SystemNoise,
    calibrate,
    calibrate_noise_multiplier,
    default_scale,
    epsilon,
    grid_of,
    protect_share,
    protect_upload,
    required_ring_bits,
    smallest_multiplier,
)
from privacy.distributed import largest_sum
from privacy.rounding import clip_to_grid, round_conditionally, squared_norm_after_rounding
from tests.privacy._recorded import seeded
from tests.privacy._rows import release_of

ALPHA = 1e-9
DIMENSION = 4_000

BASE = DistributedNoise(
    clipping_norm=0.3, noise_multiplier=2.0, minimum_survivors=10, corrupt=2, scale=2.0**13
)

kinds = pytest.mark.parametrize("kind", ["discrete_gaussian", "skellam"])


def mechanism(**changes):
    return dataclasses.replace(BASE, **changes)


def row(how, dimension=DIMENSION, **changes):
    return release_of(how, dimension, **changes)


@kinds
@pytest.mark.parametrize("noise", [SystemNoise(), seeded(3)], ids=["os", "seeded"])
@pytest.mark.parametrize(("survivors", "corrupt", "scale"), [(10, 2, 2.0**17), (40, 39, 2.0**12)])
def test_the_honest_shares_alone_have_the_noise_of_the_ledger(
    kind, noise, survivors, corrupt, scale
):
    how = mechanism(
        kind=kind, minimum_survivors=survivors, corrupt=corrupt, scale=scale, noise_multiplier=3.0
    )
    # Exactly m_min survive, c of them tell what they drew: theirs is subtracted, or left out.
    total = np.zeros(DIMENSION, dtype=np.uint64)
    for _ in range(survivors - corrupt):
        total += protect_share(np.zeros(DIMENSION), how, ring_bits=32, noise=noise).levels
    left = SignedGrid(how.scale, 32, 1_000).dequantise_sum(total & np.uint64(2**32 - 1), 1_000)
    square = float(np.sum((left / row(how).standard_deviation) ** 2))
    # Skellam noise has a trace of excess kurtosis, which the factor covers.
    assert stats.chi2.ppf(ALPHA / 2, DIMENSION) < square * 1.01
    assert square * 0.99 < stats.chi2.isf(ALPHA / 2, DIMENSION)
    assert row(how).standard_deviation == pytest.approx(3.0 * 0.3)


def test_bound_after_rounding_by_hand():
    # c = 1000, d = 10,000: c^2 + 2500 + (1000 + 50) = 1,003,550, far below (1000 + 100)^2.
    assert squared_norm_after_rounding(1000.0, 10_000) == 1_003_550
    # c = 1, d = 1: (1 + 1)^2 = 4 against 1 + 0.25 + 1.5 = 2.75.
    assert squared_norm_after_rounding(1.0, 1) == 2
    # c = 0.1, d = 4: (0.1 + 2)^2 = 4.41 against 0.01 + 1 + 1.1 = 2.11.
    assert squared_norm_after_rounding(0.1, 4) == 2


def test_rounding_is_repeated_until_it_is_short():
    # 10,000 times 9.5: all up is 10^6, above 950^2 + 2500 + 1000 = 906,000; all down is 810,000.
    tries = [b"\x00" * 40_000, b"\xff" * 40_000]
    rounded = round_conditionally(lambda count: tries.pop(0), np.full(10_000, 9.5), 950.0)
    assert tries == []
    np.testing.assert_array_equal(rounded, 9)


@given(seed=st.integers(0, 2**32), dimension=st.integers(1, 300), norm=st.floats(1.0, 1e9))
def test_rounded_vectors_are_short_whatever_the_direction(seed, dimension, norm):
    rng = np.random.default_rng(seed)
    direction = rng.standard_normal(dimension) ** 3
    vector = direction / max(1e-300, float(np.linalg.norm(direction))) * norm
    rounded = round_conditionally(rng.bytes, vector, norm)
    assert sum(int(value) ** 2 for value in rounded) <= squared_norm_after_rounding(norm, dimension)


def test_vectors_beyond_the_norm_are_refused():
    with pytest.raises(SensitivityViolation, match="no try"):
        round_conditionally(np.random.default_rng(0).bytes, np.full(10_000, 20.5), 1500.0)
    with pytest.raises(SensitivityViolation, match="no try"):
        round_conditionally(np.random.default_rng(0).bytes, np.array([1e300]), 1500.0)
    with pytest.raises(ValueError, match="at most 2\\^30"):
        squared_norm_after_rounding(2.0**31, 4)


def test_rings_that_hold_nothing_are_refused():
    for ring_bits in (1, 65):
        with pytest.raises(ValueError, match=f"ring_bits is {ring_bits};"):
            protect_share(np.zeros(1), mechanism(), ring_bits=ring_bits, noise=seeded(0))


def test_headroom_by_hand():
    # C = 1,000 steps, n = 100, d = 10,000: 100 sqrt(1,003,550), noise 100 a share so 1,000 in all,
    # L = ln(20,000 x 2^40) = 37.6294, sqrt(2 L) = 8.67519, L/3 = 12.543.
    how = mechanism(clipping_norm=1.0, scale=1000.0, noise_multiplier=0.1 * math.sqrt(8))
    assert how.share_deviation == pytest.approx(100.0)
    found = largest_sum(how, dimension=10_000, clients=100)
    assert found == pytest.approx(100 * math.sqrt(1_003_550) + 8_675.19 + 12.543, rel=1e-6)


def test_ring_is_chosen_by_the_headroom():
    how = mechanism(clipping_norm=1.0, scale=2.0**20, noise_multiplier=1.0)
    assert required_ring_bits(how, dimension=100, clients=1_000) == 32
    assert required_ring_bits(how, dimension=100, clients=3_000) == 33
    with pytest.raises(CalibrationError, match="ring of 64 bits"):
        required_ring_bits(how, dimension=100, clients=2**44)
    with pytest.raises(ValueError, match="clients is 0"):
        required_ring_bits(how, dimension=100, clients=0)


@kinds
def test_tail_bound_of_the_headroom_holds_exactly(kind):
    # P(|sum of noise| >= t) against the true law of the sum, at the smallest share allowed.
    n, exponent = 12, math.log(2.0) + 40 * math.log(2.0)
    limit = 1.5 * math.sqrt(n) * math.sqrt(2 * exponent) + exponent / 3
    k = np.arange(-40, 41)
    share = stats.skellam.pmf(k, 1.125, 1.125) if kind == "skellam" else np.exp(-(k**2) / 4.5)
    total = np.ones(1)
    for _ in range(n):
        total = np.convolve(total, share / share.sum())
    distance = np.abs(np.arange(total.size) - total.size // 2)
    assert total[distance >= limit].sum() < 2.0**-40


@pytest.mark.parametrize("clipping_norm", [1e-6, 1.0, 1e9])
def test_default_scale_is_a_power_of_two_that_is_fine_enough(clipping_norm):
    scale = default_scale(clipping_norm)
    assert math.frexp(scale)[0] == 0.5
    assert 2.0**16 <= clipping_norm * scale < 2.0**17
    how = mechanism(clipping_norm=clipping_norm, scale=scale)
    assert how.rounded_norm(2**20) < clipping_norm * (1 + 1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        # Eight shares: 1.5 sqrt(8) / (0.3 x 8192) = 0.0017264 is the least multiplier.
        ({"noise_multiplier": 0.00172}, "1.49.* steps of the grid; it must be from 1.5"),
        ({"corrupt": 10}, "minimum_survivors is 10; it must be above corrupt, which is 10"),
        ({"minimum_survivors": 0, "corrupt": 0}, "no honest share"),
    ],
)
def test_what_the_theorems_do_not_carry_is_refused(changes, message):
    with pytest.raises(CalibrationError, match=message):
        mechanism(**changes)
    for wrong in ({"corrupt": -1}, {"kind": "laplace"}):
        with pytest.raises(ValueError, match=r"\w+ is"):
            mechanism(**wrong)


@kinds
@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one"])
@pytest.mark.parametrize(("target", "rounds"), [(0.5, 1), (8.0, 10)])
def test_calibrated_noise_just_fits(kind, relation, target, rounds):
    def planned(multiplier):
        how = mechanism(
            noise_multiplier=multiplier,
            minimum_survivors=60,
            corrupt=10,
            scale=default_scale(0.3),
            kind=kind,
            relation=relation,
        )
        return [dataclasses.replace(row(how, 2_048), count=rounds)]

    least = smallest_multiplier(0.3 * default_scale(0.3), 60 - 10)
    found = calibrate(planned, target, 1e-5, smallest=least)
    assert epsilon(planned(found), 1e-5).epsilon <= target
    assert epsilon(planned(found * (1 - 3e-6)), 1e-5).epsilon > target
    # Against the exact Gaussian: dearer by the conversion from concentrated DP alone.
    gaussian = calibrate_noise_multiplier(
        target, 1e-5, releases_per_round=1, rounds=rounds, relation=relation
    )
    assert gaussian < found < 1.13 * gaussian


@pytest.mark.parametrize(("scaled_norm", "shares"), [(1_000.0, 1), (2.0**30, 300)])
def test_the_smallest_multiplier_is_allowed_and_nothing_below(scaled_norm, shares):
    changes = {"clipping_norm": 0.5, "scale": 2.0 * scaled_norm}
    changes |= {"minimum_survivors": shares + 3, "corrupt": 3}
    least = smallest_multiplier(scaled_norm, shares)
    # Of a share it is 1.5 sqrt(shares) / C in steps of the grid.
    assert least == pytest.approx(1.5 * math.sqrt(shares) / scaled_norm, rel=1e-8)
    assert mechanism(**changes, noise_multiplier=least).share_deviation >= 1.5
    with pytest.raises(CalibrationError, match=r"must be from 1\.5"):
        mechanism(**changes, noise_multiplier=least * (1 - 1e-8))
    # Fewer shares than one are the class's to refuse, in its own words.
    assert smallest_multiplier(scaled_norm, -2) == smallest_multiplier(scaled_norm, 1)
    with pytest.raises(ValueError, match="scaled_norm is 0"):
        smallest_multiplier(0.0)


ALONE = IntegerUploadNoise(clipping_norm=2.0, noise_multiplier=0.7, scale=500.0)


@pytest.mark.parametrize("kind", ["spread", "spike"])
def test_it_is_distributed_noise_of_a_single_share(kind):
    update = np.full(50, 1.0) if kind == "spread" else np.eye(1, 50)[0] * 9.0
    share = DistributedNoise(
        clipping_norm=2.0, noise_multiplier=0.7, minimum_survivors=1, corrupt=0, scale=500.0
    )
    one = ALONE.protect(update, SignedGrid(500.0, 32, 1), seeded(3))
    other = protect_share(update, share, ring_bits=32, noise=seeded(3))
    np.testing.assert_array_equal(one.levels, other.levels)
    assert (one.norm, one.was_clipped) == (other.norm, True)
    assert ALONE.standard_deviation == share.standard_deviation == 1.4
    assert ALONE.scaled_norm == 1_000.0


GROUPS, SIZE = 3, 4


def central(counts, relation="replace_one", norm=0.3, scale=2.0**18):
    return CentralNoise(
        clipping_norm=norm, noise_multiplier=1.5, scale=scale, relation=relation, counts=counts
    )


def shared(counts, relation="replace_one"):
    return DistributedNoise(
        clipping_norm=0.3,
        noise_multiplier=1.5,
        minimum_survivors=5,
        corrupt=1,
        scale=2.0**18,
        relation=relation,
        counts=counts,
    )


def uploads(counts, norm, flag=0.0):
    """Extreme vectors: updates along and against axes and a diagonal, in each block, and zeros."""
    diagonal = np.full(SIZE, 1 / math.sqrt(SIZE))
    ends = [np.eye(SIZE)[0], diagonal, np.zeros(SIZE)]
    room = math.sqrt(norm**2 - flag**2)
    for group, end, sign, flagged in itertools.product(range(GROUPS), ends, (1, -1), (1, -1)):
        vector = np.zeros(GROUPS * SIZE)
        vector[group * SIZE : (group + 1) * SIZE] = sign * room * end
        told = np.zeros(GROUPS)
        told[group] = counts.bound(norm)
        flags = [flagged * flag] if flag else []
        yield np.concatenate([vector, flags, told])
    yield np.zeros(GROUPS * SIZE + (1 if flag else 0) + GROUPS)


def rounded(mechanism, vector, seed):
    return clip_to_grid(vector, mechanism, ring_bits=48, noise=seeded(seed))[1]


def farthest(mechanism, flag=0.0):
    """How far any two uploads of the mechanism are apart, in steps."""
    vectors = uploads(mechanism.counts, mechanism.clipping_norm, flag)
    steps = [rounded(mechanism, vector, seed) for seed, vector in enumerate(vectors)]
    return max(
        float(np.linalg.norm((one - other).astype(float)))
        for one, other in itertools.combinations(steps, 2)
    )


@pytest.mark.parametrize("build", [central, shared])
@pytest.mark.parametrize("ratio", [0.1, 1.0])
def test_by_brute_force_no_replaced_client_moves_further_than_the_ledger_says(build, ratio):
    mechanism = build(GroupCounts(groups=GROUPS, ratio=ratio))
    row = release_of(mechanism, GROUPS * SIZE + GROUPS)
    most = row.sensitivity * mechanism.scale
    # Antipodal updates in one block are that far apart, so nothing less would do.
    assert 0.999 * most < farthest(mechanism) <= most
    # Free: the charge is that of the same update without counts.
    bare = release_of(build(None), GROUPS * SIZE)
    assert row.clipping_norm == bare.clipping_norm
    assert row.standard_deviation == bare.standard_deviation


@pytest.mark.parametrize("build", [central, shared])
def test_by_brute_force_with_a_flag_beside_the_blocks_counts_are_charged(build):
    mechanism = build(GroupCounts(groups=GROUPS, ratio=1.0, alone=False))
    norm = mechanism.clipping_norm
    row = release_of(mechanism, GROUPS * SIZE + 1 + GROUPS)
    # A flag so large that two groups are farther apart than one group's ends.
    found = farthest(mechanism, flag=0.9 * norm)
    assert 2.0 * norm * mechanism.scale < found <= row.sensitivity * mechanism.scale
    assert row.clipping_norm == pytest.approx(norm * math.sqrt(1.5), rel=1e-4)


@pytest.mark.parametrize("build", [central, shared])
def test_a_client_more_or_less_moves_update_and_count(build):
    ratio = 0.25
    counts = GroupCounts(groups=GROUPS, ratio=ratio)
    mechanism = build(counts, relation="add_or_remove_one")
    vectors = list(uploads(counts, mechanism.clipping_norm))
    longest = max(
        float(np.linalg.norm(rounded(mechanism, vector, seed).astype(float)))
        for seed, vector in enumerate(vectors)
    )
    row = release_of(mechanism, GROUPS * SIZE + GROUPS)
    assert 0.999 * row.sensitivity * mechanism.scale < longest <= row.sensitivity * mechanism.scale
    expected = mechanism.clipping_norm * math.hypot(1.0, ratio)
    assert row.clipping_norm == pytest.approx(expected, rel=1e-4)


def test_a_count_is_never_rounded_at_random():
    counts = GroupCounts(groups=GROUPS, ratio=0.3)
    mechanism = central(counts)
    vector = next(uploads(counts, mechanism.clipping_norm))
    told = {tuple(rounded(mechanism, vector, seed)[-GROUPS:]) for seed in range(50)}
    assert told == {(math.floor(0.3 * mechanism.scaled_norm), 0, 0)}


@pytest.mark.parametrize(
    "told",
    [[1.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.5, 0.0, 0.0], [1.0, 1e-9, 0.0], [np.nan, 0.0, 0.0]],
)
def test_a_client_that_counts_itself_otherwise_sends_nothing(told):
    counts = GroupCounts(groups=GROUPS, ratio=0.5)
    mechanism = central(counts)
    bound = counts.bound(mechanism.clipping_norm)
    vector = np.concatenate([np.zeros(GROUPS * SIZE), np.array(told) * bound])
    grid = grid_of(mechanism, vector.size, bits=20, clients=5)
    with pytest.raises(SensitivityViolation):
        protect_upload(vector, mechanism, grid, seeded(0))


def test_what_has_no_bound_is_refused():
    for ratio in (1.0001, 0.0):
        with pytest.raises(ValueError, match="ratio"):
            GroupCounts(groups=2, ratio=ratio)
    with pytest.raises(ValueError, match="groups"):
        GroupCounts(groups=1, ratio=0.5)
    with pytest.raises(CalibrationError, match="at least 1"):
        GroupCounts(groups=2, ratio=1e-6).steps(65_536.0)
    with pytest.raises(SensitivityViolation):
        GroupCounts(groups=2, ratio=1.0).charged_norm(1.0, 1.1, "replace_one")


@pytest.mark.parametrize("shares", [1, 6])
@pytest.mark.parametrize("multiplier", [1.0, 85.0, 900.0])
def test_much_noise_takes_a_coarser_grid_and_its_ledger_row_says_as_much(multiplier, shares):
    scale = default_scale(0.3, multiplier / math.sqrt(shares))
    how = mechanism(
        noise_multiplier=multiplier, minimum_survivors=shares + 2, corrupt=2, scale=scale
    )
    # As fine as the sampler reaches: a grid of twice the steps is refused, unless it is the usual.
    assert scale == default_scale(0.3) or how.share_deviation > 2**20
    assert how.share_deviation <= 2**21
    # The noise in units of the update is what was asked for; rounding costs little on any grid.
    found = row(how, 512)
    assert found.standard_deviation == pytest.approx(0.3 * multiplier)
    assert found.clipping_norm == pytest.approx(0.3, rel=2e-2) and found.clipping_norm >= 0.3
