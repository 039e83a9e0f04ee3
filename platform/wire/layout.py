"""The layout of updates and pool entries in messages, and the meaning of a sum of updates.

Tensors lie flat in the order of their names. If any is averaged by number of examples, a client
multiplies the levels of those tensors by its weight after quantisation, and appends the weight as
one more coordinate. So the secure sum yields numerator and denominator together. Under a privacy
mechanism weights are uniform and nothing is appended: a weight would leak the number of examples.
Coordinates that are clipped and noised with the update, such as the flag of adaptive clipping,
follow the update's own.

A pool entry lies in a message as a difference, on a grid, in integers of a fitting type. A store
holds experts as bytes, and the pool identifies entries by handles.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from methods import Arrays, TensorSpec, UpdateSpecMismatch, Weighting
from methods.interface.subspace import flat, length, shaped
from platform.errors import ProtocolError, RunStopped
from platform.wire.codec import decode_arrays, encode_arrays
from privacy import Grid, NoiseState, ProtocolViolation

Spec = Mapping[str, TensorSpec]


def vector_length(spec: Spec) -> int:
    """Return number of coordinates of all tensors."""
    return length(spec)


def require_spec(arrays: Arrays, spec: Spec) -> None:
    """Check names and shapes; `UpdateSpecMismatch` names the first tensor that differs."""
    if set(arrays) != set(spec):
        raise UpdateSpecMismatch(
            f"update: its tensors are {sorted(arrays)}; the method announced {sorted(spec)}"
        )
    for name, tensor in spec.items():
        if arrays[name].shape != tensor.shape:
            raise UpdateSpecMismatch(
                f"update: tensor {name!r} has shape {arrays[name].shape}; the method announced "
                f"{tensor.shape}"
            )


def flatten(arrays: Arrays, spec: Spec) -> NDArray[np.float64]:
    """Return all tensors, those announced, as one float64 vector."""
    require_spec(arrays, spec)
    return flat(arrays, spec)


def unflatten(vector: NDArray[Any], spec: Spec) -> dict[str, NDArray[np.float32]]:
    """Return the inverse of `flatten`, in float32."""
    return {name: np.asarray(part, np.float32) for name, part in shaped(vector, spec).items()}


def tensor_at(coordinate: int, spec: Spec) -> str:
    """Return the name of the tensor to which a coordinate of the flat vector belongs."""
    for name in sorted(spec):
        coordinate -= math.prod(spec[name].shape)
        if coordinate < 0:
            return name
    raise IndexError("the coordinate lies beyond the vector")


LARGEST_WEIGHT = 1 << 20
"""Most examples that a client of any run may claim."""


@dataclass(frozen=True)
class Totals:
    """A round's sum, before it is divided by anything.

    Attributes:
        sums: The sum of the (weighted) vectors, extra coordinates included.
        weight: Sum of the weights; equals `clients` where they are uniform.
        noise_state: As in `NoisedSum`.
    """

    sums: NDArray[np.float64]
    clients: int
    weight: int
    noise_state: NoiseState = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Summed:
    """The average that a round's sum yields.

    Attributes:
        vector: Per coordinate the mean or the sum, as the tensor's weighting requires.
        total_weight: Sum of the weights.
        extras: Mean of each extra coordinate, by name, over `total_weight` clients.
        survivors: How many clients are in the sum; None if that is secret, or there are none.
    """

    vector: NDArray[np.float64]
    total_weight: float
    extras: Mapping[str, float] = field(default_factory=dict)
    survivors: int | None = None


@dataclass(frozen=True)
class UploadLayout:
    """The vector of one method's uploads.

    Attributes:
        weighted: Whether weights apply (mechanism `none` and a tensor averaged by examples).
        extras: Names of the coordinates that follow the update's own.
        largest_weight: Most examples that a client of this run may claim, which all parties know
            before the first round, as it fixes the ring; from 1 to 2^20.
    """

    spec: Spec
    weighted: bool
    extras: tuple[str, ...] = ()
    largest_weight: int = LARGEST_WEIGHT

    @property
    def coordinates(self) -> int:
        """Coordinates of the update itself."""
        return vector_length(self.spec)

    @property
    def protected(self) -> int:
        """Coordinates of the vector that a mechanism protects: the update and the extras."""
        return self.coordinates + len(self.extras)

    @property
    def length(self) -> int:
        """Coordinates of the vector that is summed, the weight included."""
        return self.protected + int(self.weighted)

    def ring_bits(self, grid: Grid, clients: int) -> int:
        """Return the ring that holds the sum of a cohort of this size."""
        return grid.ring_bits(clients * (self.largest_weight if self.weighted else 1))

    def require_weight(self, weight: int) -> None:
        """Refuse a weight that is not from 1 to this run's largest, if weights apply."""
        if self.weighted and not 1 <= weight <= self.largest_weight:
            raise ProtocolError(
                f"weight: a client's number of examples must be 1 to {self.largest_weight}, the "
                "most that a client of this run may have (secure_aggregation.largest_weight)"
            )

    def weigh(self, levels: NDArray[np.uint64], weight: int) -> NDArray[np.uint64]:
        """Return the ring vector of one client: weighted levels and the weight, checked."""
        if not self.weighted:
            return levels
        self.require_weight(weight)
        factors = np.where(self._by_examples(), np.uint64(weight), np.uint64(1))
        return np.append(levels * factors, np.uint64(weight))

    def open_sum(self, total: NDArray[np.uint64], clients: int, grid: Grid) -> Totals:
        """Return the result of a secure sum over this many clients; refuse impossible weights."""
        levels = total[: self.protected]
        if not self.weighted:
            return Totals(grid.dequantise_sum(levels, clients), clients, clients)
        weight, mask = int(total[-1]), self._by_examples()
        if not clients <= weight <= clients * self.largest_weight:
            raise ProtocolViolation("the sum of all weights is not one that these clients can have")
        sums = np.empty(self.coordinates)
        sums[mask] = grid.dequantise_sum(levels[mask], weight)
        sums[~mask] = grid.dequantise_sum(levels[~mask], clients)
        return Totals(sums, clients, weight)

    def sum_plain(self, vectors: Sequence[NDArray[np.float64]], weights: Sequence[int]) -> Totals:
        """Return the sum of vectors that travel exactly, as numbers, in the order given.

        A peer can influence how a floating-point sum is rounded. So this is only for vectors that
        carry no claim, or that each have their own noise.
        """
        used = list(weights) if self.weighted else [1] * len(vectors)
        factors = self._by_examples() if self.weighted else np.zeros(self.protected, np.bool_)
        sums = np.zeros(self.protected)
        for vector, weight in zip(vectors, used, strict=True):
            sums += vector * np.where(factors, weight, 1)
        return Totals(sums, len(vectors), sum(used))

    def average(self, totals: Totals) -> Summed:
        """Divide a sum, of at least one vector, as each tensor's weighting requires."""
        clients, weight = totals.clients, totals.weight
        if weight < 1 or clients < 1:
            raise ProtocolError("weight: the clients' total is not valid; it must be at least 1")
        vector = totals.sums[: self.coordinates] / self.divisors(clients, weight)
        means = totals.sums[self.coordinates :] / clients
        extras = dict(zip(self.extras, means.tolist(), strict=True))
        return Summed(vector, float(weight), extras, clients)

    def divisors(self, clients: int, weight: int) -> NDArray[np.float64]:
        """Return the divisor of each coordinate of a sum."""
        return self._per_coordinate(
            {Weighting.EXAMPLES: weight, Weighting.UNIFORM: clients, Weighting.SUM: 1}
        )

    def _by_examples(self) -> NDArray[np.bool_]:
        mask = self._per_coordinate(
            {Weighting.EXAMPLES: True, Weighting.UNIFORM: False, Weighting.SUM: False}
        )
        return mask.astype(np.bool_)

    def _per_coordinate(self, value: dict[Weighting, Any]) -> NDArray[Any]:
        parts = [
            np.full(math.prod(self.spec[name].shape), value[self.spec[name].weighting])
            for name in sorted(self.spec)
        ]
        return np.concatenate(parts) if parts else np.zeros(0)


