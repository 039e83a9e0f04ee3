"""A data holder's folder: each layout by hand, each refusal, and a split that stays."""

from __future__ import annotations

import os
import shutil
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from methods import Registry
from platform.config import parse_config
from platform.data.cache import cache_folder
from platform.data.checking import require_one_label
from platform.data.dataset import Dataset, ImageFiles, Split
from platform.data.loaders.own_images import holder_rows, labels_of, load_holding, only_client
from platform.data.loading import task_of_one
from platform.data.own_folders import WORDS, Group, recognise
from platform.data.preparing import cached_encoders, frozen_model, plain_encoders
from platform.errors import DataError
from platform.experiment.dealing import own_examples
from platform.experiment.method_building import method_on, task_of
from tests.drawn._pictures import write_picture
from tests.drawn._users import open_to_all, readable_for_nobody

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


def refused(root: Path, ask: Callable[[Path], object] = recognise) -> str:
    """The one sentence, which names the field and what would be valid."""
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
    """Images of each class's folder by their use, None where no folder says."""
    held = Counter((image.name, image.use) for image in group.listed)
    uses = [use for use in WORDS if use in group.parts] or [None]
    return {name: {use: held[name, use] for use in uses} for name in group.classes}


# --- what is recognised --------------------------------------------------------------------------


def test_class_folders(tmp_path: Path):
    draw(tmp_path, "cat", count=4)
    draw(tmp_path, "dog", count=3)
    reading = recognise(tmp_path)
    assert reading.parts == frozenset()
    assert counts(reading) == {"cat": {None: 4}, "dog": {None: 3}}
    assert reading.sentence == (
        "2 classes, 7 images in class folders, not split into training and test images"
    )


@pytest.mark.parametrize(
    ("folders", "sentence"),
    [
        (
            {"train": 5, "test": 1},
            "2 classes, 10 training and 2 test images in train/ and test/ folders",
        ),
        (
            {"test": 1, "val": 2, "train": 3},
            "2 classes, 6 training, 4 validation and 2 test images in train/, val/ and test/ "
            "folders",
        ),
        (
            {"train": 3, "valid": 2},
            "2 classes, 6 training and 4 validation images in train/ and valid/ folders, without a "
            "test folder",
        ),
        (
            {"Training": 2, "TEST": 1, "Validation": 1},
            "2 classes, 4 training, 2 validation and 2 test images in Training/, Validation/ and "
            "TEST/ folders",
        ),
        (
            {"training": 2, "testing": 1},
            "2 classes, 4 training and 2 test images in training/ and testing/ folders",
        ),
    ],
)
def test_split_folders(tmp_path: Path, folders: dict[str, int], sentence: str):
    for folder, count in folders.items():
        draw(tmp_path, f"{folder}/cat", f"{folder}/dog", count=count)
    reading = recognise(tmp_path)
    assert reading.parts and reading.sentence == sentence


def test_counts_by_class_and_part(tmp_path: Path):
    draw(tmp_path, "train/cat", "train/dog", count=2)
    draw(tmp_path, "test/cat", count=1)
    draw(tmp_path, "val/dog", count=3)
    assert counts(recognise(tmp_path)) == {
        "cat": {"train": 2, "validation": 0, "test": 1},
        "dog": {"train": 2, "validation": 3, "test": 0},
    }


def test_one_of_each_is_said_in_the_singular(tmp_path: Path):
    draw(tmp_path, "cat", count=1)
    assert recognise(tmp_path).sentence.startswith("1 class, 1 image in class folders")
    draw(tmp_path / "split", "train/cat", "test/cat", count=1)
    said = recognise(tmp_path / "split").sentence
    assert said == "1 class, 1 training and 1 test image in train/ and test/ folders"


def test_empty_class_folders_are_said_and_counted_as_no_class(tmp_path: Path):
    draw(tmp_path, "cat")
    (tmp_path / "dog").mkdir()
    said = recognise(tmp_path).sentence
    assert said.startswith("1 class, 3 images") and said.endswith("; 'dog' is empty")
    for number in range(4):
        (tmp_path / f"x{number}").mkdir()
    said = recognise(tmp_path).sentence
    assert said.endswith("; 'dog', 'x0', 'x1' and 2 more are empty")


