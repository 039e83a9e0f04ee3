"""A data holder's folder: each layout by hand, each refusal, and a split that stays."""

from __future__ import annotations

import os
import shutil
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from platform.data.checking import require_one_label
from platform.data.dataset import Dataset, ImageFiles, Split
from platform.data.loaders.own_images import labels_of, load_holding, only_client
from platform.data.own_folders import WORDS, Group, recognise
from platform.errors import DataError, Faults
from tests.drawn._pictures import write_picture

CLASSES = ("cat", "dog", "guinea pig")
KEY = b"a secret"


def draw(root: Path, *folders: str, count: int = 3, ending: str = ".png") -> Path:
    """Draws so many images into each folder below a root; no two of all have the same bytes."""
    for folder in folders:
        for number in range(count):
            content = zlib.crc32(folder.encode()) + number
            write_picture(root / folder / f"{number}{ending}", 0, content, size=8)
    return root


def load(root: Path, share: float = 0.5, key: bytes = KEY) -> Dataset:
    data, left_out = load_holding(root, CLASSES, test_share=share, key=key)
    assert left_out == ()
    return data


def recognised(root: Path) -> None:
    faults = Faults()
    recognise(root, faults)
    faults.require_none()


def refused(root: Path, ask: Callable[[Path], object] = recognised) -> str:
    with pytest.raises(DataError) as caught:
        ask(root)
    text = str(caught.value)
    assert text.startswith("task.root: ") and "; valid " in text.replace("valid:", "valid ")
    assert "\n" not in text
    return text


def paths(split: Split) -> tuple[str, ...]:
    assert isinstance(split.images, ImageFiles)
    return split.images.paths


def counts(group: Group) -> dict[str, dict[str | None, int]]:
    held = Counter((image.name, image.use) for image in group.listed)
    uses = [use for use in WORDS if use in group.parts] or [None]
    return {name: {use: held[name, use] for use in uses} for name in group.classes}


def test_class_folders_and_split_folders(tmp_path):
    plain, split = tmp_path / "plain", tmp_path / "split"
    draw(plain, "cat", count=4)
    draw(plain, "dog", count=3)
    reading = recognise(plain, Faults())
    assert reading.parts == frozenset()
    assert counts(reading) == {"cat": {None: 4}, "dog": {None: 3}}
    assert "7 images" in reading.sentence and "not split" in reading.sentence
    for folder, count in {"Training": 2, "TEST": 1, "Validation": 1}.items():
        draw(split, f"{folder}/cat", f"{folder}/dog", count=count)
    reading = recognise(split, Faults())
    assert reading.parts and "4 training" in reading.sentence


def test_odd_names(tmp_path):
    draw(tmp_path, "Große Äpfel", "guinea  pig ", ending=".JPG")
    write_picture(tmp_path / "guinea  pig " / "a\nb c.JpEg", 1, 1)
    reading = recognise(tmp_path, Faults())
    assert counts(reading) == {"Große Äpfel": {None: 3}, "guinea  pig ": {None: 4}}
    data, _ = load_holding(tmp_path, ("große äpfel", "guinea pig"), test_share=0.0, key=b"")
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert paths(data.train)[-1] == "guinea  pig /a\nb c.JpEg"
    assert len(data.train.images[np.array([6])]) == 1


def test_empty_folders_and_one_class_twice(tmp_path):
    assert f"{str(tmp_path)!r} is empty" in refused(tmp_path)
    (tmp_path / "cat").mkdir()
    assert "no image" in refused(tmp_path)
    (draw(tmp_path / "split", "train/cat") / "test").mkdir()
    assert f"{str(tmp_path / 'split' / 'test')!r} is empty" in refused(tmp_path / "split")
    assert "two spellings" in refused(draw(tmp_path / "twice", "t-shirt", "T shirt"))
    assert "a class called 'Valid'" in refused(draw(tmp_path / "both", "Valid", "dog"))


@pytest.mark.parametrize(
    ("folders", "stray", "said"),
    [
        (("cat",), "0.png", "'{}' lies in"),
        (("train/cat", "test/cat"), "test/labels.csv", "'{}' lies in"),
        (("cat",), "cat/notes.txt", "'{}' lies among"),
        (("a/cat",), "a/cat/9.png", "is a folder"),
        (("train/cat", "test"), "train/cat/9.png", "test' holds images"),
    ],
)
def test_what_lies_where_it_should_not(tmp_path, folders, stray, said):
    draw(tmp_path, *folders)
    (tmp_path / stray).write_text("x")
    assert said.format(tmp_path / stray) in refused(tmp_path)


def test_a_folder_of_no_class_and_a_pipe_are_left_out_and_named_and_nothing_else_changes(tmp_path):
    whole = load(draw(tmp_path, "cat", count=20))
    draw(tmp_path, "dgo", count=3)
    data, (text,) = load_holding(tmp_path, CLASSES, test_share=0.5, key=KEY)
    assert "'dgo'" in text and "'guinea pig'" in text
    assert (paths(data.train), paths(data.test)) == (paths(whole.train), paths(whole.test))
    shutil.rmtree(tmp_path / "dgo")
    os.mkfifo(tmp_path / "cat" / "pipe.png")
    data, (text,) = load_holding(tmp_path, CLASSES, test_share=0.5, key=KEY)
    assert "pipe.png'" in text
    assert (paths(data.train), paths(data.test)) == (paths(whole.train), paths(whole.test))


