"""Examples that are the same under other names: refused under two labels, else told of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from platform.data.checking import require_one_label
from platform.data.dataset import Dataset, ImageFiles, Split
from platform.errors import DataError

ALL = np.arange(4)


def drawn(root: Path, train: list[bytes], test: list[bytes]) -> Dataset:
    """Four files on each side, of labels 0, 0, 1, 1."""
    sides, labels = {}, np.array([0, 0, 1, 1])
    for side, contents in (("train", train), ("test", test)):
        names = tuple(f"{side}_{row}.png" for row in range(4))
        for name, content in zip(names, contents, strict=True):
            (root / name).write_bytes(content)
        sides[side] = Split(ImageFiles(root, names), labels, labels * 0)
    return Dataset(name="drawn", classes=("cat", "dog"), domains=("one",), **sides)


TRAIN = [b"aaa", b"bbb", b"ccc", b"dd"]
TEST = [b"eee", b"fff", b"ggg", b"hh"]


def test_copies_of_one_label_on_one_side_are_fine(tmp_path: Path) -> None:
    assert require_one_label(drawn(tmp_path, TRAIN, TEST), ALL, ALL) == ()
    data = drawn(tmp_path, [b"aaa", b"aaa", *TRAIN[2:]], [*TEST[:2], b"ggg", b"ggg"])
    assert require_one_label(data, ALL, ALL) == ()


def test_a_test_image_that_is_a_training_image_is_told_of(tmp_path: Path) -> None:
    data = drawn(tmp_path, TRAIN, [b"aaa", b"bbb", b"ggg", b"dd"])
    # Only what somebody holds counts.
    assert require_one_label(data, np.array([2]), ALL) == ()
    (remark,) = require_one_label(data, ALL, ALL)
    assert remark.startswith("3 test images") and "'train_0.png'" in remark


@pytest.mark.parametrize(
    ("train", "test", "first", "second"),
    [
        ([b"aaa", b"bbb", b"aaa", b"dd"], TEST, "train_0", "train_2"),
        (TRAIN, [b"eee", b"fff", b"ggg", b"fff"], "test_1", "test_3"),
        (TRAIN, [b"eee", b"fff", b"bbb", b"hh"], "train_1", "test_2"),
    ],
)
def test_one_image_under_two_labels_is_refused(tmp_path, train, test, first, second):
    with pytest.raises(DataError, match=f"'{first}.png' of class 'cat' and '{second}.png'"):
        require_one_label(drawn(tmp_path, train, test), ALL, ALL)


def written(train: list[str], test: list[str]) -> Dataset:
    """Four texts on each side, of labels 0, 0, 1, 1."""
    none, labels = np.zeros((0, 0, 0, 3), np.uint8), np.array([0, 0, 1, 1])
    old, new = (Split(none, labels, labels * 0, tuple(part)) for part in (train, test))
    names = {"classes": ("cat", "dog"), "domains": ("one",)}
    return Dataset(name="written", **names, train=old, test=new)


def test_texts_are_compared_as_images_are() -> None:
    old, new = ["aaa", "bbb", "ccc", "dd"], ["eee", "fff", "ggg", "hh"]
    assert require_one_label(written(old, new), ALL, ALL) == ()
    (remark,) = require_one_label(written(old, ["aaa", "fff", "ggg", "dd"]), ALL, ALL)
    assert remark.startswith("2 test texts")
    with pytest.raises(DataError, match="'training example 1' of class 'cat'"):
        require_one_label(written(old, ["eee", "fff", "bbb", "hh"]), ALL, ALL)
