"""TRIP's routers: keys, the matching of clusters with keys, and the learned ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from methods import MethodError
from methods.networks.routing import (
    BIAS,
    ROUTING,
    ROUTING_INFERENCE,
    WEIGHT,
    Clusters,
    LearnedRouter,
    RandomRouter,
    Rules,
    StaticRouter,
    assigned_shares,
    cluster,
    draw_keys,
)

KINDS = ("orthogonal", "uniform", "normal", "binary")


def router(experts=3, width=8, **options):
    chosen = {
        "keys": draw_keys("orthogonal", (experts, width), 0),
        "training": Rules(1.0, 1e-4),
        "inference": Rules(2.0, 1e-4),
        "seating": "random",
        "seed": 0,
        **options,
    }
    return StaticRouter(**chosen)


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


# --- keys and matching --------------------------------------------------------------------------


def test_orthogonal_keys_have_orthonormal_rows():
    keys = draw_keys("orthogonal", (7, 20), 3)
    np.testing.assert_allclose(keys @ keys.T, np.eye(7), atol=1e-6)


def test_the_other_keys_are_drawn_as_they_are_called():
    size = (4, 5000)
    uniform, normal, binary = (draw_keys(kind, size, 1) for kind in KINDS[1:])
    assert 0 <= uniform.min() < 0.01 < 0.99 < uniform.max() < 1
    assert abs(normal.mean()) < 0.05
    assert abs(normal.std() - 1) < 0.05
    assert set(np.unique(binary)) == {0.0, 1.0}
    assert abs(binary.mean() - 0.5) < 0.02


@pytest.mark.parametrize("kind", KINDS)
def test_keys_follow_from_their_seed(kind):
    one, same, other = (draw_keys(kind, (3, 9), seed) for seed in (4, 4, 5))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert one.dtype == np.float32


def test_more_experts_than_directions_cannot_be_orthogonal():
    with pytest.raises(MethodError, match=r"method\.experts: 9 .*width 8 .*valid: 1 to 8"):
        draw_keys("orthogonal", (9, 8), 0)


def test_shares_by_hand():
    """Clusters of 3 and 1 tokens at (0, 2) and (5, 0), keys along the axes: shares 1/4 and 3/4."""
    clusters, tokens = centred((0, 2), (5, 0), sizes=(3, 1))
    shares = assigned_shares(clusters, tokens, np.eye(2, dtype=np.float32))
    np.testing.assert_allclose(shares, [[0.25, 0.75]])


def test_the_matching_is_the_cheapest_as_a_whole():
    """Cosines (0.96, 0.28) and (0.8, -0.6) with the axes.

    The first cluster is nearer to key 1 than the second is, but 0.28 + 0.8 beats 0.96 - 0.6.
    """
    clusters, tokens = centred((0.96, 0.28), (0.8, -0.6), sizes=(1, 4))
    shares = assigned_shares(clusters, tokens, np.eye(2, dtype=np.float32))
    np.testing.assert_allclose(shares, [[0.8, 0.2]])


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


# --- preparation --------------------------------------------------------------------------------


def test_tokens_are_turned_into_shares_and_not_kept():
    images = draw_images()
    prepared = router().prepare(images)
    assert set(prepared) == {"features", ROUTING, ROUTING_INFERENCE}
    for name in (ROUTING, ROUTING_INFERENCE):
        assert prepared[name].shape == (12, 3)
        assert prepared[name].dtype == np.float32
        np.testing.assert_allclose(prepared[name].sum(axis=1), 1.0, atol=1e-6)
    # At most 4 tokens for each of three experts, and at least 1: no share is above 4 of 6.
    assert prepared[ROUTING].max() <= 0.67
    assert prepared[ROUTING_INFERENCE].max() > prepared[ROUTING].max()


def test_without_multipliers_room_for_all_is_plain_k_means():
    images = draw_images()
    wide = router(training=Rules(3.0, 0.0), inference=Rules(99.0, 0.0)).prepare(images)
    assert np.array_equal(wide[ROUTING], wide[ROUTING_INFERENCE])
    whole = np.round(wide[ROUTING] * 14)
    np.testing.assert_allclose(wide[ROUTING] * 14, whole, atol=1e-5)


def test_one_expert_has_everything():
    prepared = router(experts=1).prepare(draw_images())
    assert (prepared[ROUTING] == 1).all()
    assert (prepared[ROUTING_INFERENCE] == 1).all()


def test_routing_follows_images_and_not_their_order():
    """A key's cluster lies where its key points: an image turned by the keys turns its shares."""
    keys = np.eye(2, 8, dtype=np.float32)
    tokens = np.full((1, 8, 8), 0.01, np.float32)
    tokens[0, :6, 0], tokens[0, 6:, 1] = 1.0, 1.0
    tokens += np.arange(8)[None, :, None] * 1e-3
    images = {"features": np.zeros((1, 5), np.float32), "tokens": tokens}
    chosen = router(keys=keys, seating="farthest", inference=Rules(2.0, 0.0))
    np.testing.assert_allclose(chosen.prepare(images)[ROUTING_INFERENCE], [[0.75, 0.25]])
    swapped = {**images, "tokens": tokens[:, :, [1, 0, *range(2, 8)]]}
    np.testing.assert_allclose(chosen.prepare(swapped)[ROUTING_INFERENCE], [[0.25, 0.75]])


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"seating": "farthest"},
        {"keys": draw_keys("normal", (3, 8), 0)},
        {"training": Rules(1.0, 1e-4, "published")},
        {"training": Rules(0.5, 1e-4)},
    ],
)
def test_each_option_changes_routes(other):
    images = draw_images(60)
    one, changed = router().prepare(images), router(**other).prepare(images)
    assert not np.array_equal(one[ROUTING], changed[ROUTING])
    again = router(**other).prepare(images)
    assert np.array_equal(again[ROUTING], changed[ROUTING])


