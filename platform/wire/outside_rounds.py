"""The messages of coordinator and clients before the first round and after the last.

| stage       | coordinator -> client                     | client -> coordinator              |
|-------------|-------------------------------------------|------------------------------------|
| offer       | `Offer`: configuration and facts          | `Acceptance`: or the reasons       |
| join        | a roll call                               | `Introduction`: name, key, attempt |
| claim       | a notice: the pool is made                | `Claim`: name of its own entry     |
| personalise | `Parting`: last broadcast, all experts    | `Personalised`: that it is done    |
| evaluate    | `Examination`: broadcast, names of sets   | `Scores`: counts, expert weights   |
| any         | any message                               | `Left`: it has left, under its key |

An offer is a configuration, which is data: the client reads it by the closed schema, checks it
against its own limits, and derives all the rest by itself. The offer also states the facts on which
both sides must agree, because otherwise their sums have no meaning.

Only `Scores` depend on a client's data, and only a simulated client gives them: they are the
experimenter's view of a federation, and not part of the federation.

A client that has left a run for good answers every further message of that run with `Left`. The
statement names the run and the client, so it is valid in no other run and for no other client. It
has no time and nothing of the message that it answers, so its bytes are always the same, and its
owner may hand it over as a file.

Each decoder raises `ProtocolError` if the bytes are not a valid message of its kind.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from platform.errors import ProtocolError
from platform.wire.codec import (
    MAX_NAME,
    Arrays,
    Attempt,
    Envelope,
    Frame,
    blob,
    framed,
    integers,
    opened,
)
from platform.wire.layout import Fetched

LONGEST_CONFIG: Final = 1 << 20
_MOST_REASONS: Final = 32
_LONGEST_REASON: Final = 1024
_LONGEST_FACT: Final = 256


@dataclass(frozen=True)
class Facts:
    """The facts that must be the same on both sides.

    Attributes:
        model: Digest of the frozen model's weights and image preprocessing; empty without a model.
        method: Digest of the method's file; empty for a packaged method.
    """

    version: str
    model: str
    method: str


@dataclass(frozen=True)
class Offer:
    """Asks a client to take part in a run.

    Attributes:
        config: The run's configuration, canonical JSON without any path of the coordinator's.
    """

    envelope: Envelope
    config: bytes
    facts: Facts


@dataclass(frozen=True)
class Acceptance:
    """A client's answer to an offer.

    Attributes:
        reasons: Why it does not take part, naming settings and never data; empty if it does.
    """

    envelope: Envelope
    reasons: tuple[str, ...]


def encode_offer(message: Offer) -> bytes:
    """Serialise an offer."""
    own, config = asdict(message.facts), {"config": message.config}
    return framed("offer", message.envelope, own, blobs=config)


def decode_offer(data: bytes) -> Offer:
    """Read an offer."""
    frame, envelope = opened(data, "offer")
    if (envelope.round_number, envelope.attempt, envelope.committed) != (0, 0, None):
        raise ProtocolError("message: a run is offered before the first round")
    config = blob(frame, "config")
    if len(config) > LONGEST_CONFIG:
        raise ProtocolError("message: the configuration is too long")
    named = {name: _fact(frame.fields, name) for name in ("version", "model", "method")}
    return Offer(envelope, config, Facts(**named))


def encode_acceptance(message: Acceptance) -> bytes:
    """Serialise an answer to an offer."""
    reasons = [reason[:_LONGEST_REASON] for reason in message.reasons[:_MOST_REASONS]]
    return framed("acceptance", message.envelope, {"reasons": reasons})


def decode_acceptance(data: bytes) -> Acceptance:
    """Read an answer to an offer."""
    frame, envelope = opened(data, "acceptance")
    reasons = frame.fields.get("reasons")
    if not isinstance(reasons, list) or len(reasons) > _MOST_REASONS:
        raise ProtocolError("message: the reasons are not valid")
    for reason in reasons:
        # The reasons are shown on terminals.
        if not isinstance(reason, str) or not reason.isprintable():
            raise ProtocolError("message: a reason is not a sentence")
        if len(reason) > _LONGEST_REASON:
            raise ProtocolError("message: a reason is too long")
    return Acceptance(envelope, tuple(reasons))


def _fact(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or len(value) > _LONGEST_FACT or not (value + "x").isprintable():
        raise ProtocolError(f"message: {name} is missing")
    return value


Tally = tuple[int, int]
"""Test images whose class was found, and all test images."""


@dataclass(frozen=True)
class Introduction:
    """Says who a client is.

    Attributes:
        pseudonym: The name that ledger and audit log use.
        public_key: Its enrolled key in an active round; else empty.
        newest: The newest attempt of the run that it has answered, None before its first.
    """

    envelope: Envelope
    pseudonym: str
    public_key: bytes = b""
    newest: Attempt | None = None


@dataclass(frozen=True)
class Claim:
    """Names a client's own entry, which may be missing from the pool."""

    envelope: Envelope
    handle: bytes


