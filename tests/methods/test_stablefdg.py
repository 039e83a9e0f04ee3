"""StableFDG: styles and their extrapolation by hand, the highlighter by loops, and reductions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from methods import Arrays, ClientView, Examples, MethodError, Task, Weighting, fedavg, stablefdg
from methods.clip.adapter import load_backbone
from methods.interface.method import LocalResult
from methods.stablefdg import (
    ATTENDED,
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
from tests.methods._models import MODELS, make_model, write_folder
from tests.methods._training import RecordingTrainer, trainer

CNN = {"network": "cnn", "image_size": 20, "channels": (2, 3), "feature_width": 4}
CLIP = {"network": "clip"}
NETWORKS = pytest.mark.parametrize("options", [CNN, CLIP], ids=["cnn", "clip"])
CALM = {"sharing_probability": 0.0, "exploration_probability": 0.0, "attention_width": None}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def build(task: Task, **options) -> StableFDG:
    return stablefdg.build(stablefdg.Config(**options), task)


def examples(method: StableFDG, count: int = 7, seed: int = 1) -> Examples:
    side = method.pixel_size or 32
    pixels = rng(seed).integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    labels = rng(seed).integers(0, len(method.classes), count)
    return Examples({**method.prepare({"pixels": pixels}), "labels": labels})


@pytest.fixture(scope="module")
def deep_task(task: Task, tmp_path_factory: pytest.TempPathFactory) -> Task:
    config = MODELS["vit-gelu"]
    folder = tmp_path_factory.mktemp("vit")
    return replace(task, backbone=load_backbone(write_folder(folder, config, make_model(config))))


def a_style(width: int, mean: float = 0.2, spread: float = 0.5) -> Arrays:
    values = {MEAN: mean, MEAN_DEVIATION: 0.0, SPREAD: spread, SPREAD_DEVIATION: 0.0}
    return {name: np.full(width, value, np.float32) for name, value in values.items()}


def updated(method: StableFDG, *experts: Arrays, seed: int = 4, **options) -> LocalResult:
    view = ClientView(method.init_server(rng(2)), experts)
    by = trainer(learning_rate=0.01, **options)
    return method.client_update(view, examples(method), by, rng(seed))


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
    # A class's rows are drawn alike: 1,000 in each of four, within five deviations.
    picked = Counter(balancing_rows(np.zeros(4, int), 4000, rng()).tolist())
    assert picked.keys() == {0, 1, 2, 3}
    assert all(abs(n - 1000) < 137 for n in picked.values())


def test_the_next_row_of_a_class_by_hand():
    assert next_of_class(torch.tensor([7, 3, 7, 7, 1])).tolist() == [2, 1, 3, 0, 4]


def test_centres_are_means_of_their_own():
    """Two heaps far apart: k-means++ starts in both, and a step goes to their means."""
    heaps = np.array([[0.0, 0.0], [0.0, 2.0], [100.0, 0.0], [100.0, 4.0]])
    for seed in range(10):
        found = centres_of(heaps, 2, rng(seed))
        assert sorted(map(tuple, found.tolist())) == [(0.0, 1.0), (100.0, 2.0)]


def test_more_centres_than_different_styles():
    found = centres_of(np.ones((4, 2)), 2, rng())
    assert np.array_equal(found, np.ones((2, 2)))


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
    # Contents stay: what is renormalised differs by position as it did.
    unit = [(part - style_of(part)[0]) / style_of(part)[1] for part in (found, there)]
    np.testing.assert_allclose(*unit, atol=1e-4)


def test_rows_that_were_added_are_shared_as_their_sources():
    found = torch.from_numpy(rng().normal(0.0, 1.0, (3, 2, 4, 4)))
    rows = torch.tensor([0, 1, 2, 2, 0])
    there = shared(found[rows], rows=rows, count=3, other=a_style(2), rng=rng(3))
    assert torch.equal(there[3], there[2]) and torch.equal(there[4], there[0])
    assert not torch.equal(there[0], there[1])


def test_drawn_styles_have_the_others_moments_and_no_negative_spread():
    """Draws of 4,000 rows of one channel: mean 1 +- 2, and spreads of N(0, 1) cut at zero."""
    found = torch.from_numpy(rng().normal(0.0, 1.0, (8000, 1, 2, 2)))
    other = {MEAN: [1.0], MEAN_DEVIATION: [2.0], SPREAD: [0.0], SPREAD_DEVIATION: [1.0]}
    other = {name: np.array(value) for name, value in other.items()}
    # No centres: all rows are drawn ones when the own half is a single heap.
    there = shared(
        found[:1].repeat(60, 1, 1, 1), rows=torch.arange(60), count=60, other=other, rng=rng()
    )
    mean, spread = (part.flatten().numpy()[30:] for part in style_of(there))
    assert abs(mean.mean() - 1.0) < 5 * 2.0 / 30**0.5
    assert 1.0 < mean.std() < 3.0
    assert (spread <= 2e-3).sum() in range(5, 26)  # Half of thirty, within four deviations.
    # Noise may make a deviation negative: it counts as none.
    noised = {**other, MEAN_DEVIATION: np.array([-1.0]), SPREAD_DEVIATION: np.array([-1.0])}
    there = shared(found[:4], rows=torch.arange(4), count=4, other=noised, rng=rng())
    np.testing.assert_allclose(there[2:], 1.0)


def test_an_entry_is_moments_over_images_of_moments_over_positions(task: Task):
    method = build(task, **CLIP)
    broadcast, data = method.init_server(rng(2)), examples(method, 70)
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


def test_an_entry_of_one_image_has_no_deviation(task: Task):
    method = build(task, **CNN)
    entry = method.styles_of(method.init_server(rng()), examples(method, 1))
    assert not entry[MEAN_DEVIATION].any() and entry[SPREAD].any()


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


@NETWORKS
def test_without_its_parts_it_is_fedavg_with_uniform_weights(task: Task, options: dict):
    plain = fedavg.build(fedavg.Config(**options), task)
    view = ClientView(plain.init_server(rng(2)))
    data = examples(build(task, **options))
    expected = plain.client_update(view, data, trainer(learning_rate=0.01), rng(4)).update
    method = build(task, **options, **CALM)
    calm = updated(method, a_style(method.style_width)).update
    assert calm.keys() == expected.keys()
    for name, value in expected.items():
        assert value.any()
        np.testing.assert_allclose(calm[name], value, atol=1e-6)
    assert {spec.weighting for spec in method.shared_spec().values()} == {Weighting.UNIFORM}


@NETWORKS
def test_each_part_changes_what_is_learnt(deep_task: Task, options: dict):
    """On two layers: patches that are changed after the last reach no feature of CLIP's."""
    task = deep_task
    parts = (
        {},
        {"sharing_probability": 1.0},
        {"exploration_probability": 1.0},
        {"attention_width": 5},
        {"exploration_probability": 1.0, "explored_layers": 1},
        {"exploration_probability": 1.0, "extrapolation": 0.0},
        {"exploration_probability": 1.0, "mixing": 5.0},
    )
    moves = []
    for part in parts:
        method = build(task, **{**options, **CALM, **part})
        update = updated(method, a_style(method.style_width)).update
        assert all(np.isfinite(value).all() for value in update.values())
        moves.append(
            np.concatenate([update[name].ravel() for name in sorted(method.extractor.layers)])
        )
    # The attended part starts at zero, so its first step moves the head alone; there are three.
    for one in range(len(moves)):
        for two in range(one):
            assert not np.allclose(moves[one], moves[two], atol=1e-7), (parts[one], parts[two])


