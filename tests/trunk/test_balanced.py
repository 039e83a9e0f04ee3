"""Many clients with little each: images whatever their class, or a few classes in balance."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from platform.config import parse_config
from platform.data.loading import TaskData, load_task_data
from platform.data.partition import (
    balanced_classes,
    random_counts,
)
from platform.errors import ConfigError

MINIMAL = {
    "name": "run",
    "seed": 4,
    "method": {"name": "promptfl"},
    "training": {"local_steps": 1},
    "task": {"dataset": "homonyms", "domains": ["real", "sketch"], "test_per_class": 6},
}
DRAWN = (
    *("task.partition.kind=iid", "task.partition.images_per_client=16"),
    *("task.shots=null", "task.clients=50"),
)
CLASSES = "task.partition.classes_per_client"
SHARED = (f"{CLASSES}=2", "task.shots=8", "task.clients=50")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def load(*overrides: str) -> TaskData:
    return load_task_data(parse_config(MINIMAL, overrides))


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def by_class(data: TaskData, part: str = "train") -> np.ndarray:
    """Images of each class by client, (clients, classes)."""
    labels = (data.dataset.test if part == "test" else data.dataset.train).labels
    return np.stack([np.bincount(labels[getattr(c, part)], minlength=20) for c in data.clients])


def rows_of(data: TaskData, part: str) -> list[int]:
    return [row for client in data.clients for row in getattr(client, part).tolist()]


# --- images whatever their class -----------------------------------------------------------------


def test_sixteen_images_of_twenty_classes_are_eleven_names():
    """A class is missing from 16 of 800 images (40 of each) with probability C(760, 16) / C(800,
    16) = 0.436: 11.3 of 20 classes are seen on average, 0.2 to either side over 50 clients."""
    data = load(*DRAWN)
    counts = by_class(data)
    assert counts.sum(axis=1).tolist() == [16] * 50
    assert 10.8 < (counts > 0).sum(axis=1).mean() < 11.8
    # As many are made as are asked for: 50 x 16 are 40 of each of 20 classes.
    assert counts.sum(axis=0).tolist() == [40] * 20
    rows = rows_of(data, "train")
    assert len(set(rows)) == len(rows) == data.dataset.train.num_examples == 800


@given(
    st.integers(1, 9), st.integers(1, 6), st.integers(1, 12), st.integers(0, 20), st.integers(0, 99)
)
def test_every_image_is_drawn_at_most_once(clients, classes, each, spare, seed):
    images = np.arange(each * clients + spare) % classes
    counts = random_counts(images, classes, each, clients, rng=rng(seed))
    assert counts.shape == (classes, clients)
    assert counts.sum(axis=0).tolist() == [each] * clients
    assert (counts.sum(axis=1) <= np.bincount(images, minlength=classes)).all()


def test_the_draw_is_fair():
    """Of 3 images of class 0 and 7 of class 1 two are 0.6 of class 0 in the mean; the pair holds
    none with probability 7/10 x 6/9 = 7/15."""
    images = np.array([0] * 3 + [1] * 7)
    drawn = np.stack([random_counts(images, 2, 2, 5, rng=rng(seed))[0] for seed in range(2000)])
    # Whichever client it is: standard errors are 0.013 and 0.011.
    assert drawn.mean(axis=0) == pytest.approx([0.6] * 5, abs=0.06)
    assert (drawn == 0).mean(axis=0) == pytest.approx([7 / 15] * 5, abs=0.05)


def test_more_than_all_images_are_refused_with_what_there_is():
    with pytest.raises(ConfigError, match=r"images_per_client: 4 .* the 30 .*; valid: 1 to 3$"):
        random_counts(np.zeros(30, np.int64), 1, 4, 8, rng=rng())
    with pytest.raises(ConfigError, match="valid: fewer clients"):
        random_counts(np.zeros(7, np.int64), 1, 1, 8, rng=rng())


def test_new_clients_have_images_of_their_own():
    data = load(*DRAWN, "task.new_clients=10")
    assert [len(client.train) for client in data.new_clients] == [16] * 10
    new = {row for client in data.new_clients for row in client.train.tolist()}
    assert len(new) == 160 and not new & set(rows_of(data, "train"))


# --- a few classes in balance --------------------------------------------------------------------


def test_two_classes_of_twenty_for_fifty_clients_by_hand():
    """100 places are five owners of each class; 8 shots of each are 16 images."""
    data = load(*SHARED)
    counts = by_class(data)
    assert sorted(set(counts.flatten().tolist())) == [0, 8]
    assert (counts > 0).sum(axis=1).tolist() == [2] * 50
    assert (counts > 0).sum(axis=0).tolist() == [5] * 20
    rows = rows_of(data, "train")
    assert len(set(rows)) == len(rows) == data.dataset.train.num_examples == 800
    # Six test images of a class among five owners: one each, and one of them has another.
    tests = by_class(data, "test")
    assert (tests.sum(axis=0) == 6).all() and ((tests > 0) == (counts > 0)).all()


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 40), st.integers(0, 99))
def test_all_classes_have_as_many_owners_or_one_more(classes, each, clients, seed):
    if not classes <= each * clients or each > classes:
        with pytest.raises(ConfigError, match=r"task\.partition\.classes_per_client"):
            balanced_classes(classes, each, clients, rng=rng(seed))
        return
    chosen = balanced_classes(classes, each, clients, rng=rng(seed))
    assert len(chosen) == clients
    assert all(len(set(own)) == each and list(own) == sorted(own) for own in chosen)
    owners = Counter(label for own in chosen for label in own)
    assert set(owners) == set(range(classes))
    assert max(owners.values()) - min(owners.values()) <= 1
    assert sum(owners.values()) == each * clients


def test_all_pairs_of_classes_and_all_pairs_of_clients_are_alike():
    """Four classes, two for each of four clients: 6 pairs, each 1/6 of a client's; two clients
    have the same pair, one class, or none in common, whichever two they are."""
    drawn = [balanced_classes(4, 2, 4, rng=rng(seed)) for seed in range(3000)]
    pairs = Counter(own for one in drawn for own in one)
    assert len(pairs) == 6
    assert np.array(list(pairs.values())) / 12000 == pytest.approx([1 / 6] * 6, abs=0.02)
    shared = [
        np.mean([len({*one[i]} & {*one[j]}) for one in drawn]) for i in range(4) for j in range(i)
    ]
    # A client's two classes have one other owner each, among three others: 2/3.
    assert shared == pytest.approx([2 / 3] * 6, abs=0.06)


# --- what does not go together -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ((*DRAWN, "task.shots=16"), "task.shots: 16"),
        ((*DRAWN, "task.partition.kind=pathological"), "task.partition.images_per_client: 16"),
        ((*DRAWN, "task.partition.images_per_client=1"), "task.partition.images_per_client: 1"),
        ((*SHARED, "task.partition.kind=iid"), f"{CLASSES}: 2"),
        ((*SHARED, "task.partition.shared_classes=0.5"), "task.partition.shared_classes: 0.5"),
        # Without it, how many there are still has to be said.
        (("task.partition.kind=iid", "task.shots=null"), "task.shots: null"),
        ((*SHARED, f"{CLASSES}=21"), f"{CLASSES}: 21 for each of 50 clients"),
        ((*SHARED, "task.clients=5"), f"{CLASSES}: 2 for each of 5 clients is too few"),
        ((*SHARED, f"{CLASSES}=1"), f"{CLASSES}: 1 would leave client 0 of 50"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides: tuple[str, ...], key: str):
    assert refused(*overrides).startswith(key)