@dataclass(frozen=True)
class Parting:
    """Asks a client to personalise, after the run's last release.

    Attributes:
        envelope: The attempt under which the client keeps the result, with the last commit that the
            client is part of.
        fetched: The experts of a pool that is made once; None if the client keeps its last experts.
    """

    envelope: Envelope
    broadcast: Arrays
    fetched: Fetched | None


@dataclass(frozen=True)
class Personalised:
    """Says that the result is kept on the client.

    Attributes:
        is_new: Whether the client personalised now; False if it had done so before.
    """

    envelope: Envelope
    is_new: bool


@dataclass(frozen=True)
class Examination:
    """Asks a simulated client to measure its own model on its own examples.

    Attributes:
        envelope: With the commit whose personal part is measured.
        broadcast: The broadcast after that commit.
        sets: Names of the sets to measure on.
        weighs: Whether to return the mean weights of experts.
    """

    envelope: Envelope
    broadcast: Arrays
    sets: tuple[str, ...]
    weighs: bool = False


@dataclass(frozen=True)
class Scores:
    """A simulated client's measurements.

    Attributes:
        tallies: Images found and images in all, on each set.
        weights: Mean weight of each expert on the client's own test images; None if the examination
            did not ask, or the client has no experts.
        after: The commit whose personal part was measured, None before any. It is newer than the
            examination's if the client has gone on.
    """

    envelope: Envelope
    tallies: Mapping[str, Tally]
    weights: NDArray[np.float64] | None
    after: Attempt | None


def encode_roll_call(envelope: Envelope) -> bytes:
    """Serialise a roll call, which asks a client to introduce itself; its envelope has round 0."""
    return framed("roll_call", envelope)


def encode_introduction(message: Introduction) -> bytes:
    """Serialise an introduction."""
    newest = None if message.newest is None else list(message.newest)
    own, key = {"pseudonym": message.pseudonym, "newest": newest}, message.public_key
    return framed("introduction", message.envelope, own, blobs={"public_key": key})


def decode_introduction(data: bytes) -> Introduction:
    """Read an introduction."""
    frame, envelope = opened(data, "introduction")
    pseudonym = frame.fields.get("pseudonym")
    # The pseudonym is shown in ledgers, logs and on terminals.
    if not isinstance(pseudonym, str) or not 0 < len(pseudonym) <= MAX_NAME:
        raise ProtocolError("message: the pseudonym is missing")
    if not pseudonym.isprintable():
        raise ProtocolError("message: the pseudonym is not a name")
    return Introduction(envelope, pseudonym, blob(frame, "public_key"), _attempt(frame, "newest"))


def _attempt(frame: Frame, name: str) -> Attempt | None:
    if frame.fields.get(name) is None:
        return None
    round_number, attempt = integers(frame.fields[name], 2)
    return round_number, attempt


def encode_pool_notice(envelope: Envelope) -> bytes:
    """Serialise a notice that the pool is made; it asks a client to name its own entry."""
    return framed("pool_notice", envelope)


def encode_claim(message: Claim) -> bytes:
    """Serialise a claim."""
    return framed("claim", message.envelope, blobs={"handle": message.handle})


def decode_claim(data: bytes) -> Claim:
    """Read a claim."""
    frame, envelope = opened(data, "claim")
    return Claim(envelope, blob(frame, "handle"))


def encode_parting(message: Parting) -> bytes:
    """Serialise a parting; experts have equal shapes, so each tensor is one stacked array."""
    arrays = {f"broadcast/{name}": value for name, value in message.broadcast.items()}
    fetched, pool = message.fetched, None
    if fetched is not None:
        pool = [len(fetched.experts), 0 if fetched.own is None else fetched.own + 1]
        names = fetched.experts[0] if fetched.experts else ()
        stacked = {n: np.stack([expert[n] for expert in fetched.experts]) for n in names}
        arrays.update({f"expert/{name}": value for name, value in stacked.items()})
    return framed("parting", message.envelope, {"pool": pool}, arrays=arrays)


def decode_parting(data: bytes) -> Parting:
    """Read a parting."""
    frame, envelope = opened(data, "parting")
    broadcast, stacked = _parts(frame.arrays)
    pool = frame.fields.get("pool")
    if pool is None:
        if stacked:
            raise ProtocolError("message: it has experts, but no pool")
        return Parting(envelope, broadcast, None)
    count, place = integers(pool, 2)
    if place > count or any(not v.ndim or len(v) != count for v in stacked.values()):
        raise ProtocolError("message: an expert is missing")
    if count and not stacked:
        raise ProtocolError("message: an expert is missing")
    experts = tuple({n: v[i] for n, v in stacked.items()} for i in range(count))
    return Parting(envelope, broadcast, Fetched(experts, place - 1 if place else None))


def encode_personalised(message: Personalised) -> bytes:
    """Serialise the answer to a parting."""
    return framed("personalised", message.envelope, {"is_new": message.is_new})


