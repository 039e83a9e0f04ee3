"""Receipts: the coordinator's statement of its log, which a client gets after each round.

A receipt holds the client's leaves since the head that the client saw last, proofs that they are in
the log, a proof that the log still begins with what the client has seen, the digests of the uploads
that came from the client, and the epsilon that the coordinator states for it.

The coordinator signs all receipts of one stage at once: it signs the root of a tree (as RFC 9162
makes them) whose leaves are the receipts, and each receipt carries its proof. Each also has 32
random bytes, so that hashes of others' receipts tell nothing about them. The layout is a frame, the
proof's hashes, place and number of the stage's receipts, and the signature. Receipts of the first
version, each signed alone, can only be read.

A receipt travels with a message that the coordinator sends anyway, so it causes no wait:

| from -> to            | message    | content                                                     |
|-----------------------|------------|-------------------------------------------------------------|
| coordinator -> client | `Enclosed` | a receipt, and the next round's first message beside it     |
| client -> coordinator | `Answered` | how far the client has seen the log, and its answer         |
"""

from __future__ import annotations

import hashlib
import math
import secrets
import struct
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from platform.errors import ProtocolError
from platform.wire.codec import (
    Envelope,
    Frame,
    blob,
    decode_frame,
    encode_frame,
    framed,
    integers,
    opened,
    peek,
)
from storage.merkle import inclusion_proofs, leaf_hash, path_length, root_from_inclusion

HASH_BYTES: Final = 32
MOST_LEAVES: Final = 4_096
MOST_TEXT: Final = 1 << 20
SIGNED: Final = b"sotto-receipts-v2\n"
SIGNATURE_BYTES: Final = 64
ADVERSARIES: Final = ("server", "peers", "observer")
MOST_SENT: Final = 16
"""Uploads of one client whose digests both sides remember, the newest."""

_KIND: Final = "receipt-v2"
_BLIND_BYTES: Final = 32
_MOST_TOGETHER: Final = 1 << 32
_PLACE: Final = struct.Struct("<QQ")
_STATED: Final = struct.Struct("<3d")
_UPLOAD: Final = struct.Struct("<QQ32s")


@dataclass(frozen=True)
class ReceiptLeaf:
    """One leaf of the log that concerns the client.

    Attributes:
        position: The leaf's position in the log, from 0.
        data: The leaf's content.
        salt: The salt of the commitment that the log shows in place of the content; empty if the
            log shows the content.
        proof: Proves that the leaf is in the tree of the receipt's checkpoint.
    """

    position: int
    data: bytes
    salt: bytes
    proof: tuple[bytes, ...]


