"""Small data sets of arrays, lists and texts, drawn in exactly the layouts that are published.

Each function fills a folder as `task.root` would name it and returns that folder. Numbers are of
examples per class. The pixels of CIFAR and MNIST tell the class: they are random around a value
that grows with the label.
"""

from __future__ import annotations

import csv
import gzip
import io
import pickle
import struct
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
OFFICE = (
    *("back_pack", "bike", "calculator", "headphones", "keyboard"),
    *("laptop_computer", "monitor", "mouse", "mug", "projector"),
)
OFFICE_SITES = ("amazon", "caltech", "dslr", "webcam")
DOMAINNET = (
    *("bird", "feather", "headphones", "ice_cream", "teapot"),
    *("tiger", "whale", "windmill", "wine_glass", "zebra"),
)
DOMAINNET_SITES = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
TOPICS = ("World", "Sports", "Business", "Sci/Tech")


def draw_cifar10(
    root: Path, train: int = 5, test: int = 1, *, classes: int = 10, layout: str = "binary"
) -> Path:
    """CIFAR-10, `binary` or `python`; batch b holds every fifth image, from the bth on."""
    pixels, labels = _pixels(train, classes, 3072, seed=1)
    shown, answers = _pixels(test, classes, 3072, seed=2)
    names = CIFAR10[:classes]
    parts = [(f"data_batch_{b + 1}", pixels[b::5], labels[b::5]) for b in range(5)]
    parts.append(("test_batch", shown, answers))
    if layout == "binary":
        folder = _made(root / "cifar-10-batches-bin")
        for name, images, owners in parts:
            (folder / f"{name}.bin").write_bytes(records(images, owners))
        (folder / "batches.meta.txt").write_text("\n".join(names) + "\n\n")
        return root
    folder = _made(root / "cifar-10-batches-py")
    for name, images, owners in parts:
        batch = {
            "batch_label": f"batch {name}",
            "labels": owners.tolist(),
            "data": images,
            "filenames": [f"{name}_{i}.png" for i in range(len(images))],
        }
        (folder / name).write_bytes(as_python_2(batch))
    meta = {"num_cases_per_batch": 10000, "label_names": list(names), "num_vis": 3072}
    (folder / "batches.meta").write_bytes(as_python_2(meta))
    return root


