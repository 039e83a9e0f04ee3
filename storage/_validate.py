"""Checks of arguments, one line each, so that messages are uniform and never show contents."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from storage.errors import DatabaseDamaged, InvalidRecordError

_INTEGER_LIMIT = 2**63


def require_text(**values: object) -> None:
    """Require each value to be a non-empty string that can be stored as UTF-8."""
    for name, value in values.items():
        if not isinstance(value, str) or not value:
            raise InvalidRecordError(f"{name} must be a non-empty string")
        _require_utf8(name, value)


def require_count(**values: object) -> None:
    """Require each value to be an integer of at least 0 that fits a 64-bit column."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidRecordError(f"{name} must be an integer, not {type(value).__name__}")
        if not 0 <= value < _INTEGER_LIMIT:
            raise InvalidRecordError(f"{name} is {value}; it must be at least 0 and below 2^63")


def require_at_least_one(**values: object) -> None:
    """Require each value to be an integer of at least 1 that fits a 64-bit column."""
    require_count(**values)
    for name, value in values.items():
        if value == 0:
            raise InvalidRecordError(f"{name} is 0; it must be at least 1")


def require_float(**values: object) -> None:
    """Require each value to be a ``float``."""
    for name, value in values.items():
        if not isinstance(value, float):
            raise InvalidRecordError(f"{name} must be a float, not {type(value).__name__}")


def require_positive(**values: object) -> None:
    """Require each value to be a finite ``float`` above 0."""
    require_float(**values)
    for name, value in values.items():
        if not (isinstance(value, float) and 0.0 < value < math.inf):
            raise InvalidRecordError(f"{name} is {value}; it must be finite and above 0")


def require_all_or_none(**values: object) -> bool:
    """Return False if all values are None, True if no value is."""
    missing = [name for name, value in values.items() if value is None]
    if missing and len(missing) < len(values):
        raise InvalidRecordError(
            f"{', '.join(missing)} must be given, because the others of {', '.join(values)} are"
        )
    return not missing


def require_bytes(**values: object) -> None:
    """Require each value to be a ``bytes`` object."""
    for name, value in values.items():
        if not isinstance(value, bytes):
            raise InvalidRecordError(f"{name} must be bytes, not {type(value).__name__}")


def require_member(name: str, value: object, allowed: Collection[str]) -> None:
    """Require one of the allowed words."""
    if value not in allowed:
        raise InvalidRecordError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")


def canonical_json(name: str, document: Mapping[str, object]) -> str:
    """Return the one JSON text of an object: sorted keys, no spaces, no NaN or infinity."""
    if not isinstance(document, Mapping):
        raise InvalidRecordError(f"{name} must be a mapping, not {type(document).__name__}")
    try:
        text = json.dumps(
            dict(document),
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=False,
            allow_nan=False,
        )
    except (TypeError, ValueError) as error:
        # The library's message may quote a value, so it stays out of ours.
        raise InvalidRecordError(
            f"{name} must be a JSON object with text keys and finite numbers"
        ) from error
    _require_utf8(name, text)
    return text


def utc_text(name: str, moment: datetime) -> str:
    """Return a moment as ISO 8601 in UTC of fixed width, so that text order is time order."""
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise InvalidRecordError(f"{name} must carry a time zone")
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def _require_utf8(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidRecordError(f"{name} must be valid Unicode text") from error


def stored_object(text: str, what: str) -> dict[str, Any]:
    """Return the JSON object in a column; a forged row, which may hold any text, is damage."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise DatabaseDamaged(f"{what} is no JSON object")
    return found
