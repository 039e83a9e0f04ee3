"""Two kinds of randomness, as types that cannot be confused: noise that protects, and seeds.

`SystemNoise` draws from the operating system's entropy and protects people; `SeededNoise` wraps a
seeded generator, makes simulations repeatable and protects nobody, as whoever knows the seed can
subtract the noise. A bare `numpy.random.Generator` is neither and is refused by `privacy`.

The law of `SystemNoise` is the Box-Muller transform (Box and Muller 1958) of uniform numbers of 64
bits. Its tails reach sqrt(2 ln 2^65) = 9.49 standard deviations, beyond which a Gaussian has mass
2e-21. Floating-point noise leaves artefacts in the lowest bits (Mironov 2012) that this module
does not remove: attacks on them are outside what is claimed for float noise.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Entropy = Callable[[int], bytes]
"""Takes a number of bytes, returns that many uniform and independent ones."""
NoiseState = Mapping[str, NDArray[Any]]
"""What noise that is correlated over rounds hands on to the next: arrays by name. It is secret."""
NO_STATE: NoiseState = MappingProxyType({})


class Law(Protocol):
    """What noise follows; see `privacy.events`."""

    def sample(self, source: NoiseSource, deviation: float, size: int) -> NDArray[Any]:
        """Return independent draws of that standard deviation."""
        ...


@runtime_checkable
class NoiseSource(Protocol):
    """Where a mechanism's noise comes from, and whether that protects anybody."""

    def draw(self, law: Law, deviation: float, size: int) -> NDArray[Any]:
        """Return the noise that a mechanism adds: of the law that its ledger row states."""
        return law.sample(self, deviation, size)

    @property
    def name(self) -> str:
        """The value of `privacy.noise_source` that asks for this source."""
        ...

    @property
    def protects(self) -> bool:
        """Whether noise drawn here may be counted on against an adversary."""
        ...

    def standard_normal(self, size: int) -> NDArray[np.float64]:
        """Return `size` independent draws of mean 0 and variance 1."""
        ...

    def uniform_bytes(self, count: int) -> bytes:
        """Return `count` uniform and independent bytes, for noise that is made of integers."""
        ...


def require_noise_source(noise: object) -> NoiseSource:
    """Return `noise` if it is a noise source, or `TypeError`; a bare generator is not one."""
    # By its type first: a protocol's names are collected anew at every `isinstance`.
    if not _is_source(cast("Hashable", type(noise))) and not isinstance(noise, NoiseSource):
        raise TypeError(f"noise is a {type(noise).__name__}; it must be SystemNoise or SeededNoise")
    return cast("NoiseSource", noise)


@lru_cache(maxsize=64)
def _is_source(kind: Hashable) -> bool:
    return all(hasattr(kind, name) for name in vars(NoiseSource) if not name.startswith("_"))


class SystemNoise(NoiseSource):
    """Noise from the operating system's entropy: the only kind that protects real data."""

    __slots__ = ()
    name = "os"
    protects = True

    def standard_normal(self, size: int) -> NDArray[np.float64]:
        """Return fresh standard normal numbers that nobody can draw again, as a float64 vector."""
        return standard_normal_from(os.urandom, size)

    def uniform_bytes(self, count: int) -> bytes:
        """Return `count` fresh bytes."""
        return os.urandom(count)


class SeededNoise(NoiseSource):
    """Noise from a seeded generator, for simulations: the report says it protects nobody."""

    __slots__ = ("_generator",)
    name = "seeded"
    protects = False

    def __init__(self, generator: np.random.Generator) -> None:
        """Wrap a `numpy.random.Generator`, or `TypeError`; its state advances with every draw."""
        if not isinstance(generator, np.random.Generator):
            raise TypeError(
                f"generator is a {type(generator).__name__}; it must be a numpy.random.Generator"
            )
        self._generator = generator

    def standard_normal(self, size: int) -> NDArray[np.float64]:
        """Return the generator's next `size` standard normal numbers, as a float64 vector."""
        return self._generator.standard_normal(size)

    def uniform_bytes(self, count: int) -> bytes:
        """Return the generator's next `count` bytes."""
        return self._generator.bytes(count)


class WithoutNoise(NoiseSource):
    """Draws no noise at all, and the coins for rounding from another source.

    What shared-out noise claims holds without the shares of clients that collude with the server.
    Whoever wants to see how much is left needs clients that add none: an audit's canaries, and
    nobody else.
    """

    __slots__ = ("_source",)
    protects = False

    def __init__(self, source: NoiseSource) -> None:
        """Wrap the source of everything but the noise."""
        self._source = source

    @property
    def name(self) -> str:
        """The source's."""
        return self._source.name

    def draw(self, law: Law, deviation: float, size: int) -> NDArray[Any]:
        """Return zeros, whatever the law."""
        return np.zeros(size, np.int64)

    def standard_normal(self, size: int) -> NDArray[np.float64]:
        """Return the source's."""
        return self._source.standard_normal(size)

    def uniform_bytes(self, count: int) -> bytes:
        """Return the source's."""
        return self._source.uniform_bytes(count)


def draw(entropy: Entropy, size: int) -> bytes:
    """Draw exactly `size` secret bytes; `ValueError` for a broken source: fewer are weaker."""
    drawn = entropy(size)
    if len(drawn) != size:
        raise ValueError(f"entropy gave {len(drawn)} bytes where {size} were asked for")
    return drawn


def standard_normal_from(entropy: Entropy, size: int) -> NDArray[np.float64]:
    """Turn uniform bytes into independent standard normal numbers.

    Each pair of 64-bit words (u, v) gives r cos t and r sin t with r = sqrt(-2 ln u) and t = 2 pi
    v, both words read as little-endian fractions at the middle of their cell, so that u is never
    zero. One call to `entropy` asks for 16 bytes a pair. `ValueError` if `size` is negative, or the
    source returned too few bytes.
    """
    if size < 0:
        raise ValueError(f"size is {size}; it must not be negative")
    pairs = (size + 1) // 2
    raw = entropy(16 * pairs)
    if len(raw) != 16 * pairs:
        raise ValueError(f"the entropy source gave {len(raw)} bytes; {16 * pairs} were asked for")
    words = np.frombuffer(raw, dtype="<u8").reshape(pairs, 2)
    fractions = (words.astype(np.float64) + 0.5) * 2.0**-64
    radius = np.sqrt(-2.0 * np.log(fractions[:, 0]))
    angle = (2.0 * math.pi) * fractions[:, 1]
    normals = np.empty((pairs, 2))
    np.multiply(radius, np.cos(angle), out=normals[:, 0])
    np.multiply(radius, np.sin(angle), out=normals[:, 1])
    return normals.reshape(-1)[:size]
