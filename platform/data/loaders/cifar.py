"""`cifar10` and `cifar100`: 60,000 images of 32x32 pixels, in the binary or the Python version.

Both versions are on the data sets' own page. The Python version is a pickle; it is read as data and
never run (`_plain_pickle`). Where both are there, the binary one is read. Labels of CIFAR-100 are
the fine ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from platform.data.catalogue import DataRequest, DatasetInfo
from platform.data.dataset import Dataset, Split
from platform.data.loaders._files import LONGEST_NAME
from platform.data.loaders._plain_pickle import read_plain
from platform.data.loaders._raw_files import (
    class_words,
    first_folder,
    one_domain,
    read_file,
    read_lines,
    require_examples,
    require_labels,
)
from platform.errors import DataError

SIDE: Final = 32
PIXELS: Final = 3 * SIDE * SIDE
_PAGE: Final = "to be had from the data set's own page, https://www.cs.toronto.edu/~kriz/cifar.html"
_TEN: Final = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_SUPERCLASSES: Final = (
    ("beaver", "dolphin", "otter", "seal", "whale"),
    ("aquarium fish", "flatfish", "ray", "shark", "trout"),
    ("orchid", "poppy", "rose", "sunflower", "tulip"),
    ("bottle", "bowl", "can", "cup", "plate"),
    ("apple", "mushroom", "orange", "pear", "sweet pepper"),
    ("clock", "keyboard", "lamp", "telephone", "television"),
    ("bed", "chair", "couch", "table", "wardrobe"),
    ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    ("bear", "leopard", "lion", "tiger", "wolf"),
    ("bridge", "castle", "house", "road", "skyscraper"),
    ("cloud", "forest", "mountain", "plain", "sea"),
    ("camel", "cattle", "chimpanzee", "elephant", "kangaroo"),
    ("fox", "porcupine", "possum", "raccoon", "skunk"),
    ("crab", "lobster", "snail", "spider", "worm"),
    ("baby", "boy", "girl", "man", "woman"),
    ("crocodile", "dinosaur", "lizard", "snake", "turtle"),
    ("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    ("maple tree", "oak tree", "palm tree", "pine tree", "willow tree"),
    ("bicycle", "bus", "motorcycle", "pickup truck", "train"),
    ("lawn mower", "rocket", "streetcar", "tank", "tractor"),
)
"""CIFAR-100's, as its page lists them, of five classes each."""
_BATCHES: Final = tuple(f"data_batch_{number}" for number in range(1, 6))

INFOS = (
    DatasetInfo(
        name="cifar10",
        title="CIFAR-10: 60,000 photos of 32x32 pixels in ten classes",
        classes=_TEN,
        domains=("photo",),
        source=_PAGE,
        layout=(
            "cifar-10-batches-bin/{data_batch_1..5,test_batch}.bin and batches.meta.txt",
            "or cifar-10-batches-py/{data_batch_1..5,test_batch,batches.meta}",
        ),
    ),
    DatasetInfo(
        name="cifar100",
        title="CIFAR-100: 60,000 photos of 32x32 pixels in a hundred classes",
        classes=(),
        domains=("photo",),
        source=_PAGE,
        layout=(
            "cifar-100-binary/{train,test}.bin and fine_label_names.txt",
            "or cifar-100-python/{train,test,meta}",
        ),
    ),
)


@dataclass(frozen=True, kw_only=True)
class _Version:
    """One published form of one of the two data sets.

    Attributes:
        folder: Its folder's name.
        train: Files of training images, in order.
        test: File of test images.
        names: File of class names.
        labels: Of the binary form how many label bytes precede an image, the last one counting.
        label_key: Of the Python form the key of the labels.
        names_key: Of the Python form the key of the class names; empty in the binary one.
    """

    folder: str
    train: tuple[str, ...]
    test: str
    names: str
    labels: int = 1
    label_key: str = ""
    names_key: str = ""


_VERSIONS: Final = {
    "cifar10": (
        _Version(
            folder="cifar-10-batches-bin",
            train=tuple(f"{batch}.bin" for batch in _BATCHES),
            test="test_batch.bin",
            names="batches.meta.txt",
        ),
        _Version(
            folder="cifar-10-batches-py",
            train=_BATCHES,
            test="test_batch",
            names="batches.meta",
            label_key="labels",
            names_key="label_names",
        ),
    ),
    "cifar100": (
        # A coarse label comes before the fine one.
        _Version(
            folder="cifar-100-binary",
            train=("train.bin",),
            test="test.bin",
            names="fine_label_names.txt",
            labels=2,
        ),
        _Version(
            folder="cifar-100-python",
            train=("train",),
            test="test",
            names="meta",
            label_key="fine_labels",
            names_key="fine_label_names",
        ),
    ),
}

