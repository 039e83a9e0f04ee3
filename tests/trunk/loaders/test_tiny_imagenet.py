"""Tiny ImageNet from a drawn folder: label order, words, and lists that lie."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from platform.data.dataset import ImageFiles
from tests.drawn.arrays import draw_tiny_imagenet, tiny_ids
from tests.trunk.loaders._refusing import assert_closed, assert_missing, load, refused

FOLDER = "tiny-imagenet-200"


def test_three_classes_of_four_and_two(tmp_path: Path):
    """`wnids.txt` is descending; labels follow the ids ascending."""
    data = load("tiny_imagenet", draw_tiny_imagenet(tmp_path, 4, 2, classes=3))
    assert data.classes == ("thing 0", "thing 1", "thing 2")
    assert data.domains == ("photo",)
    assert data.train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert data.test.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert not data.train.domains.any()
    first = tiny_ids(3)[0]
    assert isinstance(data.train.images, ImageFiles)
    assert data.train.images.paths[0] == f"train/{first}/images/{first}_0.JPEG"
    assert data.test.images.paths == tuple(f"val/images/val_{i}.JPEG" for i in range(6))
    (image,) = data.test.images[np.array([5])]
    assert image.shape == (16, 16, 3)


def test_all_200_classes_and_no_image_is_opened(tmp_path: Path):
    draw_tiny_imagenet(tmp_path, 2, 1)
    for path in (tmp_path / FOLDER).glob("*/**/*.JPEG"):
        path.write_bytes(b"")
    data = load("tiny_imagenet", tmp_path)
    assert len(data.classes) == 200
    assert (data.train.num_examples, data.test.num_examples) == (400, 200)
    assert np.bincount(data.test.labels).tolist() == [1] * 200


def test_a_first_word_that_two_classes_share_is_not_used(tmp_path: Path):
    draw_tiny_imagenet(tmp_path, classes=3)
    one, two, three = tiny_ids(3)
    lines = [
        f"{one}\tcrane, lifting device",
        f"{two}\tsnow_leopard, ounce",
        f"{three}\tcrane, bird",
    ]
    (tmp_path / FOLDER / "words.txt").write_text("\n".join(lines))
    names = ("crane, lifting device", "snow leopard", "crane, bird")
    assert load("tiny_imagenet", tmp_path).classes == names


@pytest.mark.parametrize("file", ["wnids.txt", "words.txt", "val/val_annotations.txt"])
def test_a_missing_file(tmp_path: Path, file: str):
    draw_tiny_imagenet(tmp_path, classes=2)
    assert_missing("tiny_imagenet", tmp_path, tmp_path / FOLDER / file)


def test_missing_folders(tmp_path: Path):
    assert f"needs '{tmp_path}/{FOLDER}', which" in refused("tiny_imagenet", tmp_path)
    draw_tiny_imagenet(tmp_path, classes=2)
    lost = tmp_path / FOLDER / "train" / tiny_ids(2)[1] / "images"
    shutil.rmtree(lost)
    assert f"needs '{lost}', which is not there" in refused("tiny_imagenet", tmp_path)


def test_a_listed_image_that_is_not_there(tmp_path: Path):
    draw_tiny_imagenet(tmp_path, classes=2)
    (tmp_path / FOLDER / "val/images/val_1.JPEG").unlink()
    assert "lists 'val/images/val_1.JPEG', which" in refused("tiny_imagenet", tmp_path)


def test_an_empty_class(tmp_path: Path):
    draw_tiny_imagenet(tmp_path, classes=2)
    for path in (tmp_path / FOLDER / "train" / tiny_ids(2)[1] / "images").iterdir():
        path.unlink()
    text = refused("tiny_imagenet", tmp_path)
    assert "no training example of class 'thing 1' (label 1)" in text


def test_something_else_among_images(tmp_path: Path):
    draw_tiny_imagenet(tmp_path, classes=2)
    (tmp_path / FOLDER / "train" / tiny_ids(2)[0] / "images" / "notes.txt").write_text("x")
    assert "lies among images and is not one" in refused("tiny_imagenet", tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("wnids.txt", "{0}\n{1}\n{0}\n", "lists '{0}' 2 times"),
        ("wnids.txt", "{0}\n../..\n", "lists the path '../..'"),
        ("wnids.txt", "{0}\n/etc\n", "lists the path '/etc'"),
        ("wnids.txt", "", "names 0 classes"),
        ("words.txt", "{0}\tthing\n", "has no words for class '{1}'"),
        ("words.txt", "{0}\t\n{1}\tthing\n", "has no name for class 0"),
        (
            "val/val_annotations.txt",
            "val_0.JPEG\tn99\t0\n",
            "class 'n99' at line 1; valid is an id",
        ),
        ("val/val_annotations.txt", "val_0.JPEG {0}\n", "class '' at line 1"),
        ("val/val_annotations.txt", "../a.JPEG\t{0}\n", "lists the path '../a.JPEG'"),
        ("val/val_annotations.txt", "a\\b.JPEG\t{0}\n", "lists the path"),
        ("val/val_annotations.txt", "val_0.JPEG\t{0}\nval_0.JPEG\t{1}\n", "val_0.JPEG' 2 times"),
        ("val/val_annotations.txt", "", "tiny_imagenet has no test example"),
    ],
)
def test_lists_that_are_wrong(tmp_path: Path, file: str, content: str, reason: str):
    draw_tiny_imagenet(tmp_path, classes=2)
    ids = tiny_ids(2)
    (tmp_path / FOLDER / file).write_text(content.format(*ids))
    assert reason.format(*ids) in refused("tiny_imagenet", tmp_path)


def test_an_image_outside_of_the_folder(tmp_path: Path):
    draw_tiny_imagenet(tmp_path, classes=2)
    (tmp_path / "outside.JPEG").write_bytes(b"x")
    path = tmp_path / FOLDER / "val/images/val_0.JPEG"
    path.unlink()
    path.symlink_to(tmp_path / "outside.JPEG")
    assert "is a link that leaves" in refused("tiny_imagenet", tmp_path)


@pytest.mark.parametrize("inner", ["", "train", f"train/{tiny_ids(2)[0]}"])
def test_a_closed_folder_is_not_missing(tmp_path: Path, inner: str):
    root = draw_tiny_imagenet(tmp_path / "data", classes=2)
    assert_closed("tiny_imagenet", root, root / FOLDER / inner)
