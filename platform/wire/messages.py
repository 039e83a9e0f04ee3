"""The messages of coordinator and clients in a round, stage by stage.

| stage     | coordinator -> client                      | client -> coordinator               |
|-----------|--------------------------------------------|-------------------------------------|
| advertise | `Invitation`: round, roster size, pool     | `Answer`: keys, pool handles        |
| share     | `Relay`: all clients' keys                 | `Relay`: encrypted shares           |
| or share  | `Invitation` with all clients' keys        | `Answer`: shares, pool handles      |
| train     | `Assignment`: broadcast, experts, shares   | `Upload`: masked vector             |
| confirm   | `Relay`: the survivors (active only)       | `Relay`: a signature of that list   |
| unmask    | `Relay`: the survivors, or the signatures  | `Disclosure`: shares and pool entry |

With the last message a coordinator may ask for the keys of the next round, and a disclosure carries
them. If all clients gave their keys, the next round begins with the share stage, and its message is
an invitation. Without secure aggregation there is no share stage, and the vector travels in the
clear. Every message names its run, round and attempt, and the last committed attempt. The messages
before the first round and after the last are in `platform.wire.outside_rounds`.

Each decoder raises `ProtocolError` if the bytes are not a valid message of its kind.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from platform.errors import ProtocolError
from platform.wire.codec import (
    Arrays,
    Envelope,
    Frame,
    blob,
    encode_frame,
    framed,
    integers,
    opened,
)

KEY_BYTES = 32


@dataclass(frozen=True)
class SumTerms:
    """The collusion that a masked sum withstands.

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
    """The graph of the clients that mask with each other.

    Attributes:
        degree: Neighbours of a client in the k-regular graph, 0 for the complete graph.
        seed: Orders the clients of that graph, else empty.
    """

    degree: int = 0
    seed: bytes = b""


@dataclass(frozen=True)
class EnrolledCohort:
    """The keys of a cohort, against an active adversary.

    Attributes:
        identities: The cohort's public keys in the order of their indices.
        serial: Serial of the enrolment file, which names each client's key.
    """

    identities: tuple[bytes, ...]
    serial: int


