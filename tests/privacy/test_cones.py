"""Cones: no inner product is negative, so replacing a client moves a sum by sqrt(2) C."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from privacy import (
    CentralNoise,
    Cones,
    DistributedNoise,
    GroupCounts,
    IntegerUploadNoise,
    NonFiniteUpdate,
    SensitivityViolation,
    SystemNoise,
    grid_of,
    protect_upload,
)
from privacy.rounding import clip_to_grid
from tests.privacy._rows import release_of

NORM, SCALE = 0.5, 2.0**14
"""C, and its 8,192 steps."""


def central(width, **changes):
    return CentralNoise(
        clipping_norm=NORM, noise_multiplier=1.0, scale=SCALE, cones=Cones(width), **changes
    )


def integers(how, vector):
    """Return what leaves a client before noise, as integers."""
    return clip_to_grid(np.asarray(vector, float), how, ring_bits=40, noise=SystemNoise())[1]


def is_inside(found, width):
    rows = [[int(value) for value in row] for row in found.reshape(-1, width)]
    return all(h >= 0 and sum(s * s for s in rest) <= h * h for h, *rest in rows)


def test_by_hand():
    # Inside, and shorter than C: 0.4 and 0.25 are 6,553.6 and 4,096 steps; s shrinks to 4,095.6.
    assert integers(central(2), [0.4, 0.25]).tolist() == [6553, 4095]
    # |s| = 0.5 above h = 0.25: s is halved. (0.25, 0.15, -0.2) has length 0.354 and stays.
    assert integers(central(3), [0.25, 0.3, -0.4]).tolist() == [4095, 2457, -3276]
    # No row without a head, and no negative coordinate.
    assert integers(central(2), [-0.3, 0.2, 0.0, 0.1]).tolist() == [0, 0, 0, 0]
    assert integers(central(1), [-0.3, 0.2]).tolist() == [0, 3276]
    # Clipped to C as a whole: (3, 4) becomes (0.3, 0.4).
    assert integers(central(1), [3.0, 4.0]).tolist() == [4915, 6553]


vectors = arrays(np.float64, 12, elements=st.floats(-1e6, 1e6, width=32))


@given(first=vectors, second=vectors, width=st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_the_integers_that_leave_keep_the_inequality_of_the_ledger(first, second, width):
    how = central(width)
    u, v = integers(how, first), integers(how, second)
    assert is_inside(u, width) and is_inside(v, width)
    apart = sum((int(a) - int(b)) ** 2 for a, b in zip(u, v, strict=True))
    sensitivity = release_of(how, 12).sensitivity * SCALE
    assert apart <= sensitivity**2 * (1 + 1e-12)
    assert sensitivity == pytest.approx(math.sqrt(2.0) * NORM * SCALE, rel=1e-12)


def test_the_bound_is_reached_and_a_neighbour_outside_would_break_it():
    how = central(1)
    apart = integers(how, [1.0, 0.0]) - integers(how, [0.0, 1.0])
    sensitivity = release_of(how, 2).sensitivity * SCALE
    assert np.linalg.norm(apart) == pytest.approx(sensitivity, rel=1e-3)
    # Without the projection the same mechanism would move by 2 C, which the row does not cover.
    free = dataclasses.replace(how, cones=None)
    apart = integers(free, [1.0, 0.0]) - integers(free, [-1.0, 0.0])
    assert np.linalg.norm(apart) > 1.4 * sensitivity


def test_a_row_that_left_its_cone_is_never_rounded():
    for grid in ([2.5, 5.5], [-3.0, 0.0], [9.5, 0.0]):
        with pytest.raises(SensitivityViolation, match="outside"):
            Cones(2).rounded(np.array(grid), 8.0)


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one"])
def test_every_mechanism_on_the_grid_charges_what_holds(relation):
    bound = NORM * math.sqrt(2.0) if relation == "replace_one" else NORM
    shared = DistributedNoise(
        clipping_norm=NORM, noise_multiplier=2.0, minimum_survivors=10, corrupt=2, scale=SCALE,
        relation=relation, cones=Cones(3),
    )  # fmt: skip
    alone = IntegerUploadNoise(
        clipping_norm=NORM, noise_multiplier=2.0, scale=SCALE, relation=relation, cones=Cones(3)
    )
    for how in (central(3, relation=relation), shared, alone):
        assert release_of(how, 12).sensitivity == pytest.approx(bound, rel=1e-9)
        wider = dataclasses.replace(how, cones=None)
        assert release_of(wider, 12).sensitivity > bound
        assert how.around(2 * NORM).cones == Cones(3)
        grid = grid_of(how, 12, bits=32, clients=10)
        protect_upload(np.ones(12), how, grid, SystemNoise())


def test_counts_of_groups_are_coordinates_like_others():
    # Two groups: blocks apart and counts apart, so 2 (R^2 + b^2).
    how = central(1, counts=GroupCounts(groups=2, ratio=0.5))
    b = NORM / 2
    u, v = integers(how, [9, 0, b, 0]), integers(how, [0, 9, 0, b])
    assert np.linalg.norm(u - v) == pytest.approx(SCALE * math.sqrt(2 * (NORM**2 + b**2)), rel=1e-3)
    assert release_of(how, 4).sensitivity == pytest.approx(math.sqrt(2 * (NORM**2 + b**2)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_no_projection_hides_what_is_not_finite(value):
    for width in (1, 2):
        with pytest.raises(NonFiniteUpdate):
            integers(central(width), [0.1, 0.0, value, 0.1])


def test_a_width_below_one_is_refused():
    with pytest.raises(ValueError, match="width"):
        Cones(0)
