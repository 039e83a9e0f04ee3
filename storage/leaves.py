"""Leaves of the log: what each of them says, byte by byte, and its place in the one tree.

A leaf is an event, a charge, or the settlement of a charge. Each kind begins with its own marker,
so a leaf of one kind can never be read as another kind. A change of contents or encoding needs a
new marker.

Rows are only ever added (triggers enforce it). A leaf names its row, and the hash is of that row,
so a row that is changed later no longer fits its leaf. The settlement of a charge is a leaf of its
own, because the status is the one column of a ledger row that changes.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, Final

from storage.engine import Statements
from storage.errors import LogBroken
from storage.merkle import TILE_HEIGHT, completed, leaf_hash
from storage.records import LeafKind, LedgerRow

EVENT_PREFIX: Final = b"sotto-audit-v1\n"
CHARGE_PREFIX: Final = b"sotto-charge-v1\n"
SETTLED_PREFIX: Final = b"sotto-settled-v1\n"
SEALED_PREFIX: Final = b"sotto-sealed-v1\n"
SALT_BYTES: Final = 32

_quoted: Final = json.encoder.encode_basestring_ascii
# The same few names occur in many events.
_known: Final = lru_cache(maxsize=1024)(_quoted)
_CHARGED: Final = tuple(sorted({field.name for field in fields(LedgerRow)} - {"status"}))
_CHARGED_OF: Final = attrgetter(*_CHARGED)
_SETTLED: Final = ("attempt", "channel", "pseudonym", "round_number", "run_id", "status")
_encode_array: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode
_encode_object: Final = json.JSONEncoder(
    separators=(",", ":"), ensure_ascii=True, sort_keys=True, allow_nan=False
).encode


def event_data(previous: str, values: Sequence[Any]) -> bytes:
    """Return the bytes of an event that its leaf and the run's chain hash.

    A JSON array in ASCII with a fixed order and number of items can be read in one way only, so two
    different rows never have the same encoding. `previous` is the hash of the event before this one
    in the run; values are sequence, run, actor, action, round, channel, time and detail.
    """
    sequence, run, actor, action, round_number, channel, moment, detail = values
    plain = (run, actor, action, moment, detail, previous)
    numbers = (sequence, 0 if round_number is None else round_number)
    if set(map(type, plain)) != {str} or set(map(type, numbers)) != {int}:
        # Sotto writes no such values; the encoder refuses bytes.
        return EVENT_PREFIX + _encode_array([previous, *values]).encode("ascii")
    # This gives the encoder's text; the encoder takes several times as long.
    written = "null" if round_number is None else str(round_number)
    return (
        f"sotto-audit-v1\n[{_quoted(previous)},{sequence},{_known(run)},{_known(actor)},"
        f"{_known(action)},{written},{'null' if channel is None else _known(channel)},"
        f"{_quoted(moment)},{_quoted(detail)}]"
    ).encode("ascii")


def charge_data(row: LedgerRow) -> bytes:
    """Return the contents of a charge's leaf: all facts of a ledger row except its status.

    A clipping norm without a bound is the text `infinity`, for which JSON has no number.
    """
    facts = _CHARGED_OF(row)
    if row.clipping_norm == math.inf:
        facts = tuple(
            "infinity" if n == "clipping_norm" else v for n, v in zip(_CHARGED, facts, strict=True)
        )
    return CHARGE_PREFIX + _object(_CHARGED, facts)


def settled_data(row: LedgerRow, status: str | None = None) -> bytes:
    """Return the contents of a settlement's leaf: the ledger row and its new status, or its own."""
    key = (row.attempt, row.channel, row.pseudonym, row.round_number, row.run_id)
    return SETTLED_PREFIX + _object(_SETTLED, (*key, row.status if status is None else status))


