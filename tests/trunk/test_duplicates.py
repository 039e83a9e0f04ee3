"""Examples that are the same under other names: refused under two labels, else told of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from platform.config import parse_config
from platform.data import loading
from platform.data.checking import require_one_label
from platform.data.dataset import Dataset, ImageFiles, Split
from platform.data.loading import TaskData, load_task_data
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


MINIMAL = {"name": "run", "method": {"name": "coop"}, "training": {"local_steps": 1}}


def load(*overrides: str) -> TaskData:
    return load_task_data(parse_config(MINIMAL, overrides))


def given(monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    """A data set of 4 classes x 3 images in two domains, with changes to its training side."""
    labels, domains = np.tile(np.arange(4), 3), np.repeat([0, 1, 1], 4)
    split = Split(np.zeros((12, 4, 4, 3), np.uint8), labels, domains)
    made = Dataset(
        name="drawn",
        classes=("a", "b", "c", "d"),
        domains=("one", "two"),
        train=replace(split, **changes),
        test=split,
    )
    monkeypatch.setattr(loading, "load_dataset", lambda name, request, **asked: made)


def rows(labels: list[int], domains: list[int]) -> dict[str, object]:
    images = np.zeros((len(labels), 4, 4, 3), np.uint8)
    return {
        "images": images,
        "labels": np.array(labels, np.int64),
        "domains": np.array(domains, np.int64),
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (rows([0, 1, 2, 4], [0] * 4), "4 for the label"),
        (rows([0, 1, 2, 3], [0, 0, 2, 0]), "2 for the domain"),
        (rows([], []), "no training example"),
        (rows([0, 1, 1, 3], [0] * 4), "example of 'c'"),
        ({"domains": np.zeros(3, np.int64)}, "3 training domains"),
    ],
)
def test_what_no_loader_may_say_is_refused(monkeypatch, changes, words):
    given(monkeypatch, **changes)
    with pytest.raises(DataError) as caught:
        load("task.partition.kind=iid", "task.clients=2", "task.shots=1")
    message = str(caught.value)
    assert message.startswith("task.root: drawn has ") and words in message
    assert "\n" not in message


def test_clients_own_images_need_not_be_of_every_class(monkeypatch: pytest.MonkeyPatch):
    """That one client has lost its last image of a class must not end the run of all others."""
    given(monkeypatch, **rows([0, 1, 2, 3, 0, 1, 2], [0, 0, 0, 0, 1, 1, 1]))
    held_out = ("task.held_out_domain=one", "evaluation.protocol=leave_one_domain_out")
    alone = ("task.clients=1", "cohort.minimum=1", "task.partition.kind=domain")
    (client,) = load(*held_out, *alone).clients
    assert len(client.train) == 3
