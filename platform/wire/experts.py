"""Experts and pool entries as bytes, and the handles under which a client is known to the pool."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from methods import Arrays
from platform.wire.codec import decode_arrays, encode_arrays


def handle(secret: bytes, run_id: str, round_number: int) -> bytes:
    """Return name of a client's entry of one round: a keyed hash that only its owner can make."""
    text = json.dumps(["sotto pool handle", run_id, round_number])
    return hmac.new(secret, text.encode(), hashlib.sha256).digest()


@dataclass(frozen=True)
class Fetched:
    """What one client is handed before it personalises.

    Attributes:
        experts: The experts in their order.
        own: Which of them is its own entry, None where it has none there.
    """

    experts: tuple[Arrays, ...]
    own: int | None


def encode_experts(experts: Sequence[Arrays]) -> bytes:
    """Return experts in their order, for a client's store."""
    arrays = {
        f"{i:04d}/{n}": value for i, entry in enumerate(experts) for n, value in entry.items()
    }
    return encode_arrays(arrays)


def decode_experts(data: bytes) -> tuple[Arrays, ...]:
    """Return the inverse of `encode_experts`."""
    experts: dict[str, dict[str, np.ndarray]] = {}
    for name, value in decode_arrays(data).items():
        position, _, tensor = name.partition("/")
        experts.setdefault(position, {})[tensor] = value
    return tuple(experts[position] for position in sorted(experts))


def encode_entry(entry: Arrays) -> bytes:
    """Return a pool entry as it is stored."""
    return encode_arrays(entry)