class UploadDigest(NamedTuple):
    """An upload as it was sent: its attempt, and SHA-256 of all its bytes."""

    round_number: int
    attempt: int
    digest: bytes


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """The coordinator's statement about a client after a round.

    Attributes:
        envelope: The last round, and the attempt that gave its result.
        since: The size at which the client saw the log last.
        key: The log's public key, as text.
        changes: How the log's key changed, oldest first.
        checkpoint: The log's head, signed.
        consistency: Proves that the first `since` leaves have not changed.
        leaves: All leaves of the client in this run since then.
        epsilons: The client's spending in this run, by adversary; infinity without a bound.
        accountant: The configured accountant.
        uploads: Uploads that came from the client since the receipt before, as far as the
            coordinator knows: a restart forgets earlier uploads.
        signed: The bytes under the signature; empty before it is signed.
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
    uploads: tuple[UploadDigest, ...] = ()
    signed: bytes = b""
    signature: bytes = b""


class _Common(NamedTuple):
    """The part that all receipts of a stage share, so it is written and read once."""

    key: str
    changes: tuple[str, ...]
    checkpoint: str
    delta: float
    accountant: str


def sign_receipts(receipts: Sequence[Receipt], sign: Callable[[bytes], bytes]) -> list[bytes]:
    """Serialise the receipts of one stage, and sign them all at once."""
    frames = [_encode(receipt, secrets.token_bytes(_BLIND_BYTES)) for receipt in receipts]
    root, proofs = inclusion_proofs([leaf_hash(frame) for frame in frames])
    count = len(frames)
    signature = sign(_signed(count, root))
    return [
        b"".join((frame, *proof, _PLACE.pack(place, count), signature))
        for place, (frame, proof) in enumerate(zip(frames, proofs, strict=True))
    ]


def decode_receipt(data: bytes) -> Receipt:
    """Read a receipt, or `ProtocolError`, without checking its statements or its signature."""
    frame_bytes, signed = _told_apart(data)
    frame, envelope = opened(frame_bytes, _KIND)
    count = integers([frame.fields.get("leaves")], 1)[0]
    salted = integers(frame.fields.get("salted"))
    if count > MOST_LEAVES:
        raise ProtocolError("message: a receipt has too many parts")
    try:
        since, *positions = struct.unpack(f"<{1 + count}Q", blob(frame, "positions"))
    except struct.error as error:
        raise ProtocolError("message: positions are not valid") from error
    # A receipt must not hold bytes that readers ignore.
    if list(salted) != sorted({index for index in salted if index < count}):
        raise ProtocolError("message: a receipt has salts for leaves that it does not hold")
    names = _names(count, salted)
    if frame.arrays or frame.fields.keys() != _FIELDS or frame.blobs.keys() != names:
        raise ProtocolError("message: its parts are not those of its kind")
    common = _read_common(blob(frame, "common"))
    return Receipt(
        envelope=envelope,
        since=since,
        key=common.key,
        changes=common.changes,
        checkpoint=common.checkpoint,
        consistency=hashes_of(frame, "consistency"),
        leaves=_leaves(frame, positions, salted),
        epsilons=_epsilons(blob(frame, "epsilons")),
        delta=common.delta,
        accountant=common.accountant,
        uploads=decode_uploads(blob(frame, "uploads")),
        signed=signed,
        signature=data[-SIGNATURE_BYTES:],
    )


def text_of(frame: Frame, name: str) -> str:
    """Return a text of a frame, or `ProtocolError`."""
    data = blob(frame, name)
    try:
        if len(data) > MOST_TEXT:
            raise ProtocolError(f"message: {name} is too long")
        return data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"message: {name} is no text") from error


def hashes_of(frame: Frame, name: str) -> tuple[bytes, ...]:
    """Return hashes that lie back to back in a frame, or `ProtocolError`."""
    data = blob(frame, name)
    if len(data) % HASH_BYTES:
        raise ProtocolError(f"message: {name} is no list of hashes")
    return _hashes(data)


def _hashes(data: bytes) -> tuple[bytes, ...]:
    return tuple([data[at : at + HASH_BYTES] for at in range(0, len(data), HASH_BYTES)])


def _signed(count: int, root: bytes) -> bytes:
    return SIGNED + b"%d\n" % count + root


def _told_apart(data: bytes) -> tuple[bytes, bytes]:
    """Return a receipt's frame, and the bytes that the signature at its end must cover."""
    end = len(data) - SIGNATURE_BYTES - _PLACE.size
    place, count = _PLACE.unpack_from(data, end) if end > 0 else (0, 0)
    if not place < count <= _MOST_TOGETHER:
        raise ProtocolError("message: a receipt's place among its stage's receipts is not valid")
    start = end - HASH_BYTES * path_length(place, count)
    if start <= 0:
        raise ProtocolError("message: it is cut off")
    root = root_from_inclusion(leaf_hash(data[:start]), place, count, _hashes(data[start:end]))
    if root is None:
        raise ProtocolError("message: a receipt is not among those that were signed with it")
    return data[:start], _signed(count, root)


def _encode(receipt: Receipt, blind: bytes) -> bytes:
    leaves = receipt.leaves
    # Numbers are bytes, so that receipts of one shape have one header.
    own = {
        "leaves": len(leaves),
        "salted": [index for index, leaf in enumerate(leaves) if leaf.salt],
    }
    positions = (receipt.since, *[leaf.position for leaf in leaves])
    blobs = {
        "blind": blind,
        "common": _write_common(
            _Common(
                receipt.key, receipt.changes, receipt.checkpoint, receipt.delta, receipt.accountant
            )
        ),
        "consistency": b"".join(receipt.consistency),
        "epsilons": _STATED.pack(*[receipt.epsilons[name] for name in ADVERSARIES]),
        "positions": struct.pack(f"<{len(positions)}Q", *positions),
        "uploads": encode_uploads(receipt.uploads),
    }
    for index, leaf in enumerate(leaves):
        blobs[f"leaf/{index:04d}"] = leaf.data
        blobs[f"proof/{index:04d}"] = b"".join(leaf.proof)
        if leaf.salt:
            blobs[f"salt/{index:04d}"] = leaf.salt
    return framed(_KIND, receipt.envelope, own, blobs=blobs)


