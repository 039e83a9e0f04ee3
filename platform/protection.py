"""What a client does to its update and its pool entry before either leaves it.

The order is that of the mechanism: clip the whole difference as one vector, add noise, quantise.
A pool entry travels as the difference to the broadcast too. Under `same` it is the identical
quantised vector and no second release; under `independent` it is noised on its own and charged on
its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from methods import Arrays, LocalResult
from platform.errors import ProtocolError, RunStopped
from platform.layout import UploadLayout
from platform.vectors import (
    Spec,
    flatten,
    require_spec,
    tensor_at,
    unflatten,
    vector_length,
)
from privacy import (
    Channel,
    ClientMechanism,
    NoiseSource,
    NoProtection,
    Quantiser,
    Release,
    UploadSaturated,
    protect,
    release,
    value_bound,
)

LEVELS = "levels"
LARGEST_COORDINATE = 1e30
"""Far above any trained value, and 2^20 of them still fit into float32."""


@dataclass(frozen=True)
class Prepared:
    """What may leave the client in one attempt.

    Attributes:
        levels: The protected update as integers, before weights; None where it travels exactly.
        vector: The protected update as numbers.
        entry: The pool entry as it is sent, empty without one.
        channels: Which releases these are.
    """

    levels: NDArray[np.uint64] | None
    vector: NDArray[np.float64]
    entry: Arrays
    channels: tuple[Channel, ...]


@dataclass(frozen=True)
class Protection:
    """How one run protects uploads.

    Attributes:
        mechanism: The client's mechanism.
        layout: Layout of the summed vector.
        pool_spec: The arrays of a pool entry, None without a pool.
        pool_noise: Whether the entry carries the sum's noise or its own.
        bits: Bits of a quantised coordinate.
        masked: Whether the sum is taken under secure aggregation.
    """

    mechanism: ClientMechanism
    layout: UploadLayout
    pool_spec: Spec | None
    pool_noise: Literal["same", "independent"]
    bits: int
    masked: bool

    @property
    def exact(self) -> bool:
        """Whether updates travel as they are: no mechanism and no secure aggregation."""
        return isinstance(self.mechanism, NoProtection) and not self.masked

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The releases of one client in one round."""
        sums: tuple[Channel, ...] = ("sum",) if self.layout.spec else ()
        separate = self.pool_spec is not None and self.pool_noise == "independent"
        if separate or (self.pool_spec is not None and not sums):
            return (*sums, "pool")
        return sums

    def quantiser(self, dimension: int) -> Quantiser:
        """The quantiser of a protected vector with this many coordinates."""
        return Quantiser(value_bound(self.mechanism, max(dimension, 1)), self.bits)

    def prepare(
        self, result: LocalResult, broadcast: Arrays, noise: NoiseSource | None
    ) -> Prepared:
        """Protects one client's result.

        Raises:
            RunStopped: If a coordinate does not fit under mechanism `none`; names the tensor.
            UpdateSpecMismatch: If the method returned other tensors than it announced.
        """
        spec = self.layout.spec
        vector = flatten(result.update, spec)
        if self.exact:
            return Prepared(None, vector, self._exact_entry(result), self.channels)
        levels = self._protect(vector, spec, noise)
        values = self.quantiser(len(vector)).dequantise(levels)
        entry = self._protect_entry(result, broadcast, levels, noise)
        return Prepared(levels, values, entry, self.channels)

    def verify_entry(self, entry: Arrays) -> None:
        """Checks a pool entry as it arrived, before anything of its round is kept.

        Raises:
            ProtocolError: If levels are not what this run sends.
            UpdateSpecMismatch: If arrays are not those announced.
        """
        spec = self.pool_spec or {}
        if LEVELS not in entry:
            require_spec(entry, spec)
            require_storable(flatten(entry, spec))
        if (LEVELS in entry) is isinstance(self.mechanism, NoProtection):
            raise ProtocolError("message: the pool entry is not protected as this run asks")
        if LEVELS not in entry:
            return
        levels, largest = entry[LEVELS], self.quantiser(vector_length(spec)).largest_level
        if levels.shape != (vector_length(spec),) or levels.dtype != np.uint32:
            raise ProtocolError("message: the pool entry has another length or type")
        if levels.size and int(levels.max()) > largest:
            raise ProtocolError(f"message: a level of the pool entry is above {largest}")

    def open_entry(self, entry: Arrays, broadcast: Arrays) -> dict[str, NDArray[np.float32]]:
        """A pool entry in absolute terms, from what a client sent."""
        spec = self.pool_spec or {}
        if LEVELS not in entry:
            return unflatten(flatten(entry, spec), spec)
        values = self.quantiser(vector_length(spec)).dequantise(entry[LEVELS])
        return unflatten(values + flatten(_base(broadcast, spec), spec), spec)

    def releases(
        self, *, run_id: str, round_number: int, attempt: int, pseudonym: str
    ) -> tuple[Release, ...]:
        """One client's ledger rows for an attempt, reserved."""
        return tuple(
            release(
                self.mechanism,
                channel=channel,
                run_id=run_id,
                round_number=round_number,
                attempt=attempt,
                pseudonym=pseudonym,
            )
            for channel in self.channels
        )

    def _exact_entry(self, result: LocalResult) -> Arrays:
        if self.pool_spec is None or result.pool_entry is None:
            return {}
        return unflatten(flatten(result.pool_entry, self.pool_spec), self.pool_spec)

    def _protect_entry(
        self,
        result: LocalResult,
        broadcast: Arrays,
        levels: NDArray[np.uint64],
        noise: NoiseSource | None,
    ) -> Arrays:
        if self.pool_spec is None or result.pool_entry is None:
            return {}
        if isinstance(self.mechanism, NoProtection):
            return self._exact_entry(result)
        base = _base(broadcast, self.pool_spec)
        difference = {name: result.pool_entry[name] - base[name] for name in self.pool_spec}
        if self.pool_noise == "same":
            self._require_same(result.update, difference)
            return {LEVELS: _narrow(levels)}
        vector = flatten(difference, self.pool_spec)
        return {LEVELS: _narrow(self._protect(vector, self.pool_spec, noise))}

    def _require_same(self, update: Arrays, difference: Arrays) -> None:
        alike = set(update) == set(difference) and all(
            np.array_equal(update[name], difference[name]) for name in update
        )
        if not alike:
            raise RunStopped(
                "pool.noise: 'same' needs a pool entry that is the shared update itself; this "
                "method's is not, use pool.noise = independent"
            )

    def _protect(
        self, vector: NDArray[np.float64], spec: Spec, noise: NoiseSource | None
    ) -> NDArray[np.uint64]:
        try:
            return protect(vector, self.mechanism, self.quantiser(len(vector)), noise).levels
        except UploadSaturated as error:
            raise RunStopped(
                f"secure_aggregation.value_bound: {value_bound(self.mechanism, len(vector)):g} is "
                f"too small for tensor {tensor_at(error.index, spec)!r}; raise it"
            ) from error


def require_storable(vector: NDArray[np.float64]) -> None:
    """Checks that coordinates stay finite as float32, in which states are kept, also summed up.

    Raises:
        ProtocolError: If one does not.
    """
    if vector.size and float(np.abs(vector).max()) > LARGEST_COORDINATE:
        raise ProtocolError("message: a coordinate is too large for its type")


def _narrow(levels: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Levels have at most 32 bits, so half the bytes carry them."""
    return levels.astype(np.uint32)


def _base(broadcast: Arrays, spec: Spec) -> Mapping[str, NDArray[Any]]:
    """What a pool entry is a difference to: the broadcast where it has the tensor, else zero."""
    return {
        name: broadcast[name] if name in broadcast else np.zeros(tensor.shape, np.float32)
        for name, tensor in spec.items()
    }
