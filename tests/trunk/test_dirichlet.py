"""Random shares of each class: counts by hand, limits of alpha, and an end to redrawing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platform.config import parse_config
from platform.data.dataset import Dataset, ImageFiles, Split
from platform.data.loaders.published import _SUPERCLASSES
from platform.data.loading import TaskData, load_task_data
from platform.data.partition import (
    DRAWS,
    WITHIN,
    DirichletShares,
    dirichlet_counts,
    least_images,
    pachinko_counts,
    shared_ratio_counts,
    split_own,
)
from platform.errors import ConfigError
from tests.drawn.arrays import draw_cifar100


class Given:
    """In place of a generator: hands out the shares that it was given, and counts them."""

    def __init__(self, *shares):
        self.shares, self.taken, self.alphas = shares, 0, []

    def dirichlet(self, alphas):
        self.alphas.append(alphas.tolist())
        self.taken += 1
        return np.array(self.shares[(self.taken - 1) % len(self.shares)])


def counts(rng, train, test, clients, *, alpha=0.5, minimum=1):
    shares = DirichletShares(alpha, minimum)
    return dirichlet_counts(shares, np.array(train), np.array(test), clients, rng=rng)


def test_two_classes_by_hand():
    """Class 0 in shares 3/4, 1/4 of 8: 6 and 2. Even is 8 of 16, so both are open for class 1."""
    rng = Given([0.75, 0.25], [0.5, 0.5])
    train, test = counts(rng, [8, 8], [4, 20], 2)
    assert train.tolist() == [[6, 2], [4, 4]]
    assert test.tolist() == [[3, 1], [10, 10]]
    assert rng.alphas == [[0.5, 0.5]] * 2


def test_who_has_its_even_part_gets_no_more():
    """Class 0 goes to client 0 whole, who then has 6 >= 18/3; class 1 is for the others alone."""
    rng = Given([1.0, 0.0, 0.0], [0.5, 0.2, 0.3], [0.2, 0.4, 0.4])
    train, test = counts(rng, [6, 6, 6], [3, 10, 10], 3)
    # 0.2 and 0.3 out of 0.5 are shares of 0.4 and 0.6: of 6, 2.4 and 3.6, cut at floor(2.4).
    assert train.tolist() == [[6, 0, 0], [0, 2, 4], [0, 3, 3]]
    assert test.tolist() == [[3, 0, 0], [0, 4, 6], [0, 5, 5]]


def test_a_share_that_is_nothing_gets_nothing_from_rounding():
    """Ten tenths of a share do not quite sum to one; the last client must not get the rest."""
    share = np.array([0.1] * 10 + [0.0])
    assert np.cumsum(share)[-1] < 1.0
    train, _ = counts(Given(share, np.eye(11)[10] + 1e-3), [10, 10], [20, 20], 11)
    assert train[0].tolist() == [1] * 10 + [0]


@pytest.mark.parametrize("bad", [[1.0, 0.0], [0.95, 0.05], [np.nan, np.nan]])
def test_all_is_drawn_again_until_everybody_has_enough(bad):
    rng = Given(bad, [0.5, 0.5])
    train, test = counts(rng, [10], [10], 2, minimum=2)
    assert rng.taken == 2
    assert train.tolist() == test.tolist() == [[5, 5]]


def test_redrawing_ends_and_says_so():
    """Half of one test image is none for the first client: no draw counts."""
    rng = Given([0.5, 0.5], [0.2, 0.8])
    with pytest.raises(ConfigError, match=r"task\.partition\.minimum: .* 100 draws"):
        counts(rng, [10], [1], 2)
    assert rng.taken == DRAWS
    with pytest.raises(ConfigError, match="of 2 classes"):
        few_shot_counts(Given([1.0, 0.0], [0.0, 1.0]))


@given(
    st.integers(1, 8),
    st.integers(1, 12),
    st.integers(8, 40),
    st.sampled_from([0.1, 0.5, 3.0, 1e6]),
    st.integers(0, 10_000),
)
@settings(max_examples=30)
def test_all_images_are_dealt_once_in_the_same_shares(clients, classes, size, alpha, seed):
    rng = np.random.default_rng(seed)
    try:
        train, test = counts(rng, [size] * classes, [size] * classes, clients, alpha=alpha)
    except ConfigError:
        assert clients > 1
        return
    assert train.sum(axis=1).tolist() == [size] * classes
    assert (train >= 0).all() and train.sum(axis=0).min() >= 1
    # As many test images as training images and the same shares: the same counts.
    np.testing.assert_array_equal(train, test)


def few_shot_counts(rng, *, fewest_classes=2):
    shares = DirichletShares(0.5, 1, fewest_classes)
    return dirichlet_counts(shares, np.array([6, 6]), np.array([6, 6]), 2, rng=rng)


def test_a_draw_that_leaves_somebody_one_class_does_not_count():
    """The first draw has all of class 0 with client 0, the second half of each with both."""
    rng = Given([1.0, 0.0], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5])
    assert few_shot_counts(rng)[0].tolist() == [[3, 3], [3, 3]]
    assert rng.taken == 4
    rng = Given([1.0, 0.0], [0.5, 0.5])
    assert few_shot_counts(rng, fewest_classes=1)[0].tolist() == [[6, 0], [0, 6]]


def test_classes_without_training_images_leave_their_test_images_to_somebody():
    """All have their even part before class 1, which has no training image to give them more."""
    rng = Given([0.5, 0.5], [0.25, 0.75])
    train, test = counts(rng, [4, 0], [4, 4], 2)
    assert train.tolist() == [[2, 2], [0, 0]]
    assert test.tolist() == [[2, 2], [1, 3]]


def shared_counts(rng, sizes, clients, *, ratio, alpha=0.1, minimum=2, fewest_classes=1):
    shares = DirichletShares(alpha, minimum, fewest_classes)
    return shared_ratio_counts(shares, np.array(sizes), clients, ratio=ratio, rng=rng)


def test_two_classes_with_a_share_for_all_by_hand():
    """S = 0.5 of 10 is 5 for 2 clients: 2, and 3 with the last. Of the other 5 in shares 0.8, 0.2
    four and one. Then 6 and 4 are held, even is 15: of 20, five each and 10 in shares 0.3, 0.7."""
    rng = Given([0.8, 0.2], [0.3, 0.7])
    assert shared_counts(rng, [10, 20], 2, ratio=0.5).tolist() == [[6, 4], [8, 12]]
    assert rng.alphas == [[0.1, 0.1]] * 2


def test_the_remainder_goes_to_the_last_client():
    """0.2 of 39 is 7.8, cut to 7: two each for 3 clients, three for the last one."""
    assert shared_counts(Given([1.0, 0.0, 0.0]), [39], 3, ratio=0.2).tolist() == [[34, 2, 3]]
    # 0.29 of 100 is 28.999999999999996 in binary, and 29 images.
    assert shared_counts(Given([1.0, 0.0]), [100], 2, ratio=0.29).tolist() == [[85, 15]]
    # Fewer than there are clients: all of them are a remainder.
    assert shared_counts(Given([0.5, 0.5, 0.0]), [10], 3, ratio=0.2).tolist() == [[4, 4, 2]]


@given(
    st.integers(1, 6),
    st.lists(st.integers(10, 60), min_size=1, max_size=8),
    st.sampled_from([0.1, 0.5, 5.0]),
    st.integers(0, 10_000),
)
def test_nothing_shared_is_the_dirichlet_partition(clients, sizes, alpha, seed):
    pool = np.array(sizes)
    try:
        ours = shared_counts(np.random.default_rng(seed), sizes, clients, ratio=0.0, alpha=alpha)
    except ConfigError:
        return
    shares = DirichletShares(alpha, 2)
    tests, rng = np.full_like(pool, 10**6), np.random.default_rng(seed)
    theirs, _ = dirichlet_counts(shares, pool, tests, clients, rng=rng)
    # A client without a millionth of a class has no image of it here either.
    np.testing.assert_array_equal(ours, theirs)


@given(
    st.integers(1, 6),
    st.lists(st.integers(12, 60), min_size=1, max_size=8),
    st.floats(0.0, 1.0),
    st.integers(0, 10_000),
)
def test_everybody_has_its_even_share(clients, sizes, ratio, seed):
    try:
        dealt = shared_counts(np.random.default_rng(seed), sizes, clients, ratio=ratio)
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
    assert shared_counts(rng, [40], 2, ratio=0.0, minimum=0).tolist() == [[20, 20]]
    assert rng.taken == 2
    assert shared_counts(Given([0.9, 0.1]), [40], 2, ratio=0.0, minimum=4).tolist() == [[36, 4]]


@pytest.mark.parametrize(("images", "test"), [(2, 1), (4, 1), (5, 2), (8, 2), (9, 3), (100, 25)])
def test_a_quarter_rounded_up_is_for_testing(images, test):
    rows = np.arange(images) * 3
    train, tests = split_own(rows, np.random.default_rng(0))
    assert (len(train), len(tests)) == (images - test, test)
    assert sorted([*train, *tests]) == rows.tolist()
    assert (np.diff(train) > 0).all() and (np.diff(tests) > 0).all()


def drawn(train_images, test_images, texts=(None, None)):
    train = Split(train_images, np.array([0, 1]), np.zeros(2, np.int64), texts[0])
    test = Split(test_images, np.array([1, 0, 1]), np.ones(3, np.int64), texts[1])
    names = {"classes": ("a", "b"), "domains": ("one", "two")}
    return Dataset(name="drawn", **names, train=train, test=test)


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


MINIMAL = {"name": "run", "method": {"name": "coop"}, "training": {"local_steps": 1}}


# The superclass of each name in its alphabetical order, as in the data set's files.
SUPERCLASSES = (
    *(4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11),
    *(6, 11, 5, 10, 7, 6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5),
    *(5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17),
    *(10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13),
    *(16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13),
)


class GivenTwice(Given):
    def __init__(self, shares, numbers):
        super().__init__(*shares)
        self.numbers = iter(numbers)

    def random(self, shape):
        found = np.array(next(self.numbers))
        assert found.shape == shape
        return found


def test_two_clients_and_two_superclasses_by_hand():
    """Superclass 0 has classes 0 and 1, superclass 1 has class 2; seven images, three for each.

    The first client draws 0.5 < 0.75, and 0.1 < 0.2: class 0, whose one image is gone. Then 0.7 and
    0.1, which is class 1 now that it has all of the superclass; then 0.9, class 2. The second has
    class 1 and 2 left, in shares 0.5 and 0.5: twice class 1, whose images are gone, and then 0.2 is
    of class 2, which has all.
    """
    rng = GivenTwice(
        [[0.75, 0.25], [0.2, 0.8], [1.0], [0.5, 0.5], [1.0], [1.0]],
        [[[0.5, 0.1], [0.7, 0.1], [0.9, 0.5]], [[0.4, 0.0], [0.1, 0.9], [0.2, 0.6]]],
    )
    counts = pachinko_counts(np.array([1, 3, 3]), (0, 0, 1), 2, 0.3, rng=rng)
    assert counts.tolist() == [[1, 0], [1, 2], [1, 1]]
    assert rng.alphas == [[0.3] * 2, [WITHIN] * 2, [WITHIN], [0.3] * 2, [WITHIN], [WITHIN]]


@given(
    classes=st.integers(1, 12),
    clients=st.integers(1, 6),
    groups=st.integers(1, 4),
    alpha=st.sampled_from([1e-3, 0.3, 100.0]),
    seed=st.integers(0, 1000),
)
def test_everybody_gets_as_many_and_no_image_twice(classes, clients, groups, alpha, seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 20, classes)
    counts = pachinko_counts(sizes, np.arange(classes) % groups, clients, alpha, rng=rng)
    assert counts.sum(axis=0).tolist() == [int(sizes.sum()) // clients] * clients
    assert (counts >= 0).all() and (counts.sum(axis=1) <= sizes).all()


def dealt(root: Path) -> TaskData:
    kind = "task.partition={kind: hierarchical_dirichlet, alpha: 0.3}"
    task = ("task.dataset=cifar100", f"task.root={root}", "task.clients=5", "task.shots=null")
    return load_task_data(parse_config(MINIMAL, (*task, kind)))


@pytest.fixture
def cifar100(tmp_path: Path) -> Path:
    root = draw_cifar100(tmp_path, 5, 1)
    names = sorted(name for own in _SUPERCLASSES for name in own)
    (root / "cifar-100-binary" / "fine_label_names.txt").write_text("\n".join(names))
    return root


def test_the_superclasses_are_those_of_published_code(cifar100: Path):
    assert dealt(cifar100).dataset.superclasses == SUPERCLASSES


def test_training_images_stay_training_images(cifar100: Path):
    """Of 600 images five clients have 120 each; a sixth of the pool are test images."""
    data = dealt(cifar100)
    assert [len(c.train) + len(c.test) for c in data.clients] == [120] * 5
    for side, rows in (("train", 500), ("test", 100)):
        held = np.concatenate([getattr(client, side) for client in data.clients])
        assert sorted(held) == list(range(rows))
    assert all(5 <= len(client.test) <= 45 for client in data.clients)


def test_classes_without_superclasses_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="hierarchical_dirichlet"):
        dealt(draw_cifar100(tmp_path, 5, 1))
