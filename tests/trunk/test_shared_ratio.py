"""A share of each class for all alike, the rest unequal; and one pool that each client splits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from platform.config import parse_config
from platform.data.dataset import Dataset, ImageFiles, Split
from platform.data.loading import TaskData, load_task_data
from platform.data.partition import (
    DRAWS,
    DirichletShares,
    SharedRatio,
    dirichlet_counts,
    least_images,
    shared_ratio_counts,
    split_own,
)
from platform.errors import ConfigError


class Given:
    """In place of a generator: hands out the shares that it was given, and counts them."""

    def __init__(self, *shares):
        self.shares, self.taken, self.alphas = shares, 0, []

    def dirichlet(self, alphas):
        self.alphas.append(alphas.tolist())
        self.taken += 1
        return np.array(self.shares[(self.taken - 1) % len(self.shares)])


def counts(rng, sizes, clients, *, ratio, alpha=0.1, minimum=2, fewest_classes=1):
    rule = SharedRatio(ratio, alpha, minimum, fewest_classes)
    return shared_ratio_counts(rule, np.array(sizes), clients, rng=rng)


def test_two_classes_by_hand():
    """S = 0.5 of 10 is 5 for 2 clients: 2, and 3 with the last. Of the other 5 in shares 0.8, 0.2
    four and one. Then 6 and 4 are held, even is 15: of 20, five each and 10 in shares 0.3, 0.7."""
    rng = Given([0.8, 0.2], [0.3, 0.7])
    assert counts(rng, [10, 20], 2, ratio=0.5).tolist() == [[6, 4], [8, 12]]
    assert rng.alphas == [[0.1, 0.1]] * 2


def test_the_remainder_goes_to_the_last_client():
    """0.2 of 39 is 7.8, cut to 7: two each for 3 clients, three for the last one."""
    assert counts(Given([1.0, 0.0, 0.0]), [39], 3, ratio=0.2).tolist() == [[34, 2, 3]]
    # Fewer than there are clients: all of them are a remainder.
    assert counts(Given([0.5, 0.5, 0.0]), [10], 3, ratio=0.2).tolist() == [[4, 4, 2]]


def test_a_whole_number_of_images_is_not_cut_off_by_rounding():
    """0.29 of 100 is 28.999999999999996 in binary, and 29 images."""
    assert counts(Given([1.0, 0.0]), [100], 2, ratio=0.29).tolist() == [[85, 15]]


@given(
    st.integers(1, 6),
    st.lists(st.integers(10, 60), min_size=1, max_size=8),
    st.sampled_from([0.1, 0.5, 5.0]),
    st.integers(0, 10_000),
)
def test_nothing_shared_is_the_dirichlet_partition(clients, sizes, alpha, seed):
    """The same draws of the same generator, whatever is asked of the test images there."""
    pool = np.array(sizes)
    try:
        ours = counts(np.random.default_rng(seed), sizes, clients, ratio=0.0, alpha=alpha)
    except ConfigError:
        return
    shares = DirichletShares(alpha, 2)
    theirs, _ = dirichlet_counts(
        shares, pool, np.full_like(pool, 10**6), clients, rng=np.random.default_rng(seed)
    )
    # A client without a millionth of a class has no image of it here either.
    np.testing.assert_array_equal(ours, theirs)


@given(
    st.integers(1, 6),
    st.lists(st.integers(12, 60), min_size=1, max_size=8),
    st.floats(0.0, 1.0),
    st.integers(0, 10_000),
)
def test_all_images_are_dealt_once_and_everybody_has_its_even_share(clients, sizes, ratio, seed):
    try:
        dealt = counts(np.random.default_rng(seed), sizes, clients, ratio=ratio)
    except ConfigError:
        assert clients > 1
        return
    assert dealt.sum(axis=1).tolist() == sizes
    for row, size in zip(dealt.tolist(), sizes, strict=True):
        assert min(row) >= int(ratio * size + 1e-9) // clients


@pytest.mark.parametrize(
    ("images", "clients", "least"),
    [(60_000, 20, 40), (1_000, 20, 25), (70, 20, 1), (1_600, 20, 40)],
)
def test_the_least_number_of_images_is_pfllib_s(images, clients, least):
    """min(10 / 0.25, n / N / 2), cut to a whole number."""
    assert least_images(images, clients) == least


def test_a_draw_with_too_few_images_does_not_count():
    """Half the even part of 40 images for 2 clients is 10; the first draw leaves 4."""
    rng = Given([0.9, 0.1], [0.5, 0.5])
    assert counts(rng, [40], 2, ratio=0.0, minimum=None).tolist() == [[20, 20]]
    assert rng.taken == 2
    assert counts(Given([0.9, 0.1]), [40], 2, ratio=0.0, minimum=4).tolist() == [[36, 4]]


def test_redrawing_ends_and_says_so():
    rng = Given([0.9, 0.1])
    with pytest.raises(ConfigError) as caught:
        counts(rng, [40], 2, ratio=0.0, minimum=None)
    assert str(caught.value).startswith("task.partition.minimum: 10 images for each of 2 clients")
    assert rng.taken == DRAWS
    with pytest.raises(ConfigError, match="2 images of 2 classes for each of 2 clients"):
        counts(Given([1.0, 0.0]), [40], 2, ratio=0.0, fewest_classes=2)


# --- a client's own split ------------------------------------------------------------------------


@pytest.mark.parametrize(("images", "test"), [(2, 1), (4, 1), (5, 2), (8, 2), (9, 3), (100, 25)])
def test_a_quarter_rounded_up_is_for_testing(images, test):
    rows = np.arange(images) * 3
    train, tests = split_own(rows, np.random.default_rng(0))
    assert (len(train), len(tests)) == (images - test, test)
    assert sorted([*train, *tests]) == rows.tolist()
    assert (np.diff(train) > 0).all() and (np.diff(tests) > 0).all()


# --- one pool ------------------------------------------------------------------------------------


def drawn(train_images, test_images, texts=(None, None)):
    sides = [
        Split(images, np.array(labels, np.int64), np.array([index] * len(labels)), text)
        for index, (images, labels, text) in enumerate(
            [(train_images, [0, 1], texts[0]), (test_images, [1, 0, 1], texts[1])]
        )
    ]
    return Dataset(
        name="drawn",
        classes=("a", "b"),
        domains=("one", "two"),
        **dict(zip(("train", "test"), sides, strict=True)),
    )


def test_the_pool_has_training_images_first():
    images = np.arange(5 * 12, dtype=np.uint8).reshape(5, 2, 2, 3)
    pool = drawn(images[:2], images[2:]).merged()
    assert pool.train is pool.test
    np.testing.assert_array_equal(pool.train.images, images)
    assert pool.train.labels.tolist() == [0, 1, 1, 0, 1]
    assert pool.train.domains.tolist() == [0, 0, 1, 1, 1]
    root = Path("here")
    pool = drawn(ImageFiles(root, ("a", "b")), ImageFiles(root, ("c", "d", "e"))).merged()
    assert pool.train.images == ImageFiles(root, ("a", "b", "c", "d", "e"))
    none = np.zeros((0, 1, 1, 3), np.uint8)
    assert drawn(none, none, (("x", "y"), ("z", "u", "v"))).merged().train.texts == tuple("xyzuv")


# --- a whole task --------------------------------------------------------------------------------

MINIMAL = {"name": "run", "method": {"name": "coop"}, "training": {"local_steps": 1}}
DIGITS = (
    *("task.dataset=digits", "task.shots=null", "task.clients=5"),
    *("task.partition.kind=shared_ratio", "task.partition.shared_ratio=0.2"),
)


def load(*overrides: str) -> TaskData:
    return load_task_data(parse_config(MINIMAL, overrides))


def everything(data: TaskData, *parts: str) -> list[int]:
    rows = [getattr(client, part) for client in data.clients for part in parts]
    return sorted(np.concatenate(rows).tolist())


def test_all_1797_digits_are_dealt_out_and_split():
    data = load(*DIGITS)
    assert everything(data, "train", "test") == list(range(1797))
    for client in data.clients:
        images = len(client.train) + len(client.test)
        assert images >= 40 and len(client.test) == -(-images // 4)
    labels = data.dataset.train.labels
    sizes = np.bincount(labels)
    for client in data.clients:
        own = np.bincount(labels[[*client.train, *client.test]], minlength=10)
        assert (own >= (0.2 * sizes).astype(int) // 5).all()
