"""Data sets with CoOp's split files: Flowers102, OxfordPets, Food101, Caltech101, DTD.

A split file is JSON, `{"train": [[path, label, class name], ...], "val": ..., "test": ...}`, with
paths relative to the folder of images. As in CoOp's few-shot experiments, clients train on `train`
and are measured on `test`; the loader checks `val` and does not use it, as `task.validation_share`
carves a validation part out of `train`. Classes are in the order of their numbers, and "_" in a
name becomes " ", as in CoOp's captions. The file says how many classes there are.

Source: Zhou et al., "Learning to prompt for vision-language models", IJCV 2022, and its repository.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from platform.data.catalogue import DataRequest, DatasetInfo
from platform.data.dataset import Dataset
from platform.data.loaders._files import (
    DataFolder,
    class_words,
    image_split,
    read_text,
    require_distinct,
    require_listed_path,
    require_present,
)
from platform.errors import DataError, Faults

DOMAINS: Final = ("photo",)

# The largest, Food101's, has 9 MB.
_MOST_BYTES: Final = 64_000_000
_FOLDERS: Final = {
    "caltech101": ("caltech-101", "101_ObjectCategories", "split_zhou_Caltech101.json"),
    "dtd": ("dtd", "images", "split_zhou_DescribableTextures.json"),
    "flowers102": ("oxford_flowers", "jpg", "split_zhou_OxfordFlowers.json"),
    "food101": ("food-101", "images", "split_zhou_Food101.json"),
    "oxford_pets": ("oxford_pets", "images", "split_zhou_OxfordPets.json"),
}
_SPLITS: Final = (
    "the split file is linked from DATASETS.md of the CoOp repository "
    "(https://github.com/KaiyangZhou/CoOp)"
)


class Entry(NamedTuple):
    """A line of a split file: an image's path, its class from 0, and the class's name."""

    path: str
    label: int
    name: str


def _info(name: str, title: str, page: str) -> DatasetInfo:
    folder, images, split = _FOLDERS[name]
    return DatasetInfo(
        name=name,
        title=title,
        classes=(),
        domains=DOMAINS,
        source=f"the images are on the data set's own page ({page}), {_SPLITS}",
        layout=(f"{folder}/{images}/ (the images)", f"{folder}/{split}"),
    )


INFOS = (
    _info(
        "caltech101",
        "Caltech-101 without background and easy faces: objects, 100 classes (Fei-Fei et al. 2004)",
        "https://data.caltech.edu/records/mzrjq-6wc02",
    ),
    _info(
        "dtd",
        "Describable Textures: 47 classes (Cimpoi et al. 2014)",
        "https://www.robots.ox.ac.uk/~vgg/data/dtd/",
    ),
    _info(
        "flowers102",
        "Oxford Flowers: 102 classes (Nilsback and Zisserman 2008)",
        "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
    ),
    _info(
        "food101",
        "Food-101: 101 dishes (Bossard et al. 2014)",
        "https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/",
    ),
    _info(
        "oxford_pets",
        "Oxford-IIIT Pets: 37 breeds of cats and dogs (Parkhi et al. 2012)",
        "https://www.robots.ox.ac.uk/~vgg/data/pets/",
    ),
)


def load(name: str, request: DataRequest) -> Dataset:
    """Read a data set's split file; images stay in their files."""
    info = {info.name: info for info in INFOS}[name]
    domains = request.chosen_domains(name, DOMAINS)
    folder, images, split = _FOLDERS[name]
    own = DataFolder(info, request.root, request.root / folder)
    own.require(file := own.path / split)
    own.require(base := own.path / images, folder=True)
    parts = read_split_file(file)
    classes = split_classes(parts, repr(str(file)))
    used = [entry.path for part in ("train", "test") for entry in parts[part]]
    base = base.resolve()
    require_present(base, used, repr(str(file)))
    return Dataset(
        name=name,
        classes=classes,
        domains=domains,
        train=image_split(base, [(0, entry.label, entry.path) for entry in parts["train"]]),
        test=image_split(base, [(0, entry.label, entry.path) for entry in parts["test"]]),
    )


def read_split_file(file: Path) -> dict[str, tuple[Entry, ...]]:
    """Return the parts of a split file; each path leads down and is listed once."""
    where = repr(str(file))
    try:
        document = json.loads(read_text(file, _MOST_BYTES))
    # Too many digits are a ValueError too, and too many brackets a RecursionError.
    except (ValueError, RecursionError) as error:
        raise DataError(f"task.root: {where} is not JSON; valid is CoOp's split file") from error
    if not isinstance(document, dict):
        raise DataError(f"task.root: {where} holds no object; valid has the keys train, val, test")
    parts: dict[str, tuple[Entry, ...]] = {}
    faults = Faults()
    for key in ("train", "val", "test"):
        # The loader takes nothing from `val`, so it may be missing.
        rows = document.get(key, [] if key == "val" else None)
        if not isinstance(rows, list) or (not rows and key != "val"):
            raise DataError.at(where, f"has no {key} images", "a list of [path, label, class name]")
        for position, row in enumerate(rows):
            place = f"{key}[{position}] of {where}"
            with faults:
                # `type`, since true and false are whole numbers to `isinstance`.
                if not isinstance(row, list) or [type(value) for value in row] != [str, int, str]:
                    valid = "[path, label, class name] with a whole number as label"
                    raise DataError.at(place, f"is {_shortened(row)}", valid)
                require_listed_path(row[0], place)
        if not faults:
            parts[key] = tuple(Entry(*row) for row in rows)
    with faults:
        require_distinct((entry.path for part in parts.values() for entry in part), where)
    faults.require_none()
    return parts


def split_classes(parts: Mapping[str, Sequence[Entry]], where: str) -> tuple[str, ...]:
    """Return class names by label; refuse a label with two names, and one without an image."""
    names: dict[int, str] = {}
    faults = Faults()
    for entry in (entry for part in parts.values() for entry in part):
        if (name := names.setdefault(entry.label, entry.name)) != entry.name:
            both = f"both {_shortened(name)} and {_shortened(entry.name)}"
            what = f"calls label {_shortened(entry.label)} {both}"
            faults += DataError.at(where, what, "one name for each label").faults
    trained = {entry.label for entry in parts["train"]}
    for label in sorted(names):
        with faults:
            if not 0 <= label < len(names):
                what = f"has the label {_shortened(label)} among {len(names)} different ones"
                raise DataError.at(where, what, f"0 to {len(names) - 1}")
            if label not in trained:
                what = f"has no train image of label {label} ({_shortened(names[label])})"
                raise DataError.at(where, what, "at least one for each class")
    faults.require_none()
    return class_words([names[label] for label in range(len(names))], where)


def _shortened(value: object) -> str:
    """Return a value of a file as errors show it."""
    # A number of a million digits would be refused by `repr` itself.
    text = "a number" if isinstance(value, int) and value.bit_length() > 64 else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
