"""Canaries of clients in groups: where in a vector of K blocks they lie, and what is seen of them.

Two pairs of neighbours are as far apart as the ledger says: antipodal updates in one block, whose
counts cancel, and updates in two blocks, which differ in their counts as well. The second pair is
u in block i and u in block j: the difference of both blocks over sqrt(2) has the noise of one
coordinate, and moves by sqrt(2) |u|; so does the difference of the counts, by sqrt(2) b.
"""

from __future__ import annotations

import math

import numpy as np

from methods import Arrays, TensorSpec
from platform.privacy_auditing.outcome import Vector
from platform.wire.layout import Spec, flatten, unflatten

ROOT = math.sqrt(2.0)


def block_spec(spec: Spec) -> Spec:
    """Return the arrays of one block."""
    return {n: TensorSpec(t.shape[1:], t.dtype, t.weighting, t.source) for n, t in spec.items()}


def groups_of(spec: Spec) -> int:
    """Return K."""
    return next(iter(spec.values())).shape[0]


def placed(vector: Vector, spec: Spec, group: int) -> Vector:
    """Return a whole vector with this one in a group's block."""
    arrays = {name: np.zeros(tensor.shape) for name, tensor in spec.items()}
    for name, part in unflatten(vector, block_spec(spec)).items():
        arrays[name][group] = part
    return flatten(arrays, spec)


def block(seen: Vector, spec: Spec, group: int) -> Vector:
    """Return a group's block of a whole vector, whatever follows it."""
    offset, found = 0, {}
    for name in sorted(spec):
        size = math.prod(spec[name].shape)
        found[name] = seen[offset : offset + size].reshape(spec[name].shape)[group]
        offset += size
    return flatten(found, block_spec(spec))


def group_of(update: Arrays, groups: int) -> int:
    """Return the block that an update is in; the first if it is zero."""
    for group in range(groups):
        if any(array[group].any() for array in update.values()):
            return group
    return 0


def side_of(vector: Vector) -> float:
    """Return 1 for one of a canary and its opposite, and -1 for the other one."""
    fixed = np.random.default_rng(0).standard_normal(vector.size)
    return 1.0 if float(fixed @ vector) >= 0.0 else -1.0


def with_count(moved: Vector, canary: Vector, counts: float, weight: float) -> Vector:
    """Return a difference of blocks, with what the counts tell laid along the canary.

    Of unit weights 1 and `weight`, so that the noise along the canary stays that of a coordinate.

    Args:
        moved: The difference, (d,).
        canary: Of the direction along which it moved.
        counts: The difference of the counts.
        weight: How far counts move over how far the difference does.
    """
    unit = canary / (float(np.linalg.norm(canary)) or 1.0)
    along = float(unit @ moved)
    together = (along + weight * counts) / math.hypot(1.0, weight)
    return np.asarray(moved + (together - along) * unit)
