"""What a data set is: two splits of images with labels and domains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Split:
    """Images with what is known about them, row i of each array being example i.

    Attributes:
        images: RGB images, uint8 (n, H, W, 3).
        labels: Index into `Dataset.classes`, int64 (n,).
        domains: Index into `Dataset.domains`, int64 (n,).
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    domains: NDArray[np.int64]

    @property
    def num_examples(self) -> int:
        """Number of rows."""
        return len(self.labels)


@dataclass(frozen=True)
class Dataset:
    """A classification data set.

    Attributes:
        name: Name as in `task.dataset`.
        classes: Class names in label order, in the words that captions use.
        domains: Domain names in domain-index order.
        train: Examples that are shared out to clients.
        test: Examples that no client trains on.
    """

    name: str
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    train: Split
    test: Split
