"""Data sets of several domains, on drawn folders with hand-counted numbers."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from platform.data.catalogue import DataRequest, Draws, dataset_info, load_dataset
from platform.data.dataset import Dataset, Split
from platform.errors import DataError
from tests.drawn.domains import (
    OFFICE_HOME,
    PACS,
    VLCS,
    draw_domainnet_lists,
    draw_folders,
    draw_office_home,
    draw_office_home_parts,
    draw_pacs,
    draw_pacs_lists,
    draw_vlcs,
    draw_vlcs_parts,
)
from tests.trunk._runs import NONE, Storage, slow, warnings_of
from tests.trunk.loaders._refusing import paths

THINGS = ("The_Eiffel_Tower", "bird", "t-shirt", "truck")


def load(root: Path, name: str = "pacs", **asked: Any) -> Dataset:
    return load_dataset(name, DataRequest(root=root, **asked))


def counts(split: Split) -> dict[tuple[int, int], int]:
    """Number of images by domain and label."""
    return dict(Counter(zip(split.domains.tolist(), split.labels.tolist(), strict=True)))


def everywhere(domains: int, classes: int, count: int) -> dict[tuple[int, int], int]:
    return {(d, c): count for d in range(domains) for c in range(classes)}


PLAIN: dict[str, tuple[Callable[..., Path], tuple[str, ...], tuple[str, ...]]] = {
    "pacs": (draw_pacs, *PACS),
    "vlcs": (draw_vlcs, *VLCS),
    "office_home": (draw_office_home, *OFFICE_HOME),
}


@pytest.mark.parametrize("name", ["pacs", "vlcs", slow("office_home")])
def test_a_fifth_of_each_class_and_domain_is_for_testing(tmp_path: Path, name: str) -> None:
    draw, domains, classes = PLAIN[name]
    draw(tmp_path, per_class=5)
    data, info = load(tmp_path, name), dataset_info(name)
    assert data.domains == info.domains == domains
    assert data.classes == info.classes == tuple(word.replace("_", " ") for word in classes)
    assert counts(data.train) == everywhere(4, len(classes), 4)
    assert counts(data.test) == everywhere(4, len(classes), 1)
    assert not set(paths(data.train)) & set(paths(data.test))


def test_the_split_of_a_domain_does_not_depend_on_the_others(tmp_path: Path) -> None:
    draw_pacs(tmp_path, per_class=10)
    alone, photo = load(tmp_path, domains=("photo",)), PACS[0].index("photo")
    company = load(tmp_path)
    assert paths(company.test) == paths(load(tmp_path, draws=Draws(seed=9)).test)
    assert paths(company.test) != paths(load(tmp_path, split_seed=2).test)
    # Domains with files of the same names are split in ways of their own.
    names = {path.partition("/")[::2] for path in paths(company.test)}
    assert len({frozenset(n for d, n in names if d == domain) for domain in PACS[0]}) == 4
    assert alone.domains == ("photo",)
    rows = np.flatnonzero(company.test.domains == photo)
    assert paths(alone.test) == tuple(paths(company.test)[row] for row in rows)


@pytest.mark.parametrize("folders", [("test", "train"), ("Train", "ink"), ("testing", "training")])
def test_a_split_is_not_read_as_domains(tmp_path: Path, folders: tuple[str, ...]) -> None:
    draw_folders(tmp_path, folders, ("x", "y"))
    with pytest.raises(DataError, match="may be a domain") as why:
        load(tmp_path, "folders")
    assert all((repr(name) in str(why.value)) == (name != "ink") for name in folders)


HELD_OUT = {
    "pacs-lists": (draw_pacs_lists, "sketch", 3 * 7 * 3, 3 * 7 * 2 + 7 * 5),
    "office_home-parts": (draw_office_home_parts, "Real_World", 3 * 65 * 2, 3 * 65 + 65 * 3),
    "vlcs-parts": (draw_vlcs_parts, "SUN09", 3 * 5 * 3, 3 * 5 * 2 + 5 * 6),
}


@pytest.mark.parametrize("case", ["pacs-lists", slow("office_home-parts"), "vlcs-parts"])
def test_all_images_of_a_held_out_domain_are_for_testing(tmp_path: Path, case: str) -> None:
    draw, domain, train, test = HELD_OUT[case]
    draw(tmp_path)
    data = load(tmp_path, case.partition("-")[0], held_out_domain=domain)
    assert (data.train.num_examples, data.test.num_examples) == (train, test)
    assert data.domains.index(domain) not in data.train.domains


def test_the_known_damaged_sketch_is_left_out(tmp_path: Path) -> None:
    base = draw_pacs_lists(tmp_path)
    with (base / "splits/sketch_train_kfold.txt").open("a") as file:
        file.write("sketch/dog/n02103406_4068-1.png 1\n")
    # Not even its absence is noticed.
    assert load(tmp_path).train.num_examples == 4 * 7 * 3


def test_vlcs_with_parts(tmp_path: Path) -> None:
    draw_vlcs_parts(tmp_path, train=3, crossval=1, test=2)
    data = load(tmp_path, "vlcs")
    assert data.domains == VLCS[0] and data.classes == VLCS[1]
    assert counts(data.train) == everywhere(4, 5, 3)
    assert counts(data.test) == everywhere(4, 5, 2)
    assert paths(data.train)[0] == "CALTECH/train/0/pic_000.jpg"
    assert {path.split("/")[0] for path in paths(data.train)[-15:]} == {"PASCAL"}


def test_domainnet_with_lists(tmp_path: Path) -> None:
    draw_domainnet_lists(tmp_path, THINGS, train=2, test=1)
    data = load(tmp_path, "domainnet")
    # The lists number t-shirt 2 and the tower 1; ours is the order of the folders.
    assert data.classes == ("The Eiffel Tower", "bird", "t-shirt", "truck")
    assert counts(data.train) == everywhere(6, 4, 2)
    assert counts(data.test) == everywhere(6, 4, 1)
    assert paths(data.train)[0] == "clipart/The_Eiffel_Tower/pic_000.jpg"


def test_any_folder(tmp_path: Path) -> None:
    draw_folders(tmp_path, ("north", "South"), ("cat", "Zebra_crossing"), per_class=5)
    (tmp_path / "README.txt").write_text("beside the domains")
    (tmp_path / "north/list.csv").write_text("beside the classes")
    (tmp_path / "north/cat/.DS_Store").write_text("left behind")
    (tmp_path / "north/cat/Thumbs.db").write_text("left behind")
    for clutter in (".git", "__MACOSX"):
        (tmp_path / clutter).mkdir()
    data = load(tmp_path, "folders")
    # Capitals come first in ASCII.
    assert data.domains == ("South", "north")
    assert data.classes == ("Zebra crossing", "cat")
    assert counts(data.train) == everywhere(2, 2, 4)
    assert list(paths(data.train)) == sorted(paths(data.train))
    for path, label, domain in zip(
        paths(data.train), data.train.labels, data.train.domains, strict=True
    ):
        folders = f"{data.domains[domain]}/{data.classes[label]}"
        assert path.rpartition("/")[0].replace("_", " ") == folders


def emptied(base: Path) -> None:
    shutil.rmtree(base / "photo/dog")
    (base / "photo/dog").mkdir()


def linked_out(name: str) -> Callable[[Path], object]:
    def damage(base: Path) -> None:
        outside = (base / name).rename(base.parent / "outside")
        (base / name).symlink_to(outside)

    return damage


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "an empty class": (emptied, "photo/dog' is an"),
    "twins": (lambda base: shutil.copytree(base / "photo", base / "Photo"), "holds both"),
    "an absent class": (lambda base: shutil.rmtree(base / "photo/dog"), "no images of class"),
    "a link out": (linked_out("photo/dog"), "photo/dog' is a link"),
    "an image's link out": (linked_out("photo/dog/pic_000.jpg"), "pic_000.jpg' is a link"),
}


@pytest.mark.parametrize(("damage", "says"), WRONG.values(), ids=WRONG)
def test_folders_that_are_refused(tmp_path, damage, says):
    damage(draw_pacs(tmp_path, per_class=2))
    with pytest.raises(DataError, match=f"^task.root: .*{says}"):
        load(tmp_path)


def test_single_images_leave_none_for_testing(tmp_path: Path) -> None:
    draw_folders(tmp_path, ("one", "two"), ("cat", "dog"), per_class=1)
    with pytest.raises(DataError, match="has no test"):
        load(tmp_path, "folders")
    assert load(tmp_path, "folders", held_out_domain="two").test.num_examples == 2


LINES = {
    "upwards": ("photo/../dog.png 1", r"lists the path 'photo/\.\./dog.png'"),
    "other-domain": ("sketch/dog/pic_000.png 1", "valid: 'photo/class/image'"),
    "words": ("photo/dog/pic_000.png dog", "ends in 'dog'"),
    "other-number": ("photo/dog/pic_000.png 2", "gives the number 2"),
    "in-both": ("photo/dog/pic_004.png 1", r"lists 'photo/dog/pic_004.png' 2 times"),
    "absent": ("photo/dog/pic_009.png 1", r"lists 'photo/dog/pic_009.png', which"),
}


@pytest.mark.parametrize(("line", "says"), LINES.values(), ids=LINES)
def test_lines_that_are_refused(tmp_path: Path, line: str, says: str) -> None:
    base = draw_pacs_lists(tmp_path)
    with (base / "splits/photo_train_kfold.txt").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(DataError, match=says) as caught:
        load(tmp_path)
    assert "photo_train_kfold.txt" in str(caught.value)


def test_a_list_behind_a_link(tmp_path: Path) -> None:
    base = draw_pacs_lists(tmp_path)
    (base / "splits/photo_train_kfold.txt").rename(tmp_path / "list.txt")
    (base / "splits/photo_train_kfold.txt").symlink_to(tmp_path / "list.txt")
    with pytest.raises(DataError, match="link that leaves"):
        load(tmp_path)


def test_numbers_are_classes_in_vlcs_only(tmp_path: Path) -> None:
    """Dassl numbers VLCS's folders; in another data set numbers may count in any order."""
    draw_folders(tmp_path / "vlcs", VLCS[0], [str(label) for label in range(5)], per_class=2)
    assert load(tmp_path, "vlcs").classes == VLCS[1]
    draw_folders(tmp_path / "pacs", PACS[0], [str(label) for label in range(7)], per_class=2)
    with pytest.raises(DataError, match="class folder '0'"):
        load(tmp_path, "pacs")


