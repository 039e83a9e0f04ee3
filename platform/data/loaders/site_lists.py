"""`office_caltech10` and `domainnet10`: one list of images for each site, as FedBN published them.

A list is a pickle of two arrays, the paths and the names of the classes; it is read as data and
never run (`_plain_pickle`). Paths begin with the data set's own folder, or with steps that lead to
it from where the published code is started; what follows that folder counts here. Published code
keeps the class names in a set in places, whose order follows from Python's hash seed; here label
order is the fixed one of FedBN's own tables.

A held-out domain is tested on as a whole: both of its lists are test images.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from platform.data.catalogue import DataRequest, DatasetInfo
from platform.data.dataset import Dataset
from platform.data.loaders._files import (
    LONGEST_PATH,
    first_folder,
    image_split,
    read_file,
    require_distinct,
    require_examples,
    require_listed_path,
    require_present,
)
from platform.data.loaders._plain_pickle import read_plain
from platform.errors import DataError

_OFFICE: Final = (
    *("back_pack", "bike", "calculator", "headphones", "keyboard"),
    *("laptop_computer", "monitor", "mouse", "mug", "projector"),
)
_DOMAINNET: Final = (
    *("bird", "feather", "headphones", "ice_cream", "teapot"),
    *("tiger", "whale", "windmill", "wine_glass", "zebra"),
)
_NAMES: Final = {"office_caltech10": _OFFICE, "domainnet10": _DOMAINNET}
_FOLDERS: Final = {"office_caltech10": "office_caltech_10", "domainnet10": "DomainNet"}
_PAGE: Final = "to be had from the page of FedBN, https://github.com/med-air/FedBN"


def _words(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name.replace("_", " ") for name in names)


INFOS = (
    DatasetInfo(
        name="office_caltech10",
        title="Office-Caltech10: 2,533 photos of ten things from four sites",
        classes=_words(_OFFICE),
        domains=("amazon", "caltech", "dslr", "webcam"),
        source=_PAGE,
        layout=(
            "office_caltech_10/{amazon,caltech,dslr,webcam}_{train,test}.pkl",
            "and the images that these list",
        ),
    ),
    DatasetInfo(
        name="domainnet10",
        title="DomainNet with ten of its classes: 22,851 images in six styles",
        classes=_words(_DOMAINNET),
        domains=("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
        source=f"{_PAGE}, and the images from http://ai.bu.edu/M3SDA",
        layout=(
            "DomainNet/{clipart,infograph,painting,quickdraw,real,sketch}_{train,test}.pkl",
            "and the images that these list",
        ),
    ),
)

_Row = tuple[int, int, str]
"""Domain, label and path below the data set's folder."""


def load(name: str, request: DataRequest) -> Dataset:
    """Read the lists; no image is opened.

    Raises:
        ConfigError: If a list or a listed image is missing, a list is damaged, has a path that
            leaves the folder or a class that is none of the ten, an image is listed twice, a class
            is empty, or a domain is unknown.
    """
    info = {info.name: info for info in INFOS}[name]
    domains = request.chosen_domains(name, info.domains)
    folder = first_folder(info, request.root, (_FOLDERS[name],)).resolve()
    train: list[_Row] = []
    test: list[_Row] = []
    for index, domain in enumerate(domains):
        for part, rows in (("train", train), ("test", test)):
            path = folder / f"{domain}_{part}.pkl"
            data = read_file(info, request.root, path)
            is_target = domain == request.held_out_domain
            (test if is_target else rows).extend(_rows(name, data, path, index))
    _require_files(folder, [path for _, _, path in (*train, *test)])
    split, shown = image_split(folder, train), image_split(folder, test)
    # With nothing but a held-out domain left, that is what is wrong, and said elsewhere.
    if train or domains != (request.held_out_domain,):
        require_examples(name, info.classes, split.labels, shown.labels)
    return Dataset(name=name, classes=info.classes, domains=domains, train=split, test=shown)


def _rows(name: str, data: bytes, path: Path, domain: int) -> list[_Row]:
    listed, labels = _columns(data, path)
    # What lists say is the published folder, whatever this user's is called or links to.
    below = {image: _below(image, _FOLDERS[name], repr(str(path))) for image in set(listed)}
    names, rows = _NAMES[name], []
    for position, (image, label) in enumerate(zip(listed, labels, strict=True)):
        if label not in names:
            raise DataError(
                f"task.root: {str(path)!r} has class {label[:40]!r} at image {position}; valid: "
                f"{', '.join(names)}"
            )
        rows.append((domain, names.index(label), below[image]))
    return rows


def _columns(data: bytes, path: Path) -> tuple[list[str], list[str]]:
    held = read_plain(data, str(path))
    columns: list[object] = []
    if isinstance(held, tuple | list) or (isinstance(held, np.ndarray) and held.ndim == 2):
        columns = list(held)
    texts = [_texts(column) for column in columns[:2]]
    if len(columns) != 2 or texts[0] is None or texts[1] is None:
        raise DataError(
            f"task.root: {str(path)!r} does not hold two arrays of texts; valid are the paths, of "
            f"at most {LONGEST_PATH:,} characters, and the names of the classes"
        )
    if len(texts[0]) != len(texts[1]):
        raise DataError(
            f"task.root: {str(path)!r} lists {len(texts[0])} images and {len(texts[1])} classes; "
            "valid is one class for each image"
        )
    return texts[0], texts[1]


def _texts(column: object) -> list[str] | None:
    """Return a column as texts, None if it holds anything else or a text that is too long."""
    values = column.tolist() if isinstance(column, np.ndarray) else column
    if not isinstance(values, list | tuple):
        return None
    if any(not isinstance(v, str | bytes) or len(v) > LONGEST_PATH for v in values):
        return None
    # Python 2 wrote its texts as bytes. A pickle may hold one text many times, which is decoded
    # once, so that what is decoded is not larger than the file.
    decoded = {v: v.decode("latin-1") for v in values if isinstance(v, bytes)}
    return [decoded[v] if isinstance(v, bytes) else v for v in values]


def _below(image: str, folder: str, where: str) -> str:
    """Return the part of a path after the data set's folder, or all of it."""
    steps = image.split("/")
    kept = steps[steps.index(folder) + 1 :] if folder in steps else steps
    below = "/".join(step for step in kept if step != ".")
    require_listed_path(below, where)
    return below


def _require_files(folder: Path, paths: Sequence[str]) -> None:
    where = repr(str(folder / "*.pkl"))
    require_distinct(paths, where)
    require_present(folder, paths, where)
