"""`tiny_imagenet`: 200 classes of ImageNet, 500 training images each, of 64x64 pixels.

The published test images have no labels, so the validation images are the test split here, as in
all papers on it. Label order is the ASCII order of the WordNet ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from platform.data.catalogue import DataRequest, DatasetInfo
from platform.data.dataset import Dataset
from platform.data.loaders._files import (
    image_names,
    image_split,
    is_there,
    require_distinct,
    require_listed_path,
    require_present,
)
from platform.data.loaders._raw_files import (
    class_words,
    first_folder,
    read_lines,
    require_examples,
)
from platform.errors import DataError

INFOS = (
    DatasetInfo(
        name="tiny_imagenet",
        title="Tiny ImageNet: 110,000 photos of 64x64 pixels in 200 classes",
        classes=(),
        domains=("photo",),
        source="to be had from the page of its course, http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        layout=(
            "tiny-imagenet-200/wnids.txt and words.txt",
            "tiny-imagenet-200/train/WNID/images/*.JPEG",
            "tiny-imagenet-200/val/images/*.JPEG and val/val_annotations.txt",
        ),
    ),
)

_Lines = Callable[[str], list[str]]
_Row = tuple[int, int, str]


def load(name: str, request: DataRequest) -> Dataset:
    """List all images; none is opened.

    Raises:
        ConfigError: If a file is missing or damaged, an id is unknown, a class is empty, or a
            domain is unknown.
    """
    (info,) = INFOS
    domains = request.chosen_domains(name, info.domains)
    folder = first_folder(info, request.root, ("tiny-imagenet-200",)).resolve()

    def lines(file: str) -> list[str]:
        return read_lines(info, request.root, folder / file)

    ids = _ids(lines("wnids.txt"), folder)
    classes = class_words(_words(ids, lines("words.txt"), folder), folder / "words.txt")
    train = image_split(folder, _train_rows(info, request.root, folder, ids))
    test = image_split(folder, _test_rows(folder, ids, lines("val/val_annotations.txt")))
    require_examples(name, classes, train.labels, test.labels)
    return Dataset(name=name, classes=classes, domains=domains, train=train, test=test)


def _ids(lines: Sequence[str], folder: Path) -> dict[str, int]:
    """Return label of each id."""
    where = repr(str(folder / "wnids.txt"))
    ids = [line.strip() for line in lines]
    for one in ids:
        require_listed_path(one, where)
    require_distinct(ids, where)
    return {one: label for label, one in enumerate(sorted(ids))}


def _words(ids: Mapping[str, int], lines: Sequence[str], folder: Path) -> list[str]:
    """Return the first of each id's words; all of them where two ids have the same first one."""
    entries = {one: words for one, _, words in (line.partition("\t") for line in lines)}
    for one in ids:
        if one not in entries:
            raise DataError(
                f"task.root: {str(folder / 'words.txt')!r} has no words for class {one!r}; valid "
                "is the file as published"
            )
    first = [entries[one].split(",")[0].strip() for one in ids]
    counts = Counter(first)
    return [
        word if counts[word] == 1 else entries[one].strip()
        for one, word in zip(ids, first, strict=True)
    ]


def _train_rows(info: DatasetInfo, root: Path, folder: Path, ids: Mapping[str, int]) -> list[_Row]:
    rows: list[_Row] = []
    for one, label in ids.items():
        inner = f"train/{one}/images"
        if not is_there(folder / inner, folder=True):
            raise DataError(info.missing(folder / inner, root))
        names = image_names(folder / inner, folder)
        rows.extend((0, label, f"{inner}/{name}") for name in names)
    return rows


def _test_rows(folder: Path, ids: Mapping[str, int], lines: Sequence[str]) -> list[_Row]:
    where, rows = repr(str(folder / "val" / "val_annotations.txt")), []
    for number, line in enumerate(lines, 1):
        # A box in the image follows, which classification has no use for.
        file, _, rest = line.partition("\t")
        one = rest.split("\t")[0].strip()
        if one not in ids:
            raise DataError(
                f"task.root: {where} has class {one[:40]!r} at line {number}; valid is an id of "
                "wnids.txt"
            )
        require_listed_path(file, where)
        rows.append((0, ids[one], f"val/images/{file}"))
    paths = [path for _, _, path in rows]
    require_distinct(paths, where)
    require_present(folder, paths, where)
    return rows
