"""What every party of one secure aggregation has to agree on before the first message.

The parameters are a value, and their digest stands at the start of every message, in every key
derivation and in the associated data of every ciphertext. Two parties that disagree on anything
(the run, the attempt, the threshold, the roster, the ring) therefore refuse each other's first
message instead of adding up vectors that were masked under different rules.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

PARAMETERS_VERSION = 1
LARGEST_INDEX = 2**32 - 1

_FIXED = struct.Struct("<BBIIIIIHI")


class Phase(StrEnum):
    """Stages of the protocol (Bonawitz et al. 2017, figure 4), as errors and refusals name them."""

    ADVERTISE_KEYS = "advertise_keys"
    SHARE_KEYS = "share_keys"
    MASKED_INPUT = "masked_input"
    UNMASKING = "unmasking"


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
    return 2 * clients // 3 + 1


@dataclass(frozen=True)
class RoundParameters:
    """One attempt at one round, as all its parties know it.

    Attributes:
        run_id: Name of the run, 1 to 65,535 bytes of UTF-8.
        round_number: Round within the run, from 0.
        attempt: Attempt within the round, from 0. A retry is a new attempt with fresh keys.
        clients: Share indices of the invited clients: distinct, ascending, each at least 1,
            because index 0 of a Shamir polynomial is the secret itself.
        threshold: Number t of clients that must stay to the end, 2 <= t <= n and t > corrupt.
            It also bounds from below how many vectors a sum may hold.
        vector_length: Number of ring elements in every vector, at least 1.
        ring_bits: Size of the ring of the sum, 32 or 64: the integers modulo 2^ring_bits.
        corrupt: Number c of clients that may pool what they see with the server. Semi-honest
            parties need t > c (Bonawitz et al. 2017, theorem 6.3).

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

    def __post_init__(self) -> None:
        """Refuse what no round can be run with."""
        if not 1 <= len(self.run_id.encode()) <= 65_535:
            raise ValueError("run_id must hold 1 to 65,535 bytes of UTF-8")
        for name in ("round_number", "attempt", "corrupt"):
            _require_between(name, getattr(self, name), 0, LARGEST_INDEX)
        _require_between("vector_length", self.vector_length, 1, LARGEST_INDEX)
        if self.ring_bits not in (32, 64):
            raise ValueError(f"ring_bits is {self.ring_bits}; valid are 32 and 64")
        self._require_clients()
        _require_between("threshold", self.threshold, 2, len(self.clients))
        if self.threshold <= self.corrupt:
            raise ValueError(
                f"threshold is {self.threshold}; it must be above corrupt, which is {self.corrupt}"
            )

    def _require_clients(self) -> None:
        if len(self.clients) < 2:
            raise ValueError(f"clients holds {len(self.clients)} indices; at least 2 are needed")
        for index in self.clients:
            _require_between("a share index in clients", index, 1, LARGEST_INDEX)
        if any(low >= high for low, high in zip(self.clients, self.clients[1:], strict=False)):
            raise ValueError("clients must be distinct share indices in ascending order")

    def encode(self) -> bytes:
        """Return the one canonical encoding, little-endian; `decode_parameters` reads it back."""
        run_id = self.run_id.encode()
        fixed = _FIXED.pack(
            PARAMETERS_VERSION,
            self.ring_bits,
            self.round_number,
            self.attempt,
            self.threshold,
            self.corrupt,
            self.vector_length,
            len(run_id),
            len(self.clients),
        )
        return fixed + run_id + struct.pack(f"<{len(self.clients)}I", *self.clients)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over the canonical encoding, 32 bytes; it stands for all fields in messages."""
        return hashlib.sha256(b"sotto/secure-aggregation/parameters" + self.encode()).digest()


def decode_parameters(data: bytes) -> RoundParameters:
    """Read back what `RoundParameters.encode` wrote.

    Args:
        data: Exactly one canonical encoding.

    Returns:
        The parameters.

    Raises:
        ValueError: If the bytes are not a canonical encoding of valid parameters.
    """
    if len(data) < _FIXED.size:
        raise ValueError("encoded parameters are truncated")
    version, ring_bits, round_number, attempt, threshold, corrupt, length, name_size, count = (
        _FIXED.unpack_from(data)
    )
    if version != PARAMETERS_VERSION or len(data) != _FIXED.size + name_size + 4 * count:
        raise ValueError("encoded parameters have another version or the wrong length")
    name_end = _FIXED.size + name_size
    return RoundParameters(
        run_id=data[_FIXED.size : name_end].decode(),
        round_number=round_number,
        attempt=attempt,
        clients=struct.unpack_from(f"<{count}I", data, name_end),
        threshold=threshold,
        vector_length=length,
        ring_bits=ring_bits,
        corrupt=corrupt,
    )


def _require_between(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; valid are {low} to {high}")
