"""StableFDG: styles and their extrapolation by hand, the highlighter by loops, and reductions."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from methods import Arrays, Task, stablefdg
from methods.stablefdg import (
    KEY,
    MEAN,
    MEAN_DEVIATION,
    QUERY,
    SPREAD,
    SPREAD_DEVIATION,
    StableFDG,
    balancing_rows,
    beyond,
    centres_of,
    highlighted,
    next_of_class,
    shared,
    style_of,
)
from platform.contract.examples import draw_examples
from tests.methods._training import rng

CNN = {"network": "cnn", "image_size": 20, "channels": (2, 3), "feature_width": 4}
CLIP = {"network": "clip"}


def build(task: Task, **options) -> StableFDG:
    return stablefdg.build(stablefdg.Config(**options), task)


def a_style(width: int, mean: float = 0.2, spread: float = 0.5) -> Arrays:
    values = {MEAN: mean, MEAN_DEVIATION: 0.0, SPREAD: spread, SPREAD_DEVIATION: 0.0}
    return {name: np.full(width, value, np.float32) for name, value in values.items()}


def test_a_style_by_hand():
    """0 and 2 have mean 1 and deviation sqrt 2 (one less than two)."""
    mean, spread = style_of(torch.tensor([0.0, 2.0], dtype=torch.float64).view(1, 1, 1, 2))
    assert (mean.item(), spread.item()) == pytest.approx((1.0, 2**0.5))


def test_styles_are_extrapolated_by_hand():
    """Means 1 and 3, hence 2 of the batch: with a = 3 they become -2 and 6."""
    part = torch.tensor([1.0, 3.0, 1.0, 3.0]).view(4, 1, 1, 1)
    assert beyond(part, 2, 3.0).flatten().tolist() == [1.0, 3.0, -2.0, 6.0]
    # Added rows have no say in the mean: two more of the first would move it.
    part = torch.tensor([1.0, 3.0, 1.0, 1.0]).view(4, 1, 1, 1)
    assert beyond(part, 2, 3.0).flatten().tolist() == [1.0, 3.0, -2.0, -2.0]


def test_added_rows_make_classes_alike():
    """Four rows of class 5 and one each of 2 and 9: six more, three each for the rare ones."""
    labels = np.array([5, 5, 2, 5, 9, 5])
    for seed in range(20):
        added = balancing_rows(labels, 6, rng(seed))
        assert Counter(labels[added].tolist()) == {2: 3, 9: 3}
    # Seven: all have four then, and the turn is anybody's.
    last = {int(labels[balancing_rows(labels, 7, rng(seed))][-1]) for seed in range(60)}
    assert last == {2, 5, 9}


def test_the_next_row_of_a_class_by_hand():
    assert next_of_class(torch.tensor([7, 3, 7, 7, 1])).tolist() == [2, 1, 3, 0, 4]


def test_centres_are_means_of_their_own():
    """Two heaps far apart: k-means++ starts in both, and a step goes to their means."""
    heaps = np.array([[0.0, 0.0], [0.0, 2.0], [100.0, 0.0], [100.0, 4.0]])
    for seed in range(10):
        found = centres_of(heaps, 2, rng(seed))
        assert sorted(map(tuple, found.tolist())) == [(0.0, 1.0), (100.0, 2.0)]


def test_shared_styles_are_own_centres_and_then_others():
    """Five rows: three in centres of the client's own styles, two in the other's."""
    found = torch.from_numpy(rng().normal(2.0, 3.0, (5, 2, 4, 4)))
    other = a_style(2, mean=-9.0, spread=0.25)
    same = torch.arange(5)
    there = shared(found, rows=same, count=5, other=other, rng=rng(3))
    mean, spread = style_of(there)
    np.testing.assert_allclose(mean[3:].flatten(), -9.0, atol=1e-6)
    np.testing.assert_allclose(spread[3:].flatten(), 0.25, atol=1e-5)
    own = torch.cat(style_of(found), dim=1).flatten(1).numpy()
    centres = centres_of(own, 3, rng(3))
    seen = torch.cat((mean, spread), dim=1).flatten(1).numpy()[:3]
    np.testing.assert_allclose(seen, centres, atol=1e-5)


def test_an_entry_is_moments_over_images_of_moments_over_positions(task: Task):
    method = build(task, **CLIP)
    broadcast, data = method.init_server(rng(2)), draw_examples(method, 1, 70)
    entry = method.styles_of(broadcast, data)
    tokens = []
    module = task.backbone.image_module
    hook = module.transformer.resblocks[0].register_forward_hook(
        lambda block, given, state: tokens.append(state)
    )
    with torch.no_grad():
        module(method.extractor.inputs(method.tensors({"pixels": data.arrays["pixels"]})))
    hook.remove()
    (state,) = tokens
    patches = (state if module.transformer.batch_first else state.transpose(0, 1))[:, 1:].numpy()
    means, spreads = patches.mean(1), np.sqrt(patches.var(1, ddof=1) + 1e-6)
    for name, expected in {
        MEAN: means.mean(0),
        MEAN_DEVIATION: means.std(0),
        SPREAD: spreads.mean(0),
        SPREAD_DEVIATION: spreads.std(0),
    }.items():
        np.testing.assert_allclose(entry[name], expected, atol=1e-5)
        assert entry[name].shape == (method.style_width,)


def test_attention_by_loops():
    """Two images of three positions and two channels, queries and keys of width two."""
    last = torch.from_numpy(rng().normal(size=(2, 2, 1, 3)))
    given = {
        f"{name}.{part}": torch.from_numpy(rng(seed).normal(size=shape))
        for name, seed in ((QUERY, 5), (KEY, 6))
        for part, shape in (("weight", (2, 2)), ("bias", (2,)))
    }
    found = highlighted(given, last, torch.tensor([1, 1]))

    def unit(name: str, image: int, place: int) -> np.ndarray:
        weight, bias = given[f"{name}.weight"].numpy(), given[f"{name}.bias"].numpy()
        raw = weight @ last[image, :, 0, place].numpy() + bias
        return raw / np.sqrt((raw**2).sum())

    for image, partner in ((0, 1), (1, 1)):
        logits = np.zeros(3)
        for key in range(3):
            for query in range(3):
                both = (unit(QUERY, image, query) + unit(QUERY, partner, query)) / 2
                logits[key] += both @ unit(KEY, image, key) / 3
        share = np.exp(logits) / np.exp(logits).sum()
        expected = sum(share[place] * last[image, :, 0, place].numpy() for place in range(3))
        np.testing.assert_allclose(found[image], expected, atol=1e-12)


def test_what_leaves_a_client(task: Task):
    """Queries and keys of the published size are 30,780 numbers: two of its three convolutions."""
    method = build(task, **{**CNN, "channels": (64, 512)})
    made = sum(
        int(np.prod(spec.shape))
        for name, spec in method.shared_spec().items()
        if name.startswith("highlighter.")
    )
    assert made == 2 * (512 * 30 + 30) == 46_170 * 2 // 3
    policy = method.pool_policy()
    assert (policy.k, policy.select, policy.exclude_self) == (1, "random", True)
    assert sum(int(np.prod(spec.shape)) for spec in policy.spec.values()) == 256
