"""CIFAR, MNIST, Tiny ImageNet and AG News as they are published, from drawn files."""

from __future__ import annotations

import gzip
import pickle
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from platform.data.dataset import ImageFiles
from platform.data.loaders.published import PIXELS
from tests.drawn.arrays import (
    CIFAR10,
    TOPICS,
    draw_ag_news,
    draw_cifar10,
    draw_cifar100,
    draw_mnist,
    draw_tiny_imagenet,
    records,
    tiny_ids,
    write_idx,
)
from tests.trunk.loaders._refusing import assert_missing, load, refused, refused_in_little_memory

LAYOUTS = ("binary", "python")
BINARY, PYTHON = "cifar-10-batches-bin", "cifar-10-batches-py"
MNIST_IMAGES, MNIST_LABELS = "mnist/t10k-images-idx3-ubyte", "mnist/t10k-labels-idx1-ubyte"
TINY = "tiny-imagenet-200"


def test_a_missing_file(tmp_path: Path):
    for name, draw, file in (
        ("cifar10", draw_cifar10, f"{BINARY}/data_batch_4.bin"),
        ("mnist", draw_mnist, MNIST_LABELS),
        ("tiny_imagenet", draw_tiny_imagenet, f"{TINY}/words.txt"),
        ("ag_news", draw_ag_news, "ag_news/test.csv"),
    ):
        draw(tmp_path)
        assert_missing(name, tmp_path, tmp_path / file)


def one(label: int, *, at: tuple[int, int, int] = (0, 0, 0), value: int = 255) -> bytes:
    """A record of a black image with one value at a plane, row and column."""
    image = np.zeros((3, 32, 32), np.uint8)
    image[at] = value
    return records(image.reshape(1, -1), np.array([label]))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ten_classes_of_seven_and_two(tmp_path: Path, layout: str):
    """7 x 10 training images in five batches of 14, 2 x 10 test images."""
    data = load("cifar10", draw_cifar10(tmp_path, 7, 2, layout=layout))
    assert (data.classes, data.domains, data.modality) == (CIFAR10, ("photo",), "images")
    for split, each in ((data.train, 7), (data.test, 2)):
        assert split.images.shape == (10 * each, 32, 32, 3)
        # Drawn around 20 times the label, with 0 to 55 above it: 27.5 on average.
        brightness = split.images.reshape(10 * each, -1).mean(1)
        np.testing.assert_array_equal(np.round((brightness - 27.5) / 20), split.labels)


def test_both_versions_are_the_same_images_and_the_binary_one_comes_first(tmp_path: Path):
    for draw, name in ((draw_cifar10, "cifar10"), (draw_cifar100, "cifar100")):
        one, two = (load(name, draw(tmp_path / layout, layout=layout)) for layout in LAYOUTS)
        assert one.classes == two.classes
        for part in ("train", "test"):
            left, right = getattr(one, part), getattr(two, part)
            np.testing.assert_array_equal(left.images, right.images)
            np.testing.assert_array_equal(left.labels, right.labels)
    draw_cifar10(draw_cifar10(tmp_path, 5), 6, layout="python")
    assert load("cifar10", tmp_path).train.num_examples == 50
    shutil.rmtree(tmp_path / BINARY)
    assert load("cifar10", tmp_path).train.num_examples == 60


def test_an_image_is_three_planes_of_rows(tmp_path: Path):
    draw_cifar10(tmp_path)
    # Green, second row, fourth column.
    data = one(8, at=(1, 1, 3), value=7)
    (tmp_path / BINARY / "test_batch.bin").write_bytes(data)
    # The 1 label byte, 1024 of red, a row of 32, and 3 more.
    assert (data[0], data[1 + 1024 + 32 + 3]) == (8, 7)
    test = load("cifar10", tmp_path).test
    assert test.labels.tolist() == [8]
    assert np.argwhere(test.images).tolist() == [[0, 1, 3, 1]]
    assert test.images[0, 1, 3, 1] == 7


ROWS = np.zeros((2, PIXELS), np.uint8)


