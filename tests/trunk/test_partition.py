"""Who holds which images: counts by hand, and no image twice."""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from platform.config import parse_config
from platform.data.dataset import Split
from platform.data.loading import TaskData, load_task_data
from platform.data.partition import (
    ClientIndices,
    DirichletShares,
    PartitionPlan,
    balanced_classes,
    carve,
    class_map,
    partition,
    places,
    random_counts,
)
from platform.errors import ConfigError


def labels(classes: int, each: int) -> np.ndarray:
    return np.tile(np.arange(classes), each)


def deal(kind, clients, classes, *, shots=3, train=None, test=6, seeds=(1, 2), **more):
    plan = PartitionPlan(kind=kind, clients=clients, classes=classes, shots=shots, **more)
    owners = clients if kind == "iid" or more else 1
    return partition(
        plan,
        labels(classes, shots * owners if train is None else train),
        labels(classes, test),
        class_rng=np.random.default_rng(seeds[0]),
        shot_rng=np.random.default_rng(seeds[1]),
        split_rng=np.random.default_rng,
    )


def test_pathological_counts_by_hand():
    """10 clients, 20 classes, 3 shots: 6 training images each; 2 x 6 test images each."""
    train, test = labels(20, 5), labels(20, 6)
    clients = deal("pathological", 10, 20, train=5)
    for client in clients:
        assert (len(client.train), len(client.test)) == (6, 12)
        assert set(np.bincount(train[client.train], minlength=20)) == {0, 3}
        assert set(train[client.train]) == set(test[client.test])
    assert sorted(np.concatenate([c.test for c in clients])) == list(range(120))


def test_iid_counts_by_hand():
    """3 clients, 4 classes, 3 shots: all classes everywhere; of 7 test images two each, and the
    one that is left goes to client 0, 1, 2 and 0 again."""
    train, test = labels(4, 9), labels(4, 7)
    clients = deal("iid", 3, 4, test=7)
    for client in clients:
        assert np.bincount(train[client.train]).tolist() == [3, 3, 3, 3]
        assert set(test[client.test]) == {0, 1, 2, 3}
    assert [len(client.test) for client in clients] == [10, 9, 9]
    assert sorted(np.concatenate([c.train for c in clients])) == list(range(36))


KINDS = st.sampled_from(["pathological", "iid"])


@given(KINDS, st.integers(1, 4), st.integers(8, 11), st.integers(1, 4), st.integers(0, 1000))
def test_no_image_goes_to_two_clients(kind, clients, classes, shots, seed):
    dealt = deal(kind, clients, classes, shots=shots, train=shots * clients + 2, seeds=(seed, seed))
    for part in ("train", "test"):
        rows = np.concatenate([getattr(client, part) for client in dealt])
        assert len(set(rows.tolist())) == len(rows)
        assert rows.dtype == np.int64
    for client in dealt:
        assert (np.diff(client.train) > 0).all()


def counted(clients, all_labels, classes, part="train"):
    rows = [getattr(client, part) for client in clients]
    return [np.bincount(all_labels[own], minlength=classes).tolist() for own in rows]


