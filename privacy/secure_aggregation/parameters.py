"""What every party of one secure aggregation has to agree on before the first message.

The parameters are a value, and their digest stands at the start of every message, in every key
derivation, in every signature and in the associated data of every ciphertext. Two parties that
disagree on anything (the run, the attempt, the threshold, the cohort, the graph, the ring, whose
identity is whose) therefore refuse each other's first message instead of adding up vectors that
were masked under different rules.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from types import MappingProxyType

from privacy.secure_aggregation import graph, planning

PROTOCOL_VERSION = 4
"""Of messages, parameters and stored states alike."""
LARGEST_INDEX = 2**32 - 1
LARGEST_SERIAL = 2**63 - 1
IDENTITY_BYTES = 32

# Rounds that a process takes part in at a time, and few more: one of many clients is large.
_REMEMBERED = 8

# Version, ring, adversary, round, attempt, threshold, corrupt, smallest sum, length, degree, serial
# of the enrolment; then the sizes of graph seed, identities, run id and cohort.
_FIXED = struct.Struct("<BBBIIIIIIIQBBHI")


class Phase(StrEnum):
    """Stages of the protocol (Bonawitz et al. 2017, figure 4), as errors and refusals name them."""

    ADVERTISE_KEYS = "advertise_keys"
    SHARE_KEYS = "share_keys"
    MASKED_INPUT = "masked_input"
    CONSISTENCY_CHECK = "consistency_check"
    UNMASKING = "unmasking"


class Adversary(StrEnum):
    """Against whom the round is run: parties that only look, or parties that also lie."""

    SEMI_HONEST = "semi_honest"
    ACTIVE = "active"


_ADVERSARIES = (Adversary.SEMI_HONEST, Adversary.ACTIVE)


def default_threshold(clients: int) -> int:
    """Return floor(2n/3) + 1, which meets the semi-honest rule for any c up to two thirds of n.

    It is also the smallest threshold that Bonawitz et al. 2017 (section 6.2) give against an
    active adversary who corrupts fewer than a third of the clients.

    Args:
        clients: Number n of clients in the round, at least 2.

    Returns:
        The number of clients whose shares are needed to unmask.

    Raises:
        ValueError: If there are fewer than 2 clients.
    """
    if clients < 2:
        raise ValueError(f"clients is {clients}; secure aggregation needs at least 2")
    return planning.two_thirds_and_one(clients)


@dataclass(frozen=True)
class RoundParameters:
    """One attempt at one round, as all its parties know it.

    Attributes:
        run_id: Name of the run, 1 to 65,535 bytes of UTF-8.
        round_number: Round within the run, from 0.
        attempt: Attempt within the round, from 0. A retry is a new attempt with fresh keys.
        clients: Share indices of the invited clients: distinct, ascending, each at least 1,
            because index 0 of a Shamir polynomial is the secret itself.
        threshold: Number t of shares that rebuild a secret, 2 <= t <= number of holders. On the
            complete graph it also bounds from below how many vectors a sum may hold.
        vector_length: Number of ring elements in every vector, at least 1.
        ring_bits: Size of the ring of the sum, 16 to 64: the integers modulo 2^ring_bits.
        corrupt: Number c of clients that may pool what they see with the server. Semi-honest
            parties need t > c (Bonawitz et al. 2017, theorem 6.3), an active adversary needs
            2t > n + c (section 6.2), and a k-regular graph the bounds of `planning`.
        adversary: Whether messages are signed and survivor lists agreed on.
        identities: Under an active adversary each client's Ed25519 public key, in the order of
            `clients`; empty otherwise.
        degree: Number k of neighbours of a client in the Harary graph, even; 0 stands for the
            complete graph, the only one built against an active adversary.
        graph_seed: 32 public bytes that order the clients around the ring of the graph.
        smallest_sum: Fewest vectors that a sum may hold; 0 stands for the threshold.
        enrolment_serial: Under an active adversary the serial number of the enrolment file that
            says whose identities these are; 0 otherwise.

    Raises:
        ValueError: If a field is out of its range, by name.
    """

    run_id: str
    round_number: int
    attempt: int
    clients: tuple[int, ...]
    threshold: int
    vector_length: int
    ring_bits: int
    corrupt: int = 0
    adversary: Adversary = Adversary.SEMI_HONEST
    identities: tuple[bytes, ...] = ()
    degree: int = 0
    graph_seed: bytes = b""
    smallest_sum: int = 0
    enrolment_serial: int = 0

    def __post_init__(self) -> None:
        """Refuse what no round can be run with."""
        if not 1 <= len(self.run_id.encode()) <= 65_535:
            raise ValueError("run_id must hold 1 to 65,535 bytes of UTF-8")
        for name in ("round_number", "attempt", "corrupt"):
            _require_between(name, getattr(self, name), 0, LARGEST_INDEX)
        _require_between("vector_length", self.vector_length, 1, LARGEST_INDEX)
        _require_between("ring_bits", self.ring_bits, 16, 64)
        self._require_clients()
        _require_between("smallest_sum", self.smallest_sum, 0, len(self.clients))
        largest = LARGEST_SERIAL if self.is_active else 0
        _require_between("enrolment_serial", self.enrolment_serial, 0, largest)
        self._require_identities()
        if self.degree:
            self._require_regular()
        else:
            self._require_complete()

    def _require_clients(self) -> None:
        if len(self.clients) < 2:
            raise ValueError(f"clients holds {len(self.clients)} indices; at least 2 are needed")
        if any(low >= high for low, high in zip(self.clients, self.clients[1:], strict=False)):
            raise ValueError("clients must be distinct share indices in ascending order")
        for index in (self.clients[0], self.clients[-1]):
            _require_between("a share index in clients", index, 1, LARGEST_INDEX)

    def _require_identities(self) -> None:
        expected = len(self.clients) if self.is_active else 0
        if len(self.identities) != expected or len(set(self.identities)) != expected:
            raise ValueError(
                f"identities holds {len(self.identities)} keys; an adversary that is "
                f"{self.adversary.value!r} needs {expected} distinct ones"
            )
        if any(len(identity) != IDENTITY_BYTES for identity in self.identities):
            raise ValueError("identities must be Ed25519 public keys of 32 bytes")

    def _require_complete(self) -> None:
        if self.graph_seed:
            raise ValueError("graph_seed is given, but the complete graph needs none")
        _require_between("threshold", self.threshold, 2, len(self.clients))
        if self.threshold <= self.corrupt:
            raise ValueError(
                f"threshold is {self.threshold}; it must be above corrupt, which is {self.corrupt}"
            )
        least = planning.active_threshold(len(self.clients), self.corrupt)
        if self.is_active and self.threshold < least:
            raise ValueError(
                f"threshold is {self.threshold}; against an active adversary with corrupt = "
                f"{self.corrupt} of {len(self.clients)} clients it must be at least {least}"
            )

    def _require_regular(self) -> None:
        if self.is_active:
            raise ValueError("degree must be 0: an active adversary needs the complete graph")
        if self.degree % 2 or not 2 <= self.degree < len(self.clients):
            raise ValueError(
                f"degree is {self.degree}; valid are even numbers from 2 to {len(self.clients) - 1}"
            )
        if len(self.graph_seed) != graph.SEED_BYTES:
            raise ValueError(f"graph_seed has {len(self.graph_seed)} bytes; valid is 32")
        _require_between("threshold", self.threshold, 2, self.degree + 1)
        _require_between("smallest_sum", self.smallest_sum, self.threshold, len(self.clients))
        planning.require_safe_graph(
            len(self.clients),
            corrupt=self.corrupt,
            dropouts=len(self.clients) - self.smallest_sum,
            degree=self.degree,
            threshold=self.threshold,
        )

    @property
    def is_active(self) -> bool:
        """Whether the adversary may lie."""
        return self.adversary is Adversary.ACTIVE

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of this round; only an active adversary makes survivor lists be agreed on."""
        return tuple(p for p in Phase if self.is_active or p is not Phase.CONSISTENCY_CHECK)

    @property
    def least_survivors(self) -> int:
        """Fewest clients with which the round goes on."""
        return max(self.threshold, self.smallest_sum)

    def holders(self, client: int) -> tuple[int, ...]:
        """Return who holds shares of a client: its neighbours and itself, ascending."""
        return self._neighbourhoods[client] if self.degree else self.clients

    def identity(self, client: int) -> bytes:
        """Return the public key with which a client signs; only under an active adversary."""
        return self._identities[client]

    @cached_property
    def invited(self) -> frozenset[int]:
        """The clients as a set."""
        return frozenset(self.clients)

    @cached_property
    def _neighbourhoods(self) -> Mapping[int, tuple[int, ...]]:
        return graph.closed_neighbourhoods(self.clients, self.degree, self.graph_seed)

    @cached_property
    def _identities(self) -> Mapping[int, bytes]:
        return MappingProxyType(dict(zip(self.clients, self.identities, strict=True)))

    def encode(self) -> bytes:
        """Return the one canonical encoding, little-endian; `decode_parameters` reads it back."""
        return self._encoded

    @cached_property
    def _encoded(self) -> bytes:
        run_id = self.run_id.encode()
        fixed = _FIXED.pack(
            PROTOCOL_VERSION,
            self.ring_bits,
            _ADVERSARIES.index(self.adversary),
            self.round_number,
            self.attempt,
            self.threshold,
            self.corrupt,
            self.smallest_sum,
            self.vector_length,
            self.degree,
            self.enrolment_serial,
            len(self.graph_seed),
            IDENTITY_BYTES if self.identities else 0,
            len(run_id),
            len(self.clients),
        )
        cohort = struct.pack(f"<{len(self.clients)}I", *self.clients)
        return b"".join((fixed, self.graph_seed, run_id, cohort, *self.identities))

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over the canonical encoding, 32 bytes; it stands for all fields in messages."""
        return hashlib.sha256(b"sotto/secure-aggregation/parameters" + self.encode()).digest()


def decode_parameters(data: bytes) -> RoundParameters:
    """Read back what `RoundParameters.encode` wrote.

    Args:
        data: Exactly one canonical encoding.

    Returns:
        The parameters; for the same bytes the same object, with the graph that it has computed.

    Raises:
        ValueError: If the bytes are not a canonical encoding of valid parameters.
    """
    if not isinstance(data, bytes) or len(data) < _FIXED.size:
        raise ValueError("encoded parameters are truncated")
    return _decoded(data)


@lru_cache(maxsize=_REMEMBERED)
def _decoded(data: bytes) -> RoundParameters:
    (version, ring_bits, adversary, round_number, attempt, threshold, corrupt, *rest) = (
        _FIXED.unpack_from(data)
    )
    smallest_sum, length, degree, serial, seed_size, identity_size, name_size, count = rest
    seed_end = _FIXED.size + seed_size
    name_end = seed_end + name_size
    cohort_end = name_end + 4 * count
    if (
        version != PROTOCOL_VERSION
        or adversary >= len(_ADVERSARIES)
        or identity_size not in (0, IDENTITY_BYTES)
        or len(data) != cohort_end + count * identity_size
    ):
        raise ValueError("encoded parameters have another version or the wrong length")
    starts = range(cohort_end, len(data), IDENTITY_BYTES)
    return RoundParameters(
        run_id=data[seed_end:name_end].decode(),
        round_number=round_number,
        attempt=attempt,
        clients=struct.unpack_from(f"<{count}I", data, name_end),
        threshold=threshold,
        vector_length=length,
        ring_bits=ring_bits,
        corrupt=corrupt,
        adversary=_ADVERSARIES[adversary],
        identities=tuple(data[at : at + IDENTITY_BYTES] for at in starts),
        degree=degree,
        graph_seed=data[_FIXED.size : seed_end],
        smallest_sum=smallest_sum,
        enrolment_serial=serial,
    )


def _require_between(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; valid are {low} to {high}")
