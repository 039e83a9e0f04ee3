"""Data sets of several domains, on drawn folders with hand-counted numbers."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from platform.data.catalogue import DataRequest, Draws, dataset_info, load_dataset
from platform.data.dataset import Dataset, ImageFiles, Split
from platform.errors import ConfigError, DataError
from tests.drawn._users import open_to_all, readable_for_nobody
from tests.drawn.domains import (
    DOMAINNET,
    OFFICE_HOME,
    PACS,
    VLCS,
    draw_domainnet,
    draw_domainnet_lists,
    draw_folders,
    draw_office_home,
    draw_office_home_parts,
    draw_pacs,
    draw_pacs_lists,
    draw_vlcs,
    draw_vlcs_parts,
)
from tests.trunk._runs import NONE, Storage, opened

THINGS = ("The_Eiffel_Tower", "bird", "t-shirt", "truck")


def load(root: Path, name: str = "pacs", **asked: Any) -> Dataset:
    return load_dataset(name, DataRequest(root=root, **asked))


def paths(split: Split) -> tuple[str, ...]:
    assert isinstance(split.images, ImageFiles)
    return split.images.paths


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


@pytest.mark.parametrize("name", PLAIN)
def test_a_fifth_of_each_class_and_domain_is_for_testing(tmp_path: Path, name: str) -> None:
    draw, domains, classes = PLAIN[name]
    draw(tmp_path, per_class=5)
    data = load(tmp_path, name)
    assert data.domains == domains
    assert data.classes == tuple(folder.replace("_", " ") for folder in classes)
    assert list(classes) == sorted(classes)
    assert counts(data.train) == everywhere(4, len(classes), 4)
    assert counts(data.test) == everywhere(4, len(classes), 1)
    assert not set(paths(data.train)) & set(paths(data.test))
    assert data.train.labels.dtype == data.train.domains.dtype == np.int64


@pytest.mark.parametrize("name", PLAIN)
def test_published_names_are_those_that_are_known(name: str) -> None:
    _, domains, classes = PLAIN[name]
    info = dataset_info(name)
    assert info.domains == domains
    assert info.classes == tuple(folder.replace("_", " ") for folder in classes)


def test_labels_and_domains_are_those_of_the_path(tmp_path: Path) -> None:
    draw_pacs(tmp_path)
    data = load(tmp_path)
    for split in (data.train, data.test):
        for path, label, domain in zip(paths(split), split.labels, split.domains, strict=True):
            expected = f"{data.domains[domain]}/{data.classes[label]}"
            assert path.rpartition("/")[0] == expected
        assert list(split.domains) == sorted(split.domains)


def test_domainnet_as_folders(tmp_path: Path) -> None:
    draw_domainnet(tmp_path, classes=12, per_class=3)
    data = load(tmp_path, "domainnet")
    assert data.domains == DOMAINNET
    assert data.classes == tuple(f"thing {label:03d}" for label in range(12))
    # A fifth of three images would be none; one of two or more is always for testing.
    assert counts(data.train) == everywhere(6, 12, 2)
    assert counts(data.test) == everywhere(6, 12, 1)


@pytest.mark.parametrize(
    ("per_class", "train", "test"), [(2, 1, 1), (7, 6, 1), (8, 6, 2), (10, 8, 2)]
)
def test_sizes_of_the_split(tmp_path: Path, per_class: int, train: int, test: int) -> None:
    draw_folders(tmp_path, ("a",), ("x",), per_class=per_class)
    data = load(tmp_path, "folders")
    assert (data.train.num_examples, data.test.num_examples) == (train, test)


def test_the_split_is_the_seeds(tmp_path: Path) -> None:
    draw_pacs(tmp_path, per_class=10)
    first, again = load(tmp_path, split_seed=1), load(tmp_path, split_seed=1, draws=Draws(seed=9))
    other = load(tmp_path, split_seed=2)
    assert paths(first.test) == paths(again.test)
    assert paths(first.test) != paths(other.test)
    assert set(paths(first.test)) | set(paths(first.train)) == set(
        (*paths(other.test), *paths(other.train))
    )


def test_the_split_of_a_domain_does_not_depend_on_the_others(tmp_path: Path) -> None:
    draw_pacs(tmp_path, per_class=10)
    alone, photo = load(tmp_path, domains=("photo",)), PACS[0].index("photo")
    company = load(tmp_path)
    # Domains with files of the same names are split in ways of their own.
    names = {path.partition("/")[::2] for path in paths(company.test)}
    assert len({frozenset(n for d, n in names if d == domain) for domain in PACS[0]}) == 4
    assert alone.domains == ("photo",)
    rows = np.flatnonzero(company.test.domains == photo)
    assert paths(alone.test) == tuple(paths(company.test)[row] for row in rows)


def test_domains_are_in_the_order_asked_for(tmp_path: Path) -> None:
    draw_pacs(tmp_path)
    shutil.rmtree(tmp_path / "pacs/cartoon")
    data = load(tmp_path, domains=("sketch", "photo"))
    assert data.domains == ("sketch", "photo")
    assert paths(data.train)[0].startswith("sketch/")


@pytest.mark.parametrize(
    "folders", [("test", "train"), ("Train", "ink"), ("ink", "val"), ("testing", "training")]
)
def test_a_split_is_not_read_as_domains(tmp_path: Path, folders: tuple[str, ...]) -> None:
    draw_folders(tmp_path, folders, ("x", "y"))
    with pytest.raises(DataError) as caught:
        load(tmp_path, "folders")
    text = str(caught.value)
    assert "each of which may be a domain or a part of one holder's images" in text
    assert "valid are DOMAIN/CLASS/IMAGE with other names, or, " in text
    assert "task.dataset: client_folders with CLIENT/train/CLASS/IMAGE" in text
    assert all((repr(name) in text) == (name != "ink") for name in folders)


HELD_OUT = {
    "pacs": (draw_pacs, "sketch", 3 * 7 * 4, 3 * 7 + 7 * 5),
    "pacs-lists": (draw_pacs_lists, "sketch", 3 * 7 * 3, 3 * 7 * 2 + 7 * 5),
    "vlcs-parts": (draw_vlcs_parts, "SUN09", 3 * 5 * 3, 3 * 5 * 2 + 5 * 6),
    "office_home-parts": (draw_office_home_parts, "Real_World", 3 * 65 * 2, 3 * 65 + 65 * 3),
}


@pytest.mark.parametrize("case", HELD_OUT)
def test_all_images_of_a_held_out_domain_are_for_testing(tmp_path: Path, case: str) -> None:
    draw, domain, train, test = HELD_OUT[case]
    draw(tmp_path)
    data = load(tmp_path, case.partition("-")[0], held_out_domain=domain)
    assert (data.train.num_examples, data.test.num_examples) == (train, test)
    assert data.domains.index(domain) not in data.train.domains


def test_pacs_with_lists(tmp_path: Path) -> None:
    draw_pacs_lists(tmp_path, train=3, crossval=2)
    data = load(tmp_path)
    assert data.classes == PACS[1]
    assert counts(data.train) == everywhere(4, 7, 3)
    assert counts(data.test) == everywhere(4, 7, 2)
    assert paths(data.train)[:3] == tuple(f"art_painting/dog/pic_00{i}.png" for i in range(3))
    assert paths(data.test)[:2] == tuple(f"art_painting/dog/pic_00{i}.png" for i in (3, 4))
    # The lists decide, not the seed.
    assert paths(load(tmp_path, split_seed=5).test) == paths(data.test)


def test_the_known_damaged_sketch_is_left_out(tmp_path: Path) -> None:
    base = draw_pacs_lists(tmp_path)
    with (base / "splits/sketch_train_kfold.txt").open("a") as file:
        file.write("sketch/dog/n02103406_4068-1.png 1\n")
    # Not even its absence is noticed.
    assert load(tmp_path).train.num_examples == 4 * 7 * 3


def test_pacs_images_without_lists(tmp_path: Path) -> None:
    base = draw_pacs_lists(tmp_path)
    shutil.rmtree(base / "splits")
    assert counts(load(tmp_path).test) == everywhere(4, 7, 1)


def test_vlcs_with_parts(tmp_path: Path) -> None:
    draw_vlcs_parts(tmp_path, train=3, crossval=1, test=2)
    data = load(tmp_path, "vlcs")
    assert data.domains == VLCS[0] and data.classes == VLCS[1]
    assert counts(data.train) == everywhere(4, 5, 3)
    assert counts(data.test) == everywhere(4, 5, 2)
    assert paths(data.train)[0] == "CALTECH/train/0/pic_000.jpg"
    assert {path.split("/")[0] for path in paths(data.train)[-15:]} == {"PASCAL"}


def test_vlcs_parts_with_the_folder_of_all(tmp_path: Path) -> None:
    base = draw_vlcs_parts(tmp_path)
    for domain in base.iterdir():
        shutil.copytree(domain / "train", domain / "full")
    assert counts(load(tmp_path, "vlcs").train) == everywhere(4, 5, 3)


def test_office_home_with_parts(tmp_path: Path) -> None:
    draw_office_home_parts(tmp_path, train=2, val=1)
    data = load(tmp_path, "office_home")
    assert data.domains == OFFICE_HOME[0]
    # Small letters on the disk; names and order stay those of the published folders.
    assert data.classes[58:61] == ("TV", "Table", "Telephone")
    assert counts(data.train) == everywhere(4, 65, 2)
    assert counts(data.test) == everywhere(4, 65, 1)
    row = paths(data.train).index("art/train/tv/pic_000.jpg")
    assert data.train.labels[row] == 58


def test_a_space_in_a_domains_folder(tmp_path: Path) -> None:
    base = draw_office_home(tmp_path)
    (base / "Real_World").rename(base / "Real World")
    assert load(tmp_path, "office_home").domains[3] == "Real_World"


def test_domainnet_with_lists(tmp_path: Path) -> None:
    draw_domainnet_lists(tmp_path, THINGS, train=2, test=1)
    data = load(tmp_path, "domainnet")
    # The lists number t-shirt 2 and the tower 1; ours is the order of the folders.
    assert data.classes == ("The Eiffel Tower", "bird", "t-shirt", "truck")
    assert counts(data.train) == everywhere(6, 4, 2)
    assert counts(data.test) == everywhere(6, 4, 1)
    assert paths(data.train)[0] == "clipart/The_Eiffel_Tower/pic_000.jpg"


def test_domainnet_lists_in_a_folder_of_their_own(tmp_path: Path) -> None:
    base = draw_domainnet_lists(tmp_path, THINGS)
    (base / "splits").mkdir()
    for path in base.glob("*.txt"):
        path.rename(base / "splits" / path.name)
    assert counts(load(tmp_path, "domainnet").test) == everywhere(6, 4, 1)


def test_lists_may_leave_a_class_out_of_a_domain(tmp_path: Path) -> None:
    base = draw_domainnet_lists(tmp_path, THINGS)
    for part in ("train", "test"):
        file = base / f"painting_{part}.txt"
        kept = [line for line in file.read_text().splitlines() if "t-shirt" not in line]
        file.write_text("\n".join(kept))
    assert (2, 2) not in counts(load(tmp_path, "domainnet").train)
    with pytest.raises(DataError, match="no training image of class 't-shirt'"):
        load(tmp_path, "domainnet", domains=("painting", "real"), held_out_domain="real")


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
    assert load(tmp_path, "folders", domains=("north",)).domains == ("north",)


def test_endings_in_capitals(tmp_path: Path) -> None:
    draw_folders(tmp_path, ("one",), ("cat",), per_class=2, ending=".JPEG")
    assert counts(load(tmp_path, "folders").train) == {(0, 0): 1}


def test_rows_are_in_the_order_of_names_whatever_the_folder_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_folders(tmp_path, ("one", "two"), ("cat", "dog"), per_class=6)
    listed, asked = [], load(tmp_path, "folders")
    for split in (asked.train, asked.test):
        assert list(paths(split)) == sorted(paths(split))
    scandir = os.scandir

    class Backwards:
        def __init__(self, path: str) -> None:
            with scandir(path) as entries:
                self.entries = sorted(entries, key=lambda entry: entry.name, reverse=True)
            listed.append(path)

        def __enter__(self) -> list[os.DirEntry[str]]:
            return self.entries

        def __exit__(self, *_: object) -> None:
            return

    monkeypatch.setattr(os, "scandir", Backwards)
    again = load(tmp_path, "folders")
    assert listed and paths(again.train) == paths(asked.train)
    assert paths(again.test) == paths(asked.test) and again.classes == asked.classes


def test_nothing_is_opened_by_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_pacs_lists(tmp_path)
    for path in (tmp_path / "pacs/images").rglob("*.png"):
        path.write_text("no image")
    listed: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(str(path)) or scandir(path))
    data = load(tmp_path)
    # The domains' folder, and each of 28 classes' folders for each of its two lists.
    assert len(listed) == 1 + 2 * 28
    with pytest.raises(DataError, match="is no image"):
        data.train.images[np.array([0])]


def test_links_to_data_sets_are_followed(tmp_path: Path) -> None:
    base = draw_pacs_lists(tmp_path / "disk")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/pacs").symlink_to(base)
    assert len(load(tmp_path / "data").train.images[np.arange(2)]) == 2


@pytest.mark.parametrize("name", ["pacs", "vlcs", "office_home", "domainnet"])
def test_a_missing_data_set_names_layout_and_source(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError) as caught:
        load(tmp_path, name)
    sentence, info = str(caught.value), dataset_info(name)
    assert sentence.startswith(f"task.root: {name} needs {str(tmp_path)!r}"[:-1])
    assert all(line in sentence for line in info.layout) and "https://" in sentence


def test_an_empty_root(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"folders needs .*DOMAIN', which is not there"):
        load(tmp_path, "folders")
    with pytest.raises(DataError, match="folders needs"):
        load(tmp_path / "nowhere", "folders")


def test_unknown_domains(tmp_path: Path) -> None:
    draw_pacs(tmp_path)
    with pytest.raises(ConfigError, match=r"task.domains: 'real' is unknown in pacs; valid: art_"):
        load(tmp_path, domains=("real",))
    with pytest.raises(ConfigError, match="'real' is unknown in folders; valid: art_painting"):
        load(tmp_path / "pacs", "folders", domains=("real",))


def emptied(base: Path) -> None:
    for path in (base / "photo/dog").iterdir():
        path.unlink()


def misspelled(base: Path) -> None:
    (base / "photo/dog").rename(base / "photo/dogs")


def twin_domain(base: Path) -> None:
    shutil.copytree(base / "photo", base / "Photo")


def nested(base: Path) -> None:
    (base / "photo/dog/more").mkdir()


def texts(base: Path) -> None:
    (base / "photo/dog/pic.txt").write_text("text where images are expected")


def absent_class(base: Path) -> None:
    shutil.rmtree(base / "photo/dog")


def absent_domain(base: Path) -> None:
    shutil.rmtree(base / "photo")


def file_as_domain(base: Path) -> None:
    shutil.rmtree(base / "photo")
    (base / "photo").write_text("no folder")


def link_out(base: Path) -> None:
    (base / "photo/dog").rename(base.parent / "dog")
    (base / "photo/dog").symlink_to(base.parent / "dog")


def image_link_out(base: Path) -> None:
    (base / "photo/dog/pic_000.jpg").rename(base.parent / "pic.jpg")
    (base / "photo/dog/pic_000.jpg").symlink_to(base.parent / "pic.jpg")


def broken_link(base: Path) -> None:
    (base / "photo/dog/pic_009.jpg").symlink_to("none.jpg")


WRONG: dict[Callable[[Path], None], str] = {
    emptied: r"photo/dog' is an empty folder of a class",
    misspelled: r"has a class folder 'dogs', which is no class of pacs; valid: dog, elephant",
    twin_domain: r"holds both '[Pp]hoto' and '[Pp]hoto'",
    nested: r"photo/dog/more' lies among images and is not one",
    texts: r"photo/dog/pic.txt' lies among images and is not one; valid endings: .jpg",
    absent_class: r"has no images of class 'dog' in domain 'photo'",
    absent_domain: r"pacs needs .*photo', which is not there",
    file_as_domain: r"pacs needs .*photo', which is not there",
    link_out: r"photo/dog' is a link that leaves",
    image_link_out: r"pic_000.jpg' is a link that leaves",
    broken_link: r"pic_009.jpg' is a link to nothing",
}


@pytest.mark.parametrize("damage", WRONG, ids=lambda damage: damage.__name__)
def test_folders_that_are_refused(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    damage(draw_pacs(tmp_path, per_class=2))
    with pytest.raises(DataError, match=WRONG[damage]) as caught:
        load(tmp_path)
    sentence = str(caught.value)
    assert sentence.startswith("task.root: ") and "\n" not in sentence
    assert "; valid" in sentence or "; expected below" in sentence


@pytest.mark.parametrize(
    ("classes", "says"),
    [
        (("a_b", "a b"), "two class folders for 'a b'"),
        (("_", "a"), "has a class folder '_'"),
        (("a\nb",), "has a class folder"),
        (("a" * 201,), "has a class folder 'aaaa"),
    ],
)
def test_class_names_that_are_refused(tmp_path: Path, classes: tuple[str, ...], says: str) -> None:
    draw_folders(tmp_path, ("one",), classes)
    with pytest.raises(DataError, match=says):
        load(tmp_path, "folders")


def test_a_class_that_one_domain_lacks(tmp_path: Path) -> None:
    draw_folders(tmp_path, ("one", "two"), ("cat", "dog"))
    (tmp_path / "two/dog").rename(tmp_path / "two/Dog")
    with pytest.raises(DataError, match="no images of class 'Dog' in domain 'one'"):
        load(tmp_path, "folders")


def test_domains_without_classes(tmp_path: Path) -> None:
    # Classes directly below the root, as in a set of one domain.
    draw_folders(tmp_path, ("cat", "dog"), (".",))
    with pytest.raises(DataError, match="cat' holds no folder of a class; valid is DOMAIN/CLASS"):
        load(tmp_path, "folders")


def test_single_images_leave_none_for_testing(tmp_path: Path) -> None:
    draw_folders(tmp_path, ("one", "two"), ("cat", "dog"), per_class=1)
    with pytest.raises(DataError, match="has no test image; valid are at least two images"):
        load(tmp_path, "folders")
    assert load(tmp_path, "folders", held_out_domain="two").test.num_examples == 2


def test_a_missing_part(tmp_path: Path) -> None:
    base = draw_office_home_parts(tmp_path)
    shutil.rmtree(base / "clipart/val")
    with pytest.raises(DataError, match=r"clipart' has no folder 'val'; valid: train, val"):
        load(tmp_path, "office_home")


def test_a_missing_list(tmp_path: Path) -> None:
    base = draw_pacs_lists(tmp_path)
    (base / "splits/photo_crossval_kfold.txt").unlink()
    with pytest.raises(DataError, match=r"photo_crossval_kfold.txt' is not there and other lists"):
        load(tmp_path)


LINES = {
    "upwards": ("photo/../dog.png 1", r"lists the path 'photo/\.\./dog.png'"),
    "absolute": ("/etc/passwd 1", "lists the path '/etc/passwd'"),
    "other-domain": ("sketch/dog/pic_000.png 1", "valid is 'photo/class/image' and a number"),
    "flat": ("photo/pic_000.png 1", "valid is 'photo/class/image' and a number"),
    "no-number": ("photo/dog/pic_000.png", "lists the path ''"),
    "words": ("photo/dog/pic_000.png dog", "ends in 'dog'"),
    "digits-of-others": ("photo/dog/pic_000.png ²", "ends in '²'"),
    "negative": ("photo/dog/pic_000.png -1", "ends in '-1'"),
    "other-number": ("photo/dog/pic_000.png 2", "gives the number 2 to the class 'dog'"),
    "twice": ("photo/dog/pic_000.png 1", r"lists 'photo/dog/pic_000.png' 2 times"),
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


def test_a_list_that_is_no_text(tmp_path: Path) -> None:
    base = draw_pacs_lists(tmp_path)
    (base / "splits/photo_train_kfold.txt").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(DataError, match="is no text"):
        load(tmp_path)


def test_a_list_behind_a_link(tmp_path: Path) -> None:
    base = draw_pacs_lists(tmp_path)
    (base / "splits/photo_train_kfold.txt").rename(tmp_path / "list.txt")
    (base / "splits/photo_train_kfold.txt").symlink_to(tmp_path / "list.txt")
    with pytest.raises(DataError, match="is a link that leaves"):
        load(tmp_path)


@pytest.mark.parametrize("place", ["", "photo", "photo/dog"])
def test_what_this_user_may_not_read(tmp_path: Path, place: str) -> None:
    folder = draw_pacs(tmp_path, per_class=2) / place
    open_to_all(tmp_path)
    folder.chmod(0)
    says = r"task.root: .* cannot be read \(Permission denied\)"
    with readable_for_nobody(tmp_path), pytest.raises(DataError, match=says):
        load(tmp_path)
    folder.chmod(0o755)


def test_a_run_that_leaves_one_domain_out(tmp_path: Path) -> None:
    draw_pacs(tmp_path / "data", per_class=3)
    finished = Storage(tmp_path).run(
        *("method.name=zero_shot", NONE, "rounds=1", "cohort.dropout_rate=0"),
        *("task.dataset=pacs", f"task.root={tmp_path / 'data'}", "task.domains=null"),
        *("task.partition.kind=domain", "task.clients=3", "task.held_out_domain=sketch"),
        *("evaluation.protocol=leave_one_domain_out", "secure_aggregation.threshold=2"),
    )
    measured = finished.summary["final"]["protocol"]
    # All 21 images of the held-out domain, for each of three clients with the same model.
    correct = measured["target"]["mean"] * 21
    assert correct == pytest.approx(round(correct))
    with opened(finished.storage.reopen(finished.run_id)) as simulation:
        assert simulation.learning.classes == PACS[1]


def test_numbers_are_classes_in_vlcs_only(tmp_path: Path) -> None:
    """Dassl numbers VLCS's folders; in another data set numbers may count in any order."""
    draw_folders(tmp_path / "vlcs", VLCS[0], [str(label) for label in range(5)], per_class=2)
    assert load(tmp_path, "vlcs").classes == VLCS[1]
    draw_folders(tmp_path / "pacs", PACS[0], [str(label) for label in range(7)], per_class=2)
    with pytest.raises(DataError, match="has a class folder '0', which is no class of pacs"):
        load(tmp_path, "pacs")


