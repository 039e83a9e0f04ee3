"""Draws of records by a keyed hash of their content: which are test images, which validate.

A draw that shuffles all of a client's records changes many of them when one comes or goes. Here
each record falls on a side by its own content and a key alone, so that one record more or less
changes the side of no other, and records of the same content are on the same side. The key says
which side; it must be a secret of whoever holds the records, as anybody who knows it could compute
which records train. In a federation it follows from the secret in the holder's own store, in a
simulation from a seed and the client's name.

A share is therefore met on average only, and a side may stay empty.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from platform.data.dataset import Split
from platform.data.images import Indices, image_digests
from platform.data.partition import ClientIndices

Draw = Literal["test", "validation", "shots"]
"""What is drawn: each of these draws is independent of the others under one key."""


def places(digests: Sequence[bytes], key: bytes, draw: Draw) -> NDArray[np.float64]:
    """Return where each record falls in [0, 1), as if drawn uniformly and independently.

    Args:
        digests: Of the records' content, SHA-256.
        key: A secret of the holder.
        draw: What is drawn.
    """
    of_draw = hmac.digest(key, draw.encode(), "sha256")
    drawn = [hmac.digest(of_draw, digest, "sha256")[:6] for digest in digests]
    # Six bytes are exact in a double, which eight are not.
    return np.array([int.from_bytes(value) for value in drawn], np.float64) / 2.0**48


def places_of(split: Split, rows: Indices, key: bytes, draw: Draw) -> NDArray[np.float64]:
    """Return where the records of these rows fall, as `places` does.

    Raises:
        DataError: If an image cannot be read.
    """
    return places(content_digests(split, rows), key, draw)


def content_digests(split: Split, rows: Indices) -> list[bytes]:
    """Return what tells the content of these rows from all other content: SHA-256, 32 bytes each.

    Raises:
        DataError: If an image cannot be read.
    """
    if split.texts is None:
        return image_digests(split.images, rows)
    return [hashlib.sha256(split.texts[row].encode()).digest() for row in rows.tolist()]


def carve(client: ClientIndices, split: Split, share: float, key: bytes) -> ClientIndices:
    """Move about a share of a client's training records to its validation records.

    Args:
        client: Whose records.
        split: What its training rows are rows of.
        share: Each record's chance to be moved, in [0, 1).
        key: A secret of the client.

    Raises:
        DataError: If an image cannot be read.
    """
    moved = places_of(split, client.train, key, "validation") < share
    validation = np.union1d(client.validation, client.train[moved])
    return replace(client, train=client.train[~moved], validation=validation)
