"""What a data set is: two splits of images, or of texts, with labels and domains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from platform.data.images import ImageFiles, Images, Indices
from platform.errors import DataError

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
        """Return the number of rows."""
        return len(self.labels)

    def only(self, rows: NDArray[np.int64]) -> Split:
        """Return these rows of images in memory."""
        return Split(self.images[rows], self.labels[rows], self.domains[rows])


def joined(parts: Sequence[Split]) -> Split:
    """Return the rows of all parts, of images in memory of one size, one part after the other."""
    return Split(
        np.concatenate([part.images[np.arange(len(part.labels))] for part in parts]),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.domains for part in parts]),
    )


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A classification data set.

    Attributes:
        name: Name as in `task.dataset`.
        classes: Class names in label order, in the words that captions use.
        domains: Domain names in domain-index order.
        train: Examples that are shared out to clients.
        test: Examples that no client trains on.
        validation: Rows of `train` that files hold back: who has them validates with them.
        holds_back: Indices of the domains whose files have a place for validation images, whether
            or not any lies there: who has one of these validates with nothing else.
        recognised: What was made of files whose layout nobody told, a sentence each.
        superclasses: Of each class, in label order, which of its superclasses it belongs to; none
            where the data set has none.
    """

    name: str
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    train: Split
    test: Split
    validation: Indices = field(default_factory=lambda: np.zeros(0, np.int64))
    holds_back: tuple[int, ...] = ()
    recognised: tuple[str, ...] = ()
    superclasses: tuple[int, ...] = ()

    @property
    def modality(self) -> Modality:
        """What the examples are."""
        return "images" if self.train.texts is None else "texts"

    def merged(self) -> Dataset:
        """Return training and test examples as one pool, which is both sides.

        Training ones come first.

        For partitions that deal out all examples before anybody splits them: a client's training
        and test rows are then rows of the same split, and it is theirs to be disjoint.

        Raises:
            DataError: If the two are not of one kind.
        """
        train, test = self.train, self.test
        texts = None if train.texts is None else (*train.texts, *(test.texts or ()))
        pool = Split(
            self._joined_images(),
            np.concatenate([train.labels, test.labels]),
            np.concatenate([train.domains, test.domains]),
            texts,
        )
        return replace(self, train=pool, test=pool)

    def _joined_images(self) -> Images:
        one, other = self.train.images, self.test.images
        if isinstance(one, ImageFiles) and isinstance(other, ImageFiles):
            if one.root == other.root:
                return replace(one, paths=one.paths + other.paths)
        elif isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
            if one.shape[1:] == other.shape[1:]:
                return np.concatenate([one, other])
        raise DataError(
            f"task.partition.kind: shared_ratio puts training and test images together, and those "
            f"of {self.name} are not of one kind; valid: images in one folder, or of one size"
        )
