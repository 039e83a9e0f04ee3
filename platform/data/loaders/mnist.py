"""`mnist` and `fashion_mnist`: 70,000 grey images of 28x28 pixels each, as IDX files.

The files may be packed (`.gz`), as their pages have them, or not. The IDX format is told on MNIST's
page: a magic number, the size of each axis, and the values; numbers are big-endian.
"""

from __future__ import annotations

import gzip
import io
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from platform.data.catalogue import DataRequest, DatasetInfo
from platform.data.dataset import Dataset, Split
from platform.data.digits import CLASSES as DIGITS
from platform.data.loaders._files import is_there
from platform.data.loaders._raw_files import (
    MOST_BYTES,
    first_folder,
    one_domain,
    read_file,
    require_examples,
    require_labels,
)
from platform.errors import DataError

SIDE: Final = 28
_CLOTHES: Final = (
    *("t-shirt", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)
_FOLDERS: Final = {
    "mnist": ("mnist", "MNIST/raw"),
    "fashion_mnist": ("fashion_mnist", "FashionMNIST/raw"),
}
_FILES: Final = "{train,t10k}-{images-idx3,labels-idx1}-ubyte, each as it is or as .gz"

INFOS = (
    DatasetInfo(
        name="mnist",
        title="MNIST: 70,000 handwritten digits of 28x28 pixels",
        classes=DIGITS,
        domains=("scan",),
        source="to be had from the data set's own page, http://yann.lecun.com/exdb/mnist",
        layout=(f"mnist/{_FILES}", "or the same files in MNIST/raw"),
    ),
    DatasetInfo(
        name="fashion_mnist",
        title="Fashion-MNIST: 70,000 pictures of clothes of 28x28 pixels",
        classes=_CLOTHES,
        domains=("photo",),
        source="to be had from the data set's own page, https://github.com/zalandoresearch/fashion-mnist",
        layout=(f"fashion_mnist/{_FILES}", "or the same files in FashionMNIST/raw"),
    ),
)


def load(name: str, request: DataRequest) -> Dataset:
    """Read all images into memory, grey as they are: 55 MB of the published files.

    Raises:
        ConfigError: If a file is missing or damaged, a label is none of a class, a class is empty,
            or a domain is unknown.
    """
    info = {info.name: info for info in INFOS}[name]
    domains = request.chosen_domains(name, info.domains)
    folder = first_folder(info, request.root, _FOLDERS[name])
    train, test = (_split(info, request.root, folder, part) for part in ("train", "t10k"))
    require_examples(name, info.classes, train.labels, test.labels)
    return Dataset(name=name, classes=info.classes, domains=domains, train=train, test=test)


def _split(info: DatasetInfo, root: Path, folder: Path, part: str) -> Split:
    images = _read(info, root, folder / f"{part}-images-idx3-ubyte", (SIDE, SIDE))
    path = folder / f"{part}-labels-idx1-ubyte"
    labels = _read(info, root, path, ()).astype(np.int64)
    if len(images) != len(labels):
        raise DataError(
            f"task.root: {str(path)!r} has {len(labels)} labels for {len(images)} images; valid is "
            "one for each"
        )
    require_labels(labels, info.classes, path)
    # Three equal colours; a view, of which only the rows that are asked for are written out.
    grey = np.broadcast_to(images[..., None], (*images.shape, 3))
    return Split(grey, labels, one_domain(labels))


def _read(info: DatasetInfo, root: Path, path: Path, shape: Sequence[int]) -> NDArray[np.uint8]:
    """Return the array of an IDX file whose examples have a shape."""
    packed = path.with_name(f"{path.name}.gz")
    if is_there(path) or not is_there(packed):
        data = read_file(info, root, path)
        return _array(path, data, _count(path, data, shape), shape)
    data = read_file(info, root, packed)
    header = 4 * (2 + len(shape))
    count = _count(packed, _unpacked(packed, data, header), shape)
    # What the header promises is bounded, so what is unpacked is: a byte more tells of a lie.
    size = header + count * math.prod(shape) + 1
    return _array(packed, _unpacked(packed, data, size), count, shape)


def _unpacked(path: Path, data: bytes, size: int) -> bytes:
    """Return the first bytes of what is packed."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            return file.read(size)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"task.root: {str(path)!r} is no gzip file, or a damaged one; valid is the file as "
            "published"
        ) from error


def _count(path: Path, data: bytes, shape: Sequence[int]) -> int:
    """Return how many examples the header tells of."""
    axes = 1 + len(shape)
    # Two zero bytes, 8 for unsigned bytes, and the number of axes.
    if len(data) < 4 * (1 + axes) or data[:4] != bytes((0, 0, 8, axes)):
        raise DataError(
            f"task.root: {str(path)!r} is no IDX file of bytes with {axes} "
            f"{'axes' if shape else 'axis'}; valid is the file as published"
        )
    count, *sizes = (int(size) for size in np.frombuffer(data[4 : 4 * (1 + axes)], ">u4"))
    if sizes != list(shape):
        raise DataError(
            f"task.root: {str(path)!r} has images of {sizes[0]} x {sizes[1]} pixels; valid: "
            f"{SIDE} x {SIDE}"
        )
    if count * math.prod(shape) > MOST_BYTES:
        raise DataError(
            f"task.root: {str(path)!r} claims {count:,} examples; valid are at most "
            f"{MOST_BYTES:,} bytes of them"
        )
    return count


def _array(path: Path, data: bytes, count: int, shape: Sequence[int]) -> NDArray[np.uint8]:
    header = 4 * (2 + len(shape))
    size = header + count * math.prod(shape)
    if len(data) != size:
        amount = "more" if len(data) > size else "fewer"
        raise DataError(
            f"task.root: {str(path)!r} has {amount} bytes than the {count:,} examples that its "
            "header tells of; valid is the file as published"
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(count, *shape)
