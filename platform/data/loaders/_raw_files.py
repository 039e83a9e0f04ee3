"""Whole files of a data set, refused in one sentence where they are not as they should be."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from platform.data.catalogue import DatasetInfo
from platform.data.loaders._files import LONGEST_NAME, is_there, read_bounded, read_text
from platform.errors import DataError

MOST_BYTES: Final = 2**29
"""Twice the largest single file of the known data sets, the 154 MB of CIFAR-100."""
MOST_TEXT: Final = 2**26
"""Twice the largest text file of the known data sets, the 30 MB of AG News."""
MOST_CLASSES: Final = 1000


def first_folder(info: DatasetInfo, root: Path, names: Sequence[str]) -> Path:
    """Return the first of these folders below a root that is there.

    Raises:
        DataError: If none is, or this user may not know.
    """
    for name in names:
        if is_there(root / name, folder=True):
            return root / name
    raise DataError(info.missing(root / names[0], root))


def read_file(info: DatasetInfo, root: Path, path: Path) -> bytes:
    """Return a file as it is.

    Args:
        info: Whose file.
        root: What `task.root` says.
        path: Which file.

    Raises:
        DataError: If it is not there, cannot be read, or is larger than any of the known ones.
    """
    require_there(info, root, path)
    # As much memory is asked for as may be read, which is for most files far too much.
    return read_bounded(path, min(os.path.getsize(path), MOST_BYTES))


def read_lines(info: DatasetInfo, root: Path, path: Path) -> list[str]:
    """Return a text file's lines, without those that are empty.

    Raises:
        DataError: If it is not there, cannot be read, or is no text.
    """
    require_there(info, root, path)
    # Editors of some systems begin a file with a mark of byte order.
    text = read_text(path, MOST_TEXT).removeprefix("\ufeff")
    return [line for line in text.splitlines() if line.strip()]


def require_there(info: DatasetInfo, root: Path, path: Path) -> None:
    """Check that a file is there.

    Raises:
        DataError: If it is not, or this user may not know.
    """
    if not is_there(path):
        raise DataError(info.missing(path, root))


def class_words(names: Sequence[object], path: Path, known: Sequence[str] = ()) -> tuple[str, ...]:
    """Return class names in the words that captions use.

    Args:
        names: As a file has them, in label order; bytes are read as Latin-1.
        path: That file.
        known: What they have to be but for capitals and the signs between words, if that is known.

    Raises:
        DataError: If one is empty, too long or no text, two are alike, there are none or too many,
            or they are not the known ones.
    """
    if not 1 <= len(names) <= MOST_CLASSES:
        raise DataError(
            f"task.root: {str(path)!r} names {len(names)} classes; valid: 1 to {MOST_CLASSES}"
        )
    words = [_words(name) for name in names]
    for label, word in enumerate(words):
        if not word or not word.isprintable():
            raise DataError(
                f"task.root: {str(path)!r} has no name for class {label}; valid is a word of at "
                f"most {LONGEST_NAME} characters"
            )
        if word in words[:label]:
            raise DataError(
                f"task.root: {str(path)!r} names class {label} {word!r} as class "
                f"{words.index(word)}; valid: each name once"
            )
    return _known(words, path, known) if known else tuple(words)


def _words(name: object) -> str:
    """Return a name in words, empty if it is none."""
    # One long name may stand in a file a thousand times; nothing is copied before it is measured.
    if not isinstance(name, str | bytes) or len(name) > LONGEST_NAME:
        return ""
    text = name.decode("latin-1") if isinstance(name, bytes) else name
    return text.replace("_", " ").strip()


def _known(words: Sequence[str], path: Path, known: Sequence[str]) -> tuple[str, ...]:
    """Return the known names, if a file has them in their order: labels would mean other things."""
    if len(words) != len(known):
        raise DataError(
            f"task.root: {str(path)!r} names {len(words)} classes; valid: the {len(known)} as "
            "published"
        )
    for label, (word, name) in enumerate(zip(words, known, strict=True)):
        if _letters(word) != _letters(name):
            raise DataError(
                f"task.root: {str(path)!r} names class {label} {word!r}; valid: {name!r}, as "
                "published"
            )
    return tuple(known)


def _letters(name: str) -> str:
    return "".join(character for character in name.casefold() if character.isalnum())


def require_labels(
    labels: NDArray[np.int64], classes: Sequence[str], path: Path, *, first: int = 0
) -> None:
    """Check that each label is one of a class.

    Args:
        labels: Counted from 0.
        classes: The class names.
        path: The file that has the labels.
        first: The number of the first class in that file.

    Raises:
        DataError: If one is not.
    """
    wrong = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if len(wrong):
        raise DataError(
            f"task.root: {str(path)!r} has label {labels[wrong[0]] + first} at example {wrong[0]}; "
            f"valid: {first} to {len(classes) - 1 + first}"
        )


def require_examples(
    name: str, classes: Sequence[str], train: NDArray[np.int64], test: NDArray[np.int64]
) -> None:
    """Check that there is a training example of each class, and a test example at all.

    Args:
        name: The data set.
        classes: Its class names.
        train: Labels of the training examples.
        test: Labels of the test examples.

    Raises:
        DataError: If not.
    """
    empty = np.flatnonzero(np.bincount(train, minlength=len(classes)) == 0)
    if len(empty):
        raise DataError(
            f"task.root: {name} has no training example of class {classes[empty[0]]!r} (label "
            f"{empty[0]}); valid is at least one of each of its {len(classes)} classes"
        )
    if not len(test):
        raise DataError(f"task.root: {name} has no test example; valid is at least one")


def one_domain(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return domain indices of examples that all are of the first domain."""
    return np.zeros(len(labels), np.int64)
