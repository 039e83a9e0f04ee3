"""Counts of secret groups: how far neighbours are apart, on the reals and on the grid."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from privacy import (
    CalibrationError,
    CentralNoise,
    DistributedNoise,
    GroupCounts,
    SeededNoise,
    SensitivityViolation,
    grid_of,
    protect_upload,
)
from privacy.rounding import clip_to_grid
from tests.privacy._rows import release_of

GROUPS, SIZE = 3, 4


def central(counts, relation="replace_one", norm=0.3, scale=2.0**18):
    return CentralNoise(
        clipping_norm=norm, noise_multiplier=1.5, scale=scale, relation=relation, counts=counts
    )


def shared(counts, relation="replace_one", kind="discrete_gaussian"):
    return DistributedNoise(
        clipping_norm=0.3,
        noise_multiplier=1.5,
        minimum_survivors=5,
        corrupt=1,
        scale=2.0**18,
        kind=kind,
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
    rng = SeededNoise(np.random.default_rng(seed))
    return clip_to_grid(vector, mechanism, ring_bits=48, noise=rng)[1]


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
        protect_upload(vector, mechanism, grid, SeededNoise(np.random.default_rng(0)))


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