@lru_cache(maxsize=8)
def _write_common(common: _Common) -> bytes:
    fields = {
        "changes": len(common.changes),
        "delta": common.delta,
        "accountant": common.accountant,
    }
    blobs = {"key": common.key.encode(), "checkpoint": common.checkpoint.encode()}
    blobs |= {f"change/{i:04d}": note.encode() for i, note in enumerate(common.changes)}
    return encode_frame(Frame("receipt-common", fields, {}, blobs))


@lru_cache(maxsize=8)
def _read_common(data: bytes) -> _Common:
    frame = decode_frame(data)
    if frame.kind != "receipt-common":
        raise ProtocolError(f"message: receipt-common was expected, not {frame.kind!r}")
    changes = integers([frame.fields.get("changes")], 1)[0]
    delta, accountant = frame.fields.get("delta"), frame.fields.get("accountant")
    if changes > MOST_LEAVES:
        raise ProtocolError("message: a receipt has too many parts")
    if not isinstance(delta, float) or not isinstance(accountant, str):
        raise ProtocolError("message: a receipt must state its delta and its accountant")
    names = [f"change/{index:04d}" for index in range(changes)]
    common = _Common(
        text_of(frame, "key"),
        tuple(text_of(frame, name) for name in names),
        text_of(frame, "checkpoint"),
        delta,
        accountant,
    )
    # The part must not hold bytes that readers ignore.
    if _write_common(common) != data:
        raise ProtocolError("message: the common part of receipts has another form")
    return common


@lru_cache(maxsize=64)
def _names(count: int, salted: tuple[int, ...]) -> frozenset[str]:
    parts = {f"{kind}/{index:04d}" for kind in ("leaf", "proof") for index in range(count)}
    return _PARTS | parts | {f"salt/{index:04d}" for index in salted}


_FIELDS: Final = {"run_id", "round", "attempt", "committed", "leaves", "salted"}
_PARTS: Final = frozenset({"blind", "common", "consistency", "epsilons", "positions", "uploads"})


def _leaves(
    frame: Frame, positions: Sequence[int], salted: Sequence[int]
) -> tuple[ReceiptLeaf, ...]:
    return tuple(
        ReceiptLeaf(
            position,
            blob(frame, f"leaf/{index:04d}"),
            blob(frame, f"salt/{index:04d}") if index in salted else b"",
            hashes_of(frame, f"proof/{index:04d}"),
        )
        for index, position in enumerate(positions)
    )


def _epsilons(data: bytes) -> dict[str, float]:
    if len(data) != _STATED.size:
        raise ProtocolError("message: a receipt must state epsilon against three adversaries")
    values = _STATED.unpack(data)
    # A NaN compares false.
    if not all(value >= 0 for value in values):
        raise ProtocolError("message: an epsilon is negative, or no number")
    return dict(zip(ADVERSARIES, values, strict=True))


def encode_uploads(uploads: Sequence[UploadDigest]) -> bytes:
    """Serialise digests of uploads."""
    return b"".join([_UPLOAD.pack(*upload) for upload in uploads])


def decode_uploads(data: bytes) -> tuple[UploadDigest, ...]:
    """Read digests of uploads, or `ProtocolError`."""
    if len(data) % _UPLOAD.size or len(data) > MOST_LEAVES * _UPLOAD.size:
        raise ProtocolError("message: the uploads of a receipt are not valid")
    return tuple([UploadDigest(*values) for values in _UPLOAD.iter_unpack(data)])


@dataclass(frozen=True)
class Witnessed:
    """How far a client has seen the log.

    Attributes:
        size: Size of the newest tree that continues all trees that the client saw before.
        key: The client's public key for cosignatures, as text.
        cosignature: The line that signs the tree; empty if the client needs a proof from `size`.
    """

    size: int
    key: str
    cosignature: str


def enclose(message: bytes, receipt: bytes) -> bytes:
    """Return a message that carries another message and a receipt."""
    # The frame has the message's own envelope, so that relays know its run and attempt.
    envelope, blobs = peek(message)[1], {"message": message, "beside": receipt}
    return framed("enclosed", envelope, blobs=blobs)


def is_enclosed(message: bytes) -> bool:
    """Return whether a message carries another message and a receipt, or `ProtocolError`."""
    return peek(message)[0] == "enclosed"


def bare(message: bytes) -> bytes:
    """Return the inner message of an enclosed message; another message is returned itself."""
    return unclose(message)[0] if is_enclosed(message) else message


