"""What a run is found again by: its configuration, and the code of its method."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

LATER: Final = (
    "training.betas",
    "training.eps",
    "training.schedule",
    "task.partition.fewest_classes",
    "task.partition.minimum_test",
    "task.partition.slices",
)
"""Keys that came after cells had identities: null, they are no part of one."""


def identity(tree: Mapping[str, Any], code: str | None = None) -> str:
    """Return SHA-256 of a configuration without where it is stored, in hexadecimal.

    A database that was moved keeps its runs, and the cache's bound changes no result. A key that
    came later changes no identity while it is null, so runs of before and folders that are named by
    identities are found again.

    Args:
        tree: The configuration.
        code: SHA-256 of the method's file where it comes from outside, else None.
    """
    kept: Mapping[str, Any] = {name: part for name, part in tree.items() if name != "storage"}
    for key in LATER:
        kept = _without_null(kept, key.split("."))
    text = json.dumps(kept, sort_keys=True) + (code or "")
    return hashlib.sha256(text.encode()).hexdigest()


def _without_null(tree: Mapping[str, Any], path: Sequence[str]) -> Mapping[str, Any]:
    """Return a tree without the value at a path, where that is null."""
    first, *rest = path
    inner = tree.get(first)
    if rest and isinstance(inner, Mapping):
        return {**tree, first: _without_null(inner, rest)}
    return tree if rest or inner is not None else {k: v for k, v in tree.items() if k != first}


def code_of(document: object) -> str | None:
    """Return the digest of a method's file by what was recorded; None for a packaged method."""
    return str(document.get("sha256")) if isinstance(document, Mapping) else None
