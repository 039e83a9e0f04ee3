"""What a leaf of the log says, byte by byte: an event, a charge, or how a charge was settled.

Each kind begins with a marker of its own, so no leaf of one kind can be read as one of another.
Changing what is said, or how, needs a new marker.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any, Final

from storage.records import LedgerRow

EVENT_PREFIX: Final = b"sotto-audit-v1\n"
CHARGE_PREFIX: Final = b"sotto-charge-v1\n"
SETTLED_PREFIX: Final = b"sotto-settled-v1\n"
SEALED_PREFIX: Final = b"sotto-sealed-v1\n"
SALT_BYTES: Final = 32

_quoted: Final = json.encoder.encode_basestring_ascii
# Few names stand in many events.
_known: Final = lru_cache(maxsize=1024)(_quoted)
_CHARGED: Final = tuple(field.name for field in fields(LedgerRow) if field.name != "status")
_encode_array: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode
_encode_object: Final = json.JSONEncoder(
    separators=(",", ":"), ensure_ascii=True, sort_keys=True, allow_nan=False
).encode


def event_data(previous: str, values: Sequence[Any]) -> bytes:
    """Return what an event's leaf and its place in the run's chain are hashed of.

    A JSON array in ASCII with a fixed order and number of items is read back in one way only, so
    no two different rows have the same encoding.

    Args:
        previous: The hash of the event before it in the run.
        values: Sequence, run, actor, action, round, channel, time and detail.
    """
    sequence, run, actor, action, round_number, channel, moment, detail = values
    plain = (run, actor, action, moment, detail, previous)
    numbers = (sequence, 0 if round_number is None else round_number)
    if set(map(type, plain)) != {str} or set(map(type, numbers)) != {int}:
        # What none of ours holds; bytes are refused here.
        return EVENT_PREFIX + _encode_array([previous, *values]).encode("ascii")
    # The same text as the encoder's, which takes several times as long.
    written = "null" if round_number is None else str(round_number)
    return (
        f"sotto-audit-v1\n[{_quoted(previous)},{sequence},{_known(run)},{_known(actor)},"
        f"{_known(action)},{written},{'null' if channel is None else _known(channel)},"
        f"{_quoted(moment)},{_quoted(detail)}]"
    ).encode("ascii")


def charge_data(row: LedgerRow) -> bytes:
    """Return what a charge's leaf says: all facts of a ledger row but its status.

    A clipping norm that nothing bounds is the text ``infinity``, which JSON has no number for.
    """
    facts: dict[str, Any] = {name: getattr(row, name) for name in _CHARGED}
    if math.isinf(row.clipping_norm):
        facts["clipping_norm"] = "infinity"
    return CHARGE_PREFIX + _encode_object(facts).encode("ascii")


def settled_data(row: LedgerRow) -> bytes:
    """Return what a settlement's leaf says: which ledger row, and what its status became."""
    facts = {
        "run_id": row.run_id,
        "round_number": row.round_number,
        "attempt": row.attempt,
        "pseudonym": row.pseudonym,
        "channel": row.channel,
        "status": row.status,
    }
    return SETTLED_PREFIX + _encode_object(facts).encode("ascii")


def sealed_data(run_id: str, data: bytes, salt: bytes) -> bytes:
    """Return what the log shows of a leaf that would tell who was drawn in secret.

    Only who is given the salt can tell what it commits to.
    """
    commitment = hashlib.sha256(salt + data).hexdigest()
    return SEALED_PREFIX + _encode_object({"run_id": run_id, "commitment": commitment}).encode()


def is_secret(row: LedgerRow) -> bool:
    """Return whether a row tells who was drawn where that is what the price rests on."""
    return row.cohort_kind is not None