@pytest.mark.parametrize(
    ("file", "held", "reason"),
    [
        ("test_batch.bin", one(0)[:-1], "no whole number"),
        ("data_batch_2.bin", one(3) + one(10), "label 10 at"),
        ("test_batch.bin", b"", "no test example"),
        ("batches.meta.txt", b"airplane\n\xff\xfe", "is no text"),
        ("batches.meta.txt", b"airplane\ncat\nairplane\n", "class 2 'airplane'"),
        # Labels would mean other classes, and every number would be right for the wrong words.
        ("batches.meta.txt", "\n".join(CIFAR10[::-1]).encode(), "'truck'; valid:"),
        ("test_batch", {"labels": [1, 2]}, "no 'data' that"),
        ("test_batch", {"data": ROWS, "labels": [1]}, "for 2 images"),
        ("test_batch", {"data": ROWS, "labels": [1, 2**63]}, "at example 1"),
        ("test_batch", [1, 2], "no 'data' that"),
        ("batches.meta", {}, "has no 'label_names'"),
    ],
)
def test_damage_to_cifar(tmp_path: Path, file: str, held: object, reason: str):
    is_binary = isinstance(held, bytes)
    draw_cifar10(tmp_path, layout="binary" if is_binary else "python")
    path = tmp_path / (BINARY if is_binary else PYTHON) / file
    path.write_bytes(held if is_binary else pickle.dumps(held))
    assert reason in refused("cifar10", tmp_path)


def test_a_python_version_that_would_run_something(tmp_path: Path):
    draw_cifar10(tmp_path, layout="python")
    made = tmp_path / "made"
    code = f"cos\nsystem\n(S'touch {made}'\ntR.".encode()
    (tmp_path / PYTHON / "data_batch_3").write_bytes(code)
    assert "names 'os system'" in refused("cifar10", tmp_path)
    assert not made.exists()


def test_one_long_name_many_times_is_not_copied(tmp_path: Path):
    """100 KB as each of 5,000 names would be half a gigabyte."""
    draw_cifar10(tmp_path, layout="python")
    names = [b"x" * 100_000] * 5_000
    (tmp_path / PYTHON / "batches.meta").write_bytes(pickle.dumps({"label_names": names}))
    refused_in_little_memory("cifar10", tmp_path, 10_000_000)


def idx(*sizes: int, kind: int = 8, content: bytes = b"") -> bytes:
    return struct.pack(f">BBBB{len(sizes)}I", 0, 0, kind, len(sizes), *sizes) + content


IMAGES = idx(10, 28, 28, content=bytes(7840))


@pytest.mark.parametrize(("folder", "packed"), [("mnist", True), ("MNIST/raw", False)])
def test_ten_digits_of_three_and_two(tmp_path: Path, folder: str, packed: bool):
    data = load("mnist", draw_mnist(tmp_path, 3, 2, folder=folder, packed=packed))
    assert (data.classes[0], data.classes[9], data.domains) == ("zero", "nine", ("scan",))
    for split, each in ((data.train, 3), (data.test, 2)):
        assert split.labels.tolist() == [*range(10)] * each
        assert split.images.shape == (10 * each, 28, 28, 3)


def test_grey_becomes_three_equal_colours(tmp_path: Path):
    draw_mnist(tmp_path)
    image = np.zeros((1, 28, 28), np.uint8)
    image[0, 2, 5] = 200
    write_idx(tmp_path / MNIST_IMAGES, image)
    write_idx(tmp_path / MNIST_LABELS, np.array([9], np.uint8))
    test = load("mnist", tmp_path).test
    assert test.labels.tolist() == [9]
    shown = test.images[np.array([0, 0])]
    assert np.argwhere(shown[1]).tolist() == [[2, 5, 0], [2, 5, 1], [2, 5, 2]]
    assert shown[1, 2, 5].tolist() == [200, 200, 200]


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        (MNIST_IMAGES, b"", "with 3 axes"),
        (MNIST_IMAGES, idx(10, 28, 28, kind=13), "with 3 axes"),
        (MNIST_LABELS, IMAGES, "with 1 axis"),
        (MNIST_IMAGES, idx(10, 28, 27), "28 x 27"),
        (MNIST_IMAGES, idx(2**31, 28, 28), "claims 2,147,483,648 examples"),
        (MNIST_IMAGES, IMAGES[:-1], "fewer bytes than"),
        (MNIST_IMAGES, idx(9, 28, 28, content=bytes(9 * 784)), "has 10 labels"),
        (MNIST_LABELS, idx(10, content=bytes([*range(9), 10])), "label 10 at example 9"),
        ("mnist/train-labels-idx1-ubyte", idx(20, content=bytes(20)), "no training example"),
    ],
)
def test_damaged_digits(tmp_path: Path, file: str, content: bytes, reason: str):
    draw_mnist(tmp_path)
    (tmp_path / file).write_bytes(content)
    assert reason in refused("mnist", tmp_path)


