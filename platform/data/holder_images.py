"""A data holder's images, labelled by the federation's classes and split once and for all.

Where folders split the images, that split holds. Where they do not, each image's own bytes say on
which side it is: what is added or removed later, and what a file or its folder is called, moves no
other image from testing to training or back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from platform.config.federation_rules import HELD
from platform.config.randomness import stream
from platform.data.dataset import Dataset
from platform.data.holder_folder import FolderPart, FolderReading, Use, folded, recognise
from platform.data.images import ImageFiles, image_digests
from platform.data.loaders._files import image_split
from platform.data.partition import ClientIndices
from platform.data.validation import carve
from platform.errors import DataError

DOMAIN: Final = "own"
"""The one domain: whose images these are is nothing that a method is told."""
TEST_SHARE: Final = 0.2
"""Of images that no folder splits, as in other data sets whose files tell no split."""

Row = tuple[int, int, str]
"""Domain, label and path of an image."""


def load_holding(root: Path, classes: Sequence[str], *, test_share: float, seed: int) -> Dataset:
    """Return one data holder's images, which stay in their files.

    Args:
        root: Its folder, of a layout that `recognise` knows.
        classes: The federation's, in label order; the holder need not have images of all.
        test_share: Of the images that no folder says the use of, each one's chance to be for
            testing, in [0, 1); files are read once for that.
        seed: Decides which; another seed is another split.

    Raises:
        DataError: If the folder is refused, a class folder is none of the classes, a file cannot
            be read, or nothing is left to train on.
    """
    reading = recognise(root)
    rows = holder_rows(reading, labels_of(reading, classes), test_share=test_share, seed=seed)
    return dataset_of(
        HELD,
        reading.root,
        rows,
        classes=tuple(classes),
        domains=(DOMAIN,),
        recognised=(f"{str(reading.root)!r}: {reading.sentence}",),
    )


def only_client(dataset: Dataset, *, validation_share: float = 0.0, seed: int = 0) -> ClientIndices:
    """Return all rows of a data set, as those of the one client that it belongs to.

    Args:
        dataset: The client's.
        validation_share: Of its training images, class by class, where no folder of its own says
            which are for validation.
        seed: Draws those.

    Raises:
        ConfigError: If the share is less than one image.
    """
    train = np.arange(dataset.train.num_examples)
    client = ClientIndices(
        np.setdiff1d(train, dataset.validation),
        np.arange(dataset.test.num_examples),
        dataset.validation,
    )
    if not validation_share or len(client.validation):
        return client
    return carve(client, dataset.train.labels, validation_share, stream(seed, "validation"))


def labels_of(reading: FolderReading, classes: Sequence[str]) -> dict[str, int]:
    """Return the label of each class folder, as the federation counts its classes.

    A folder is called as its class, or so but for capitals and "_", "-" or spaces between words.

    Raises:
        DataError: If one is called as no class, or as two of them.
    """
    labels: dict[str, int] = {}
    for folder in reading.classes:
        exact = [label for label, name in enumerate(classes) if name == folder]
        alike = [label for label, name in enumerate(classes) if folded(name) == folded(folder)]
        fitting = exact or alike
        if len(fitting) != 1:
            which = "no class" if not fitting else "more than one class"
            raise DataError(
                f"task.root: {str(reading.root)!r} has a class folder {folder!r}, which is {which} "
                f"of the federation; valid: {', '.join(map(repr, classes))}"
            )
        labels[folder] = fitting[0]
    return labels


def holder_rows(
    reading: FolderReading,
    labels: Mapping[str, int],
    *,
    test_share: float,
    seed: int,
    domain: int = 0,
    above: str = "",
) -> dict[Use, list[Row]]:
    """Return a holder's images by what they are for, by label and path.

    Args:
        reading: Its folder.
        labels: Of its class folders.
        test_share: As `load_holding` takes it.
        seed: As `load_holding` takes it.
        domain: Of all of them.
        above: What stands before each path: the holder's folder in that of many, with a slash.

    Raises:
        DataError: If a file cannot be read, or nothing is left to train on.
    """
    says_tests = any(part.use == "test" for part in reading.parts)
    rows: dict[Use, list[Row]] = {"train": [], "validation": [], "test": []}
    for part in reading.parts:
        paths = _paths(part, labels)
        is_test = [part.use == "test"] * len(paths)
        if not says_tests and part.use != "validation":
            is_test = _drawn(reading.root, [path for _, path in paths], test_share, seed)
        for (label, path), tests in zip(paths, is_test, strict=True):
            use: Use = "test" if tests else part.use or "train"
            rows[use].append((domain, label, f"{above}{path}"))
    if not rows["train"]:
        raise DataError(
            f"task.root: {str(reading.root)!r} has no training image, as all of its "
            f"{len(rows['test'])} images are drawn for testing; valid are more images, or train/ "
            "and test/ folders"
        )
    return {use: sorted(found) for use, found in rows.items()}


def dataset_of(
    name: str,
    root: Path,
    rows: Mapping[Use, Sequence[Row]],
    *,
    classes: tuple[str, ...],
    domains: tuple[str, ...],
    recognised: tuple[str, ...],
) -> Dataset:
    """Return images by what they are for as a data set; validation rows follow training rows."""
    trained = len(rows["train"])
    return Dataset(
        name=name,
        classes=classes,
        domains=domains,
        train=image_split(root, [*rows["train"], *rows["validation"]]),
        test=image_split(root, rows["test"]),
        validation=np.arange(trained, trained + len(rows["validation"])),
        recognised=recognised,
    )


def _paths(part: FolderPart, labels: Mapping[str, int]) -> list[tuple[int, str]]:
    """Return label and path of each image of a part."""
    above = f"{part.folder}/" if part.folder else ""
    return [
        (labels[name], f"{above}{name}/{image}")
        for name, images in part.images.items()
        for image in images
    ]


def _drawn(root: Path, paths: Sequence[str], share: float, seed: int) -> list[bool]:
    """Return which images are for testing: each by its own bytes, whatever the others are."""
    digests = image_digests(ImageFiles(root, tuple(paths)), np.arange(len(paths)))
    most = int(share * 2**64)
    key = f"test images {seed}\0".encode()
    return [int.from_bytes(hashlib.sha256(key + digest).digest()[:8]) < most for digest in digests]
