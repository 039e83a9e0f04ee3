"""A data holder's images, labelled by the federation's classes and split once and for all.

Where folders split the images, that split holds. Elsewhere each image's own bytes and a secret of
the holder say on which side it is (`platform.data.partition`): what is added or removed
later, and what a file or its folder is called, moves no other image from one side to another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from platform.config.rules import HELD
from platform.data.catalogue import Hints
from platform.data.dataset import Dataset, ImageFiles, image_digests
from platform.data.loaders._files import image_split
from platform.data.own_folders import Group, Use, folded
from platform.data.own_layouts import recognise_own
from platform.data.partition import ClientIndices, carve, places
from platform.errors import DataError

DOMAIN: Final = "own"
"""The one domain: a method is not told whose images these are."""
TEST_SHARE: Final = 0.2
"""Of images that no folder splits, as in other data sets whose files tell no split."""

Row = tuple[int, int, str]
"""Domain, label and path of an image."""


def load_holding(
    root: Path,
    classes: Sequence[str],
    *,
    test_share: float,
    key: bytes,
    hints: Hints | None = None,
) -> tuple[Dataset, tuple[str, ...]]:
    """Return one data holder's images, which stay in their files, and say which are left out.

    A class folder that is not one of the federation's classes is left out alone, and so is a file
    that cannot be read: a fault of one image changes nothing for the others.

    Args:
        root: Its folder, of a layout that `recognise_own` knows.
        classes: The federation's, in label order; the holder need not have images of all.
        test_share: Of the images that no folder says the use of, each one's chance to be for
            testing, in [0, 1); files are read once for that.
        key: Decides which; a secret of the holder, always the same.
        hints: What the holder says of the folder; None for nothing.

    Returns:
        The images, and one sentence for each folder or file that is left out.

    Raises:
        DataError: If the folder is refused, or nothing is left to train on.
    """
    reading = recognise_own(root, hints or Hints(), one_holder=True)
    (group,) = reading.groups.values()
    labels: dict[str, int] = {}
    left_out = []
    for name, called in reading.words.items():
        try:
            labels |= labels_of(reading.root, {name: called}, classes)
        except DataError as error:
            left_out.append(str(error))
    group = replace(group, listed=tuple(i for i in group.listed if i.name in labels))
    files, readable = group.files(group.root, tuple(i.path for i in group.listed)), []
    for row, image in enumerate(group.listed):
        try:
            files.bytes_of(row)
            readable.append(image)
        except DataError as error:
            left_out.append(str(error))
    group = replace(group, listed=tuple(readable))
    rows = holder_rows(group, labels, test_share=test_share, key=key)
    dataset = dataset_of(
        HELD,
        group.root,
        rows,
        classes=tuple(classes),
        domains=(DOMAIN,),
        recognised=(f"{str(reading.root)!r}: {group.sentence}", *reading.remarks),
        files=reading.files,
        holds_back=(0,) if "validation" in group.parts else (),
    )
    return dataset, tuple(left_out)


def only_client(
    dataset: Dataset, *, validation_share: float = 0.0, key: bytes = b""
) -> ClientIndices:
    """Return all rows of a data set, as those of the one client that it belongs to.

    Args:
        dataset: The client's.
        validation_share: Of its training images, where it has no folder for validation: each one's
            chance to be for validation.
        key: Decides which; a secret of the holder, always the same.

    Raises:
        DataError: If an image cannot be read.
    """
    train = np.arange(dataset.train.num_examples)
    client = ClientIndices(
        np.setdiff1d(train, dataset.validation),
        np.arange(dataset.test.num_examples),
        dataset.validation,
    )
    if not validation_share or dataset.holds_back:
        return client
    return carve(client, dataset.train, validation_share, key)


def labels_of(root: Path, words: Mapping[str, str], classes: Sequence[str]) -> dict[str, int]:
    """Return the label of each class of a holder's files, as the federation counts its classes.

    A class of the files has the name of its class, but for capitals and "_", "-" or spaces.

    Args:
        root: The holder's folder, for errors.
        words: What each of its classes is called, by its name in the files.
        classes: The federation's.

    Raises:
        DataError: If one is called as no class, or as two of them.
    """
    labels: dict[str, int] = {}
    for folder, called in words.items():
        exact = [label for label, name in enumerate(classes) if name in (folder, called)]
        alike = [label for label, name in enumerate(classes) if folded(name) == folded(called)]
        fitting = exact or alike
        if len(fitting) != 1:
            which = "no class" if not fitting else "more than one class"
            raise DataError(
                f"task.root: {str(root)!r} has a class folder {folder!r}, which is {which} "
                f"of the federation; valid: {', '.join(map(repr, classes))}"
            )
        labels[folder] = fitting[0]
    return labels


def holder_rows(
    group: Group, labels: Mapping[str, int], *, test_share: float, key: bytes, domain: int = 0
) -> dict[Use, list[Row]]:
    """Return a holder's images by what they are for, by label and path; none may be for training.

    Args:
        group: Its images.
        labels: Of its classes.
        test_share: As `load_holding` takes it.
        key: As `load_holding` takes it.
        domain: Of all of them.

    Raises:
        DataError: If a file cannot be read, or nothing is left to train on.
    """
    rows: dict[Use, list[Row]] = {"train": [], "validation": [], "test": []}
    left = [image for image in group.listed if image.use != "validation"]
    drawn: frozenset[str] = frozenset()
    if not group.says_tests:
        drawn = _drawn(group, [image.path for image in left], test_share, key)
    for image in group.listed:
        use: Use = "test" if image.path in drawn else image.use or "train"
        rows[use].append((domain, labels[image.name], image.path))
    return {use: sorted(found) for use, found in rows.items()}


def dataset_of(
    name: str,
    root: Path,
    rows: Mapping[Use, Sequence[Row]],
    *,
    classes: tuple[str, ...],
    domains: tuple[str, ...],
    recognised: tuple[str, ...],
    files: type[ImageFiles] = ImageFiles,
    holds_back: tuple[int, ...] = (),
) -> Dataset:
    """Return images by what they are for as a data set; validation rows follow training rows."""
    trained = len(rows["train"])
    return Dataset(
        name=name,
        classes=classes,
        domains=domains,
        train=image_split(root, [*rows["train"], *rows["validation"]], files),
        test=image_split(root, rows["test"], files),
        validation=np.arange(trained, trained + len(rows["validation"])),
        holds_back=holds_back,
        recognised=recognised,
    )


def _drawn(group: Group, paths: Sequence[str], share: float, key: bytes) -> frozenset[str]:
    """Return the test images; each image is drawn by its own bytes alone."""
    digests = image_digests(group.files(group.root, tuple(paths)), np.arange(len(paths)))
    falls = places(digests, key, "test")
    return frozenset(path for path, place in zip(paths, falls, strict=True) if place < share)
