"""Published data sets in files of their own form: CIFAR, MNIST, Tiny ImageNet, AG News, FedBN's.

`cifar10` and `cifar100` are 60,000 images of 32x32 pixels, in the binary or the Python version. The
data sets' own page has both. The Python version is a pickle; `_plain_pickle` reads pickles as data
and never runs them. Of both versions the loader prefers the binary one. Labels of CIFAR-100 are the
fine ones.

`mnist` and `fashion_mnist` are 70,000 grey images of 28x28 pixels each, as IDX files, packed
(`.gz`) as their pages have them, or not. MNIST's page describes the IDX format: a magic number, the
size of each axis, and the values; numbers are big-endian.

`tiny_imagenet` has 200 classes of ImageNet with 500 training images each, of 64x64 pixels. The
published test images have no labels, so the validation images are the test split here, as in all
papers on it. Label order is the ASCII order of the WordNet ids.

`ag_news` has 127,600 news texts of four topics in comma-separated tables. Each line has the number
of its class, counted from 1, a title and a description (Zhang, Zhao and LeCun, 2015); the text is
both, with a space between them.

`office_caltech10` and `domainnet10` have one list of images for each site, as FedBN published them.
A list is a pickle of two arrays, the paths and the names of the classes. Paths begin with the data
set's own folder, or with steps to it from the place where the published code starts; the part after
that folder counts here. Some published code keeps the class names in a set, whose order follows
from Python's hash seed; here label order is the fixed order of FedBN's own tables.
"""

from __future__ import annotations

import gzip
import io
import math
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from platform.data.catalogue import DataRequest, DatasetInfo
from platform.data.dataset import Dataset, Split
from platform.data.loaders import _files
from platform.data.loaders._plain_pickle import read_plain
from platform.data.loaders.embedded import DIGITS, TOPICS
from platform.errors import DataError

_SIDE: Final = 32
PIXELS: Final = 3 * _SIDE * _SIDE
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
"""Of CIFAR-100, as its page lists them, with five classes each."""
_BATCHES: Final = tuple(f"data_batch_{number}" for number in range(1, 6))


class _Version(NamedTuple):
    """One published form of CIFAR.

    Attributes:
        train: Files of training images, in order.
        test: File of test images.
        names: File of class names.
        labels: In the binary form, the label bytes before an image; the last one is the label.
        keys: In the Python form, the keys of the labels and of the class names; else empty.
    """

    train: tuple[str, ...]
    test: str
    names: str
    labels: int = 1
    keys: tuple[str, ...] = ()


_TEN_BINARY: Final = tuple(f"{batch}.bin" for batch in _BATCHES)
_FINE: Final = ("fine_labels", "fine_label_names")
_VERSIONS: Final = {
    "cifar-10-batches-bin": _Version(_TEN_BINARY, "test_batch.bin", "batches.meta.txt"),
    "cifar-10-batches-py": _Version(
        _BATCHES, "test_batch", "batches.meta", keys=("labels", "label_names")
    ),
    # A coarse label comes before the fine one.
    "cifar-100-binary": _Version(("train.bin",), "test.bin", "fine_label_names.txt", labels=2),
    "cifar-100-python": _Version(("train",), "test", "meta", keys=_FINE),
}
_AS_PUBLISHED: Final = "the file as published"


Read = tuple[Sequence[str], Split, Split]
"""Classes, training and test examples."""


def _load_cifar(folder: _files.DataFolder, request: DataRequest) -> Read:
    """Read all images into memory: 184 MB of the published files."""
    version, path = _VERSIONS[folder.path.name], folder.path / _VERSIONS[folder.path.name].names
    names: object = None
    if version.keys:
        names = _dict_of(read_plain(folder.read(version.names), str(path))).get(version.keys[1])
    else:
        names = folder.lines(version.names)
    if not isinstance(names, list):
        raise DataError.at(path, f"has no {version.keys[1]!r}", _AS_PUBLISHED)
    classes = _files.class_words(names, path, folder.info.classes)
    train = _cifar_split(version, folder, version.train, classes)
    return classes, train, _cifar_split(version, folder, (version.test,), classes)


