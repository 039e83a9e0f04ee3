"""A client's place in the secure aggregation of one attempt, as an invitation states it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from platform.wire.codec import Frame
from platform.wire.envelopes import blob, integers

KEY_BYTES = 32


@dataclass(frozen=True)
class SumTerms:
    """Whose collusion a masked sum withstands.

    Attributes:
        threshold: Smallest number whose sum may be opened.
        corrupt: Number of clients that may collude with the server.
        smallest_sum: Fewest vectors that a sum may hold; 0 takes the threshold.
    """

    threshold: int
    corrupt: int = 0
    smallest_sum: int = 0


@dataclass(frozen=True)
class MaskGraph:
    """Who masks with whom.

    Attributes:
        degree: Neighbours of a client in the k-regular graph, 0 for the complete graph.
        seed: Orders the clients of that graph, else empty.
    """

    degree: int = 0
    seed: bytes = b""


@dataclass(frozen=True)
class EnrolledCohort:
    """Whose keys a cohort has, against an active adversary.

    Attributes:
        identities: The cohort's public keys in the order of their indices.
        serial: Of the enrolment file that says whose these keys are.
    """

    identities: tuple[bytes, ...]
    serial: int


@dataclass(frozen=True, kw_only=True)
class SecureRound:
    """A client's place in the secure aggregation of one attempt.

    Attributes:
        index: The client's share index, from 1.
        clients: Number of clients invited.
        vector_length: Coordinates of the masked vector.
        ring_bits: Size of the ring.
        terms: Whose collusion the sum withstands.
        graph: Who masks with whom.
        enrolled: The cohort's keys, None against a semi-honest server.
        roster: Everybody's keys of this attempt, where all were made ahead; else empty, and keys
            are asked for.
    """

    index: int
    clients: int
    vector_length: int
    ring_bits: int
    terms: SumTerms
    graph: MaskGraph = MaskGraph()
    enrolled: EnrolledCohort | None = None
    roster: bytes = b""


def secure_numbers(secure: SecureRound) -> list[int]:
    """Return the numbers of a place, for an invitation's fields."""
    terms = secure.terms
    return [
        secure.index,
        secure.clients,
        terms.threshold,
        secure.vector_length,
        secure.ring_bits,
        terms.corrupt,
        terms.smallest_sum,
        secure.graph.degree,
        0 if secure.enrolled is None else secure.enrolled.serial,
    ]


def secure_blobs(secure: SecureRound) -> dict[str, bytes]:
    """Return the byte strings of a place, for an invitation's buffers."""
    identities = () if secure.enrolled is None else secure.enrolled.identities
    return {
        "graph_seed": secure.graph.seed,
        "identities": b"".join(identities),
        "roster": secure.roster,
    }


def read_secure(frame: Frame, numbers: Any) -> SecureRound:
    """Read a place from an invitation.

    Raises:
        ProtocolError: If it is none.
    """
    index, clients, threshold, length, bits, corrupt, smallest, degree, serial = integers(
        numbers, 9
    )
    keys = blob(frame, "identities")
    identities = tuple(keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES))
    return SecureRound(
        index=index,
        clients=clients,
        vector_length=length,
        ring_bits=bits,
        terms=SumTerms(threshold, corrupt, smallest),
        graph=MaskGraph(degree, blob(frame, "graph_seed")),
        enrolled=EnrolledCohort(identities, serial) if identities or serial else None,
        roster=blob(frame, "roster"),
    )