@dataclass(frozen=True, kw_only=True)
class SecureRound:
    """A client's place in the secure aggregation of one attempt.

    Attributes:
        index: The client's share index, from 1.
        vector_length: Coordinates of the masked vector.
        ring_bits: Size of the ring.
        terms: The collusion that the sum withstands.
        enrolled: The cohort's keys, None against a semi-honest server.
        roster: All clients' keys of this attempt, if all were made ahead; else empty, and the
            coordinator asks for keys.
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
    """Read a place from an invitation, or `ProtocolError`."""
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


Stage = Literal[
    "join", "advertise", "share", "train", "confirm", "unmask", "claim", "personalise", "evaluate"
]
ROUND_STAGES: Final = ("advertise", "share", "train", "confirm", "unmask")
"""The stages of a round; `platform.wire.outside_rounds` explains the others."""
MAX_EXPERTS = 9_999
"""Most experts of one message, so that numbers of four digits keep their order."""


@dataclass(frozen=True)
class Invitation:
    """Asks a client to take part.

    Attributes:
        generations: Rounds whose pool entries are alive.
        secure: The client's place in the protocol, None without secure aggregation.
        clipping_norm: The norm of this round, if it adapts; None if the configuration fixes it.
    """

    envelope: Envelope
    generations: tuple[int, ...]
    secure: SecureRound | None
    clipping_norm: float | None = None


@dataclass(frozen=True)
class Answer:
    """Accepts an invitation.

    Attributes:
        handles: Names of the client's own live pool entries, newest first.
        payload: Its keys, or its shares if the invitation has all clients' keys; empty without
            secure aggregation.
    """

    envelope: Envelope
    handles: tuple[bytes, ...]
    payload: bytes


@dataclass(frozen=True)
class Relay:
    """A message of the secure aggregation protocol, which alone understands it.

    Attributes:
        payload: The protocol's bytes.
        ahead: The client's place in the first attempt at the next round, if the last message of
            this attempt asks for its keys; else None.
    """

    envelope: Envelope
    payload: bytes
    ahead: SecureRound | None = None


@dataclass(frozen=True)
class Assignment:
    """Tells a client from which arrays to train."""

    envelope: Envelope
    payload: bytes
    broadcast: Arrays
    experts: tuple[Arrays, ...]


@dataclass(frozen=True)
class Upload:
    """The protected update.

    Attributes:
        payload: The masked vector, empty without secure aggregation.
        vector: The vector in the clear without secure aggregation, else None: levels of the run's
            grid as uint64, or numbers if the mechanism does nothing to an update.
        weight: The client's weight, in the clear only beside `vector`; else 0.
    """

    envelope: Envelope
    payload: bytes
    vector: NDArray[np.float64] | NDArray[np.uint64] | None
    weight: int


@dataclass(frozen=True, kw_only=True)
class Disclosure:
    """A survivor's answer to the list of survivors.

    Attributes:
        payload: Shares that open the sum, empty without secure aggregation.
        handle: Name of the pool entry, empty without one.
        entry: The pool entry as protected: a difference to the broadcast, or absolute arrays under
            no mechanism.
        ahead: Keys for the next round, empty if the coordinator did not ask for keys.
    """

    envelope: Envelope
    payload: bytes
    handle: bytes
    entry: Arrays
    ahead: bytes = b""


def encode_invitation(message: Invitation) -> bytes:
    """Serialise an invitation."""
    secure = message.secure
    own = {
        "generations": list(message.generations),
        "secure": None if secure is None else secure_numbers(secure),
        "clipping_norm": message.clipping_norm,
    }
    blobs = {} if secure is None else secure_blobs(secure)
    return framed("invitation", message.envelope, own, blobs=blobs)


def decode_invitation(data: bytes) -> Invitation:
    """Read an invitation."""
    frame, envelope = opened(data, "invitation")
    numbers = frame.fields.get("secure")
    secure = None if numbers is None else read_secure(frame, numbers)
    norm = frame.fields.get("clipping_norm")
    if norm is not None and not isinstance(norm, float):
        raise ProtocolError("message: the clipping norm is not a number")
    generations = integers(frame.fields.get("generations"))
    return Invitation(envelope, generations, secure, norm)


def encode_answer(message: Answer) -> bytes:
    """Serialise an answer."""
    blobs = {f"handle/{i:04d}": handle for i, handle in enumerate(message.handles)}
    blobs["payload"] = message.payload
    return framed("answer", message.envelope, blobs=blobs)


def decode_answer(data: bytes) -> Answer:
    """Read an answer."""
    frame, envelope = opened(data, "answer")
    handles = tuple(frame.blobs[n] for n in sorted(frame.blobs) if n.startswith("handle/"))
    return Answer(envelope, handles, blob(frame, "payload"))


def encode_relay(message: Relay) -> bytes:
    """Serialise a relay."""
    own, blobs = {}, {"payload": message.payload}
    if message.ahead is not None:
        own["ahead"] = secure_numbers(message.ahead)
        blobs.update(secure_blobs(message.ahead))
    return framed("relay", message.envelope, own, blobs=blobs)


def decode_relay(data: bytes) -> Relay:
    """Read a relay."""
    frame, envelope = opened(data, "relay")
    numbers = frame.fields.get("ahead")
    ahead = None if numbers is None else read_secure(frame, numbers)
    return Relay(envelope, blob(frame, "payload"), ahead)


def encode_assignment(message: Assignment) -> bytes:
    """Serialise an assignment; refuse more experts than a message carries."""
    if len(message.experts) > MAX_EXPERTS:
        raise ProtocolError(f"message: it carries at most {MAX_EXPERTS} experts")
    arrays = {f"broadcast/{name}": value for name, value in message.broadcast.items()}
    for i, expert in enumerate(message.experts):
        arrays.update({f"expert/{i:04d}/{name}": value for name, value in expert.items()})
    own, blobs = {"experts": len(message.experts)}, {"payload": message.payload}
    return framed("assignment", message.envelope, own, arrays=arrays, blobs=blobs)


def decode_assignment(data: bytes) -> Assignment:
    """Read an assignment."""
    frame, envelope = opened(data, "assignment")
    (count,) = integers([frame.fields.get("experts")], 1)
    broadcast: dict[str, NDArray[Any]] = {}
    experts: dict[str, dict[str, NDArray[Any]]] = {}
    for name, value in frame.arrays.items():
        part, slash, rest = name.partition("/")
        number, second, tensor = rest.partition("/")
        if part == "broadcast" and slash:
            broadcast[rest] = value
        elif part == "expert" and second:
            experts.setdefault(number, {})[tensor] = value
        else:
            raise ProtocolError("message: an array belongs to no part of it")
    is_whole = count == len(experts) <= MAX_EXPERTS
    if not is_whole or any(f"{i:04d}" not in experts for i in range(count)):
        raise ProtocolError("message: an expert is missing")
    ordered = tuple(experts[f"{i:04d}"] for i in range(count))
    return Assignment(envelope, blob(frame, "payload"), broadcast, ordered)


def encode_upload(message: Upload) -> bytes:
    """Serialise an upload."""
    arrays = {} if message.vector is None else {"vector": message.vector}
    own, blobs = {"weight": message.weight}, {"payload": message.payload}
    return framed("upload", message.envelope, own, arrays=arrays, blobs=blobs)


def decode_upload(data: bytes) -> Upload:
    """Read an upload."""
    frame, envelope = opened(data, "upload")
    (weight,) = integers([frame.fields.get("weight")], 1)
    vector = frame.arrays.get("vector")
    if vector is not None and (vector.ndim != 1 or vector.dtype not in (np.float64, np.uint64)):
        raise ProtocolError("message: the vector is not flat")
    return Upload(envelope, blob(frame, "payload"), vector, weight)


def encode_disclosure(message: Disclosure) -> bytes:
    """Serialise a disclosure."""
    blobs = {"payload": message.payload, "handle": message.handle, "ahead": message.ahead}
    return framed("disclosure", message.envelope, arrays=message.entry, blobs=blobs)


def decode_disclosure(data: bytes) -> Disclosure:
    """Read a disclosure."""
    frame, envelope = opened(data, "disclosure")
    return Disclosure(
        envelope=envelope,
        payload=blob(frame, "payload"),
        handle=blob(frame, "handle"),
        entry=frame.arrays,
        ahead=blob(frame, "ahead"),
    )


def broadcast_digest(broadcast: Arrays, clipping_norm: float | None) -> bytes:
    """Return SHA-256 of the part of a round that is the same for all clients, which they sign.

    The clipping norm is that of the round, if it adapts.
    """
    frame = Frame("broadcast", {"clipping_norm": clipping_norm}, broadcast, {})
    return hashlib.sha256(encode_frame(frame)).digest()
