"""Capacity-aware k-means: worked by hand, against a loop over single tokens, and by its rules."""

from __future__ import annotations

import numpy as np
import pytest

from methods.networks.routing import DISCARDED, Rules, cluster, farthest_first

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


def test_a_full_cluster_discards_its_dearest():
    """Tokens 0, 1, 2, 10 from seats 0 and 10, two each: 2 is nearest to 0 but the third there."""
    found = cluster(products(line(0, 1, 2, 10)), np.array([0, 3]), Rules(1.0, 0.0))
    assert found.labels.tolist() == [[0, 0, DISCARDED, 1]]
    assert found.sizes.tolist() == [[2, 1]]
    np.testing.assert_allclose(found.weights @ line(0, 1, 2, 10), [[[0.5], [10.0]]])
    # Once to find them, once more to see that nothing moves.
    assert found.rounds.tolist() == [2]


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


@pytest.mark.parametrize(
    ("rules", "tokens", "clusters", "expected"),
    [
        (Rules(1.0, 0.0), 197, 4, [49] * 4),  # 49.25 each
        (Rules(0.5, 0.0), 6, 4, [1] * 4),  # 0.75 each, but one at least
        (Rules(0.1, 0.0), 30, 1, [3]),  # 0.1 x 30 is 3.0000000000000004 or so
        (Rules(1.0, 0.0, "published"), 197, 4, [50, 49, 49, 49]),
        (Rules(2.0, 0.0, "published"), 199, 4, [99, 99, 99, 98]),
    ],
)
def test_capacities(rules, tokens, clusters, expected):
    assert rules.capacities(tokens, clusters).tolist() == expected


def test_seats_far_from_one_another():
    """Longest first, 9; then 0, which is 9 away; then 4 (4 from 0); then 8 (1 from 9)."""
    assert farthest_first(products(line(0, 4, 8, 9)), 4).tolist() == [[3, 0, 1, 2]]
    # Equal tokens are never seated twice.
    assert sorted(farthest_first(products(np.ones((1, 3, 2))), 3)[0]) == [0, 1, 2]


@pytest.mark.parametrize("variant", ["paper", "published"])
@pytest.mark.parametrize(("tokens", "clusters", "factor", "step"), CASES)
def test_the_loop_over_tokens(variant, tokens, clusters, factor, step):
    images = np.random.default_rng(0).normal(size=(8, tokens, 6)).astype(np.float32)
    rules = Rules(factor, step, variant)
    seats = np.random.default_rng(1).permutation(tokens)[:clusters]
    found = cluster(products(images), seats, rules)
    centroids = found.weights @ images
    for i, image in enumerate(images):
        labels, means, rounds = one_by_one(image, seats, rules)
        assert found.labels[i].tolist() == labels.tolist()
        assert found.rounds[i] == rounds
        np.testing.assert_allclose(centroids[i], means, atol=1e-5)