_Part = tuple[NDArray[np.uint8], NDArray[np.int64]]


def load(name: str, request: DataRequest) -> Dataset:
    """Read all images into memory: 184 MB of the published files.

    Raises:
        ConfigError: If a file is missing or damaged, a label is none of a class, a class is empty,
            or a domain is unknown.
    """
    info = {info.name: info for info in INFOS}[name]
    domains = request.chosen_domains(name, info.domains)
    versions = {version.folder: version for version in _VERSIONS[name]}
    folder = first_folder(info, request.root, tuple(versions))
    version = versions[folder.name]

    def read(path: Path) -> bytes:
        return read_file(info, request.root, path)

    if version.names_key:
        names = _names_of_pickle(version, folder / version.names, read)
    else:
        names = read_lines(info, request.root, folder / version.names)
    classes = class_words(names, folder / version.names, info.classes)
    train = _split(version, [folder / file for file in version.train], classes, read)
    test = _split(version, [folder / version.test], classes, read)
    require_examples(name, classes, train.labels, test.labels)
    return Dataset(
        name=name,
        classes=classes,
        domains=domains,
        train=train,
        test=test,
        superclasses=_superclasses_of(classes) if name == "cifar100" else (),
    )


def _superclasses_of(classes: Sequence[str]) -> tuple[int, ...]:
    """Return the superclass of each class; none where a file names classes of its own."""
    of = {label: index for index, own in enumerate(_SUPERCLASSES) for label in own}
    return tuple(of[label] for label in classes) if set(classes) <= set(of) else ()


def _split(
    version: _Version,
    paths: Sequence[Path],
    classes: Sequence[str],
    read: Callable[[Path], bytes],
) -> Split:
    one = _pickled_part if version.names_key else _binary_part
    parts = []
    for path in paths:
        images, labels = one(version, path, read(path))
        require_labels(labels, classes, path)
        parts.append((images, labels))
    labels = np.concatenate([part[1] for part in parts])
    return Split(np.concatenate([part[0] for part in parts]), labels, one_domain(labels))


def _binary_part(version: _Version, path: Path, data: bytes) -> _Part:
    size = version.labels + PIXELS
    if len(data) % size:
        raise DataError(
            f"task.root: {str(path)!r} has {len(data):,} bytes, which is no whole number of images "
            f"of {size:,} bytes each; valid is the file as published"
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, size)
    labels = records[:, version.labels - 1].astype(np.int64)
    return _as_images(records[:, version.labels :]), labels


def _pickled_part(version: _Version, path: Path, data: bytes) -> _Part:
    batch = _dict_of(read_plain(data, str(path)))
    pixels, labels = batch.get("data"), batch.get(version.label_key)
    if not (
        isinstance(pixels, np.ndarray)
        and pixels.dtype == np.uint8
        and pixels.shape[1:] == (PIXELS,)
    ):
        raise DataError(
            f"task.root: {str(path)!r} has no 'data' that is an array of bytes, {PIXELS:,} for "
            "each image; valid is the file as published"
        )
    if not (isinstance(labels, list) and all(type(label) is int for label in labels)):
        raise DataError(
            f"task.root: {str(path)!r} has no {version.label_key!r} that is a list of whole "
            "numbers; valid is the file as published"
        )
    if len(labels) != len(pixels):
        raise DataError(
            f"task.root: {str(path)!r} has {len(pixels)} images and {len(labels)} labels; valid is "
            "one label for each image"
        )
    # A pickle may hold numbers that an array may not; none of them is anywhere near a label.
    return _as_images(pixels), np.asarray(
        [max(-1, min(label, 2**31)) for label in labels], np.int64
    )


def _names_of_pickle(
    version: _Version, path: Path, read: Callable[[Path], bytes]
) -> Sequence[object]:
    names = _dict_of(read_plain(read(path), str(path))).get(version.names_key)
    if not isinstance(names, list):
        raise DataError(
            f"task.root: {str(path)!r} has no {version.names_key!r}; valid is the file as published"
        )
    return names


def _dict_of(value: object) -> dict[Any, object]:
    """Its keys as text: files that Python 3 wrote again may have them as bytes."""
    return {_text(key): item for key, item in value.items()} if isinstance(value, dict) else {}


def _text(value: object) -> object:
    if isinstance(value, bytes) and len(value) <= LONGEST_NAME:
        return value.decode("latin-1")
    return value


def _as_images(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return three planes of an image each become three values of a pixel each; a view."""
    return pixels.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
