"""Examples that are the same under other names: refused under two labels, told of on both sides.

Only files of equal size can be the same, so that of most nothing but the size is looked at, and
none where all images of that size have one label and are on one side. Texts are in memory, and all
of them are looked at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from platform.data.dataset import Dataset, Split
from platform.data.images import ImageFiles, Indices, image_digests
from platform.errors import DataError


@dataclass(frozen=True, kw_only=True)
class _Held:
    """A file or text that somebody holds.

    Attributes:
        side: `training` or `test`.
        name: Its path below the data set's folder, or its row.
        label: Its class.
        size: Of a file in bytes, of a text in characters; 0 where it cannot be told.
        place: What tells where it lies from all other places.
        digest: Of what is in it.
    """

    side: str
    name: str
    label: int
    size: int
    place: tuple[Path | int, str | int]
    digest: Callable[[], bytes]


def require_one_label(dataset: Dataset, train: Indices, test: Indices) -> tuple[str, ...]:
    """Refuse one image or text under two labels, and tell of one that is trained and tested on.

    Images in memory are not looked at: published arrays have such pairs.

    Args:
        dataset: All examples.
        train: Rows of training examples that are held.
        test: Rows of test examples that are held.

    Returns:
        What a report must say; nothing where no test example is a training example.

    Raises:
        DataError: If two examples are the same and their labels are not, or one cannot be read.
    """
    sides = (("training", dataset.train, train), ("test", dataset.test, test))
    # Where both sides are one pool, a file of both is no other file.
    held_once = {one.place: one for side in reversed(sides) for one in _held(*side)}
    ordered = sorted(held_once.values(), key=lambda held: held.side, reverse=True)
    groups: dict[int, list[_Held]] = {}
    for held in ordered:
        groups.setdefault(held.size, []).append(held)
    parted = [pair for group in groups.values() for pair in _parted(dataset, group)]
    if not parted:
        return ()
    one, other = parted[0]
    return (
        f"{len(parted)} test {dataset.modality} are also training {dataset.modality} under other "
        f"names ({one!r} is the same as {other!r}): they do not show how the model does on new "
        f"{dataset.modality}",
    )


def _held(side: str, split: Split, rows: Indices) -> Iterator[_Held]:
    if split.texts is not None:
        yield from _held_texts(side, split, split.texts, rows)
    elif isinstance(split.images, ImageFiles):
        yield from _held_files(side, split, split.images, rows)


def _held_texts(side: str, split: Split, texts: Sequence[str], rows: Indices) -> Iterator[_Held]:
    for row in rows.tolist():
        text, label = texts[row], int(split.labels[row])
        digest = partial(_text_digest, text)
        yield _Held(
            side=side,
            name=f"{side} example {row}",
            label=label,
            size=len(text),
            place=(id(texts), row),
            digest=digest,
        )


def _text_digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _held_files(side: str, split: Split, files: ImageFiles, rows: Indices) -> Iterator[_Held]:
    for position in range(len(rows)):
        row = rows[position : position + 1]
        name, label = files.paths[int(row[0])], int(split.labels[row[0]])
        digest = partial(_file_digest, files, row)
        yield _Held(
            side=side,
            name=name,
            label=label,
            size=files.size_of(int(row[0])),
            place=(files.root, name),
            digest=digest,
        )


def _file_digest(files: ImageFiles, row: Indices) -> bytes:
    (digest,) = image_digests(files, row)
    return digest


def _parted(dataset: Dataset, group: Iterable[_Held]) -> Iterator[tuple[str, str]]:
    """Yield test examples of one size that are training examples, and those training examples."""
    group = list(group)
    if len({(held.side, held.label) for held in group}) == 1:
        return
    seen: dict[bytes, _Held] = {}
    # Training examples come first.
    for held in group:
        first = seen.setdefault(held.digest(), held)
        if first.label != held.label:
            labels = [repr(dataset.classes[one.label]) for one in (first, held)]
            same = "file" if dataset.modality == "images" else "text"
            raise DataError(
                f"task.root: the {dataset.modality} {first.name!r} of class {labels[0]} and "
                f"{held.name!r} of class {labels[1]} are the same {same}; valid is one label for "
                f"each {same} (`datasets --check` lists all such pairs)"
            )
        if first.side != held.side:
            yield held.name, first.name
