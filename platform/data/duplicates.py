"""Image files that are the same under other names: refused under two labels, told of on both sides.

Only files of equal size can be the same, so that of most nothing but the size is looked at, and
none where all images of that size have one label and are on one side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from platform.data.dataset import Dataset, Split
from platform.data.images import ImageFiles, Indices, image_digests
from platform.errors import DataError


@dataclass(frozen=True)
class _Held:
    """A file that somebody holds.

    Attributes:
        side: `training` or `test`.
        name: Its path below the data set's folder.
        label: Its class.
        size: In bytes; 0 where it cannot be told.
        files: All files of its side.
        row: Which of them it is.
    """

    side: str
    name: str
    label: int
    size: int
    files: ImageFiles
    row: Indices


def require_one_label(dataset: Dataset, train: Indices, test: Indices) -> tuple[str, ...]:
    """Refuses one image under two labels, and tells of one that is trained and tested on.

    Images in memory are not looked at: published arrays have such pairs.

    Args:
        dataset: All images.
        train: Rows of training images that are held.
        test: Rows of test images that are held.

    Returns:
        What a report must say; nothing where no test image is a training image.

    Raises:
        DataError: If two files are the same and their labels are not, or one cannot be read.
    """
    sides = (("training", dataset.train, train), ("test", dataset.test, test))
    # Where both sides are one pool, a file of both is no other file.
    files = {(h.files.root, h.name): h for side in reversed(sides) for h in _held(*side)}
    ordered = sorted(files.values(), key=lambda held: held.side, reverse=True)
    groups: dict[int, list[_Held]] = {}
    for held in ordered:
        groups.setdefault(held.size, []).append(held)
    parted = [pair for group in groups.values() for pair in _parted(dataset, group)]
    if not parted:
        return ()
    one, other = parted[0]
    return (
        f"{len(parted)} test images are also training images under other names ({one!r} is the "
        f"same as {other!r}): they do not show how the model does on new images",
    )


def _held(side: str, split: Split, rows: Indices) -> Iterator[_Held]:
    files = split.images
    if isinstance(files, ImageFiles):
        for position in range(len(rows)):
            row = rows[position : position + 1]
            name, label = files.paths[int(row[0])], int(split.labels[row[0]])
            yield _Held(side, name, label, _size(files, name), files, row)


def _size(files: ImageFiles, name: str) -> int:
    try:
        return (files.root / name).stat().st_size
    # Whoever reads it says what is wrong with it.
    except (OSError, ValueError):
        return 0


def _parted(dataset: Dataset, group: Iterable[_Held]) -> Iterator[tuple[str, str]]:
    """Test images of one size that are training images, and those training images."""
    group = list(group)
    if len({(held.side, held.label) for held in group}) == 1:
        return
    seen: dict[bytes, _Held] = {}
    # Training images come first.
    for held in group:
        (digest,) = image_digests(held.files, held.row)
        first = seen.setdefault(digest, held)
        if first.label != held.label:
            labels = [repr(dataset.classes[one.label]) for one in (first, held)]
            raise DataError(
                f"task.root: the images {first.name!r} of class {labels[0]} and {held.name!r} of "
                f"class {labels[1]} are the same file; valid is one label for each image "
                "(`datasets --check` lists all such pairs)"
            )
        if first.side != held.side:
            yield held.name, first.name