def _cifar_split(
    version: _Version, folder: _files.DataFolder, files: Sequence[str], classes: Sequence[str]
) -> Split:
    images, labels, size = [], [], version.labels + PIXELS
    for file in files:
        path, data = folder.path / file, folder.read(file)
        if version.keys:
            batch = _dict_of(read_plain(data, str(path)))
            pixels, listed = batch.get("data"), batch.get(version.keys[0])
            if not (
                isinstance(pixels, np.ndarray)
                and pixels.dtype == np.uint8
                and pixels.shape[1:] == (PIXELS,)
            ):
                what = f"has no 'data' that is an array of bytes, {PIXELS:,} for each image"
                raise DataError.at(path, what, _AS_PUBLISHED)
            if not (isinstance(listed, list) and all(type(label) is int for label in listed)):
                what = f"has no {version.keys[0]!r} that is a list of whole numbers"
                raise DataError.at(path, what, _AS_PUBLISHED)
            _require_pairs(path, len(pixels), len(listed))
            # A pickle may hold numbers that are too large for an array, and for a label.
            found = np.asarray([max(-1, min(label, 2**31)) for label in listed], np.int64)
        else:
            if len(data) % size:
                what = f"has {len(data):,} bytes, no whole number of images of {size:,} bytes each"
                raise DataError.at(path, what, _AS_PUBLISHED)
            records = np.frombuffer(data, np.uint8).reshape(-1, size)
            pixels = records[:, version.labels :]
            found = records[:, version.labels - 1].astype(np.int64)
        _files.require_labels(found, classes, path)
        labels.append(found)
        # A view of the planes (n, 3, 32, 32).
        images.append(pixels.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1))
    every = np.concatenate(labels)
    return Split(np.concatenate(images), every, np.zeros_like(every))


def _require_pairs(path: Path, images: int, labels: int) -> None:
    if images != labels:
        raise DataError.at(path, f"has {labels} labels for {images} images", "one for each")


def _dict_of(value: object) -> dict[Any, object]:
    """Return a dict with keys of text; files that Python 3 wrote again may have bytes as keys."""
    if not isinstance(value, dict):
        return {}
    longest = _files.LONGEST_NAME
    return {
        key.decode("latin-1") if isinstance(key, bytes) and len(key) <= longest else key: item
        for key, item in value.items()
    }