def build_layout(
    spec: Spec,
    *,
    weighs_examples: bool,
    extras: tuple[str, ...] = (),
    largest_weight: int | None = None,
) -> UploadLayout:
    """Return the layout of a method's uploads.

    `extras` names the coordinates that follow the update's own. `largest_weight` is the run's, if
    it is known already.
    """
    by_examples = any(t.weighting is Weighting.EXAMPLES for t in spec.values())
    most = LARGEST_WEIGHT if largest_weight is None else largest_weight
    return UploadLayout(spec, weighs_examples and by_examples, extras, most)


LARGEST_COORDINATE = 1e30
"""Far above any trained value; the sum of 2^20 such values still fits into float32."""


def entry_base(broadcast: Arrays, spec: Spec) -> Mapping[str, NDArray[Any]]:
    """Return an entry's base: the broadcast if it has the tensor, else zero."""
    return {
        name: broadcast[name] if name in broadcast else np.zeros(tensor.shape, np.float32)
        for name, tensor in spec.items()
    }


def level_type(grid: Grid) -> type[np.uint32] | type[np.uint64]:
    """Return the smallest type of a message's integers that holds a level."""
    return np.uint32 if grid.largest_level < 1 << 32 else np.uint64


def require_same(update: Arrays, difference: Arrays) -> None:
    """Check that an entry is the shared update itself, so that one noise may serve both."""
    alike = set(update) == set(difference) and all(
        np.array_equal(update[name], difference[name]) for name in update
    )
    if not alike:
        raise RunStopped(
            "pool.noise: 'same' needs a pool entry that is the shared update itself; this "
            "method's is not, use pool.noise = independent"
        )


def handle(secret: bytes, run_id: str, round_number: int) -> bytes:
    """Return name of a client's entry of one round: a keyed hash that only its owner can make."""
    text = json.dumps(["sotto pool handle", run_id, round_number])
    return hmac.new(secret, text.encode(), hashlib.sha256).digest()


@dataclass(frozen=True)
class Fetched:
    """The experts that one client receives before it personalises.

    Attributes:
        own: The place of its own entry among them, None without an entry.
    """

    experts: tuple[Arrays, ...]
    own: int | None


def encode_experts(experts: Sequence[Arrays]) -> bytes:
    """Return experts in their order, for a client's store."""
    arrays = {
        f"{i:04d}/{n}": value for i, entry in enumerate(experts) for n, value in entry.items()
    }
    return encode_arrays(arrays)


def decode_experts(data: bytes) -> tuple[Arrays, ...]:
    """Return the inverse of `encode_experts`."""
    experts: dict[str, dict[str, np.ndarray]] = {}
    for name, value in decode_arrays(data).items():
        position, _, tensor = name.partition("/")
        experts.setdefault(position, {})[tensor] = value
    return tuple(experts[position] for position in sorted(experts))
