"""What a data set is: two splits of images, or of texts, with labels and domains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from platform.data.images import Images

Modality = Literal["images", "texts"]


@dataclass(frozen=True)
class Split:
    """Examples with what is known about them, row i of each being example i.

    Attributes:
        images: RGB images by row number; none where the examples are texts.
        labels: Index into `Dataset.classes`, int64 (n,).
        domains: Index into `Dataset.domains`, int64 (n,).
        texts: The texts, None where the examples are images.
    """

    images: Images
    labels: NDArray[np.int64]
    domains: NDArray[np.int64]
    texts: tuple[str, ...] | None = None

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

    @property
    def modality(self) -> Modality:
        """What the examples are."""
        return "images" if self.train.texts is None else "texts"