def test_nothing_is_shared_before_there_is_another_style(task: Task):
    options = {**CNN, **CALM, "sharing_probability": 1.0}
    method = build(task, **options)
    alone, calm = updated(method), updated(build(task, **{**CNN, **CALM}))
    for name, value in calm.update.items():
        assert np.array_equal(alone.update[name], value)
    with_other = updated(method, a_style(2))
    assert not np.allclose(
        with_other.update["extractor.conv1.weight"], alone.update["extractor.conv1.weight"]
    )


def test_half_of_the_steps_share(task: Task):
    """Of 400 keys about 200 change the loss; five deviations of that are 50."""
    method = build(task, **{**CNN, **CALM, "sharing_probability": 0.5})
    batch = method.tensors(dict(examples(method).arrays))
    model = method.tensors(method.init_server(rng()))

    class Key:
        key = 0

    plain = method.styled_losses(Key(), None, model, batch)
    changed = 0
    for key in range(400):
        Key.key = key
        changed += not torch.equal(method.styled_losses(Key(), a_style(2), model, batch), plain)
    assert abs(changed - 200) < 50


def test_losses_have_the_mean_of_all_rows(task: Task):
    """Explored rows whose style is not changed are copies: the loss is one of a balanced batch."""
    options = {"exploration_probability": 1.0, "extrapolation": 0.0, "explored_layers": 1}
    method = build(task, **{**CNN, **CALM, **options, "mixing": 1e-8})
    data = dict(examples(method, 3).arrays)
    # With so small an m each row keeps its own style or gets its partner's; images alike have one.
    data["pixels"] = np.repeat(data["pixels"][:1], 3, axis=0)
    data["labels"] = np.array([0, 0, 1])
    batch, model = method.tensors(data), method.tensors(method.init_server(rng()))

    class Key:
        key = 3

    found = method.styled_losses(Key(), None, model, batch)
    own = functional.cross_entropy(method.logits(model, batch), batch["labels"], reduction="none")
    # Three rows are added: two of class 1, then of either.
    added = np.bincount(data["labels"][balancing_rows(data["labels"], 3, rng(9))], minlength=2)
    assert added[1] == 2
    one, other = own[0].item(), own[2].item()
    expected = {(3 * one + 3 * other) / 6}
    assert found.shape == (3,)
    assert any(found.mean().item() == pytest.approx(value, abs=1e-5) for value in expected)