@pytest.mark.parametrize("link", ["dog", "cat/9.png", "train"])
def test_links_that_leave_the_folder(tmp_path, link):
    outside = draw(tmp_path / "outside", "cat")
    root = draw(tmp_path / "root", "cat")
    target = outside / "cat" / "0.png" if link.endswith(".png") else outside
    (root / link).symlink_to(target)
    assert f"{str(root / link)!r} is a link" in refused(root)


def test_the_very_name_comes_before_one_that_is_like_it(tmp_path):
    draw(tmp_path, "a-b", count=1)
    own = {"a-b": "a-b"}
    assert labels_of(tmp_path, own, ("a b", "a-b")) == {"a-b": 1}
    text = refused(tmp_path, lambda root: labels_of(root, own, ("a b", "A b")))
    assert "more than one" in text


def test_the_folders_split_holds(tmp_path):
    draw(tmp_path, "train/dog", "train/cat", count=2)
    draw(tmp_path, "test/guinea_pig", "val/cat", count=1)
    data = load(tmp_path)
    assert paths(data.train) == (
        *("train/cat/0.png", "train/cat/1.png", "train/dog/0.png", "train/dog/1.png"),
        "val/cat/0.png",
    )
    assert data.train.labels.tolist() == [0, 0, 1, 1, 0]
    assert paths(data.test) == ("test/guinea_pig/0.png",) and data.test.labels.tolist() == [2]
    client = only_client(data)
    assert client.train.tolist() == [0, 1, 2, 3]
    assert client.validation.tolist() == [4] and client.test.tolist() == [0]
    assert data.classes == CLASSES and data.train.domains.tolist() == [0] * 5
    (said,) = data.recognised
    assert "4 training" in said


def sides(data: Dataset) -> dict[bytes, str]:
    found: dict[bytes, str] = {}
    for side, split in (("train", data.train), ("test", data.test)):
        assert isinstance(split.images, ImageFiles)
        for row in range(len(split.images)):
            content = split.images.bytes_of(row)
            assert found.setdefault(content, side) == side
    return found


def test_a_share_of_the_images_is_for_testing(tmp_path):
    """Of 400 coins of 0.25 within five deviations (8.7) of 100; of 200 of a class (6.1) of 50."""
    draw(tmp_path, "cat", "dog", count=200)
    data = load(tmp_path, share=0.25)
    assert abs(data.test.num_examples - 100) < 44
    by_class = np.bincount(data.test.labels, minlength=3)
    assert by_class[2] == 0 and all(abs(by_class[:2] - 50) < 31)
    assert data.train.num_examples == 400 - data.test.num_examples
    client = only_client(data)
    assert len(client.train) == data.train.num_examples and not len(client.validation)


def test_whatever_comes_or_goes_no_image_changes_sides(tmp_path):
    root = draw(tmp_path / "root", "cat", "dog", count=30)
    before = sides(load(root))
    assert set(before.values()) == {"train", "test"}
    assert before == sides(load(root)) != sides(load(root, key=b"another"))
    moved = tmp_path / "elsewhere" / "guinea_pig"
    moved.mkdir(parents=True)
    for path in (root / "cat").iterdir():
        shutil.copy(path, moved / f"x{path.name}")
    assert sides(load(moved.parent)).items() <= before.items()
    for number in range(0, 30, 3):
        (root / "cat" / f"{number}.png").unlink()
    shutil.rmtree(root / "dog")
    draw(root, "guinea_pig", count=25)
    for path in list((root / "cat").iterdir()):
        shutil.copy(path, root / "cat" / f"copy of {path.name}")
    data = load(root)
    assert require_one_label(data, only_client(data).train, only_client(data).test) == ()
    after = sides(data)
    kept = before.keys() & after.keys()
    assert len(kept) == 20 and all(before[content] == after[content] for content in kept)


def test_without_a_test_folder_training_images_are_drawn_and_validation_stays(tmp_path):
    draw(tmp_path, "train/cat", count=40)
    draw(tmp_path, "val/cat", count=20)
    data = load(tmp_path)
    client = only_client(data)
    assert len(client.validation) == 20 and len(client.train) + len(client.test) == 40
    assert len(client.test) > 0
    assert all(paths(data.train)[row].startswith("val/") for row in client.validation)
    assert all(path.startswith("train/") for path in paths(data.test))


def test_a_share_for_validation_where_no_folder_says(tmp_path):
    """Of 40 coins of 0.25 within five deviations (2.7) of 10, none of them trained on."""
    draw(tmp_path / "a", "cat", "dog", count=20)
    data = load(tmp_path / "a", share=0.0)
    client = only_client(data, validation_share=0.25, key=b"mine")
    assert 0 < len(client.validation) < 24
    assert sorted([*client.train, *client.validation]) == list(range(40))
    again = only_client(data, validation_share=0.25, key=b"mine")
    other = only_client(data, validation_share=0.25, key=b"yours")
    assert client.validation.tolist() == again.validation.tolist() != other.validation.tolist()
