"""CIFAR-10 and CIFAR-100 in both published versions, from drawn files."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from platform.data.loaders.published import PIXELS
from tests.drawn.arrays import CIFAR10, as_python_2, draw_cifar10, draw_cifar100, records
from tests.trunk.loaders._refusing import (
    assert_closed,
    assert_missing,
    load,
    refused,
    refused_in_little_memory,
)

LAYOUTS = ("binary", "python")
BINARY, PYTHON = "cifar-10-batches-bin", "cifar-10-batches-py"


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
        assert np.bincount(split.labels).tolist() == [each] * 10
        # Drawn around 20 times the label, with 0 to 55 above it: 27.5 on average.
        brightness = split.images.reshape(10 * each, -1).mean(1)
        np.testing.assert_array_equal(np.round((brightness - 27.5) / 20), split.labels)


def test_batches_follow_each_other_in_their_own_order(tmp_path: Path):
    """Batch b has images b, b + 5, ... of labels 0, 1, ..., 9: labels b and b + 5."""
    labels = load("cifar10", draw_cifar10(tmp_path, 1)).train.labels
    assert labels.tolist() == [0, 5, 1, 6, 2, 7, 3, 8, 4, 9]


def test_both_versions_are_the_same_images(tmp_path: Path):
    for draw, name in ((draw_cifar10, "cifar10"), (draw_cifar100, "cifar100")):
        one, two = (load(name, draw(tmp_path / layout, layout=layout)) for layout in LAYOUTS)
        assert one.classes == two.classes
        for part in ("train", "test"):
            left, right = getattr(one, part), getattr(two, part)
            np.testing.assert_array_equal(left.images, right.images)
            np.testing.assert_array_equal(left.labels, right.labels)


def test_an_image_is_three_planes_of_rows(tmp_path: Path):
    draw_cifar10(tmp_path)
    # Green, second row, fourth column.
    data = one(8, at=(1, 1, 3), value=7)
    (tmp_path / BINARY / "test_batch.bin").write_bytes(data)
    # The 1 label byte, 1024 of red, a row of 32, and 3 more.
    assert data[0] == 8
    assert data[1 + 1024 + 32 + 3] == 7
    test = load("cifar10", tmp_path).test
    assert test.labels.tolist() == [8]
    assert np.argwhere(test.images).tolist() == [[0, 1, 3, 1]]
    assert test.images[0, 1, 3, 1] == 7


def test_the_binary_version_comes_first(tmp_path: Path):
    draw_cifar10(draw_cifar10(tmp_path, 5), 6, layout="python")
    assert load("cifar10", tmp_path).train.num_examples == 50
    shutil.rmtree(tmp_path / BINARY)
    assert load("cifar10", tmp_path).train.num_examples == 60


def test_cifar100_has_fine_labels_and_words(tmp_path: Path):
    data = load("cifar100", draw_cifar100(tmp_path, 3, 1))
    assert data.classes[:2] == ("fine class0", "fine class1")
    assert len(data.classes) == 100
    assert data.train.labels.tolist() == [*range(100)] * 3
    assert data.test.labels.tolist() == [*range(100)]


def test_names_as_bytes_or_as_texts(tmp_path: Path):
    """Python 3 reads Python 2's texts as bytes, and some write them back like that."""
    draw_cifar10(tmp_path, 2, layout="python")
    for file in (tmp_path / PYTHON).iterdir():
        held = pickle.loads(file.read_bytes(), encoding="bytes")  # noqa: S301 -- drawn above
        file.write_bytes(pickle.dumps(held, 4))
    data = load("cifar10", tmp_path)
    assert data.classes == CIFAR10
    assert data.train.num_examples == 20