_MNIST_SIDE: Final = 28
_CLOTHES: Final = (
    *("t-shirt", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)
_MNIST_FILES: Final = "{train,t10k}-{images-idx3,labels-idx1}-ubyte, each as it is or as .gz"


def _load_mnist(folder: _files.DataFolder, request: DataRequest) -> Read:
    """Read all images into memory, grey as they are: 55 MB of the published files."""
    splits = []
    for part in ("train", "t10k"):
        images = _read_idx(folder, f"{part}-images-idx3-ubyte", (_MNIST_SIDE, _MNIST_SIDE))
        path = folder.path / f"{part}-labels-idx1-ubyte"
        labels = _read_idx(folder, path.name, ()).astype(np.int64)
        _require_pairs(path, len(images), len(labels))
        _files.require_labels(labels, folder.info.classes, path)
        # Three equal colours, as a view: only the rows that are asked for are copied.
        grey = np.broadcast_to(images[..., None], (*images.shape, 3))
        splits.append(Split(grey, labels, np.zeros_like(labels)))
    train, test = splits
    return folder.info.classes, train, test


def _read_idx(folder: _files.DataFolder, name: str, shape: Sequence[int]) -> NDArray[np.uint8]:
    """Return the array of an IDX file whose examples have this shape."""
    packed, header = f"{name}.gz", 4 * (2 + len(shape))
    is_packed = not _files.is_there(folder.path / name) and _files.is_there(folder.path / packed)
    name = packed if is_packed else name
    path, data = folder.path / name, folder.read(name)
    count = _count(path, _unpacked(path, data, header) if is_packed else data, shape)
    size = header + count * math.prod(shape)
    if is_packed:
        # The header's count is bounded, so the unpacked data are. One byte more shows a wrong
        # count.
        data = _unpacked(path, data, size + 1)
    if len(data) != size:
        amount = "more" if len(data) > size else "fewer"
        what = f"has {amount} bytes than the {count:,} examples that its header tells of"
        raise DataError.at(path, what, _AS_PUBLISHED)
    return np.frombuffer(data, np.uint8, offset=header).reshape(count, *shape)


def _unpacked(path: Path, data: bytes, size: int) -> bytes:
    """Return the first bytes of the packed data."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            return file.read(size)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError.at(path, "is no gzip file, or a damaged one", _AS_PUBLISHED) from error


def _count(path: Path, data: bytes, shape: Sequence[int]) -> int:
    """Return the number of examples by the header."""
    axes = 1 + len(shape)
    # Two zero bytes, 8 for unsigned bytes, and the number of axes.
    if len(data) < 4 * (1 + axes) or data[:4] != bytes((0, 0, 8, axes)):
        what = f"is no IDX file of bytes with {axes} {'axes' if shape else 'axis'}"
        raise DataError.at(path, what, _AS_PUBLISHED)
    count, *sizes = (int(size) for size in np.frombuffer(data[4 : 4 * (1 + axes)], ">u4"))
    if sizes != list(shape):
        raise DataError.at(
            path, f"has images of {sizes[0]} x {sizes[1]} pixels", f"{_MNIST_SIDE} x {_MNIST_SIDE}"
        )
    if count * math.prod(shape) > _files.MOST_BYTES:
        raise DataError.at(
            path, f"claims {count:,} examples", f"at most {_files.MOST_BYTES:,} bytes of them"
        )
    return count


def _load_tiny(at: _files.DataFolder, request: DataRequest) -> Read:
    """List all images without opening any."""
    folder = at.path.resolve()
    where, known = repr(str(folder / "wnids.txt")), [one.strip() for one in at.lines("wnids.txt")]
    for one in known:
        _files.require_listed_path(one, where)
    _files.require_distinct(known, where)
    ids = {one: label for label, one in enumerate(sorted(known))}
    split = (line.partition("\t") for line in at.lines("words.txt"))
    entries = {one: words for one, _, words in split}
    for one in ids:
        if one not in entries:
            raise DataError.at(
                at.path / "words.txt", f"has no words for class {one!r}", _AS_PUBLISHED
            )
    first = {one: entries[one].split(",")[0].strip() for one in ids}
    # All words of an id where another id has the same first word.
    counts = Counter(first.values())
    named = [word if counts[word] == 1 else entries[one].strip() for one, word in first.items()]
    classes = _files.class_words(named, folder / "words.txt")
    rows, tests = list[_files.Row](), list[_files.Row]()
    for one, label in ids.items():
        inner = f"train/{one}/images"
        at.require(folder / inner, folder=True)
        images = _files.image_names(folder / inner, folder)
        rows += [(0, label, f"{inner}/{image}") for image in images]
    where = repr(str(folder / "val" / "val_annotations.txt"))
    for number, line in enumerate(at.lines("val/val_annotations.txt"), 1):
        # A box in the image follows, which classification does not need.
        file, _, rest = line.partition("\t")
        one = rest.split("\t")[0].strip()
        if one not in ids:
            what = f"has class {one[:40]!r} at line {number}"
            raise DataError.at(where, what, "an id of wnids.txt")
        _files.require_listed_path(file, where)
        tests.append((0, ids[one], f"val/images/{file}"))
    return classes, _files.image_split(folder, rows), _listed(folder, tests, where)


def _listed(folder: Path, rows: Sequence[_files.Row], where: str) -> Split:
    """Return listed images, each of which must be there and listed once."""
    paths = [path for _, _, path in rows]
    _files.require_distinct(paths, where)
    _files.require_present(folder, paths, where)
    return _files.image_split(folder, rows)


def _load_news(folder: _files.DataFolder, request: DataRequest) -> Read:
    """Read all texts into memory."""
    if _files.is_there(path := folder.path / "classes.txt"):
        _files.class_words(folder.lines(path.name), path, folder.info.classes)
    train, test = (_news_split(folder, folder.path / f"{part}.csv") for part in ("train", "test"))
    return folder.info.classes, train, test


def _news_split(folder: _files.DataFolder, path: Path) -> Split:
    folder.require(path)
    numbers, texts = [], []
    for line, row in _files.table_lines(path, _files.MOST_TEXT, (",",)):
        if len(row) != 3 or not (row[0].isascii() and row[0].isdigit() and len(row[0]) < 5):
            what = f"has no class, title and description at line {line}"
            raise DataError.at(path, what, "a class's number and two texts")
        numbers.append(int(row[0]))
        texts.append(" ".join(part.strip() for part in row[1:]).strip())
    # Labels count from 0, the file from 1.
    labels = np.array(numbers, np.int64) - 1
    _files.require_labels(labels, folder.info.classes, path, first=1)
    return Split(np.zeros((0, 0, 0, 3), np.uint8), labels, np.zeros_like(labels), tuple(texts))


_OFFICE: Final = (
    *("back_pack", "bike", "calculator", "headphones", "keyboard"),
    *("laptop_computer", "monitor", "mouse", "mug", "projector"),
)
_DOMAINNET: Final = (
    *("bird", "feather", "headphones", "ice_cream", "teapot"),
    *("tiger", "whale", "windmill", "wine_glass", "zebra"),
)
_SITE_NAMES: Final = {"office_caltech10": _OFFICE, "domainnet10": _DOMAINNET}
_FEDBN: Final = "to be had from the page of FedBN, https://github.com/med-air/FedBN"


def _load_sites(at: _files.DataFolder, request: DataRequest) -> Read:
    """Read the lists; no image is opened. A held-out domain is tested on as a whole."""
    folder, train, test = at.path.resolve(), list[_files.Row](), list[_files.Row]()
    for index, domain in enumerate(request.domains or ()):
        for part, rows in (("train", train), ("test", test)):
            path = folder / f"{domain}_{part}.pkl"
            is_target = domain == request.held_out_domain
            (test if is_target else rows).extend(_site_rows(at, path, index))
    _listed(folder, [*train, *test], repr(str(folder / "*.pkl")))
    return at.info.classes, _files.image_split(folder, train), _files.image_split(folder, test)


def _site_rows(folder: _files.DataFolder, path: Path, domain: int) -> list[_files.Row]:
    held = read_plain(folder.read(path.name), str(path))
    columns: list[object] = []
    if isinstance(held, tuple | list) or (isinstance(held, np.ndarray) and held.ndim == 2):
        columns = list(held)
    listed, labels = (_texts(column) for column in (*columns, None, None)[:2])
    if len(columns) != 2 or listed is None or labels is None:
        most = f"of at most {_files.LONGEST_PATH:,} characters"
        valid = f"the paths, {most}, and the names of the classes"
        raise DataError.at(path, "does not hold two arrays of texts", valid)
    _require_pairs(path, len(listed), len(labels))
    # Lists name the published folder, which this user's folder need not be called like.
    below, outer = dict[str, str](), _SOURCES[folder.info.name][1][0]
    for image in set(listed):
        steps = image.split("/")
        kept = steps[steps.index(outer) + 1 :] if outer in steps else steps
        below[image] = "/".join(step for step in kept if step != ".")
        _files.require_listed_path(below[image], repr(str(path)))
    names, rows = _SITE_NAMES[folder.info.name], []
    for position, (image, label) in enumerate(zip(listed, labels, strict=True)):
        if label not in names:
            what = f"has class {label[:40]!r} at image {position}"
            raise DataError.at(path, what, ", ".join(names))
        rows.append((domain, names.index(label), below[image]))
    return rows


def _texts(column: object) -> list[str] | None:
    """Return a column as texts; None if a value is no text or is too long."""
    values = column.tolist() if isinstance(column, np.ndarray) else column
    if not isinstance(values, list | tuple):
        return None
    if any(not isinstance(v, str | bytes) or len(v) > _files.LONGEST_PATH for v in values):
        return None
    # Python 2 wrote its texts as bytes. A pickle may hold one text many times, so each is decoded
    # once: the decoded texts are then no larger than the file.
    decoded = {v: v.decode("latin-1") for v in values if isinstance(v, bytes)}
    return [decoded[v] if isinstance(v, bytes) else v for v in values]


INFOS = (
    DatasetInfo(
        name="office_caltech10",
        title="Office-Caltech10: 2,533 photos of ten things from four sites",
        classes=tuple(name.replace("_", " ") for name in _OFFICE),
        domains=("amazon", "caltech", "dslr", "webcam"),
        source=_FEDBN,
        layout=(
            "office_caltech_10/{amazon,caltech,dslr,webcam}_{train,test}.pkl",
            "and the images that these list",
        ),
    ),
    DatasetInfo(
        name="domainnet10",
        title="DomainNet with ten of its classes: 22,851 images in six styles",
        classes=tuple(name.replace("_", " ") for name in _DOMAINNET),
        domains=("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
        source=f"{_FEDBN}, and the images from http://ai.bu.edu/M3SDA",
        layout=(
            "DomainNet/{clipart,infograph,painting,quickdraw,real,sketch}_{train,test}.pkl",
            "and the images that these list",
        ),
    ),
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
    DatasetInfo(
        name="mnist",
        title="MNIST: 70,000 handwritten digits of 28x28 pixels",
        classes=DIGITS,
        domains=("scan",),
        source="to be had from the data set's own page, http://yann.lecun.com/exdb/mnist",
        layout=(f"mnist/{_MNIST_FILES}", "or the same files in MNIST/raw"),
    ),
    DatasetInfo(
        name="fashion_mnist",
        title="Fashion-MNIST: 70,000 pictures of clothes of 28x28 pixels",
        classes=_CLOTHES,
        domains=("photo",),
        source="to be had from the data set's own page, https://github.com/zalandoresearch/fashion-mnist",
        layout=(f"fashion_mnist/{_MNIST_FILES}", "or the same files in FashionMNIST/raw"),
    ),
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
    DatasetInfo(
        name="ag_news",
        title="AG News: 127,600 news texts of four topics",
        classes=TOPICS,
        domains=("news",),
        source="to be had from the page that its paper names, http://goo.gl/JyCnZq",
        layout=(
            "ag_news/{train,test}.csv with class, title and description in each line",
            "where wanted ag_news/classes.txt",
            "or the same files in ag_news_csv",
        ),
        modality="texts",
    ),
)

_SOURCES: Final[
    Mapping[str, tuple[Callable[[_files.DataFolder, DataRequest], Read], tuple[str, ...]]]
] = {
    "cifar10": (_load_cifar, ("cifar-10-batches-bin", "cifar-10-batches-py")),
    "cifar100": (_load_cifar, ("cifar-100-binary", "cifar-100-python")),
    "mnist": (_load_mnist, ("mnist", "MNIST/raw")),
    "fashion_mnist": (_load_mnist, ("fashion_mnist", "FashionMNIST/raw")),
    "tiny_imagenet": (_load_tiny, ("tiny-imagenet-200",)),
    "ag_news": (_load_news, ("ag_news", "ag_news_csv")),
    "office_caltech10": (_load_sites, ("office_caltech_10",)),
    "domainnet10": (_load_sites, ("DomainNet",)),
}
"""The reader of each data set, and its folder's names; the first that exists is read."""


def load(name: str, request: DataRequest) -> Dataset:
    """Read a data set: CIFAR, MNIST and AG News into memory, of the others the list of images."""
    info, (read, names) = {info.name: info for info in INFOS}[name], _SOURCES[name]
    domains = request.chosen_domains(name, info.domains)
    folder = _files.DataFolder.first(info, request.root, names)
    named, train, test = read(folder, replace(request, domains=domains))
    classes = tuple(named)
    # A run whose only domain is held out is refused elsewhere.
    if train.num_examples or name not in _SITE_NAMES or domains != (request.held_out_domain,):
        _files.require_examples(name, classes, train.labels, test.labels)
    of = {label: index for index, own in enumerate(_SUPERCLASSES) for label in own}
    # A file may name classes of its own, which have no superclasses.
    is_known = name == "cifar100" and set(classes) <= set(of)
    return Dataset(
        name=name,
        classes=classes,
        domains=domains,
        train=train,
        test=test,
        superclasses=tuple(of[label] for label in classes) if is_known else (),
    )
