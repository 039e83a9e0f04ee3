"""Random shares of each class: counts by hand, limits of alpha, and an end to redrawing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from platform.data.partition import (
    DRAWS,
    DirichletShares,
    PartitionPlan,
    dirichlet_counts,
    partition,
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
    with pytest.raises(ConfigError) as caught:
        counts(rng, [10], [1], 2)
    assert str(caught.value).startswith("task.partition.minimum: 1 training images and a test ima")
    assert rng.taken == DRAWS
    with pytest.raises(ConfigError, match="1 training images of 2 classes and a test image"):
        few_shot_counts(Given([1.0, 0.0], [0.0, 1.0]))


@given(
    st.integers(1, 8),
    st.integers(1, 12),
    st.integers(8, 40),
    st.sampled_from([0.1, 0.5, 3.0, 1e6]),
    st.integers(0, 10_000),
)
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


# --- the images behind the counts ----------------------------------------------------------------


def test_a_least_number_of_test_images_by_hand():
    """Of four test images 3/4 and 1/4 leave the second client one, halves leave it two."""
    drawn = [Given([0.75, 0.25], [0.5, 0.5]) for _ in range(2)]
    for rng, least, expected in ((drawn[0], 1, [3, 1]), (drawn[1], 2, [2, 2])):
        shares = DirichletShares(0.5, 1, minimum_test=least)
        _, test = dirichlet_counts(shares, np.array([8]), np.array([4]), 2, rng=rng)
        assert test.tolist() == [expected]


# --- clients with a single class -----------------------------------------------------------------


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


@pytest.mark.parametrize("shots", [30, None])
def test_one_class_clients_are_drawn_again_under_few_shot_only(shots):
    """Who has nearly all of the large class first gets no other."""
    plan = PartitionPlan(
        kind="dirichlet", clients=2, classes=4, shots=shots, shares=DirichletShares(0.05, 1)
    )
    labels, alone = np.repeat([0, 1, 2, 3], [30, 5, 5, 5]), 0
    for seed in range(30):
        rngs = [np.random.default_rng([seed, part]) for part in (0, 1)]
        clients = partition(plan, labels, labels, class_rng=rngs[0], shot_rng=rngs[1])
        alone += sum(len(set(labels[client.train])) == 1 for client in clients)
    assert alone == 0 if shots else alone > 0


def test_classes_without_training_images_leave_their_test_images_to_somebody():
    """All have their even part before class 1, which has no training image to give them more."""
    rng = Given([0.5, 0.5], [0.25, 0.75])
    train, test = counts(rng, [4, 0], [4, 4], 2)
    assert train.tolist() == [[2, 2], [0, 0]]
    assert test.tolist() == [[2, 2], [1, 3]]
