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
from operator import attrgetter
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
_CHARGED: Final = tuple(sorted({field.name for field in fields(LedgerRow)} - {"status"}))
_CLIPPING: Final = _CHARGED.index("clipping_norm")
_CHARGED_OF: Final = attrgetter(*_CHARGED)
_SETTLED: Final = ("attempt", "channel", "pseudonym", "round_number", "run_id", "status")
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

    Raises:
        ValueError: A number is not finite.
        TypeError: A fact is of a type that JSON has not.
    """
    facts = _CHARGED_OF(row)
    if row.clipping_norm == math.inf:
        facts = tuple(
            [
                "infinity" if n == "clipping_norm" else v
                for n, v in zip(_CHARGED, facts, strict=True)
            ]
        )
    return CHARGE_PREFIX + _object(_CHARGED, facts)


def settled_data(row: LedgerRow, status: str | None = None) -> bytes:
    """Return what a settlement's leaf says: which ledger row, and what its status became.

    Args:
        row: The row.
        status: What it became; None for the row's own.
    """
    key = (row.attempt, row.channel, row.pseudonym, row.round_number, row.run_id)
    return SETTLED_PREFIX + _object(_SETTLED, (*key, row.status if status is None else status))


def _object(names: Sequence[str], values: Sequence[Any]) -> bytes:
    """Return a JSON object, its names sorted, without blanks: as the encoder would write it.

    It takes several times as long, and leaves are most of what a log and its receipts are made of.
    """
    parts = []
    for name, value in zip(names, values, strict=True):
        kind = type(value)
        if kind is str:
            written = _quoted(value)
        elif kind is int or (kind is float and math.isfinite(value)):
            written = repr(value)
        else:
            written = "null" if value is None else _encode_object(value)
        parts.append(f'"{name}":{written}')
    return f"{{{','.join(parts)}}}".encode("ascii")


def sealed_data(run_id: str, data: bytes, salt: bytes) -> bytes:
    """Return what the log shows of a leaf that would tell who was drawn in secret.

    Only who is given the salt can tell what it commits to.
    """
    commitment = hashlib.sha256(salt + data).hexdigest()
    return SEALED_PREFIX + _encode_object({"run_id": run_id, "commitment": commitment}).encode()


def is_secret(row: LedgerRow) -> bool:
    """Return whether a row tells who was drawn where that is what the price rests on."""
    return row.cohort_kind is not None
