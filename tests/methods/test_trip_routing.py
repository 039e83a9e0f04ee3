"""TRIP's routers: keys, the matching of clusters with keys, and the learned ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from methods.networks.routing import (
    BIAS,
    ROUTING,
    WEIGHT,
    Clusters,
    LearnedRouter,
    RandomRouter,
    Rules,
    assigned_shares,
    cluster,
    draw_keys,
)

KINDS = ("orthogonal", "uniform", "normal", "binary")


def draw_images(count=12, tokens=14, width=8, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "features": rng.normal(size=(count, 5)).astype(np.float32),
        "tokens": rng.normal(size=(count, tokens, width)).astype(np.float32),
    }


def centred(*centroids, sizes):
    """Clusters of one image with given centroids, and the tokens that make them."""
    tokens = np.array(centroids, np.float32)[None]
    count = len(centroids)
    weights = np.eye(count, dtype=np.float32)[None]
    return Clusters(np.arange(count)[None], weights, np.array([sizes]), np.ones(1, int)), tokens


def test_orthogonal_keys_have_orthonormal_rows():
    keys = draw_keys("orthogonal", (7, 20), 3)
    np.testing.assert_allclose(keys @ keys.T, np.eye(7), atol=1e-6)


def test_shares_by_hand():
    """Clusters of 3 and 1 tokens at (0, 2) and (5, 0), keys along the axes: shares 1/4 and 3/4."""
    clusters, tokens = centred((0, 2), (5, 0), sizes=(3, 1))
    shares = assigned_shares(clusters, tokens, np.eye(2, dtype=np.float32))
    np.testing.assert_allclose(shares, [[0.25, 0.75]])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("experts", [1, 2, 3, 4])
def test_the_matching_by_brute_force(experts, kind):
    """All M! matchings, costs by plain loops."""
    images = draw_images(20)["tokens"]
    keys = draw_keys(kind, (experts, 8), 2)
    found = cluster(images @ images.transpose(0, 2, 1), np.arange(experts), Rules(1.0, 0.0))
    shares = assigned_shares(found, images, keys)
    for i, image in enumerate(images):
        sizes = found.sizes[i]
        means = [image[found.labels[i] == m].mean(axis=0) for m in range(experts)]

        def cost(order, means=means):
            pairs = zip(means, keys[list(order)], strict=True)
            return sum(1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in pairs)

        best = min(itertools.permutations(range(experts)), key=cost)
        expected = np.zeros(experts)
        expected[list(best)] = sizes / sizes.sum()
        np.testing.assert_allclose(shares[i], expected, rtol=1e-6)


def tensors(**arrays):
    return {name: torch.tensor(value) for name, value in arrays.items()}


LN3 = float(np.log(3.0))


def test_shares_of_tokens_by_hand():
    """Token (ln 3) has logits (ln 3, 0), shares 3/4 and 1/4; token (0) has halves: 5/8, 3/8."""
    learned = LearnedRouter(2, 1, "tokens", 1.0)
    parameters = tensors(**{WEIGHT: [[1.0], [0.0]], BIAS: [0.0, 0.0]})
    batch = tensors(tokens=[[[LN3], [0.0]]], features=[[1.0]])
    shares = learned.shares(parameters, batch, training=True)
    np.testing.assert_allclose(shares, [[0.625, 0.375]], rtol=1e-6)


def test_balance_by_hand():
    """Both tokens prefer expert 1 by 3/4 to 1/4: f = (1, 0), P = (3/4, 1/4), 2 x 3/4 = 1.5."""
    learned = LearnedRouter(2, 1, "tokens", 0.1)
    parameters = tensors(**{WEIGHT: [[1.0], [0.0]], BIAS: [0.0, 0.0]})
    batch = tensors(tokens=[[[LN3], [LN3]], [[LN3], [-LN3]]], features=[[1.0], [1.0]])
    # The second image's tokens disagree: f = P = (1/2, 1/2), which is the least, 1.
    np.testing.assert_allclose(learned.balance(parameters, batch), [0.15, 0.1], rtol=1e-6)
    off = LearnedRouter(2, 1, "tokens", 0.0)
    assert off.balance(parameters, batch).tolist() == [0.0, 0.0]


def random_shares(images, experts=4, seed=0):
    return RandomRouter(experts, seed).prepare(images)[ROUTING]


def test_random_shares_are_those_of_fair_dice():
    """Counts of 20 tokens over 4 experts are multinomial: mean 1/4, variance 3/16/20 each.

    So over 4,000 images the mean is known to 0.0015 and the variance to 2.5 %; two experts of one
    image go together with covariance -1/16/20.
    """
    shares = random_shares(draw_images(4000, tokens=20, width=16))
    assert shares.dtype == np.float32
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(shares.mean(axis=0), 1 / 4, atol=0.006)
    spread = np.cov(shares.T) * 20
    np.testing.assert_allclose(spread, np.full((4, 4), -1 / 16) + np.eye(4) / 4, atol=0.015)