def unclose(data: bytes) -> tuple[bytes, bytes]:
    """Return the message and the receipt, of one run, in an enclosed message."""
    frame, message = _unclosed(data, "enclosed", _ENCLOSED)
    receipt = frame.blobs["beside"]
    if peek(receipt)[1].run_id != peek(message)[1].run_id:
        raise ProtocolError("message: its receipt belongs to another run")
    return message, receipt


def enclose_answer(reply: bytes, witnessed: Witnessed) -> bytes:
    """Return an answer together with how far its client has seen the log."""
    blobs = {
        "message": reply,
        "cosignature": witnessed.cosignature.encode(),
        "key": witnessed.key.encode(),
    }
    return framed("answered", peek(reply)[1], {"size": witnessed.size}, blobs=blobs)


def unclose_answer(data: bytes) -> tuple[bytes, Witnessed | None]:
    """Return an answer, and how far its client has seen the log; None if it does not say."""
    if peek(data)[0] != "answered":
        return data, None
    frame, reply = _unclosed(data, "answered", _ANSWERED)
    (size,) = integers([frame.fields.get("size")], 1)
    return reply, Witnessed(size, text_of(frame, "key"), text_of(frame, "cosignature"))


def _unclosed(data: bytes, kind: str, names: Set[str]) -> tuple[Frame, bytes]:
    frame, envelope = opened(data, kind)
    if frame.blobs.keys() != names or frame.arrays:
        raise ProtocolError("message: its parts are not those of its kind")
    message = frame.blobs["message"]
    inner, its_envelope = peek(message)
    if its_envelope != envelope or inner == kind:
        raise ProtocolError("message: its inner message is of another attempt or kind")
    return frame, message


_ENCLOSED: Final = frozenset({"message", "beside"})
_ANSWERED: Final = frozenset({"message", "cosignature", "key"})


FIRST_SIGNED: Final = b"sotto-receipt-v1\n"
_FIRST_KIND: Final = "receipt"
_FIRST_FIELDS: Final = frozenset(
    {
        *("run_id", "round", "attempt", "committed"),
        *("since", "leaves", "salted", "epsilons", "delta", "accountant", "changes"),
    }
)


def decode_kept(data: bytes) -> Receipt:
    """Read a receipt of either version, or `ProtocolError`."""
    if peek(data)[0] != _FIRST_KIND:
        return decode_receipt(data)
    frame, envelope = opened(data[:-SIGNATURE_BYTES], _FIRST_KIND)
    fields = frame.fields
    (since, changes) = integers([fields.get("since"), fields.get("changes")], 2)
    positions, salted = integers(fields.get("leaves")), integers(fields.get("salted"))
    if len(positions) > MOST_LEAVES or changes > MOST_LEAVES:
        raise ProtocolError("message: a receipt has too many parts")
    delta, accountant = fields.get("delta"), fields.get("accountant")
    if not isinstance(delta, float) or not isinstance(accountant, str):
        raise ProtocolError("message: a receipt must state its delta and its accountant")
    names = {"key", "checkpoint", "consistency", *(f"change/{i:04d}" for i in range(changes))}
    names |= {f"{kind}/{i:04d}" for kind in ("leaf", "proof") for i in range(len(positions))}
    names |= {f"salt/{i:04d}" for i in salted}
    if frame.arrays or fields.keys() != _FIRST_FIELDS or frame.blobs.keys() != names:
        raise ProtocolError("message: its parts are not those of its kind")
    values = fields["epsilons"]
    is_list = isinstance(values, list) and len(values) == len(ADVERSARIES)
    if not is_list or not all(v is None or isinstance(v, float) for v in values):
        raise ProtocolError("message: a receipt must state epsilon against three adversaries")
    if any(value is not None and value < 0 for value in values):
        raise ProtocolError("message: an epsilon is negative")
    stated = [math.inf if value is None else value for value in values]
    return Receipt(
        envelope=envelope,
        since=since,
        key=text_of(frame, "key"),
        changes=tuple(text_of(frame, f"change/{index:04d}") for index in range(changes)),
        checkpoint=text_of(frame, "checkpoint"),
        consistency=hashes_of(frame, "consistency"),
        leaves=_leaves(frame, positions, salted),
        epsilons=dict(zip(ADVERSARIES, stated, strict=True)),
        delta=delta,
        accountant=accountant,
        signed=FIRST_SIGNED + hashlib.sha256(data[:-SIGNATURE_BYTES]).digest(),
        signature=data[-SIGNATURE_BYTES:],
    )
