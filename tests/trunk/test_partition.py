"""Who holds which images: counts by hand, and no image twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from platform.data.partition import PartitionPlan, class_map, partition
from platform.errors import ConfigError


def labels(classes: int, each: int) -> np.ndarray:
    return np.tile(np.arange(classes), each)


def deal(kind, clients, classes, *, shots=3, train=None, test=6, seeds=(1, 2)):
    plan = PartitionPlan(kind, clients, classes, shots)
    owners = clients if kind == "iid" else 1
    return partition(
        plan,
        labels(classes, shots * owners if train is None else train),
        labels(classes, test),
        class_rng=np.random.default_rng(seeds[0]),
        shot_rng=np.random.default_rng(seeds[1]),
    )


def test_twenty_classes_among_ten_clients_are_two_each():
    owned = class_map(PartitionPlan("pathological", 10, 20, 16), np.random.default_rng(0))
    assert [len(classes) for classes in owned] == [2] * 10
    assert sorted(c for classes in owned for c in classes) == list(range(20))
    assert all(list(classes) == sorted(classes) for classes in owned)


def test_an_uneven_number_of_classes_differs_by_one():
    owned = class_map(PartitionPlan("pathological", 3, 20, 16), np.random.default_rng(0))
    assert sorted(len(classes) for classes in owned) == [6, 7, 7]


def test_the_class_map_is_shuffled_by_its_seed():
    plan = PartitionPlan("pathological", 10, 20, 16)
    maps = [class_map(plan, np.random.default_rng(seed)) for seed in (0, 0, 1)]
    assert maps[0] == maps[1] != maps[2]
    assert maps[0] != tuple((2 * i, 2 * i + 1) for i in range(10))


def test_pathological_counts_by_hand():
    """10 clients, 20 classes, 3 shots: 6 training images each; 2 x 6 test images each."""
    train, test = labels(20, 5), labels(20, 6)
    clients = deal("pathological", 10, 20, train=5)
    for client in clients:
        assert len(client.train) == 6
        assert len(client.test) == 12
        counts = np.bincount(train[client.train], minlength=20)
        assert sorted(set(counts)) == [0, 3]
        # Training and test follow the same classes.
        assert set(train[client.train]) == set(test[client.test])
    assert sorted(np.concatenate([c.test for c in clients])) == list(range(120))


def test_iid_counts_by_hand():
    """3 clients, 4 classes, 3 shots: all classes everywhere, 7 test images split 3, 2, 2."""
    train, test = labels(4, 9), labels(4, 7)
    clients = deal("iid", 3, 4, test=7)
    for client in clients:
        assert np.bincount(train[client.train]).tolist() == [3, 3, 3, 3]
        assert set(test[client.test]) == {0, 1, 2, 3}
    assert [len(client.test) for client in clients] == [12, 8, 8]
    assert sorted(np.concatenate([c.train for c in clients])) == list(range(36))


@given(
    st.sampled_from(["pathological", "iid"]),
    st.integers(1, 6),
    st.integers(6, 9),
    st.integers(1, 4),
    st.integers(0, 1000),
)
def test_no_image_goes_to_two_clients(kind, clients, classes, shots, seed):
    dealt = deal(kind, clients, classes, shots=shots, train=shots * clients + 2, seeds=(seed, seed))
    for part in ("train", "test"):
        rows = np.concatenate([getattr(client, part) for client in dealt])
        assert len(set(rows.tolist())) == len(rows)
        assert rows.dtype == np.int64
    for client in dealt:
        assert (np.diff(client.train) > 0).all()


def test_the_two_seeds_do_what_they_say():
    base = deal("pathological", 4, 8, train=9)
    shots = deal("pathological", 4, 8, train=9, seeds=(1, 3))
    classes = deal("pathological", 4, 8, train=9, seeds=(4, 2))
    train = labels(8, 9)

    def owned(dealt):
        return [sorted(set(train[client.train])) for client in dealt]

    assert owned(base) == owned(shots) != owned(classes)
    assert any(not np.array_equal(a.train, b.train) for a, b in zip(base, shots, strict=True))
    again = deal("pathological", 4, 8, train=9)
    assert all(np.array_equal(a.train, b.train) for a, b in zip(base, again, strict=True))


def test_more_clients_than_classes_are_refused():
    with pytest.raises(ConfigError, match=r"task\.clients: 9 .*8 classes.*valid: 1 to 8"):
        deal("pathological", 9, 8)


@pytest.mark.parametrize(("kind", "most"), [("pathological", 4), ("iid", 2)])
def test_too_few_images_are_refused(kind, most):
    with pytest.raises(ConfigError, match=rf"task\.shots: 5 .*valid: 1 to {most}"):
        deal(kind, 2, 4, shots=5, train=4)


def test_as_many_shots_as_there_are_images_are_fine():
    assert all(len(client.train) == 10 for client in deal("pathological", 2, 4, shots=5, train=5))


def test_a_client_without_test_images_is_refused():
    with pytest.raises(ConfigError, match="no test image"):
        deal("pathological", 2, 4, test=0)
    # Four clients share one test image of each class: the first gets them all.
    with pytest.raises(ConfigError, match="client 1 of 4"):
        deal("iid", 4, 2, test=1)