def test_blocks_change_nothing(monkeypatch):
    images = draw_images(9)
    whole = router().prepare(images)
    slices = (slice(0, 2), slice(2, 3), slice(3, 9))
    monkeypatch.setattr("methods.networks.routing.blocks", lambda count, tokens: slices)
    cut = router().prepare(images)
    for name in (ROUTING, ROUTING_INFERENCE):
        assert np.array_equal(whole[name], cut[name])


def test_fewer_tokens_than_experts_are_refused():
    with pytest.raises(MethodError, match=r"method\.experts: 3 .*2 tokens .*valid: 1 to 2"):
        router().prepare(draw_images(tokens=2))


def test_a_static_router_has_no_parameters():
    assert router().spec() == {}
    assert router().init(np.random.default_rng()) == {}
    assert router().needs == {"features", "tokens"}


# --- learned routers ----------------------------------------------------------------------------


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


def test_shares_of_images_by_hand():
    learned = LearnedRouter(2, 1, "features", 1.0)
    parameters = tensors(**{WEIGHT: [[1.0], [0.0]], BIAS: [0.0, LN3]})
    batch = tensors(features=[[LN3], [0.0]])
    shares = learned.shares(parameters, batch, training=False)
    np.testing.assert_allclose(shares, [[0.5, 0.5], [0.25, 0.75]], rtol=1e-6)
    assert learned.balance(parameters, batch).tolist() == [0.0, 0.0]
    assert learned.needs == {"features"}


def test_balance_by_hand():
    """Both tokens prefer expert 1 by 3/4 to 1/4: f = (1, 0), P = (3/4, 1/4), 2 x 3/4 = 1.5."""
    learned = LearnedRouter(2, 1, "tokens", 0.1)
    parameters = tensors(**{WEIGHT: [[1.0], [0.0]], BIAS: [0.0, 0.0]})
    batch = tensors(tokens=[[[LN3], [LN3]], [[LN3], [-LN3]]], features=[[1.0], [1.0]])
    # The second image's tokens disagree: f = P = (1/2, 1/2), which is the least, 1.
    np.testing.assert_allclose(learned.balance(parameters, batch), [0.15, 0.1], rtol=1e-6)
    off = LearnedRouter(2, 1, "tokens", 0.0)
    assert off.balance(parameters, batch).tolist() == [0.0, 0.0]


def test_a_learned_router_starts_as_a_linear_layer():
    learned = LearnedRouter(3, 64, "tokens", 0.0)
    arrays = learned.init(np.random.default_rng(0))
    assert {name: value.shape for name, value in arrays.items()} == {WEIGHT: (3, 64), BIAS: (3,)}
    assert 0.9 / 8 < np.abs(arrays[WEIGHT]).max() <= 1 / 8
    assert {name: spec.shape for name, spec in learned.spec().items()} == {
        name: value.shape for name, value in arrays.items()
    }


# --- random routes ------------------------------------------------------------------------------


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


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_random_routes_know_nothing_of_what_tokens_show(scale):
    """Images alike but for a hundredth are routed as differently as any two."""
    base = draw_images(1, tokens=20, width=16)["tokens"]
    rng = np.random.default_rng(3)
    near = (base * (1 + 0.01 * rng.normal(size=(2000, 20, 16)))).astype(np.float32)
    images = {"features": np.zeros((2000, 5), np.float32), "tokens": scale * near}
    spread = np.cov(random_shares(images).T) * 20
    np.testing.assert_allclose(spread, np.full((4, 4), -1 / 16) + np.eye(4) / 4, atol=0.02)


def test_random_routes_do_not_hang_on_last_bits():
    images = draw_images(300, tokens=50, width=16)
    shaken = {**images, "tokens": images["tokens"] * np.float32(1 + 1e-6)}
    moved = np.abs(random_shares(images) - random_shares(shaken)).sum(axis=1) * 50 / 2
    assert moved.mean() < 0.25
    assert moved.max() <= 2


def test_tokens_that_are_alike_are_still_spread():
    """An empty image has one token many times; so has one of zeros, which has no direction."""
    for value in (0.0, 1.0):
        tokens = np.full((1, 400, 16), value, np.float32)
        shares = random_shares({"features": np.zeros((1, 5), np.float32), "tokens": tokens})
        assert shares.min() > 0.15


def test_random_routes_follow_from_image_and_seed():
    images = draw_images(9)
    whole = random_shares(images)
    assert np.array_equal(whole, random_shares(images))
    assert not np.array_equal(whole, random_shares(images, seed=1))
    for i in range(9):
        one = {name: value[i : i + 1] for name, value in images.items()}
        assert np.array_equal(random_shares(one)[0], whole[i])
    assert (random_shares(images, experts=1) == 1).all()
    # More experts than tokens are no harm here.
    assert random_shares(draw_images(tokens=2), experts=3).shape == (12, 3)


def test_random_routes_are_alike_in_training_and_prediction():
    chosen = RandomRouter(3, 0)
    prepared = chosen.prepare(draw_images())
    assert set(prepared) == {"features", ROUTING}
    assert (chosen.spec(), chosen.init(np.random.default_rng())) == ({}, {})
    batch = tensors(**prepared)
    for training in (True, False):
        np.testing.assert_array_equal(
            chosen.shares({}, batch, training=training), prepared[ROUTING]
        )
    assert not chosen.balance({}, batch).any()
