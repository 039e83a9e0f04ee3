"""Data sets with CoOp's split files, on drawn folders with hand-counted numbers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from platform.data.catalogue import DataRequest, load_dataset
from platform.data.dataset import ImageFiles
from platform.errors import DataError
from tests.drawn._users import open_to_all, readable_for_nobody
from tests.drawn.coop import CLASSES, draw_coop, draw_oxford_flowers
from tests.trunk._runs import NONE, Storage, slow

Parts = dict[str, list[list[Any]]]
FLOWERS = "split_zhou_OxfordFlowers.json"
RUN = (
    *("task.dataset=flowers102", "task.domains=null", "task.clients=2", "rounds=1"),
    *("cohort.dropout_rate=0", "secure_aggregation.threshold=2"),
)


def load(root: Path, name: str = "flowers102", **asked: Any) -> Any:
    return load_dataset(name, DataRequest(root=root, **asked))


def rewrite(root: Path, change: Callable[[Parts], object]) -> None:
    file = root / "oxford_flowers" / FLOWERS
    parts = json.loads(file.read_text())
    change(parts)
    file.write_text(json.dumps(parts))


def test_rows_are_those_of_the_file(tmp_path: Path) -> None:
    draw_coop(tmp_path, "dtd", classes=2, train=2, val=1, test=1)
    data = load(tmp_path, "dtd")
    assert isinstance(data.train.images, ImageFiles)
    # Numbers run on through train, val and test of class 0, then of class 1.
    assert data.train.images.paths == (
        *("kind_of_0/kind_of_0_0001.jpg", "kind_of_0/kind_of_0_0002.jpg"),
        *("kind_of_1/kind_of_1_0005.jpg", "kind_of_1/kind_of_1_0006.jpg"),
    )
    assert data.test.images.paths == (
        "kind_of_0/kind_of_0_0004.jpg",
        "kind_of_1/kind_of_1_0008.jpg",
    )
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([0, 0, 1, 1], [0, 1])
    assert data.train.images[np.array([0])][0].shape == (24, 24, 3)


FIRST, *OTHERS = CLASSES


@pytest.mark.parametrize("name", [FIRST, *map(slow, OTHERS)])
def test_all_classes_of_the_published_set(tmp_path: Path, name: str) -> None:
    draw_coop(tmp_path, name, train=1, val=0, test=1, size=8)
    data = load(tmp_path, name)
    assert (data.name, len(data.classes), data.domains) == (name, CLASSES[name], ("photo",))
    assert data.classes[10] == "kind of 10"


def test_validation_may_be_absent(tmp_path: Path) -> None:
    folder = draw_oxford_flowers(tmp_path)
    # Of each class the fifth of its seven images, which nobody uses.
    for number in (5, 12, 19):
        (folder / f"jpg/image_{number:05d}.jpg").unlink()
    assert load(tmp_path).test.num_examples == 6
    rewrite(tmp_path, lambda parts: parts.pop("val"))
    assert load(tmp_path).train.num_examples == 12


ROWS = {
    "upwards": (["../jpg/image_00001.jpg", 0, "kind_of_0"], r"lists the path '\.\./jpg"),
    "absolute": (["/etc/passwd", 0, "kind_of_0"], "the path '/etc/passwd'"),
    "backslash": (["a\\..\\b.jpg", 0, "kind_of_0"], "lists the path"),
    "endless": (["a/" * 501 + "b", 0, "kind_of_0"], "lists the path 'a/a/a/"),
    "absent": (["image_09999.jpg", 0, "kind_of_0"], "lists 'image_09999.jpg', which"),
    "twice": (["image_00002.jpg", 0, "kind_of_0"], "lists 'image_00002.jpg' 2 times"),
    "gap": (["image_00001.jpg", 9, "nine"], "label 9 among"),
    "huge": (["image_00001.jpg", 10**400, "huge"], "label a number"),
    "truth": (["image_00001.jpg", False, "kind_of_0"], r"train\[0\] of .* is .*whole number"),
    "two-names": (["image_00001.jpg", 0, "rose"], "calls label 0 both"),
    "nameless": (["image_00001.jpg", 3, "_"], "no name for class 3"),
}


@pytest.mark.parametrize(("row", "says"), ROWS.values(), ids=ROWS)
def test_lines_that_are_refused(tmp_path: Path, row: object, says: str) -> None:
    draw_oxford_flowers(tmp_path)
    rewrite(tmp_path, lambda parts: parts["train"].__setitem__(0, row))
    with pytest.raises(DataError, match=says) as caught:
        load(tmp_path)
    sentence = str(caught.value)
    assert sentence.startswith("task.root: ") and "\n" not in sentence and len(sentence) < 600


def test_all_wrong_lines_are_told_at_once(tmp_path: Path) -> None:
    draw_oxford_flowers(tmp_path)
    wrong = [ROWS["upwards"][0], ROWS["truth"][0]]
    rewrite(tmp_path, lambda parts: parts["train"].__setitem__(slice(0, 2), wrong))
    with pytest.raises(DataError) as caught:
        load(tmp_path)
    assert ["train[0]" in caught.value.faults[0], "train[1]" in caught.value.faults[1]] == [1, 1]


DOCUMENTS = {
    "not-json": ("{", "is not JSON"),
    "deep": ("[" * 100_000, "is not JSON"),
    "binary": (b"\xff\xfe", "is no text"),
    "zero-test": ('{"train": [["image_00001.jpg", 0, "a"]], "test": []}', "has no test images"),
    "no-list": ('{"train": 5, "test": []}', "has no train images"),
    "null-val": ('{"train": [["image_00001.jpg", 0, "a"]], "val": null}', "has no val images"),
}


@pytest.mark.parametrize(("text", "says"), DOCUMENTS.values(), ids=DOCUMENTS)
def test_split_files_that_are_refused(tmp_path: Path, text: str | bytes, says: str) -> None:
    file = draw_oxford_flowers(tmp_path, classes=1) / FLOWERS
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=says):
        load(tmp_path)


@pytest.mark.parametrize("kind", ["file", "folder", "broken", "loop"])
def test_links_that_leave_are_refused(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "data"
    folder = draw_coop(root, "food101", classes=2)
    secret = tmp_path / "secret"
    (secret / "kind_of_0").mkdir(parents=True)
    for path in (folder / "images/kind_of_0").iterdir():
        (secret / "kind_of_0" / path.name).write_bytes(path.read_bytes())
    victim = folder / "images/kind_of_0"
    if kind == "folder":
        victim.rename(tmp_path / "moved")
    else:
        victim = victim / "1.jpg"
        victim.unlink()
    target = {"file": "kind_of_0/1.jpg", "folder": "kind_of_0", "broken": "none"}
    victim.symlink_to(victim if kind == "loop" else secret / target[kind])
    says = "link that leaves" if kind in ("file", "folder") else "link to nothing"
    with pytest.raises(DataError, match=says):
        load(root, "food101")


def test_a_split_file_that_is_too_large(tmp_path: Path) -> None:
    file = draw_oxford_flowers(tmp_path) / FLOWERS
    # A hole in a file takes no room on the disk.
    os.truncate(file, 64_000_001)
    with pytest.raises(DataError, match="is too large"):
        load(tmp_path)


def test_a_run_on_a_broken_image_does_not_start(tmp_path: Path) -> None:
    folder = draw_oxford_flowers(tmp_path / "data", classes=4, train=1, test=1)
    (folder / "jpg/image_00001.jpg").write_text("text where images are expected")
    storage = Storage(tmp_path)
    with pytest.raises(DataError, match="is no image"):
        storage.run("method.name=zero_shot", NONE, *RUN, f"task.root={tmp_path / 'data'}")
    assert not storage.file.exists()


@pytest.mark.parametrize("place", ["", "jpg", FLOWERS])
def test_what_this_user_may_not_read(tmp_path: Path, place: str) -> None:
    folder = draw_oxford_flowers(tmp_path, classes=1)
    open_to_all(tmp_path)
    with readable_for_nobody(tmp_path):
        assert load(tmp_path).train.num_examples == 4
    (folder / place).chmod(0)
    says = r"task.root: .* cannot be read \(Permission denied\)"
    with readable_for_nobody(tmp_path), pytest.raises(DataError, match=says):
        load(tmp_path)
    (folder / place).chmod(0o755)
