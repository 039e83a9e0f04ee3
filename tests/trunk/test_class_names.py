"""A file of class names: its two forms, where it is found, and each refusal by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform.data.catalogue import Hints
from platform.data.loaders.own_images import load_holding
from tests.drawn._pictures import write_picture
from tests.trunk.loaders._refusing import load, refused

WORDS = "n1 dog\nn2\tguinea pig\nn3 -> great white shark\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for label, name in enumerate(("n1", "n2", "n3")):
        for number in range(5):
            write_picture(tmp_path / "root" / name / f"{number}.png", label, number, size=8)
    return tmp_path / "root"


def told(root: Path, text: str, name: str = "class_names.txt") -> Path:
    (root / name).write_text(text, encoding="utf-8")
    return root


def test_words_beside_the_images(root: Path):
    data = load("images", told(root, WORDS))
    assert data.classes == ("dog", "guinea pig", "great white shark")
    assert data.train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert f"the words for its classes are from {str(root / 'class_names.txt')!r}" in (
        data.recognised
    )


def test_an_object(root: Path):
    told(root, '\ufeff{"n1": "dog", "n2": "cat", "n3": "eel"}', "class_names.json")
    assert load("images", root).classes == ("dog", "cat", "eel")


def test_the_key_comes_before_what_lies_beside(root: Path, tmp_path: Path):
    told(root, WORDS)
    (tmp_path / "other.txt").write_text("# mine\nn3 c\n\nn2 b\nn1 a\n")
    hints = Hints(class_names=tmp_path / "other.txt")
    assert load("images", root, hints=hints).classes == ("a", "b", "c")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("n1 a\nn2 b\n", "has no entry for 'n3'; valid is one for each class"),
        (f"{WORDS}n4 bee\n", "has an entry for 'n4', of which there are no images"),
        (f"{WORDS}n1 wolf\n", "has two entries for 'n1'"),
        ("n1 a\nn2 b\nn3 A\n", "calls both 'n1' and 'n3' 'A'"),
        ("n1\nn2 b\n", "line 1 of"),
        ("n1 a\x07b\n", "valid are 1 to 200 printable characters"),
    ],
)
def test_lines_that_are_refused(root: Path, text: str, sentence: str):
    refusal = refused("images", told(root, text))
    assert refusal.startswith("task.class_names: ") and sentence in refusal


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[" * 100_000, "is not JSON"),
        ('{"n1": 3}', "is no object of texts"),
        ('{"n1": "a", "n1": "b", "n2": "c", "n3": "d"}', "has two entries for 'n1'"),
    ],
)
def test_objects_that_are_refused(root: Path, text: str, sentence: str):
    assert sentence in refused("images", told(root, text, "class_names.json"))


def test_a_holder_s_words_are_the_federation_s_classes(root: Path):
    """The list may name classes of others, of which this holder has no image."""
    told(root, f"{WORDS}n9 zebra\n")
    classes = ("zebra", "great white shark", "guinea pig", "dog")
    data, left_out = load_holding(root, classes, test_share=0.0, key=b"")
    assert left_out == ()
    assert data.train.labels.tolist() == [1] * 5 + [2] * 5 + [3] * 5
    data, (said,) = load_holding(root, classes[:3], test_share=0.0, key=b"")
    assert "has a class folder 'n1', which is no class of the federation" in said
    assert data.train.labels.tolist() == [1] * 5 + [2] * 5