def test_a_class_may_be_called_train_where_folders_split(tmp_path: Path):
    draw(tmp_path, "train/train", "train/cat", "test/train", "test/cat")
    reading = recognise(tmp_path)
    assert reading.classes == ("cat", "train") and counts(reading)["train"]["test"] == 3


def test_hidden_files_and_clutter_are_skipped(tmp_path: Path):
    draw(tmp_path, "cat", "dog")
    before = recognise(tmp_path)
    (tmp_path / ".git").mkdir()
    for folder in (tmp_path, tmp_path / "cat"):
        for name in (".DS_Store", "Thumbs.db", "desktop.ini", "._1.png"):
            (folder / name).write_bytes(b"clutter")
        (folder / "__MACOSX").mkdir()
    assert recognise(tmp_path) == before


def test_odd_names(tmp_path: Path):
    """Spaces, umlauts and capitals in classes; a newline and an ending in capitals in images."""
    draw(tmp_path, "Große Äpfel", "guinea  pig ", ending=".JPG")
    write_picture(tmp_path / "guinea  pig " / "a\nb c.JpEg", 1, 1)
    reading = recognise(tmp_path)
    assert counts(reading) == {"Große Äpfel": {None: 3}, "guinea  pig ": {None: 4}}
    data, _ = load_holding(tmp_path, ("große äpfel", "guinea pig"), test_share=0.0, key=b"")
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert paths(data.train)[-1] == "guinea  pig /a\nb c.JpEg"
    assert len(data.train.images[np.array([6])]) == 1


def test_a_link_that_stays_is_followed(tmp_path: Path):
    root = draw(tmp_path / "root", "cat")
    (root / "dog").symlink_to(root / "cat")
    (tmp_path / "link").symlink_to(root)
    assert counts(recognise(tmp_path / "link"))["dog"] == {None: 3}
    assert recognise(tmp_path / "link").root == root.resolve()


# --- what is refused -----------------------------------------------------------------------------


def test_a_split_folder_beside_a_class_names_both_readings(tmp_path: Path):
    draw(tmp_path, "train/cat", "train/dog", "bird")
    text = refused(tmp_path)
    assert f"{str(tmp_path / 'train')!r} lies beside 'bird'" in text
    assert "a class called 'train' or the folder of training images" in text


@pytest.mark.parametrize("name", ["train", "test", "val", "Valid", "validation"])
def test_a_class_called_like_a_split_folder_names_both_readings(tmp_path: Path, name: str):
    draw(tmp_path, name, "cat")
    assert f"may be a class called {name!r} or the folder of " in refused(tmp_path)


def test_split_folders_without_classes_name_both_readings(tmp_path: Path):
    draw(tmp_path, "train", "test")
    text = refused(tmp_path)
    assert "holds images and no class folders" in text
    assert "may be a class called 'test' or the folder of test images" in text


def test_a_test_folder_without_classes(tmp_path: Path):
    draw(tmp_path, "train/cat", "test")
    assert f"{str(tmp_path / 'test')!r} holds images and no class folders" in refused(tmp_path)


@pytest.mark.parametrize("pair", [("val", "valid"), ("train", "Train"), ("test", "testing")])
def test_two_folders_for_one_side(tmp_path: Path, pair: tuple[str, str]):
    draw(tmp_path, "train/cat", "test/cat", *(f"{name}/cat" for name in pair))
    text = refused(tmp_path)
    assert all(repr(name) in text for name in pair) and "valid is one of them" in text


@pytest.mark.parametrize("folders", [["train"], ["test"], ["val"], ["test", "val"]])
def test_a_side_that_is_missing(tmp_path: Path, folders: list[str]):
    draw(tmp_path, *(f"{folder}/cat" for folder in folders))
    assert f"holds {folders[0]!r}" in refused(tmp_path)
    assert "no folder that goes with it" in refused(tmp_path)


