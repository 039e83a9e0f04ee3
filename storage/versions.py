"""Versions of the two schemas, which count on their own: 0.1.0 is the first that was kept.

A file says which version it has, and opening it compares: a newer one is refused by name, an older
one is migrated by whoever opens it for writing, and whatever else it says was never kept anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple, Self

from storage.errors import SchemaMismatch

_TEXT = re.compile(r"(0|[1-9][0-9]{0,2})\.(0|[1-9][0-9]{0,2})\.(0|[1-9][0-9]{0,2})")
_STEP = 1000


class SchemaVersion(NamedTuple):
    """One version; later ones are larger."""

    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the version that a text names, None if it names none."""
        found = _TEXT.fullmatch(text)
        return None if found is None else cls(*map(int, found.groups()))

    @classmethod
    def of_number(cls, number: int) -> Self:
        """Return the version that a database states as ``PRAGMA user_version``."""
        left, patch = divmod(number, _STEP)
        return cls(*divmod(left, _STEP), patch)

    @property
    def number(self) -> int:
        """What a database states as ``PRAGMA user_version``."""
        return (self.major * _STEP + self.minor) * _STEP + self.patch

    def __str__(self) -> str:
        """Return the three numbers with points between them."""
        return f"{self.major}.{self.minor}.{self.patch}"


def require_version(where: object, said: str, known: Collection[str]) -> None:
    """Require a schema that this program knows, newest or not.

    Args:
        where: The file, for the message.
        said: What it says its schema is.
        known: All that there have been.

    Raises:
        SchemaMismatch: It is newer than all of them, or none of them.
    """
    if said in known:
        return
    versions = sorted(filter(None, map(SchemaVersion.parse, known)))
    found = SchemaVersion.parse(said)
    if found is not None and found > versions[-1]:
        raise SchemaMismatch(
            f"database {where} has schema {said}: it was made by a newer version; valid: up to"
            f" {versions[-1]}"
        )
    raise SchemaMismatch(
        f"database {where} has schema {said!r}, which no version that is kept ever had; valid:"
        f" {', '.join(map(str, versions))}"
    )


def older(where: object, said: str, newest: str) -> SchemaMismatch:
    """Return the error for a schema that has to be migrated where nothing may be written."""
    return SchemaMismatch(
        f"database {where} has schema {said}, which is older than {newest}; migrate it with"
        " `python -m platform.coordinator upgrade --storage URL`, a client's own by starting the"
        " client"
    )