def decode_personalised(data: bytes) -> Personalised:
    """Read the answer to a parting."""
    frame, envelope = opened(data, "personalised")
    return Personalised(envelope, _truth(frame, "is_new"))


def encode_examination(message: Examination) -> bytes:
    """Serialise an examination."""
    arrays = {f"broadcast/{name}": value for name, value in message.broadcast.items()}
    own = {"sets": list(message.sets), "weighs": message.weighs}
    return framed("examination", message.envelope, own, arrays=arrays)


def decode_examination(data: bytes) -> Examination:
    """Read an examination."""
    frame, envelope = opened(data, "examination")
    broadcast, experts = _parts(frame.arrays)
    names = frame.fields.get("sets")
    if experts or not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise ProtocolError("message: the names of sets are not valid")
    return Examination(envelope, broadcast, tuple(names), _truth(frame, "weighs"))


def encode_scores(message: Scores) -> bytes:
    """Serialise scores."""
    own = {
        "tallies": {name: list(tally) for name, tally in message.tallies.items()},
        "after": None if message.after is None else list(message.after),
    }
    arrays = {} if message.weights is None else {"weights": message.weights}
    return framed("scores", message.envelope, own, arrays=arrays)


def decode_scores(data: bytes) -> Scores:
    """Read scores."""
    frame, envelope = opened(data, "scores")
    told = frame.fields.get("tallies")
    if not isinstance(told, dict):
        raise ProtocolError("message: the counts are missing")
    tallies: dict[str, Tally] = {}
    for name, numbers in told.items():
        right, count = integers(numbers, 2)
        if right > count:
            raise ProtocolError("message: a count is not one of test images")
        tallies[name] = (right, count)
    weights = frame.arrays.get("weights")
    if weights is not None and (weights.ndim != 1 or weights.dtype != np.float64):
        raise ProtocolError("message: the weights of experts are not flat")
    return Scores(envelope, tallies, weights, _attempt(frame, "after"))


def decode_bare(data: bytes, kind: Literal["roll_call", "pool_notice"]) -> Envelope:
    """Read a message that is its envelope alone."""
    frame, envelope = opened(data, kind)
    if frame.arrays or frame.blobs:
        raise ProtocolError("message: its parts are not those of its kind")
    return envelope


def _truth(frame: Frame, name: str) -> bool:
    value = frame.fields.get(name)
    if not isinstance(value, bool):
        raise ProtocolError(f"message: {name} is missing")
    return value


def _parts(arrays: Arrays) -> tuple[Arrays, Arrays]:
    """Return broadcast and stacked experts."""
    parts: dict[str, dict[str, NDArray[np.generic]]] = {"broadcast": {}, "expert": {}}
    for name, value in arrays.items():
        part, slash, rest = name.partition("/")
        if part not in parts or not slash:
            raise ProtocolError("message: an array belongs to no part of it")
        parts[part][rest] = value
    return parts["broadcast"], parts["expert"]


KIND: Final = "left"
_SIGNED: Final = b"sotto/leaving/v1\n"
_SIGNATURES: Final = (0, 64)
"""Bytes of a signature; 0 if clients have no keys."""


@dataclass(frozen=True)
class Left:
    """Says that a client has left a run for good.

    Attributes:
        pseudonym: Its name in ledger and audit log.
        signature: Of `digest`, under the client's identity key; empty without one.
    """

    run_id: str
    client: str
    pseudonym: str
    signature: bytes = b""

    @property
    def digest(self) -> bytes:
        """The signed digest: SHA-256 of a marker, the run, the client and its pseudonym."""
        text = json.dumps([self.run_id, self.client, self.pseudonym], separators=(",", ":"))
        return hashlib.sha256(_SIGNED + text.encode("ascii")).digest()


def encode_left(message: Left) -> bytes:
    """Serialise a statement of leaving; its envelope has round 0."""
    own = {"client": message.client, "pseudonym": message.pseudonym}
    envelope, signature = Envelope(message.run_id, 0, 0), {"signature": message.signature}
    return framed(KIND, envelope, own, blobs=signature)


def decode_left(data: bytes) -> Left:
    """Read a statement of leaving, without checking its signature."""
    frame, envelope = opened(data, KIND)
    if envelope != Envelope(envelope.run_id, 0, 0) or frame.arrays or len(frame.blobs) > 1:
        raise ProtocolError("message: its parts are not those of its kind")
    names: list[str] = []
    for field in ("client", "pseudonym"):
        name = frame.fields.get(field)
        # The names are shown in logs and on terminals.
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
            raise ProtocolError(f"message: the {field} is missing")
        names.append(name)
    signature = blob(frame, "signature")
    if len(signature) not in _SIGNATURES:
        raise ProtocolError("message: the signature has not 0 or 64 bytes")
    return Left(envelope.run_id, names[0], names[1], signature)
