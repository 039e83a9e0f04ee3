"""Receipts: what the coordinator's log says of a client, handed to it after each round.

| from -> to            | message    | what                                                        |
|-----------------------|------------|-------------------------------------------------------------|
| coordinator -> client | `Enclosed` | a receipt, and the next round's first message beside it     |
| client -> coordinator | `Enclosed` | how far the client has seen the log, and the answer to that |

A receipt rides on what is sent anyway, so nobody waits for it. It holds the client's leaves since
the head that it has seen last, proofs that they are in the log, a proof that the log still begins
with what the client has seen, and the epsilon that the coordinator states for it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from platform.errors import ProtocolError
from platform.wire.codec import Frame, encode_frame
from platform.wire.envelopes import Envelope, blob, envelope_fields, integers, opened, peek

HASH_BYTES: Final = 32
MOST_LEAVES: Final = 4_096
MOST_TEXT: Final = 1 << 20
SIGNED: Final = b"sotto-receipt-v1\n"
SIGNATURE_BYTES: Final = 64
ADVERSARIES: Final = ("server", "peers", "observer")


@dataclass(frozen=True)
class ReceiptLeaf:
    """One leaf of the log that is of the client.

    Attributes:
        position: From 0.
        data: What it says.
        salt: With it the log shows a commitment in place of that; empty where it does not.
        proof: That it is in the tree of the receipt's checkpoint.
    """

    position: int
    data: bytes
    salt: bytes
    proof: tuple[bytes, ...]


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What the coordinator states of a client after a round.

    Attributes:
        envelope: The last round, and the attempt that gave its result.
        since: The size of the log that the client has seen last.
        key: The log's public key, as text.
        changes: How the log's key changed, oldest first.
        checkpoint: The log's head, signed.
        consistency: That its first `since` leaves are still what they were.
        leaves: All of the client in this run since then.
        epsilons: What it has spent in this run, by adversary; infinity where nothing is proven.
        delta: At which.
        accountant: Which accountant was asked for.
        signature: By the log's key, over all of this.
    """

    envelope: Envelope
    since: int
    key: str
    changes: tuple[str, ...]
    checkpoint: str
    consistency: tuple[bytes, ...]
    leaves: tuple[ReceiptLeaf, ...]
    epsilons: Mapping[str, float]
    delta: float
    accountant: str
    signature: bytes = b""


@dataclass(frozen=True)
class Witnessed:
    """How far a client has seen the log.

    Attributes:
        envelope: The receipt's.
        size: Of the newest tree that it has found to continue all that it saw before.
        key: The client's public key for that, as text.
        cosignature: The line by which it signs that; empty where it needs a proof from `size`.
    """

    envelope: Envelope
    size: int
    key: str
    cosignature: str


def signed_part(data: bytes) -> bytes:
    """Return what the signature at the end of a receipt is over."""
    return SIGNED + hashlib.sha256(data[:-SIGNATURE_BYTES]).digest()


def sign_receipt(receipt: Receipt, sign: Callable[[bytes], bytes]) -> bytes:
    """Serialise a receipt and sign it: the frame, and the signature after it."""
    frame = _encode(receipt)
    return frame + sign(SIGNED + hashlib.sha256(frame).digest())


def _encode(receipt: Receipt) -> bytes:
    stated = [receipt.epsilons[name] for name in ADVERSARIES]
    fields: dict[str, Any] = {
        **envelope_fields(receipt.envelope),
        "since": receipt.since,
        "leaves": [leaf.position for leaf in receipt.leaves],
        "salted": [index for index, leaf in enumerate(receipt.leaves) if leaf.salt],
        # JSON has no number for it.
        "epsilons": [None if math.isinf(value) else float(value) for value in stated],
        "delta": receipt.delta,
        "accountant": receipt.accountant,
        "changes": len(receipt.changes),
    }
    blobs = {
        "key": receipt.key.encode(),
        "checkpoint": receipt.checkpoint.encode(),
        "consistency": b"".join(receipt.consistency),
    }
    for index, leaf in enumerate(receipt.leaves):
        blobs[f"leaf/{index:04d}"] = leaf.data
        blobs[f"proof/{index:04d}"] = b"".join(leaf.proof)
        if leaf.salt:
            blobs[f"salt/{index:04d}"] = leaf.salt
    blobs |= {f"change/{i:04d}": note.encode() for i, note in enumerate(receipt.changes)}
    return encode_frame(Frame("receipt", fields, {}, blobs))


