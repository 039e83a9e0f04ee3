"""`images`: each layout of a user's own images, what is said of it, and what is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from platform.data.catalogue import Hints
from platform.data.dataset import Dataset, Split
from platform.data.loaders.own_images import load_holding
from platform.errors import ConfigError
from tests.drawn._pictures import write_picture
from tests.trunk.loaders._refusing import dealt, draw, load, paths, refused

NAME = "images"


def folders_of(split: Split) -> Counter[str]:
    return Counter(path.rpartition("/")[0] for path in paths(split))


def why_not(root: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        dealt(NAME, root, 2, "iid", *overrides)
    return str(caught.value)


def said(data: Dataset) -> str:
    return "\n".join(data.recognised)


def test_the_stumble_train_and_test_folders_are_no_domains(tmp_path: Path):
    """45 of 55 held-out images once went into training."""
    draw(tmp_path, 10, "train/cat", "train/dog", "train/hen")
    draw(tmp_path, 11, *(f"test/{name}" for name in ("cat", "dog", "hen")))
    data = load(NAME, tmp_path)
    assert folders_of(data.train) == {f"train/{name}": 10 for name in ("cat", "dog", "hen")}
    assert folders_of(data.test) == {f"test/{name}": 11 for name in ("cat", "dog", "hen")}
    task = dealt(NAME, tmp_path, 2, "iid")
    trained = {paths(task.dataset.train)[row] for one in task.clients for row in one.train}
    assert len(trained) == 30 and not any(path.startswith("test/") for path in trained)


def test_class_folders_set_a_fifth_of_each_class_aside(tmp_path: Path):
    draw(tmp_path, 10, "dog")
    draw(tmp_path, 5, "a_cat")
    data = load(NAME, tmp_path)
    assert data.classes == ("a cat", "dog") and data.domains == ("own",)
    assert folders_of(data.test) == {"dog": 2, "a_cat": 1}
    assert not set(paths(data.train)) & set(paths(data.test))
    assert data.train.labels.tolist() == [0] * 4 + [1] * 8
    # Who gives images reads what became of them.
    assert "in all 12 training, 0 validation and 3 test images, " in said(data)
    assert "drawn by seeds.split and never trained on" in said(data)
    assert paths(load(NAME, tmp_path).test) == paths(data.test)
    assert any(
        paths(load(NAME, tmp_path, split_seed=n).test) != paths(data.test) for n in range(1, 5)
    )


def test_folders_of_class_folders_may_be_domains_or_clients(tmp_path: Path):
    draw(tmp_path, 2, "a/cat", "a/dog", "b/cat", "b/dog")
    text = refused(NAME, tmp_path)
    assert "domain_folders" in text and "client_folders" in text


def test_what_lies_beside_the_folders(tmp_path: Path):
    draw(tmp_path, 2, "cat", "dog")
    for name in ("README.md", "LICENSE", ".hidden", "Thumbs.db"):
        (tmp_path / name).write_text("x")
    assert load(NAME, tmp_path).classes == ("cat", "dog")
    (tmp_path / "names.lst").write_text("cat a\ndog b\n")
    (tmp_path / "class_names.txt").write_text("cat x\ndog y\n")
    named = Hints(class_names=tmp_path / "names.lst")
    assert load(NAME, tmp_path, hints=named).classes == ("a", "b")
    assert "names.lst' lies in" in refused(NAME, tmp_path)


def test_a_class_without_a_training_image_is_named(tmp_path: Path):
    draw(tmp_path / "split", 3, "train/cat", "train/dog", "test/cat", "test/hen")
    assert "no training example" in why_not(tmp_path / "split")
    draw(tmp_path / "classes", 3, "cat", "dog")
    (tmp_path / "classes" / "hen").mkdir()
    assert "'hen' is empty" in said(load(NAME, tmp_path / "classes"))
    assert "no training example" in why_not(tmp_path / "classes")


def test_links(tmp_path: Path):
    root = draw(tmp_path / "root", 3, "cat", "dog")
    draw(tmp_path / "else", 3, "hen")
    (root / "hen").symlink_to(tmp_path / "else" / "hen")
    assert "link that leaves" in refused(NAME, root)
    (root / "hen").unlink()
    (root / ".hidden").symlink_to("/etc")
    (tmp_path / "link").symlink_to(root)
    assert load(NAME, tmp_path / "link").train.num_examples > 0
    draw(tmp_path / "two", 2, "a/cat", "a/dog")
    (tmp_path / "two" / "b").symlink_to(tmp_path / "two" / "a")
    text = refused(NAME, tmp_path / "two", hints=Hints(layout="client_folders"))
    assert "b' is a link" in text


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
    (root / "class_names.txt").unlink()
    told(root, '\ufeff{"n1": "dog", "n2": "cat", "n3": "eel"}', "class_names.json")
    assert load("images", root).classes == ("dog", "cat", "eel")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("n1 a\nn2 b\n", "no entry for 'n3'"),
        (f"{WORDS}n1 wolf\n", "two entries for 'n1'"),
        ("n1\nn2 b\n", "line 1 of"),
    ],
)
def test_lines_that_are_refused(root: Path, text: str, sentence: str):
    refusal = refused("images", told(root, text))
    assert refusal.startswith("task.class_names: ") and sentence in refusal


def test_a_holder_s_words_are_the_federation_s_classes(root: Path):
    """The list may name classes of others, of which this holder has no image."""
    told(root, f"{WORDS}n9 zebra\n")
    classes = ("zebra", "great white shark", "guinea pig", "dog")
    data, left_out = load_holding(root, classes, test_share=0.0, key=b"")
    assert left_out == ()
    assert data.train.labels.tolist() == [1] * 5 + [2] * 5 + [3] * 5
    data, (said,) = load_holding(root, classes[:3], test_share=0.0, key=b"")
    assert "class folder 'n1'" in said
    assert data.train.labels.tolist() == [1] * 5 + [2] * 5
