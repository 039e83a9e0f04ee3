"""Validation images, carved out of each client's training images."""

from __future__ import annotations

import numpy as np

from platform.data.partition import ClientIndices, Indices
from platform.errors import ConfigError


def carve(
    client: ClientIndices, labels: Indices, share: float, rng: np.random.Generator
) -> ClientIndices:
    """Move a share of a client's training images to its validation images.

    Class by class, rounded to the nearest whole image (half to even) and never all of a class, so
    that validation images follow the training images' distribution as closely as their number
    allows.

    Args:
        client: Whose images; has no validation images yet.
        labels: Label of each training image of the data set, (n,).
        share: In (0, 1).
        rng: Draws which ones.

    Raises:
        ConfigError: If not one image could be moved.
    """
    chosen = []
    for label in np.unique(labels[client.train]):
        rows = client.train[labels[client.train] == label]
        count = min(round(share * len(rows)), len(rows) - 1)
        chosen.append(rng.permutation(rows)[:count])
    validation = np.sort(np.concatenate(chosen))
    if not len(validation):
        raise ConfigError(
            f"task.validation_share: {share:g} of a client's {len(client.train)} training images "
            "is less than one image of any class; use a larger share or more shots"
        )
    left = client.train[~np.isin(client.train, validation)]
    return ClientIndices(left, client.test, validation)
