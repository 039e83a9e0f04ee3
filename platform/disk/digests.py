"""Digests by which the audit log binds what lies outside of it.

All are SHA-256 in hexadecimal. What is hashed has one form only, whoever wrote or read it, so that
a digest taken before something is stored is that of what is read back.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Final

from storage import LedgerRow

SALT: Final = "salt"
"""A random text in a document that tells of a secret draw, so that its digest is a commitment."""
_WRITER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_NAMES: Final = tuple(field.name for field in fields(LedgerRow))


def bytes_digest(data: bytes) -> str:
    """Digest a file or a blob as it is."""
    return hashlib.sha256(data).hexdigest()


def document_digest(document: Mapping[str, Any]) -> str:
    """Digest a JSON object: keys sorted, no white space, ASCII, Python's numbers."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return bytes_digest(text.encode("ascii"))


def salted(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document whose digest nobody can guess who has not read it."""
    return {**document, SALT: secrets.token_hex(32)}


def rows_digest(rows: Iterable[LedgerRow], *, with_status: bool) -> str:
    """Digest ledger rows, in whatever order they come.

    Args:
        rows: The rows.
        with_status: Whether what became of them is part of it; what was reserved stays the same.
    """
    lines = sorted(_line(row, with_status=with_status) for row in rows)
    return bytes_digest("\n".join(lines).encode("ascii"))


def _line(row: LedgerRow, *, with_status: bool) -> str:
    facts = {name: _plain(getattr(row, name)) for name in _NAMES}
    if not with_status:
        del facts["status"]
    # An unbounded clipping norm is "Infinity" here, which JSON has not.
    return _WRITER.encode(facts)


def _plain(value: object) -> object:
    """Return a number as the storage gives it back, whatever type it was given in.

    Numbers of one value are one text here: a row that says 4 comes back as 4.0.
    """
    if isinstance(value, (bool, str)) or value is None:
        return value
    return repr(float(value))  # type: ignore[arg-type]


def config_digest(text: str) -> str:
    """Return SHA-256 of an effective configuration, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()
