"""Hashes of audit entries, computed as the documentation of the log says, not by its code."""

from __future__ import annotations

import hashlib
import json
from typing import Any

GENESIS = "0" * 64
FIELDS = ("sequence", "run", "actor", "action", "round", "channel", "time", "detail")


def entry_hash(previous: str, **values: Any) -> str:
    """The hash of an entry after another, from all of its fields by name."""
    text = json.dumps([previous, *(values[name] for name in FIELDS)], separators=(",", ":"))
    return hashlib.sha256(b"sotto-audit-v1\n" + text.encode("ascii")).hexdigest()