def test_more_classes_than_any_data_set_has(tmp_path: Path) -> None:
    for label in range(1001):
        (tmp_path / "ink" / f"c{label}").mkdir(parents=True)
        (tmp_path / "ink" / f"c{label}" / "a.png").touch()
    with pytest.raises(DataError, match="has 1001 different class folders; valid: 1 to 1000"):
        load(tmp_path, "folders")


def copied(root: Path, one: str, other: str) -> None:
    (root / other).write_bytes((root / one).read_bytes())


def test_a_run_tells_of_an_image_that_is_trained_and_tested_on(tmp_path: Path) -> None:
    """Where no file tells a split, a copy of an image may come to the other side."""
    draw_folders(tmp_path / "data", ("ink", "oil"), ("cat", "dog"), per_class=5)
    data = load(tmp_path / "data", "folders")
    copied(tmp_path / "data", paths(data.train)[0], paths(data.test)[0])
    overrides = (
        *("method.name=zero_shot", NONE, "rounds=1", "cohort.dropout_rate=0"),
        *("task.dataset=folders", f"task.root={tmp_path / 'data'}", "task.domains=null"),
        *("task.partition.kind=iid", "task.clients=2", "secure_aggregation.threshold=2"),
    )
    # The split that `load` has seen.
    run = Storage(tmp_path).run(*overrides, "task.shots=null", "seeds.split=0")
    (told,) = (text for text in run.summary["warnings"] if "under other names" in text)
    assert told.startswith(
        f"1 test images are also training images under other names ('{paths(data.test)[0]}'"
    )
    wrong = paths(data.train)[-1]
    copied(tmp_path / "data", paths(data.train)[0], wrong)
    later = Storage(tmp_path / "later")
    with pytest.raises(DataError, match=r"of class 'cat' and .* of class 'dog' are the same file"):
        later.create(*overrides, "task.shots=null")
    assert not later.file.exists()