@pytest.mark.parametrize("rank", [None, 2])
def test_a_tower_that_is_not_changed_gives_the_same_features(deep_task: Task, rank: int | None):
    method = build(deep_task, **CLIP, lora_rank=rank)
    tower = method.extractor
    parameters = method.tensors(method.init_server(rng()))
    for value in parameters.values():
        value += 0.01
    shown = tower.inputs(method.tensors({"pixels": examples(method).arrays["pixels"]}))
    seen = {}

    def keep(layer: int):
        return lambda found: seen.setdefault(layer, found)

    with torch.no_grad():
        plain = tower.features(parameters, shown)
        same, last = tower.through(
            parameters, shown, {n + 1: keep(n + 1) for n in range(tower.depth)}
        )
        other, _ = tower.through(parameters, shown, {1: lambda found: found.flip(0)})
        again = tower.features(parameters, shown)
    torch.testing.assert_close(same, plain)
    assert torch.equal(plain, again)
    assert not torch.allclose(plain, other, atol=1e-4)
    assert sorted(seen) == list(range(1, tower.depth + 1))
    for (width, places), found in zip(
        tower.map_sizes, (seen[n] for n in sorted(seen)), strict=True
    ):
        assert (found.shape[1], found.shape[2] * found.shape[3]) == (width, places)
    assert last.shape[:2] == (len(shown), tower.width)
    torch.testing.assert_close(last.norm(dim=1), torch.ones(last.norm(dim=1).shape))


def test_a_prediction_needs_no_other_image(task: Task):
    method = build(task, **CNN)
    state = {
        n: rng(8).normal(size=v.shape).astype(np.float32)
        for n, v in method.init_server(rng()).items()
    }
    pixels = examples(method).arrays["pixels"]
    view = ClientView(state)
    whole = method.predict(view, {"pixels": pixels}, method.classes)
    alone = method.predict(view, {"pixels": pixels[2:3]}, method.classes)
    np.testing.assert_allclose(whole[2:3], alone, atol=1e-4)
    plain = method.predict(
        ClientView({**state, ATTENDED: np.zeros_like(state[ATTENDED])}),
        {"pixels": pixels},
        method.classes,
    )
    assert not np.allclose(whole, plain)


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
    assert (policy.k, policy.select, policy.exclude_self, policy.fixed) == (
        1,
        "random",
        True,
        False,
    )
    assert sum(int(np.prod(spec.shape)) for spec in policy.spec.values()) == 256
    assert method.couples_examples and method.units == {"client"}


def test_maps_of_one_position_have_no_style(task: Task):
    """A side of 16 leaves 6 x 6 after the first convolution, and one place after the second."""
    small = build(task, **{**CNN, "image_size": 16})
    assert small.explored == (1,)
    # Of one place all attention is on it, whatever the query.
    assert small.attention_width is None and ATTENDED not in small.shared_spec()
    assert ATTENDED in build(task, **CNN).shared_spec()
    assert build(task, **CNN).explored == (1, 2)
    assert build(task, **CNN, explored_layers=1).explored == (1,)
    assert build(task, **CNN, explored_layers=0).explored == ()
    recording = RecordingTrainer()
    small.client_update(ClientView(small.init_server(rng())), examples(small), recording, rng())
    assert recording.fits == 1


def test_what_is_refused(task: Task):
    with pytest.raises(MethodError, match=r"^method\.network: 'features'.*; valid: cnn, clip"):
        build(task, network="features")