def test_images_in_the_root(tmp_path: Path):
    draw(tmp_path, "cat", ".")
    assert f"{str(tmp_path / '0.png')!r} lies in no class's folder" in refused(tmp_path)


@pytest.mark.parametrize("name", ["3.png", "labels.csv"])
def test_files_beside_class_folders_of_a_side(tmp_path: Path, name: str):
    draw(tmp_path, "train/cat", "test/cat")
    shutil.copy(tmp_path / "test/cat/0.png", tmp_path / "test" / name)
    assert f"{str(tmp_path / 'test' / name)!r} lies in no class's folder" in refused(tmp_path)


def test_what_is_no_folder(tmp_path: Path):
    assert "is no folder" in refused(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    assert "is no folder" in refused(tmp_path / "file")
    assert "is no folder" in refused(Path(f"{tmp_path}/a\0b"))


def test_empty_folders(tmp_path: Path):
    assert f"{str(tmp_path)!r} is empty" in refused(tmp_path)
    (tmp_path / "cat").mkdir()
    assert "holds class folders and no image" in refused(tmp_path)
    draw(tmp_path / "split", "train/cat")
    (tmp_path / "split" / "test").mkdir()
    assert f"{str(tmp_path / 'split' / 'test')!r} is empty" in refused(tmp_path / "split")


@pytest.mark.parametrize(
    "pair", [("Cat", "cat"), ("guinea_pig", "guinea pig"), ("t-shirt", "T shirt"), ("Ä", "ä")]
)
def test_one_class_twice(tmp_path: Path, pair: tuple[str, str]):
    draw(tmp_path, *pair)
    text = refused(tmp_path)
    assert all(repr(name) in text for name in pair) and "two spellings" in text


def test_one_class_spelled_in_two_ways_on_two_sides(tmp_path: Path):
    draw(tmp_path, "train/cat", "test/Cat")
    assert "'Cat' and 'cat', which are one class in two spellings" in refused(tmp_path)


@pytest.mark.parametrize("name", ["a\nb", "x" * 201, "_-_", "\udcff"])
def test_class_folders_that_are_no_names(tmp_path: Path, name: str):
    (tmp_path / name).mkdir()
    assert f"has a class folder {name[:80]!r}" in refused(tmp_path)


def test_the_folder_of_a_whole_consortium(tmp_path: Path):
    draw(tmp_path, "hospital_a/cat", "hospital_b/cat")
    text = refused(tmp_path)
    assert (
        f"{str(tmp_path / 'hospital_a' / 'cat')!r} is a folder in what should be a class's" in text
    )


def test_what_is_no_image_among_images(tmp_path: Path):
    draw(tmp_path, "cat")
    (tmp_path / "cat" / "notes.txt").write_text("x")
    assert "notes.txt' lies among images and is not one" in refused(tmp_path)


def test_a_file_of_no_bytes_is_listed_as_all_others(tmp_path: Path):
    """What is in one file is no matter of the folder: it is found where that file is opened."""
    draw(tmp_path, "cat")
    (tmp_path / "cat" / "1.png").write_bytes(b"")
    images = load(tmp_path, share=0.0).train.images
    assert "'cat/1.png' is no image" in refused(tmp_path, lambda _: images[np.array([1])])


def test_a_pipe_is_not_waited_for_and_left_out_alone(tmp_path: Path):
    whole = load(draw(tmp_path, "cat"))
    os.mkfifo(tmp_path / "cat" / "pipe.png")
    data, (text,) = load_holding(tmp_path, CLASSES, test_share=0.5, key=KEY)
    assert "pipe.png' is no regular file" in text
    assert (paths(data.train), paths(data.test)) == (paths(whole.train), paths(whole.test))


def test_a_file_that_this_user_may_not_read_is_left_out_alone(tmp_path: Path):
    root = draw(tmp_path / "root", "cat", count=9)
    open_to_all(tmp_path)
    (root / "cat" / "1.png").chmod(0)
    with readable_for_nobody(tmp_path):
        data, (text,) = load_holding(root, CLASSES, test_share=0.0, key=b"")
    assert "1.png' cannot be read (Permission denied)" in text
    assert data.train.num_examples == 8


@pytest.mark.parametrize("closed", ["cat", "."])
def test_what_this_user_may_not_read(tmp_path: Path, closed: str):
    root = draw(tmp_path / "root", "cat")
    open_to_all(tmp_path)
    (root / closed).chmod(0)
    try:
        with readable_for_nobody(tmp_path):
            text = refused(root)
    finally:
        (root / closed).chmod(0o755)
    assert f"{str((root / closed).resolve())!r} cannot be read (Permission denied)" in text


@pytest.mark.parametrize("link", ["dog", "cat/9.png", "train"])
def test_links_that_leave_the_folder(tmp_path: Path, link: str):
    outside = draw(tmp_path / "outside", "cat")
    root = draw(tmp_path / "root", "cat")
    target = outside / "cat" / "0.png" if link.endswith(".png") else outside
    (root / link).symlink_to(target)
    assert f"{str(root / link)!r} is a link that leaves {str(root)!r}" in refused(root)


def test_links_in_a_circle_and_to_nothing(tmp_path: Path):
    root = draw(tmp_path / "root", "cat")
    (root / "cat" / "9.png").symlink_to(root / "cat" / "9.png")
    assert "is a link to nothing" in refused(root)
    (root / "cat" / "9.png").unlink()
    (root / "cat" / "up").symlink_to(root)
    assert "up' is a folder in what should be a class's folder" in refused(root)


# --- labels --------------------------------------------------------------------------------------


def reading_of(root: Path, *folders: str) -> Group:
    return recognise(draw(root, *folders, count=1))


def _labels(reading: Group, classes: tuple[str, ...]) -> dict[str, int]:
    return labels_of(reading.root, {name: name for name in reading.classes}, classes)


def test_labels_are_the_federation_s(tmp_path: Path):
    """Of three classes the holder has the last and the first."""
    assert _labels(reading_of(tmp_path, "Guinea_PIG", "cat"), CLASSES) == {
        "Guinea_PIG": 2,
        "cat": 0,
    }


def test_umlauts_are_the_same_however_a_system_writes_them(tmp_path: Path):
    reading = reading_of(tmp_path, unicodedata.normalize("NFD", "Äpfel"))
    assert list(_labels(reading, ("birnen", "Äpfel")).values()) == [1]


def test_the_very_name_comes_before_one_that_is_like_it(tmp_path: Path):
    reading = reading_of(tmp_path, "a-b")
    assert _labels(reading, ("a b", "a-b")) == {"a-b": 1}
    text = refused(tmp_path, lambda root: _labels(reading, ("a b", "A b")))
    assert "'a-b', which is more than one class" in text


@pytest.mark.parametrize("count", [0, 3])
def test_a_folder_of_no_class_is_left_out_and_named_with_the_valid_ones(tmp_path: Path, count: int):
    """All others are split as they are without it."""
    alone = load(draw(tmp_path, "cat", count=20))
    draw(tmp_path, "dgo", count=count)
    (tmp_path / "dgo").mkdir(exist_ok=True)
    data, (text,) = load_holding(tmp_path, CLASSES, test_share=0.5, key=KEY)
    assert "'dgo', which is no class of the federation" in text
    assert text.endswith("valid: 'cat', 'dog', 'guinea pig'")
    assert (paths(data.train), paths(data.test)) == (paths(alone.train), paths(alone.test))


# --- the split -----------------------------------------------------------------------------------


def test_the_folders_split_holds(tmp_path: Path):
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
    assert said.startswith(f"{str(tmp_path)!r}: 3 classes, 4 training, 1 validation and 1 test")


def sides(data: Dataset) -> dict[bytes, str]:
    """Where the content of each image is."""
    found: dict[bytes, str] = {}
    for side, split in (("train", data.train), ("test", data.test)):
        assert isinstance(split.images, ImageFiles)
        for row in range(len(split.images)):
            content = split.images.bytes_of(row)
            assert found.setdefault(content, side) == side
    return found


def test_a_share_of_the_images_is_for_testing(tmp_path: Path):
    """Of 400 coins of 0.25 within five deviations (8.7) of 100; of 200 of a class (6.1) of 50."""
    draw(tmp_path, "cat", "dog", count=200)
    data = load(tmp_path, share=0.25)
    assert abs(data.test.num_examples - 100) < 44
    by_class = np.bincount(data.test.labels, minlength=3)
    assert by_class[2] == 0 and all(abs(by_class[:2] - 50) < 31)
    assert data.train.num_examples == 400 - data.test.num_examples
    client = only_client(data)
    assert len(client.train) == data.train.num_examples and not len(client.validation)


def test_another_secret_is_another_split_and_the_same_is_the_same(tmp_path: Path):
    draw(tmp_path, "cat", count=40)
    one, again, other = load(tmp_path), load(tmp_path), load(tmp_path, key=b"another")
    assert sides(one) == sides(again) != sides(other)


def test_a_larger_share_keeps_the_test_images_of_a_smaller_one(tmp_path: Path):
    draw(tmp_path, "cat", count=40)
    small, large = (set(paths(load(tmp_path, share=share).test)) for share in (0.2, 0.6))
    assert small < large


def test_no_share_is_no_test_image(tmp_path: Path):
    draw(tmp_path, "cat", count=20)
    assert load(tmp_path, share=0.0).test.num_examples == 0


def test_whatever_comes_or_goes_no_image_changes_sides(tmp_path: Path):
    root = draw(tmp_path / "root", "cat", "dog", count=30)
    before = sides(load(root))
    assert set(before.values()) == {"train", "test"}
    for number in range(0, 30, 3):
        (root / "cat" / f"{number}.png").unlink()
    shutil.rmtree(root / "dog")
    draw(root, "guinea_pig", count=25)
    after = sides(load(root))
    kept = before.keys() & after.keys()
    assert len(kept) == 20 and all(before[content] == after[content] for content in kept)


def test_names_folders_and_other_classes_do_not_matter(tmp_path: Path):
    root = draw(tmp_path / "root", "cat", count=30)
    before = sides(load(root))
    moved = tmp_path / "elsewhere" / "guinea_pig"
    moved.mkdir(parents=True)
    for path in (root / "cat").iterdir():
        shutil.copy(path, moved / f"x{path.name}")
    assert sides(load(moved.parent)) == before


def test_copies_are_on_one_side(tmp_path: Path):
    root = draw(tmp_path, "cat", count=30)
    for path in list((root / "cat").iterdir()):
        shutil.copy(path, root / "cat" / f"copy of {path.name}")
    data = load(root)
    assert len(sides(data)) == 30  # asserts one side for each content
    assert require_one_label(data, only_client(data).train, only_client(data).test) == ()


def test_one_flipped_bit_is_another_image_and_moves_no_other(tmp_path: Path):
    """Of 60 images each changed in one bit some change sides, by coins of their own."""
    root = draw(tmp_path, "cat", count=60)
    before = sides(load(root))
    data = load(root)
    held = {path: "train" for path in paths(data.train)} | dict.fromkeys(paths(data.test), "test")
    changed = 0
    for path in sorted(held)[:12]:
        content = (root / path).read_bytes()
        flipped = content[:-1] + bytes([content[-1] ^ 1])
        (root / path).write_bytes(flipped)
        after = sides(load(root))
        changed += after[flipped] != held[path]
        assert {c: s for c, s in after.items() if c != flipped} == {
            c: s for c, s in before.items() if c != content
        }
        (root / path).write_bytes(content)
    assert 1 <= changed <= 11


def test_without_a_test_folder_training_images_are_drawn_and_validation_stays(tmp_path: Path):
    draw(tmp_path, "train/cat", count=40)
    draw(tmp_path, "val/cat", count=20)
    data = load(tmp_path)
    client = only_client(data)
    assert len(client.validation) == 20 and len(client.train) + len(client.test) == 40
    assert len(client.test) > 0
    assert all(paths(data.train)[row].startswith("val/") for row in client.validation)
    assert all(path.startswith("train/") for path in paths(data.test))


def test_nothing_left_to_train_on(tmp_path: Path):
    draw(tmp_path, "cat", count=1)
    data = load(tmp_path, share=1 - 1e-12)
    assert (data.train.num_examples, data.test.num_examples) == (0, 1)


def test_a_file_that_goes_before_it_is_read(tmp_path: Path):
    reading = reading_of(tmp_path, "cat", "dog")
    (tmp_path / "cat" / "0.png").unlink()
    labels = {"cat": 0, "dog": 1}
    text = refused(tmp_path, lambda _: holder_rows(reading, labels, test_share=0.5, key=b""))
    assert "0.png' cannot be read (No such file or directory)" in text


def test_the_same_image_in_train_and_test_is_told_of(tmp_path: Path):
    draw(tmp_path, "train/cat", "test/cat")
    shutil.copy(tmp_path / "train/cat/0.png", tmp_path / "test/cat/other.png")
    data = load(tmp_path)
    client = only_client(data)
    (said,) = require_one_label(data, client.train, client.test)
    assert "'test/cat/other.png' is the same as 'train/cat/0.png'" in said


def test_the_same_image_of_two_classes_is_refused(tmp_path: Path):
    draw(tmp_path, "cat", "dog")
    shutil.copy(tmp_path / "cat/0.png", tmp_path / "dog/other.png")
    data = load(tmp_path, share=0.0)
    with pytest.raises(DataError, match="are the same file; valid is one label"):
        require_one_label(data, only_client(data).train, only_client(data).test)


def test_what_no_decoder_reads_is_named_when_it_is_looked_at(tmp_path: Path):
    draw(tmp_path, "cat")
    (tmp_path / "cat" / "1.png").write_bytes(b"no picture")
    data = load(tmp_path, share=0.0)
    with pytest.raises(DataError, match=r"'cat/1\.png' is no image"):
        data.train.images[np.array([1])]


# --- what a client learns with --------------------------------------------------------------------


def test_a_share_for_validation_where_no_folder_says(tmp_path: Path):
    """Of 40 coins of 0.25 within five deviations (2.7) of 10, none of them trained on."""
    draw(tmp_path / "a", "cat", "dog", count=20)
    data = load(tmp_path / "a", share=0.0)
    client = only_client(data, validation_share=0.25, key=b"mine")
    assert 0 < len(client.validation) < 24
    assert sorted([*client.train, *client.validation]) == list(range(40))
    again = only_client(data, validation_share=0.25, key=b"mine")
    other = only_client(data, validation_share=0.25, key=b"yours")
    assert client.validation.tolist() == again.validation.tolist() != other.validation.tolist()


def test_a_folder_for_validation_comes_before_a_share(tmp_path: Path):
    draw(tmp_path, "train/cat", "val/cat", count=10)
    data = load(tmp_path, share=0.0)
    assert len(only_client(data, validation_share=0.5).train) == 10


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_client_may_have_no_test_image(tmp_path: Path, share: float):
    """Encoded through the cache, as in a client's own process."""
    data = load(draw(tmp_path / "images", "cat", "dog", count=20), share)
    task = task_of_one(data, only_client(data))
    config = parse_config(
        {
            "name": "x",
            "method": {"name": "promptfl"},
            "training": {"local_steps": 1},
            "storage": {"url": f"sqlite:///{tmp_path}/x.db"},
        }
    )
    backbone = frozen_model(config.task.model, "cpu")
    asked = task_of(config, task, backbone, "cpu")
    method = method_on(task, Registry(), config, asked, public=lambda _: None)
    cached = cached_encoders(backbone, cache_folder(config), lambda *told: None, method.pixel_size)
    plain = plain_encoders(backbone, method.pixel_size)
    own = own_examples(task, method, cached, plain)
    train, test = own.train, own.test
    assert train.num_examples + test.num_examples == 40
    assert own.validation.num_examples == 0 and own.left_out == ()
    assert (test.num_examples > 0) == (share > 0)
    assert {name: array.shape[1:] for name, array in test.arrays.items()} == {
        name: array.shape[1:] for name, array in train.arrays.items()
    }
