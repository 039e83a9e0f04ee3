"""The log over all runs of a database, as far as a report tells of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from privacy import ReleaseKey


@dataclass(frozen=True, kw_only=True)
class LogView:
    """A log that was recomputed from its rows and held against the heads that were kept of it.

    Attributes:
        size: How many leaves it has.
        root: Of their tree, in hexadecimal.
        key: The public key by which the kept heads are signed; None where none is known.
        heads: How many heads are kept beside the database.
        was_lost: Whether a key took over that the one before it did not sign.
        charges: Which leaf each ledger row is, from 0.
        events: Which leaf each entry of an audit log is, by run and number.
    """

    size: int
    root: str
    key: str | None
    heads: int
    was_lost: bool
    charges: Mapping[ReleaseKey, int]
    events: Mapping[tuple[str, int], int]

    @property
    def is_signed(self) -> bool:
        """Whether some head of it is signed by a key that is known."""
        return self.key is not None and self.heads > 0