def _object(names: Sequence[str], values: Sequence[Any]) -> bytes:
    """Return a JSON object, its names sorted, without blanks: as the encoder would write it.

    The encoder takes several times as long, and leaves are most of a log and its receipts.
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
    """Return the log's form of a leaf whose contents would reveal who was drawn in secret.

    Only a party that gets the salt can tell which contents the form commits to.
    """
    commitment = hashlib.sha256(salt + data).hexdigest()
    return SEALED_PREFIX + _encode_object({"run_id": run_id, "commitment": commitment}).encode()


def is_secret(row: LedgerRow) -> bool:
    """Return whether a row reveals who was drawn, and its price depends on that secret."""
    return row.cohort_kind is not None


LEAF_COLUMNS: Final = (
    "position, kind, run_id, sequence, round_number, attempt, pseudonym, channel, status, salt,"
    " hash"
)
_INSERTION: Final = f"INSERT INTO leaves ({LEAF_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
_TILE_INSERTION: Final = "INSERT INTO tiles (level, position, hash) VALUES (?, ?, ?)"
_LEAF_HASHES: Final = (
    "SELECT hash FROM leaves WHERE position >= ? AND position < ? ORDER BY position"
)
_TILE_HASHES: Final = (
    "SELECT hash FROM tiles WHERE level = ? AND position >= ? AND position < ? ORDER BY position"
)
_SIZE: Final = "SELECT coalesce(max(position) + 1, 0) FROM leaves"


class NewLeaves:
    """Leaves of one transaction; they get their places at its commit."""

    def __init__(self, statements: Statements) -> None:
        """Work within one transaction."""
        self._statements = statements
        self._new: list[tuple[Any, ...]] = []

    def add_event(self, run_id: str, sequence: int, data: bytes) -> None:
        """Add the leaf of an event, given the bytes that its place in the run's chain hashes."""
        key = (run_id, sequence, None, None, None, None, None, None)
        self._new.append(("event", *key, leaf_hash(data)))

    def add_charges(self, rows: Iterable[LedgerRow]) -> None:
        """Add the leaves of new ledger rows."""
        self._new += [_of_row("charge", row, None, charge_data(row)) for row in rows]

    def add_settled(self, rows: Iterable[LedgerRow]) -> None:
        """Add the leaves that tell the new status of ledger rows."""
        self._new += [_of_row("settled", row, row.status, settled_data(row)) for row in rows]

    def place(self) -> int | None:
        """Place all new leaves at the tree's end; return its size, None without new leaves."""
        if not self._new:
            return None
        size, new = tree_size(self._statements), self._new
        self._new = []
        values = [(size + at, *leaf) for at, leaf in enumerate(new)]
        tiles = list(
            completed(partial(read_hashes, self._statements), size, [leaf[-1] for leaf in new])
        )
        self._statements.run_many(_INSERTION, values)
        if tiles:
            self._statements.run_many(_TILE_INSERTION, tiles)
        return size + len(new)


def tree_size(statements: Statements) -> int:
    """Return the number of leaves."""
    ((size,),) = statements.run(_SIZE)
    return int(size)


def read_hashes(statements: Statements, level: int, start: int, count: int) -> list[bytes]:
    """Return stored hashes: of leaves at level 0, of tiles above; `LogBroken` if any is missing."""
    end = start + count
    if level == 0:
        rows = statements.run(_LEAF_HASHES, (start, end))
    else:
        rows = statements.run(_TILE_HASHES, (level, start, end))
    if len(rows) != count:
        raise LogBroken(start << (TILE_HEIGHT * level), f"a hash of level {level} is missing")
    return [bytes(found) for (found,) in rows]


def _of_row(kind: LeafKind, row: LedgerRow, status: str | None, data: bytes) -> tuple[Any, ...]:
    salt = secrets.token_bytes(SALT_BYTES) if is_secret(row) else None
    seen = data if salt is None else sealed_data(row.run_id, data, salt)
    key = (row.run_id, None, row.round_number, row.attempt, row.pseudonym, row.channel)
    return (kind, *key, status, salt, leaf_hash(seen))
