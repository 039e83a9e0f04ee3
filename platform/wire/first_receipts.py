"""Receipts as they were at first, each signed alone; they stay what they are, and are only read."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from platform.errors import ProtocolError
from platform.wire.codec import Frame
from platform.wire.envelopes import blob, integers, opened, peek
from platform.wire.receipts import (
    ADVERSARIES,
    MOST_LEAVES,
    SIGNATURE_BYTES,
    Receipt,
    ReceiptLeaf,
    decode_receipt,
    hashes_of,
    text_of,
)

SIGNED: Final = b"sotto-receipt-v1\n"
_KIND: Final = "receipt"
_FIELDS: Final = frozenset(
    {
        *("run_id", "round", "attempt", "committed"),
        *("since", "leaves", "salted", "epsilons", "delta", "accountant", "changes"),
    }
)


def decode_kept(data: bytes) -> Receipt:
    """Read a receipt of any version that there was.

    Raises:
        ProtocolError: If it is none, or carries what it has no room for.
    """
    return _decode(data) if peek(data)[0] == _KIND else decode_receipt(data)


def _decode(data: bytes) -> Receipt:
    frame, envelope = opened(data[:-SIGNATURE_BYTES], _KIND)
    fields = frame.fields
    (since, changes) = integers([fields.get("since"), fields.get("changes")], 2)
    positions, salted = integers(fields.get("leaves")), integers(fields.get("salted"))
    if len(positions) > MOST_LEAVES or changes > MOST_LEAVES:
        raise ProtocolError("message: a receipt has too many parts")
    delta, accountant = fields.get("delta"), fields.get("accountant")
    if not isinstance(delta, float) or not isinstance(accountant, str):
        raise ProtocolError("message: a receipt says at which delta, and by which accountant")
    names = {"key", "checkpoint", "consistency", *(f"change/{i:04d}" for i in range(changes))}
    names |= {f"{kind}/{i:04d}" for kind in ("leaf", "proof") for i in range(len(positions))}
    names |= {f"salt/{i:04d}" for i in salted}
    if frame.arrays or fields.keys() != _FIELDS or frame.blobs.keys() != names:
        raise ProtocolError("message: it carries what it has no room for")
    return Receipt(
        envelope=envelope,
        since=since,
        key=text_of(frame, "key"),
        changes=tuple(text_of(frame, f"change/{index:04d}") for index in range(changes)),
        checkpoint=text_of(frame, "checkpoint"),
        consistency=hashes_of(frame, "consistency"),
        leaves=tuple(_leaves(frame, positions, salted)),
        epsilons=_epsilons(fields["epsilons"]),
        delta=delta,
        accountant=accountant,
        signed=SIGNED + hashlib.sha256(data[:-SIGNATURE_BYTES]).digest(),
        signature=data[-SIGNATURE_BYTES:],
    )


def _leaves(frame: Frame, positions: Sequence[int], salted: Sequence[int]) -> Iterator[ReceiptLeaf]:
    for index, position in enumerate(positions):
        salt = blob(frame, f"salt/{index:04d}") if index in salted else b""
        data, proof = blob(frame, f"leaf/{index:04d}"), hashes_of(frame, f"proof/{index:04d}")
        yield ReceiptLeaf(position, data, salt, proof)


def _epsilons(values: Any) -> dict[str, float]:
    is_list = isinstance(values, list) and len(values) == len(ADVERSARIES)
    if not is_list or not all(v is None or isinstance(v, float) for v in values):
        raise ProtocolError("message: a receipt states epsilon against three adversaries")
    if any(value is not None and value < 0 for value in values):
        raise ProtocolError("message: an epsilon is negative")
    return {n: math.inf if v is None else v for n, v in zip(ADVERSARIES, values, strict=True)}