def decode_receipt(data: bytes) -> Receipt:
    """Read a receipt; whether it is true, and its signature holds, is another question.

    Raises:
        ProtocolError: If it is none, or not written in the one way that there is.
    """
    frame, envelope = opened(data[:-SIGNATURE_BYTES], "receipt")
    fields = frame.fields
    (since, changes) = integers([fields.get("since"), fields.get("changes")], 2)
    positions = integers(fields.get("leaves"))
    if len(positions) > MOST_LEAVES or changes > MOST_LEAVES:
        raise ProtocolError("message: a receipt has too many parts")
    delta, accountant = fields.get("delta"), fields.get("accountant")
    if not isinstance(delta, float) or not isinstance(accountant, str):
        raise ProtocolError("message: a receipt says at which delta, and by which accountant")
    receipt = Receipt(
        envelope=envelope,
        since=since,
        key=_text(frame, "key"),
        changes=tuple(_text(frame, f"change/{index:04d}") for index in range(changes)),
        checkpoint=_text(frame, "checkpoint"),
        consistency=_hashes(frame, "consistency"),
        leaves=tuple(_leaves(frame, positions)),
        epsilons=_epsilons(fields.get("epsilons")),
        delta=delta,
        accountant=accountant,
        signature=data[-SIGNATURE_BYTES:],
    )
    # Nothing may lie in it that nobody has looked at.
    if _encode(receipt) != data[:-SIGNATURE_BYTES]:
        raise ProtocolError("message: it carries what it has no room for")
    return receipt


def enclose(message: bytes, receipt: bytes) -> bytes:
    """Return a message that carries another and a receipt."""
    return _enclosed("enclosed", message, receipt)


def is_enclosed(message: bytes) -> bool:
    """Return whether a message carries another and a receipt.

    Raises:
        ProtocolError: If it does not parse.
    """
    return peek(message)[0] == "enclosed"


def bare(message: bytes) -> bytes:
    """Return the message that one carries beside a receipt, or one that carries none itself.

    Raises:
        ProtocolError: If it does not parse.
    """
    return unclose(message)[0] if is_enclosed(message) else message


def unclose(data: bytes) -> tuple[bytes, bytes]:
    """Return the message and the receipt that one carries.

    Raises:
        ProtocolError: If it carries none, or they are of different runs.
    """
    return _unclosed("enclosed", data)


def enclose_answer(reply: bytes, witnessed: Witnessed) -> bytes:
    """Return an answer that carries another, and how far its client has seen the log."""
    fields = {**envelope_fields(witnessed.envelope), "size": witnessed.size}
    blobs = {"cosignature": witnessed.cosignature.encode(), "key": witnessed.key.encode()}
    return _enclosed("answered", reply, encode_frame(Frame("witnessed", fields, {}, blobs)))


def unclose_answer(data: bytes) -> tuple[bytes, Witnessed | None]:
    """Return an answer, and how far its client has seen the log; None where it does not say so.

    Raises:
        ProtocolError: If it does not parse.
    """
    if peek(data)[0] != "answered":
        return data, None
    reply, said = _unclosed("answered", data)
    frame, envelope = opened(said, "witnessed")
    (size,) = integers([frame.fields.get("size")], 1)
    return reply, Witnessed(envelope, size, _text(frame, "key"), _text(frame, "cosignature"))


def _enclosed(kind: str, message: bytes, beside: bytes) -> bytes:
    # Under the message's own envelope, by which those on the way know what it belongs to.
    fields = envelope_fields(peek(message)[1])
    return encode_frame(Frame(kind, fields, {}, {"message": message, "beside": beside}))


def _unclosed(kind: str, data: bytes) -> tuple[bytes, bytes]:
    frame, envelope = opened(data, kind)
    message, beside = blob(frame, "message"), blob(frame, "beside")
    if peek(message)[1] != envelope or peek(beside)[1].run_id != envelope.run_id:
        raise ProtocolError("message: what it carries belongs elsewhere")
    if len(frame.blobs) != 2 or frame.arrays or peek(message)[0] == kind:
        raise ProtocolError("message: it carries what it has no room for")
    return message, beside


def _text(frame: Frame, name: str) -> str:
    data = blob(frame, name)
    try:
        if len(data) > MOST_TEXT:
            raise ProtocolError(f"message: {name} is too long")
        return data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"message: {name} is no text") from error


def _hashes(frame: Frame, name: str) -> tuple[bytes, ...]:
    data = blob(frame, name)
    if len(data) % HASH_BYTES:
        raise ProtocolError(f"message: {name} is no list of hashes")
    return tuple(data[at : at + HASH_BYTES] for at in range(0, len(data), HASH_BYTES))


def _leaves(frame: Frame, positions: Sequence[int]) -> Iterator[ReceiptLeaf]:
    salted = set(integers(frame.fields.get("salted")))
    for index, position in enumerate(positions):
        salt = blob(frame, f"salt/{index:04d}") if index in salted else b""
        data, proof = blob(frame, f"leaf/{index:04d}"), _hashes(frame, f"proof/{index:04d}")
        yield ReceiptLeaf(position, data, salt, proof)


def _epsilons(values: Any) -> dict[str, float]:
    is_list = isinstance(values, list) and len(values) == len(ADVERSARIES)
    if not is_list or not all(v is None or isinstance(v, float) for v in values):
        raise ProtocolError("message: a receipt states epsilon against three adversaries")
    if any(value is not None and value < 0 for value in values):
        raise ProtocolError("message: an epsilon is negative")
    return {n: math.inf if v is None else v for n, v in zip(ADVERSARIES, values, strict=True)}