def draw_cifar100(
    root: Path, train: int = 2, test: int = 1, *, classes: int = 100, layout: str = "binary"
) -> Path:
    """CIFAR-100, `binary` or `python`; five fine classes make a coarse one."""
    parts = {"train": _pixels(train, classes, 3072, seed=3)}
    parts["test"] = _pixels(test, classes, 3072, seed=4)
    names = [f"fine_class{label}" for label in range(classes)]
    folder = _made(root / ("cifar-100-binary" if layout == "binary" else "cifar-100-python"))
    for name, (images, labels) in parts.items():
        if layout == "binary":
            (folder / f"{name}.bin").write_bytes(records(images, labels // 5, labels))
        else:
            batch = {"fine_labels": labels.tolist(), "coarse_labels": (labels // 5).tolist()}
            (folder / name).write_bytes(as_python_2({"data": images, **batch}))
    if layout == "binary":
        (folder / "fine_label_names.txt").write_text("\n".join(names) + "\n")
    else:
        coarse = [f"coarse{label}" for label in range(-(-classes // 5))]
        meta = {"fine_label_names": names, "coarse_label_names": coarse}
        (folder / "meta").write_bytes(as_python_2(meta))
    return root


def draw_mnist(
    root: Path, train: int = 2, test: int = 1, *, folder: str = "mnist", packed: bool = False
) -> Path:
    """MNIST, ten classes, as in `mnist` or in torchvision's `MNIST/raw`."""
    place = _made(root / folder)
    for part, each, seed in (("train", train, 5), ("t10k", test, 6)):
        images, labels = _pixels(each, 10, 28 * 28, seed=seed)
        write_idx(place / f"{part}-images-idx3-ubyte", images.reshape(-1, 28, 28), packed=packed)
        write_idx(place / f"{part}-labels-idx1-ubyte", labels.astype(np.uint8), packed=packed)
    return root


draw_fashion_mnist = partial(draw_mnist, folder="fashion_mnist")
"""As in `fashion_mnist`, or in torchvision's `FashionMNIST/raw`."""


def draw_tiny_imagenet(
    root: Path, train: int = 2, test: int = 1, *, classes: int = 200, size: int = 16
) -> Path:
    """Tiny ImageNet; ids descend in `wnids.txt`, and words of strangers are in `words.txt`."""
    folder = _made(root / "tiny-imagenet-200")
    ids = tiny_ids(classes)
    (folder / "wnids.txt").write_text("".join(f"{one}\n" for one in reversed(ids)))
    words = [f"{one}\tthing {i}, object {i}" for i, one in enumerate(ids)]
    (folder / "words.txt").write_text("\n".join(["n00000001\tstranger, alien", *words]) + "\n")
    pictures = iter(jpegs(classes * (train + test), size))
    for one in ids:
        images = _made(folder / "train" / one / "images")
        for i in range(train):
            (images / f"{one}_{i}.JPEG").write_bytes(next(pictures))
        (images.parent / f"{one}_boxes.txt").write_text("")
    shown, lines = _made(folder / "val" / "images"), []
    for number in range(classes * test):
        (shown / f"val_{number}.JPEG").write_bytes(next(pictures))
        lines.append(f"val_{number}.JPEG\t{ids[number % classes]}\t0\t32\t44\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    return root


def tiny_ids(classes: int) -> list[str]:
    """The ids that are drawn, ascending."""
    return [f"n{1000000 + 7 * label:08d}" for label in range(classes)]


def draw_ag_news(
    root: Path, train: int = 3, test: int = 1, *, classes: int = 4, names: bool = True
) -> Path:
    """AG News; classes alternate, all is quoted, and `classes.txt` is there or not."""
    parts = {}
    for part, each in (("train", train), ("test", test)):
        labels = [i % classes for i in range(each * classes)]
        texts = [
            (f"{part} title {i}", f'All of "{TOPICS[label]}", and {i}')
            for i, label in enumerate(labels)
        ]
        parts[part] = texts, labels
    write_ag_news(root, **parts)
    if names:
        (root / "ag_news" / "classes.txt").write_text(
            "".join(f"{name}\n" for name in TOPICS[:classes])
        )
    return root


def write_ag_news(root: Path, **parts: tuple[Sequence[tuple[str, str]], Sequence[int]]) -> Path:
    """AG News of given titles and descriptions with labels from 0, for each of `parts`."""
    folder = _made(root / "ag_news")
    for part, (examples, labels) in parts.items():
        with (folder / f"{part}.csv").open("w", newline="") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
            for label, texts in zip(labels, examples, strict=True):
                writer.writerow([label + 1, *texts])
    return root


def records(images: np.ndarray, *labels: np.ndarray) -> bytes:
    """CIFAR's binary records: the labels, then the pixels, of each image."""
    columns = [part.astype(np.uint8)[:, None] for part in labels]
    return np.concatenate([*columns, images], axis=1).tobytes()


def write_idx(path: Path, values: np.ndarray, *, packed: bool = False) -> None:
    """An IDX file of unsigned bytes, with `.gz` at its name where it is packed."""
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    data = header + values.tobytes()
    if packed:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(data, 1, mtime=0))
    else:
        path.write_bytes(data)


def as_python_2(value: object) -> bytes:
    """A pickle as Python 2 and NumPy 1 wrote CIFAR's: protocol 2, and texts of bytes."""
    out = io.BytesIO()
    out.write(b"\x80\x02")
    _write_python_2(out, value)
    out.write(b".")
    return out.getvalue()


def jpegs(count: int, size: int, seed: int = 7) -> list[bytes]:
    """Files of random pictures, no two alike."""
    noise = np.random.default_rng(seed).integers(0, 256, (count, 4, 4, 3), np.uint8)
    files = []
    for small in noise:
        file = io.BytesIO()
        Image.fromarray(small).resize((size, size)).save(file, "JPEG")
        files.append(file.getvalue())
    return files


def write_site_list(path: Path, paths: Sequence[str], labels: Sequence[str], protocol: int) -> None:
    """One of FedBN's lists: a pickle of two arrays of texts."""
    path.write_bytes(pickle.dumps((np.array(paths), np.array(labels)), protocol))


def _draw_sites(
    root: Path,
    train: int = 2,
    test: int = 1,
    *,
    package: str,
    sites: Sequence[str],
    classes: Sequence[str],
    size: int = 16,
    protocol: int = 4,
) -> Path:
    """Draws all sites; the pickles of the lists are of this protocol."""
    folder = _made(root / package)
    pictures = iter(jpegs(len(sites) * len(classes) * (train + test), size))
    for site in sites:
        for part, each in (("train", train), ("test", test)):
            paths, labels = [], []
            for name in classes:
                place = _made(folder / site / name)
                for i in range(each):
                    (place / f"{part}_{i}.jpg").write_bytes(next(pictures))
                    paths.append(f"{package}/{site}/{name}/{part}_{i}.jpg")
                    labels.append(name)
            write_site_list(folder / f"{site}_{part}.pkl", paths, labels, protocol)
    return root


draw_office_caltech10 = partial(
    _draw_sites, package="office_caltech_10", sites=OFFICE_SITES, classes=OFFICE
)
"""Office-Caltech10 with FedBN's lists."""
draw_domainnet10 = partial(
    _draw_sites, package="DomainNet", sites=DOMAINNET_SITES, classes=DOMAINNET
)
"""DomainNet's ten classes with FedBN's lists."""


def _pixels(each: int, classes: int, width: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of pixels around the class's own value, and labels 0, 1, ..., 0, 1, ..."""
    labels = np.tile(np.arange(classes), each)
    noise = np.random.default_rng(seed).integers(0, 56, (len(labels), width), np.uint8)
    return noise + (labels * (200 // classes)).astype(np.uint8)[:, None], labels


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write_python_2(out: io.BytesIO, value: object) -> None:
    match value:
        case int():
            out.write(b"J" + struct.pack("<i", value))
        case str():
            encoded = value.encode("latin-1")
            out.write(b"T" + struct.pack("<i", len(encoded)) + encoded)
        case list():
            out.write(b"](")
            for item in value:
                _write_python_2(out, item)
            out.write(b"e")
        case dict():
            out.write(b"}(")
            for pair in value.items():
                for item in pair:
                    _write_python_2(out, item)
            out.write(b"u")
        case np.ndarray():
            out.write(
                b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
            )
            out.write(b"(K\x01" + b"".join(b"J" + struct.pack("<i", n) for n in value.shape))
            out.write(b"\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN")
            out.write(b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89")
            _write_python_2(out, value.tobytes().decode("latin-1"))
            out.write(b"tb")
