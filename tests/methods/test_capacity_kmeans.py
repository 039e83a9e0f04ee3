"""Capacity-aware k-means: worked by hand, against a loop over single tokens, and by its rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.networks import routing as module
from methods.networks.routing import DISCARDED, Rules, blocks, cluster, farthest_first

SIZES = ((5, 2, 1.0), (17, 4, 1.0), (17, 4, 2.0), (30, 7, 0.5))
# Steps so large that clusters run empty are tried where no cluster of two does: both its tokens
# are equally far from their mean, and rounding decides who is seated next.
CASES = (
    *((*size, step) for size in SIZES for step in (0.0, 1e-4, 0.05)),
    *((17, 4, 1.0, 2.5), (17, 4, 2.0, 2.5)),
)


def products(tokens):
    tokens = np.asarray(tokens, np.float32)
    return tokens @ tokens.transpose(0, 2, 1)


def line(*places):
    """One image whose tokens are numbers."""
    return np.array(places, np.float32)[None, :, None]


def draw(count, tokens, width=6, seed=0):
    return np.random.default_rng(seed).normal(size=(count, tokens, width)).astype(np.float32)


def one_by_one(tokens, seats, rules: Rules):
    """Section IV-A as it is told, for one image: tokens arrive, and may replace the dearest."""
    tokens, clusters = tokens.astype(np.float64), len(seats)
    room = rules.capacities(len(tokens), clusters)
    centroids, theta = tokens[seats], np.zeros(clusters)
    number = 0
    while number < 100:
        number += 1
        squares = ((tokens[:, None] - centroids) ** 2).sum(-1)
        distances = squares if rules.variant == "paper" else np.sqrt(squares)
        costs = distances + theta
        members, demand = [[] for _ in seats], np.zeros(clusters)
        for token in range(len(tokens)):
            m = int(costs[token].argmin())
            demand[m] += 1
            if len(members[m]) == room[m]:
                dearest = max(members[m], key=lambda j: (costs[j, m], j))
                if costs[token, m] >= costs[dearest, m]:
                    continue
                members[m].remove(dearest)
            members[m].append(token)
        sizes = np.array([len(group) for group in members])
        if rules.variant == "paper":
            theta = np.maximum(theta + rules.multiplier_step * (demand - room), 0)
        else:
            theta = theta + rules.multiplier_step * (sizes - room)
        before = centroids.copy()
        order = np.argsort(-squares.min(axis=1), kind="stable")
        far = iter(order if rules.variant == "paper" else order[:1].repeat(len(seats)))
        for m, group in enumerate(members):
            centroids[m] = tokens[group].mean(axis=0) if group else tokens[next(far)]
            theta[m] = theta[m] if group else 0.0
        labels = np.full(len(tokens), DISCARDED)
        for m, group in enumerate(members):
            labels[group] = m
        if np.linalg.norm(centroids - before, axis=1).mean() < 1e-4:
            break
    return labels, centroids, number


# --- by hand ------------------------------------------------------------------------------------


def test_a_full_cluster_discards_its_dearest():
    """Tokens 0, 1, 2, 10 from seats 0 and 10, two each: 2 is nearest to 0 but the third there."""
    found = cluster(products(line(0, 1, 2, 10)), np.array([0, 3]), Rules(1.0, 0.0))
    assert found.labels.tolist() == [[0, 0, DISCARDED, 1]]
    assert found.sizes.tolist() == [[2, 1]]
    np.testing.assert_allclose(found.weights @ line(0, 1, 2, 10), [[[0.5], [10.0]]])
    # Once to find them, once more to see that nothing moves.
    assert found.rounds.tolist() == [2]


def test_room_for_all_is_plain_k_means():
    found = cluster(products(line(0, 1, 2, 10)), np.array([0, 3]), Rules(2.0, 0.0))
    assert found.labels.tolist() == [[0, 0, 0, 1]]
    np.testing.assert_allclose(found.weights @ line(0, 1, 2, 10), [[[1.0], [10.0]]], rtol=1e-6)


@pytest.mark.parametrize(
    ("step", "expected", "rounds"), [(0.0, [0, 0, DISCARDED, 1], 2), (4.0, [0, 0, 1, 1], 3)]
)
def test_a_multiplier_sends_tokens_elsewhere(step, expected, rounds):
    """Tokens 0, 1, 2.9, 6 from seats 0 and 6, two each. Three ask for the first: theta_1 = eta.

    Centroids are then 0.5 and 6, and 2.9 costs 5.76 + eta or 9.61: with eta = 4 it goes right.
    """
    found = cluster(products(line(0, 1, 2.9, 6)), np.array([0, 3]), Rules(1.0, step))
    assert found.labels.tolist() == [expected]
    assert found.rounds.tolist() == [rounds]


def test_multipliers_fall_to_zero_and_not_below():
    """Were theta_2 negative after round one (demand 1 of 2), token 2.9 would go right at eta = 2.

    It costs 5.76 + 2 there and 9.61 - 2 = 7.61 here; with theta_2 held at zero it stays: 9.61.
    """
    found = cluster(products(line(0, 1, 2.9, 6)), np.array([0, 3]), Rules(1.0, 2.0))
    assert found.labels.tolist() == [[0, 0, DISCARDED, 1]]


def test_the_published_multipliers_only_fall():
    """What is kept never exceeds the room: theta = (0, -0.6) after round one.

    Then 2.9 costs its plain distance 2.4 on the left and 3.1 - 0.6 = 2.5 on the right, and stays;
    0.8 in place of 0.6 makes it 2.3, and it moves.
    """
    places, seats = products(line(0, 1, 2.9, 6)), np.array([0, 3])
    stays = cluster(places, seats, Rules(1.0, 0.6, "published"))
    assert stays.labels.tolist() == [[0, 0, DISCARDED, 1]]
    moves = cluster(places, seats, Rules(1.0, 0.8, "published"))
    assert moves.labels.tolist() == [[0, 0, 1, 1]]


def test_an_empty_cluster_is_seated_at_the_farthest_token():
    """Both seats at 0 (tokens 0, 0, 7): all go to the first, and the second is seated at 7."""
    found = cluster(products(line(0, 0, 7)), np.array([0, 1]), Rules(2.0, 0.0))
    assert found.labels.tolist() == [[0, 0, 1]]
    np.testing.assert_allclose(found.weights @ line(0, 0, 7), [[[0.0], [7.0]]])


def test_two_empty_clusters_are_seated_apart():
    """Three seats at 0 of tokens 0, 0, 0, 5, 9: the next two are 9, then 5."""
    found = cluster(products(line(0, 0, 0, 5, 9)), np.array([0, 1, 2]), Rules(3.0, 0.0))
    assert found.labels.tolist() == [[0, 0, 0, 2, 1]]


def test_published_two_empty_clusters_are_seated_together():
    """As above, but both at 9: the first of them keeps it, and the other is seated at 5 later.

    Round one empties the second and third cluster, both go to 9. Round two gives 9 (and 5, which is
    nearer to 9 than to 0) to the second, whose mean is 7, and empties the third again, alone: the
    token farthest from 0 and 9 is 5. There it stays, and 9 is the second's.
    """
    tokens = products(line(0, 0, 0, 5, 9))
    found = cluster(tokens, np.array([0, 1, 2]), Rules(3.0, 0.0, "published"))
    assert found.labels.tolist() == [[0, 0, 0, 2, 1]]
    apart = cluster(tokens, np.array([0, 1, 2]), Rules(3.0, 0.0))
    assert found.rounds.tolist() == [apart.rounds[0] + 1]


def test_tokens_that_are_all_alike_have_clusters_too():
    found = cluster(products(np.ones((2, 6, 3))), np.array([0, 1, 2]), Rules(1.0, 1e-4))
    assert found.sizes.sum(axis=1).tolist() == [2, 2]
    assert found.sizes.max() == 2
    np.testing.assert_allclose(found.weights @ np.ones((2, 6, 3)), 1.0)


@pytest.mark.parametrize(
    ("rules", "tokens", "clusters", "expected"),
    [
        (Rules(1.0, 0.0), 197, 4, [49] * 4),  # 49.25 each
        (Rules(2.0, 0.0), 197, 4, [98] * 4),  # 98.5 each
        (Rules(0.5, 0.0), 6, 4, [1] * 4),  # 0.75 each, but one at least
        (Rules(0.1, 0.0), 30, 1, [3]),  # 0.1 x 30 is 3.0000000000000004 or so
        (Rules(1.0, 0.0, "published"), 197, 4, [50, 49, 49, 49]),
        (Rules(2.0, 0.0, "published"), 199, 4, [99, 99, 99, 98]),
        (Rules(0.01, 0.0, "published"), 8, 4, [1] * 4),
    ],
)
def test_capacities(rules, tokens, clusters, expected):
    assert rules.capacities(tokens, clusters).tolist() == expected


def test_seats_far_from_one_another():
    """Longest first, 9; then 0, which is 9 away; then 4 (4 from 0); then 8 (1 from 9)."""
    assert farthest_first(products(line(0, 4, 8, 9)), 4).tolist() == [[3, 0, 1, 2]]
    # Equal tokens are never seated twice.
    assert sorted(farthest_first(products(np.ones((1, 3, 2))), 3)[0]) == [0, 1, 2]


# --- against single tokens ----------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["paper", "published"])
@pytest.mark.parametrize(("tokens", "clusters", "factor", "step"), CASES)
def test_the_loop_over_tokens(variant, tokens, clusters, factor, step):
    images, rules = draw(25, tokens), Rules(factor, step, variant)
    seats = np.random.default_rng(1).permutation(tokens)[:clusters]
    found = cluster(products(images), seats, rules)
    centroids = found.weights @ images
    for i, image in enumerate(images):
        labels, means, rounds = one_by_one(image, seats, rules)
        assert found.labels[i].tolist() == labels.tolist()
        assert found.rounds[i] == rounds
        np.testing.assert_allclose(centroids[i], means, atol=1e-5)


# --- by its rules -------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(4, 40),
    clusters=st.integers(1, 4),
    factor=st.floats(0.2, 3.0),
    seed=st.integers(0, 1000),
)
def test_every_constraint_holds_where_clusters_rest(tokens, clusters, factor, seed):
    """By brute force over tokens, centroids as plain means: nobody is where it should not be."""
    image = draw(1, tokens, seed=seed)
    found = cluster(products(image), np.arange(clusters), Rules(factor, 0.0))
    room = max(int(factor * tokens / clusters + 1e-9), 1)
    labels, sizes = found.labels[0], found.sizes[0]
    assert sizes.tolist() == [int((labels == m).sum()) for m in range(clusters)]
    assert sizes.max() <= room
    if found.rounds[0] == module.MOST_ROUNDS or (sizes == 0).any():
        return
    means = np.stack([image[0][labels == m].mean(axis=0) for m in range(clusters)])
    distances = ((image[0][:, None].astype(np.float64) - means) ** 2).sum(axis=-1)
    for token, label in enumerate(labels):
        cheapest = distances[token].min()
        if label != DISCARDED:
            assert distances[token, label] <= cheapest + 1e-4
        else:
            nearest = int(distances[token].argmin())
            assert sizes[nearest] == room
            assert distances[labels == nearest, nearest].max() <= cheapest + 1e-4


def test_an_image_is_clustered_alone():
    """Bit for bit: alone, in other company, in another place."""
    images, seats, rules = draw(40, 23), np.array([4, 0, 9, 2]), Rules(1.0, 0.01)
    together = cluster(products(images), seats, rules)
    order = np.random.default_rng(2).permutation(40)
    turned = cluster(products(images[order]), seats, rules)
    for name in ("labels", "weights", "sizes", "rounds"):
        assert np.array_equal(getattr(turned, name), getattr(together, name)[order])
        for i in (0, 17, 39):
            alone = cluster(products(images[i : i + 1]), seats, rules)
            assert np.array_equal(getattr(alone, name)[0], getattr(together, name)[i])


def test_an_image_may_have_seats_of_its_own():
    images, rules = draw(6, 12), Rules(1.0, 0.0)
    seats = farthest_first(products(images), 3)
    together = cluster(products(images), seats, rules)
    for i in range(6):
        labels, _, _ = one_by_one(images[i], seats[i], rules)
        assert together.labels[i].tolist() == labels.tolist()


def test_images_that_never_rest_are_left_as_they_are(monkeypatch):
    monkeypatch.setattr(module, "MOST_ROUNDS", 1)
    found = cluster(products(draw(3, 9)), np.array([0, 1]), Rules(1.0, 0.0))
    assert found.rounds.tolist() == [1, 1, 1]
    assert found.sizes.sum(axis=1).tolist() == (found.labels != DISCARDED).sum(axis=1).tolist()
    assert found.sizes.max() <= 4


def test_nothing_is_no_image():
    found = cluster(np.zeros((0, 5, 5), np.float32), np.array([0, 1]), Rules(1.0, 0.0))
    assert found.labels.shape == (0, 5)


@pytest.mark.parametrize(("count", "tokens"), [(0, 5), (1, 2000), (300, 65), (7, 197)])
def test_blocks_cover_all_images_once(count, tokens):
    covered = [i for rows in blocks(count, tokens) for i in range(count)[rows]]
    assert covered == list(range(count))
