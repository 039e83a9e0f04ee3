"""MNIST and Fashion-MNIST: IDX files, packed or not, from drawn ones."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.drawn.arrays import draw_fashion_mnist, draw_mnist, write_idx
from tests.trunk.loaders._refusing import assert_missing, load, refused, refused_in_little_memory

PLACES = [("mnist", False), ("mnist", True), ("MNIST/raw", False), ("MNIST/raw", True)]
TRAIN, TEST = "mnist/train-images-idx3-ubyte", "mnist/t10k-images-idx3-ubyte"
ANSWERS = "mnist/t10k-labels-idx1-ubyte"


def idx(*sizes: int, kind: int = 8, content: bytes = b"") -> bytes:
    return struct.pack(f">BBBB{len(sizes)}I", 0, 0, kind, len(sizes), *sizes) + content


@pytest.mark.parametrize(("folder", "packed"), PLACES)
def test_ten_digits_of_three_and_two(tmp_path: Path, folder: str, packed: bool):
    data = load("mnist", draw_mnist(tmp_path, 3, 2, folder=folder, packed=packed))
    assert data.classes == (
        *("zero", "one", "two", "three", "four"),
        *("five", "six", "seven", "eight", "nine"),
    )
    assert data.domains == ("scan",)
    for split, each in ((data.train, 3), (data.test, 2)):
        assert split.labels.tolist() == [*range(10)] * each
        assert split.images.shape == (10 * each, 28, 28, 3)


def test_grey_becomes_three_equal_colours(tmp_path: Path):
    draw_mnist(tmp_path)
    image = np.zeros((1, 28, 28), np.uint8)
    image[0, 2, 5] = 200
    write_idx(tmp_path / TEST, image)
    write_idx(tmp_path / ANSWERS, np.array([9], np.uint8))
    test = load("mnist", tmp_path).test
    assert test.labels.tolist() == [9]
    shown = test.images[np.array([0, 0])]
    assert shown.shape == (2, 28, 28, 3)
    assert np.argwhere(shown[1]).tolist() == [[2, 5, 0], [2, 5, 1], [2, 5, 2]]
    assert shown[1, 2, 5].tolist() == [200, 200, 200]


def test_fashion_has_words_of_its_own(tmp_path: Path):
    data = load("fashion_mnist", draw_fashion_mnist(tmp_path, folder="FashionMNIST/raw"))
    assert data.classes == (
        *("t-shirt", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    )
    assert data.train.num_examples == 20
    assert "needs" in refused("mnist", tmp_path)


def test_a_missing_file(tmp_path: Path):
    draw_mnist(tmp_path)
    assert_missing("mnist", tmp_path, tmp_path / ANSWERS)


IMAGES = idx(10, 28, 28, content=bytes(7840))


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        (TEST, b"", "is no IDX file of bytes with 3 axes"),
        (TEST, idx(10, 28, 28, kind=13), "is no IDX file of bytes with 3 axes"),
        (ANSWERS, IMAGES, "is no IDX file of bytes with 1 axis"),
        (TEST, idx(10, 28, 27), "images of 28 x 27 pixels; valid: 28 x 28"),
        (TEST, idx(2**31, 28, 28), "claims 2,147,483,648 examples"),
        (TEST, IMAGES[:-1], "fewer bytes than the 10 examples"),
        (TEST, IMAGES + b"x", "more bytes than the 10 examples"),
        (TEST, idx(9, 28, 28, content=bytes(9 * 784)), "has 10 labels for 9 images"),
        (ANSWERS, idx(10, content=bytes([*range(9), 10])), "label 10 at example 9; valid: 0 to 9"),
        ("mnist/train-labels-idx1-ubyte", idx(20, content=bytes(20)), "no training example of cl"),
    ],
)
def test_damage(tmp_path: Path, file: str, content: bytes, reason: str):
    draw_mnist(tmp_path)
    (tmp_path / file).write_bytes(content)
    assert reason in refused("mnist", tmp_path)


def test_packed_files_that_are_damaged(tmp_path: Path):
    draw_mnist(tmp_path, packed=True)
    path = tmp_path / f"{TRAIN}.gz"
    whole = path.read_bytes()
    flipped = bytes([*whole[:200], whole[200] ^ 255, *whole[201:]])
    for data in (whole[: len(whole) // 2], whole[:12], b"no gzip at all", flipped, whole[:-3]):
        path.write_bytes(data)
        assert "is no gzip file, or a damaged one" in refused("mnist", tmp_path)


def test_a_packed_bomb_is_not_unpacked(tmp_path: Path):
    """300 MB of zeros in 300 KB; the header tells of ten images."""
    draw_mnist(tmp_path, packed=True)
    zeros = gzip.compress(bytes(10_000_000)) * 30
    (tmp_path / f"{TEST}.gz").write_bytes(gzip.compress(IMAGES) + zeros)
    text = refused_in_little_memory("mnist", tmp_path, 5_000_000)
    assert "more bytes than the 10 examples" in text


def test_what_is_not_packed_comes_first(tmp_path: Path):
    draw_mnist(draw_mnist(tmp_path, 2, packed=True), 3)
    assert load("mnist", tmp_path).train.num_examples == 30
