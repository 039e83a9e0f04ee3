"""What a round is for: to train, or to make the pool that is made once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

ROUNDS: Final = "rounds"
COLLECTION: Final = "collection"


def in_rounds(documents: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rounds that trained, without the collection."""
    # Rounds of earlier versions do not state their phase.
    return [d for d in documents if d.get("phase", ROUNDS) == ROUNDS]


def has_collection(documents: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether clients were asked for the entries of a pool that is made once."""
    return any(d.get("phase") == COLLECTION for d in documents)