def test_packed_files_that_are_damaged(tmp_path: Path):
    draw_mnist(tmp_path, packed=True)
    path = tmp_path / f"{MNIST_IMAGES}.gz"
    whole = path.read_bytes()
    flipped = bytes([*whole[:200], whole[200] ^ 255, *whole[201:]])
    for data in (whole[: len(whole) // 2], b"no gzip at all", flipped, whole[:-3]):
        path.write_bytes(data)
        assert "is no gzip" in refused("mnist", tmp_path)


def test_a_packed_bomb_is_not_unpacked(tmp_path: Path):
    """300 MB of zeros in 300 KB; the header tells of ten images."""
    draw_mnist(tmp_path, packed=True)
    zeros = gzip.compress(bytes(10_000_000)) * 30
    (tmp_path / f"{MNIST_IMAGES}.gz").write_bytes(gzip.compress(IMAGES) + zeros)
    assert "more bytes than" in refused_in_little_memory("mnist", tmp_path, 5_000_000)


def test_labels_follow_the_ids_and_no_image_is_opened(tmp_path: Path):
    """`wnids.txt` is descending; labels follow the ids ascending."""
    root = draw_tiny_imagenet(tmp_path, 4, 2, classes=3)
    for path in (tmp_path / TINY).glob("*/**/*.JPEG"):
        path.write_bytes(b"")
    data = load("tiny_imagenet", root)
    assert (data.classes, data.domains) == (("thing 0", "thing 1", "thing 2"), ("photo",))
    assert data.train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert data.test.labels.tolist() == [0, 1, 2, 0, 1, 2]
    first = tiny_ids(3)[0]
    assert isinstance(data.train.images, ImageFiles)
    assert data.train.images.paths[0] == f"train/{first}/images/{first}_0.JPEG"
    assert data.test.images.paths == tuple(f"val/images/val_{i}.JPEG" for i in range(6))


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("wnids.txt", "{0}\n{1}\n{0}\n", "lists '{0}' 2 times"),
        ("wnids.txt", "{0}\n../..\n", "lists the path '../..'"),
        ("words.txt", "{0}\tthing\n", "has no words for class '{1}'"),
        ("val/val_annotations.txt", "val_0.JPEG\tn99\t0\n", "class 'n99' at line 1"),
        ("val/val_annotations.txt", "../a.JPEG\t{0}\n", "lists the path '../a.JPEG'"),
        ("val/val_annotations.txt", "", "no test example"),
    ],
)
def test_lists_that_are_wrong(tmp_path: Path, file: str, content: str, reason: str):
    draw_tiny_imagenet(tmp_path, classes=2)
    ids = tiny_ids(2)
    (tmp_path / TINY / file).write_text(content.format(*ids))
    assert reason.format(*ids) in refused("tiny_imagenet", tmp_path)


LINE = '"{}","A title","A description"\n'


def write_news(root: Path, text: str) -> None:
    (root / "ag_news" / "test.csv").write_text(text, newline="")


@pytest.mark.parametrize("names", [True, False])
def test_four_topics_of_five_and_two(tmp_path: Path, names: bool):
    data = load("ag_news", draw_ag_news(tmp_path, 5, 2, names=names))
    assert (data.classes, data.domains, data.modality) == (TOPICS, ("news",), "texts")
    for split, each in ((data.train, 5), (data.test, 2)):
        assert split.labels.tolist() == [0, 1, 2, 3] * each
        assert (len(split.images), len(split.texts)) == (0, 4 * each)
    assert data.train.texts[6] == 'train title 6 All of "Business", and 6'
    # Under the name of the published archive as well.
    (tmp_path / "ag_news").rename(tmp_path / "ag_news_csv")
    assert load("ag_news", tmp_path).train.num_examples == 20


def test_line_ends_quotes_and_empty_lines(tmp_path: Path):
    draw_ag_news(tmp_path)
    write_news(tmp_path, '\ufeff"4"," a ""b"" ","one,\ntwo\u2028 three"\r\n\r\n1,plain,\r\n')
    test = load("ag_news", tmp_path).test
    assert test.texts == ('a "b" one,\ntwo\u2028 three', "plain")
    assert test.labels.tolist() == [3, 0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (LINE.format(1) + LINE.format(5), "label 5 at"),
        (LINE.format("one"), "description at line 1"),
        (LINE.format("9" * 30), "description at line 1"),
        (LINE.format(1) + '"2","only a title"\n', "description at line 2"),
        (LINE.format(1) + '"2","never closed\n', "is no table at line"),
        ("", "no test example"),
    ],
)
def test_tables_that_are_wrong(tmp_path: Path, text: str, reason: str):
    draw_ag_news(tmp_path)
    write_news(tmp_path, text)
    assert reason in refused("ag_news", tmp_path)