def refused(*args, **options):
    with pytest.raises(ConfigError) as caught:
        deal(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_one_class_clients_under_few_shot_and_too_few_images_are_refused():
    """Eight classes are two each for four clients; for five, somebody would have one."""
    text = refused("pathological", 5, 8)
    assert text.startswith("task.clients: 5 is more than") and text.endswith("valid: 1 to 4")
    assert all(len(client.train) == 6 for client in deal("pathological", 4, 8))
    assert refused("iid", 2, 1).startswith("task.shots: 3 would leave client 0 of 2 with training")
    assert len(deal("iid", 2, 1, shots=None, train=7)[0].train) == 4
    assert refused("pathological", 9, 8, shots=None, train=5).endswith("valid: 1 to 8")
    for kind, most in (("pathological", 4), ("iid", 2)):
        assert refused(kind, 2, 4, shots=5, train=4).endswith(f"valid: 1 to {most}")
    # A client without any; two test images in all cannot be one for each of four clients.
    assert "no test image" in refused("pathological", 2, 4, test=0)
    assert "no test image" in refused("iid", 4, 2, test=1)
    assert "no training image" in refused("iid", 4, 2, shots=None, train=1)


def test_shared_classes_by_hand():
    """Half of 6 classes is 3 for both clients, 3 shots each; the other 3 are two and one."""
    train, test = labels(6, 6), labels(6, 5)
    clients = deal("pathological", 2, 6, shared_classes=0.5, test=5)
    counts = np.array(counted(clients, train, 6))
    shared = (counts == 3).all(axis=0)
    assert shared.sum() == 3
    assert sorted(counts[:, ~shared].sum(axis=1).tolist()) == [3, 6]
    assert (np.minimum(*counts[:, ~shared]) == 0).all()
    # Five test images of each shared class are 3 + 2, 2 + 3, 3 + 2.
    tested = np.array(counted(clients, test, 6, "test"))
    assert tested[:, shared].tolist() == [[3, 2, 3], [2, 3, 2]]
    assert sorted(np.concatenate([c.test for c in clients])) == list(range(30))
    rows = np.concatenate([c.train for c in clients])
    assert len(set(rows.tolist())) == len(rows) == 27


def test_shared_classes_that_cannot_be_met_are_refused():
    text = refused("pathological", 2, 6, shared_classes=0.05)
    assert text.startswith("task.partition.shared_classes: 0.05") and text.endswith("from 0.17")
    # One of eight is for all, so one of the other seven is enough for each of seven clients.
    sentence = refused("pathological", 8, 8, shared_classes=0.125)
    assert sentence.endswith("valid: 1 to 7")
    assert len(deal("pathological", 7, 8, shared_classes=0.125)) == 7
    # Of 15 among ten 2 x 9 is more than there are.
    rounded = {"shots": None, "train": 6, "slices": "rounded"}
    assert refused("pathological", 10, 15, **rounded).startswith("task.partition.slices: rounded")


def test_one_class_clients_where_they_are_asked_for():
    """FedPGP's OxfordPets: 19 base classes among ten clients are nine times two and one."""
    clients = deal("pathological", 10, 19, shots=16, train=16, fewest_classes=1)
    assert sorted(len(client.train) for client in clients) == [16] + [32] * 9
    assert len(deal("iid", 2, 1, fewest_classes=1)[0].train) == 3
    assert refused("pathological", 11, 10, fewest_classes=1).endswith("valid: 1 to 10")


@pytest.mark.parametrize(
    ("classes", "each", "last"),
    # Flowers102, Pets, Food101, DTD, and FedPGP's 24 base classes of DTD, among ten clients.
    [(102, 10, 12), (37, 4, 1), (101, 10, 11), (47, 5, 2), (24, 2, 6)],
)
def test_published_slices_are_rounded_and_the_rest_is_the_last_clients(classes, each, last):
    plan = PartitionPlan(
        kind="pathological", clients=10, classes=classes, shots=None, slices="rounded"
    )
    owned = class_map(plan, np.random.default_rng(0))
    assert {c for own in owned for c in own} == set(range(classes))
    assert [len(own) for own in owned] == [each] * 9 + [last]


def test_a_class_with_fewer_images_than_shots_gives_what_it_has():
    """Classes of 5, 2 and 1 images, 3 shots: all of the small ones, as published loaders do."""
    train, test = np.repeat([0, 1, 2], [5, 2, 1]), labels(3, 2)
    rngs = {"class_rng": np.random.default_rng(0), "shot_rng": np.random.default_rng(1)}
    rngs["split_rng"] = np.random.default_rng
    (one,) = partition(
        PartitionPlan(kind="pathological", clients=1, classes=3, shots=3), train, test, **rngs
    )
    assert np.bincount(train[one.train]).tolist() == [3, 2, 1]
    # Of three images two owners get two and one, of one image the next one in turn gets it.
    both = partition(PartitionPlan(kind="iid", clients=2, classes=3, shots=2), train, test, **rngs)
    assert counted(both, train, 3) == [[2, 1, 0], [2, 1, 1]]


def test_each_domain_goes_to_as_many_clients_in_domain_order():
    """2 domains of 3 classes x 8 images, 4 clients: the first two share the first domain's 24."""
    train, test = labels(6, 8), labels(6, 4)
    more = {"shares": DirichletShares(0.3, 2), "domains": ("a", "b")}
    clients = deal("domain_dirichlet", 4, 6, shots=None, train=8, test=4, **more)
    for part, keys, total in (("train", train, 24), ("test", test, 12)):
        rows = [getattr(client, part) for client in clients]
        assert [sorted(set(keys[own] // 3)) for own in rows] == [[0], [0], [1], [1]]
        assert [len(rows[i]) + len(rows[i + 1]) for i in (0, 2)] == [total, total]
        assert sorted(np.concatenate(rows)) == list(range(2 * total))
    assert min(len(client.train) for client in clients) >= 2


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


def load(*overrides: str) -> TaskData:
    return load_task_data(parse_config(MINIMAL, overrides))


def by_class(data: TaskData, part: str = "train") -> np.ndarray:
    labels = (data.dataset.test if part == "test" else data.dataset.train).labels
    return np.stack([np.bincount(labels[getattr(c, part)], minlength=20) for c in data.clients])


def rows_of(data: TaskData, part: str) -> list[int]:
    return [row for client in data.clients for row in getattr(client, part).tolist()]


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


SEEDS = st.integers(0, 99)


@given(st.integers(1, 9), st.integers(1, 6), st.integers(1, 12), st.integers(0, 20), SEEDS)
def test_every_image_is_drawn_at_most_once(clients, classes, each, spare, seed):
    images = np.arange(each * clients + spare) % classes
    counts = random_counts(images, classes, each, clients, rng=np.random.default_rng(seed))
    assert counts.shape == (classes, clients) and (counts.sum(axis=0) == each).all()
    assert (counts.sum(axis=1) <= np.bincount(images, minlength=classes)).all()


def test_the_draw_is_fair():
    """Of 3 images of class 0 and 7 of class 1 two are 0.6 of class 0 in the mean; the pair holds
    none with probability 7/10 x 6/9 = 7/15."""
    images = np.array([0] * 3 + [1] * 7)
    rngs = map(np.random.default_rng, range(2000))
    drawn = np.stack([random_counts(images, 2, 2, 5, rng=rng)[0] for rng in rngs])
    # Whichever client it is: standard errors are 0.013 and 0.011.
    assert drawn.mean(axis=0) == pytest.approx([0.6] * 5, abs=0.06)
    assert (drawn == 0).mean(axis=0) == pytest.approx([7 / 15] * 5, abs=0.05)


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


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 40), SEEDS)
def test_all_classes_have_as_many_owners_or_one_more(classes, each, clients, seed):
    if not classes <= each * clients or each > classes:
        with pytest.raises(ConfigError, match=r"task\.partition\.classes_per_client"):
            balanced_classes(classes, each, clients, rng=np.random.default_rng(seed))
        return
    chosen = balanced_classes(classes, each, clients, rng=np.random.default_rng(seed))
    assert len(chosen) == clients
    assert all(len(set(own)) == each and list(own) == sorted(own) for own in chosen)
    owners = Counter(label for own in chosen for label in own)
    assert set(owners) == set(range(classes)) and sum(owners.values()) == each * clients
    assert max(owners.values()) - min(owners.values()) <= 1


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
    with pytest.raises(ConfigError) as caught:
        load(*overrides)
    assert str(caught.value).startswith(key)


def carved(numbers, share, key=b"mine"):
    """A client with every second row, as texts: what trains and what validates."""
    zeros = np.zeros(len(numbers), np.int64)
    split = Split(np.zeros((0, 1, 1, 3), np.uint8), zeros, zeros, tuple(map(str, numbers)))
    before = ClientIndices(np.arange(0, len(numbers), 2), np.array([3, 5]))
    return before, carve(before, split, share, key)


def test_a_place_by_hand():
    digest = hashlib.sha256(b"x").digest()
    key = hmac.new(b"mine", b"validation", "sha256").digest()
    expected = int.from_bytes(hmac.new(key, digest, "sha256").digest()[:6]) / 2**48
    assert places([digest], b"mine", "validation").tolist() == [expected]


def test_a_share_is_met_on_average():
    """Of 2,000 coins of 0.3 within five deviations (20.5) of 600."""
    assert abs(len(carved(range(4000), 0.3)[1].validation) - 600) < 103


@given(st.lists(st.integers(0, 10**6), max_size=40), st.floats(0.0, 1.0, exclude_max=True))
def test_nothing_is_lost_doubled_or_taken_from_the_test_images(numbers, share):
    before, after = carved(numbers, share)
    assert sorted([*after.train, *after.validation]) == before.train.tolist()
    assert after.test is before.test
    assert (np.diff(after.train) > 0).all() and (np.diff(after.validation) > 0).all()


def test_the_key_says_which_ones_and_draws_are_independent():
    rows = [carved(range(80), 0.5, key)[1].validation.tolist() for key in (b"a", b"a", b"b")]
    assert rows[0] == rows[1] != rows[2]
    digests = [hashlib.sha256(bytes([n])).digest() for n in range(200)]
    tests, validation = (places(digests, b"a", draw) < 0.5 for draw in ("test", "validation"))
    # Within five deviations (7.1) of half of them.
    assert abs(int((tests == validation).sum()) - 100) < 36