@pytest.mark.parametrize("file", [f"{BINARY}/data_batch_4.bin", f"{BINARY}/batches.meta.txt"])
def test_a_missing_file(tmp_path: Path, file: str):
    draw_cifar10(tmp_path)
    assert_missing("cifar10", tmp_path, tmp_path / file)


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("test_batch.bin", one(0)[:-1], "3,072 bytes, which is no whole number of images of 3,073"),
        ("data_batch_2.bin", one(3) + one(10), "label 10 at example 1; valid: 0 to 9"),
        ("test_batch.bin", b"", "cifar10 has no test example"),
        ("batches.meta.txt", b"airplane\n\xff\xfe", "is no text"),
        ("batches.meta.txt", b"airplane\ncat\nairplane\n", "names class 2 'airplane' as class 0"),
        (
            "batches.meta.txt",
            "\n".join([*CIFAR10, "unicorn"]).encode(),
            "names 11 classes; valid: the 10 as published",
        ),
    ],
)
def test_damage_to_the_binary_version(tmp_path: Path, file: str, content: bytes, reason: str):
    draw_cifar10(tmp_path)
    (tmp_path / BINARY / file).write_bytes(content)
    assert reason in refused("cifar10", tmp_path)


ROWS = np.zeros((2, PIXELS), np.uint8)


@pytest.mark.parametrize(
    ("file", "held", "reason"),
    [
        ("test_batch", {"labels": [1, 2]}, "no 'data' that is an array of bytes, 3,072 for each"),
        ("test_batch", {"data": ROWS, "labels": [1]}, "has 2 images and 1 labels"),
        ("test_batch", {"data": ROWS, "labels": [1, -1]}, "label -1 at example 1; valid: 0 to 9"),
        ("test_batch", [1, 2], "no 'data' that is an array of bytes"),
        ("batches.meta", {}, "has no 'label_names'"),
    ],
)
def test_damage_to_the_python_version(tmp_path: Path, file: str, held: object, reason: str):
    draw_cifar10(tmp_path, layout="python")
    (tmp_path / PYTHON / file).write_bytes(as_python_2(held))
    assert reason in refused("cifar10", tmp_path)


def test_a_label_beyond_all_arrays(tmp_path: Path):
    draw_cifar10(tmp_path, layout="python")
    held = {"data": ROWS, "labels": [1, 2**63]}
    (tmp_path / PYTHON / "test_batch").write_bytes(pickle.dumps(held))
    assert "at example 1; valid: 0 to 9" in refused("cifar10", tmp_path)


def test_a_python_version_that_would_run_something(tmp_path: Path):
    draw_cifar10(tmp_path, layout="python")
    made = tmp_path / "made"
    code = f"cos\nsystem\n(S'touch {made}'\ntR.".encode()
    (tmp_path / PYTHON / "data_batch_3").write_bytes(code)
    assert "was not run: it names 'os system'" in refused("cifar10", tmp_path)
    assert not made.exists()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_names_in_another_order_are_refused(tmp_path: Path, layout: str):
    """Labels would mean other classes, and every number would be right for the wrong words."""
    draw_cifar10(tmp_path, layout=layout)
    names = list(CIFAR10[::-1])
    if layout == "binary":
        (tmp_path / BINARY / "batches.meta.txt").write_text("\n".join(names))
    else:
        (tmp_path / PYTHON / "batches.meta").write_bytes(as_python_2({"label_names": names}))
    text = refused("cifar10", tmp_path)
    assert text.endswith("names class 0 'truck'; valid: 'airplane', as published")


def test_one_long_name_many_times_is_not_copied(tmp_path: Path):
    """100 KB as each of 5,000 names would be half a gigabyte."""
    draw_cifar10(tmp_path, layout="python")
    names = [b"x" * 100_000] * 5_000
    (tmp_path / PYTHON / "batches.meta").write_bytes(pickle.dumps({"label_names": names}))
    refused_in_little_memory("cifar10", tmp_path, 10_000_000)


@pytest.mark.parametrize("inner", ["", BINARY])
def test_a_closed_folder_is_not_missing(tmp_path: Path, inner: str):
    root = draw_cifar10(tmp_path / "data")
    assert_closed("cifar10", root, root / inner)
