"""Office-Caltech10 and DomainNet-10: FedBN's pickled lists, read and never run."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from platform.data.dataset import ImageFiles
from tests.drawn.arrays import (
    DOMAINNET_SITES,
    OFFICE_SITES,
    draw_domainnet10,
    draw_office_caltech10,
    write_site_list,
)
from tests.trunk.loaders._refusing import assert_missing, load, refused

OFFICE = "office_caltech_10"
MUG = f"{OFFICE}/dslr/mug/test_0.jpg"


def test_four_sites_of_ten_classes(tmp_path: Path):
    """4 sites x 10 classes x 3 training and 2 test images."""
    draw_office_caltech10(tmp_path, 3, 2)
    # Lists say `office_caltech_10/...`, and the folder behind a link may be called otherwise.
    (tmp_path / OFFICE).rename(tmp_path / "elsewhere")
    (tmp_path / OFFICE).symlink_to(tmp_path / "elsewhere")
    data = load("office_caltech10", tmp_path)
    assert data.domains == OFFICE_SITES
    assert (data.classes[0], data.classes[8]) == ("back pack", "mug")
    for split, each in ((data.train, 3), (data.test, 2)):
        table = np.bincount(split.domains * 10 + split.labels)
        assert table.tolist() == [each] * 40
        assert isinstance(split.images, ImageFiles)
    assert data.train.images.paths[3] == "amazon/bike/train_0.jpg"
    (image,) = data.test.images[np.array([79])]
    assert image.shape == (16, 16, 3)


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        (f"../../data/{OFFICE}/{{}}", "tuple"),
        (f"/somewhere/else/{OFFICE}/{{}}", "list"),
        (f"./{OFFICE}/./{{}}", "table"),
        ("{}", "objects"),
        ("./{}", "bytes"),
    ],
)
def test_paths_and_lists_in_all_forms(tmp_path: Path, form: str, kind: str):
    draw_office_caltech10(tmp_path)
    paths, labels = [form.format(f"dslr/{n}/test_0.jpg") for n in ("mug", "bike")], ["mug", "bike"]
    held = {
        "tuple": (np.array(paths), np.array(labels)),
        "list": [paths, labels],
        "table": np.array([paths, labels]),
        "objects": (np.array(paths, object), np.array(labels, object)),
        "bytes": (np.array(paths, "S"), np.array(labels, "S")),
    }[kind]
    (tmp_path / OFFICE / "dslr_test.pkl").write_bytes(pickle.dumps(held))
    test = load("office_caltech10", tmp_path, domains=("dslr",)).test
    assert test.images.paths == ("dslr/mug/test_0.jpg", "dslr/bike/test_0.jpg")
    assert test.labels.tolist() == [8, 1]


@pytest.mark.parametrize(
    "path", [f"{OFFICE}/../../secret.jpg", "../secret.jpg", "/etc/passwd", "dslr/mug/\udcff.jpg"]
)
def test_paths_that_leave_or_hide_are_refused(tmp_path: Path, path: str):
    draw_office_caltech10(tmp_path)
    (tmp_path / "secret.jpg").write_bytes(b"x")
    held = pickle.dumps(([path], ["mug"]), 4)
    (tmp_path / OFFICE / "dslr_test.pkl").write_bytes(held)
    assert "dslr_test.pkl' lists the path" in refused("office_caltech10", tmp_path)


def test_a_link_that_leaves_is_refused(tmp_path: Path):
    draw_office_caltech10(tmp_path)
    (tmp_path / MUG).rename(tmp_path / "secret.jpg")
    (tmp_path / MUG).symlink_to("../../../secret.jpg")
    assert "link that leaves" in refused("office_caltech10", tmp_path)


@pytest.mark.parametrize(
    ("paths", "labels", "reason"),
    [
        ([MUG], ["cup"], "class 'cup' at"),
        ([MUG, f"../{MUG}"], ["mug", "mug"], "lists 'dslr/mug/test_0.jpg' 2 times"),
        # In the training list as well.
        ([f"{OFFICE}/dslr/mug/train_0.jpg"], ["mug"], "lists 'dslr/mug/train_0.jpg' 2 times"),
        ([MUG, MUG], ["mug"], "for 2 images"),
        ([f"{OFFICE}/dslr/mug/lost.jpg"], ["mug"], "lists 'dslr/mug/lost.jpg', which"),
    ],
)
def test_lists_that_are_wrong(tmp_path: Path, paths: list[str], labels: list[str], reason: str):
    draw_office_caltech10(tmp_path)
    write_site_list(tmp_path / OFFICE / "dslr_test.pkl", paths, labels, 4)
    assert reason in refused("office_caltech10", tmp_path)


def test_what_is_no_list_is_refused(tmp_path: Path):
    draw_office_caltech10(tmp_path)
    for held in ({"paths": [MUG]}, [[MUG], ["mug"], ["more"]], (np.array([MUG]), np.array([8]))):
        (tmp_path / OFFICE / "dslr_test.pkl").write_bytes(pickle.dumps(held))
        assert "does not hold" in refused("office_caltech10", tmp_path)


def test_a_missing_list(tmp_path: Path):
    draw_office_caltech10(tmp_path)
    assert_missing("office_caltech10", tmp_path, tmp_path / OFFICE / "webcam_train.pkl")
    assert f"needs '{tmp_path}/DomainNet'" in refused("domainnet10", tmp_path)
    assert load("domainnet10", draw_domainnet10(tmp_path, 2, 1)).domains == DOMAINNET_SITES


def test_a_list_that_would_run_something(tmp_path: Path):
    draw_office_caltech10(tmp_path)
    made = tmp_path / "made"
    code = f"cbuiltins\nexec\n(V__import__('os').mkdir('{made}')\ntR.".encode()
    (tmp_path / OFFICE / "dslr_test.pkl").write_bytes(code)
    assert "names 'builtins exec'" in refused("office_caltech10", tmp_path)
    assert not made.exists()