def test_a_run_tells_of_an_image_that_is_trained_and_tested_on(tmp_path: Path) -> None:
    """Where no file tells a split, a copy of an image may come to the other side."""
    draw_folders(tmp_path / "data", ("ink", "oil"), ("cat", "dog"), per_class=5)
    data = load(tmp_path / "data", "folders")
    shutil.copy(tmp_path / "data" / paths(data.train)[0], tmp_path / "data" / paths(data.test)[0])
    overrides = (
        *("method.name=zero_shot", NONE, "rounds=1", "cohort.dropout_rate=0"),
        *("task.dataset=folders", f"task.root={tmp_path / 'data'}", "task.domains=null"),
        *("task.partition.kind=iid", "task.clients=2", "secure_aggregation.threshold=2"),
        "evaluation.local_twins=false",
    )
    # The split that `load` has seen.
    run = Storage(tmp_path).run(*overrides, "task.shots=null", "seeds.split=0")
    (told,) = (text for text in warnings_of(run.summary) if "under other names" in text)
    assert told.startswith("1 test images") and f"'{paths(data.test)[0]}'" in told
    shutil.copy(tmp_path / "data" / paths(data.train)[0], tmp_path / "data" / paths(data.train)[-1])
    later = Storage(tmp_path / "later")
    with pytest.raises(DataError, match=r"of class 'cat' and .* of class 'dog'"):
        later.create(*overrides, "task.shots=null")
    assert not later.file.exists()
