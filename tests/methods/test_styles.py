"""CCST, StableFDG and ELCFS: styles and spectra that travel, by hand, by loops and by numpy."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch

from methods import Arrays, ClientView, Examples, Task, ccst, elcfs, fedavg, feddg_ga, stablefdg
from methods.ccst import DRAW, SQUARE, Ccst, deviation_of, drawn_styles, styled
from methods.elcfs import BLOCK, Elcfs, low_amplitudes, mixed_in
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
from tests.methods._training import RecordingTrainer, newcomer, rng, trainer

SMALL = {"network": "cnn", "image_size": 16, "channels": (2, 3), "feature_width": 4}
PIXELS = {**SMALL, "space": "pixels"}


def ccst_of(task: Task, **options) -> Ccst:
    return ccst.build(ccst.Config(**options), task)


def entry_of(method: Ccst | Elcfs, data: Examples) -> Arrays:
    entry = method.contribute(newcomer(method), data, RecordingTrainer(), rng()).pool_entry
    assert entry is not None
    return entry


def style_for_ccst(width: int, mean: float, deviation: float) -> Arrays:
    moments = {ccst.MEAN: mean, SQUARE: mean**2 + deviation**2}
    return {name: np.full(width, value, np.float32) for name, value in moments.items()}


def test_ccsts_style_is_put_on_by_hand():
    """0 and 2 have mean 1 and deviation sqrt 2 (one less than two): 5 -+ 3 / sqrt 2."""
    found = torch.tensor([0.0, 2.0], dtype=torch.float64).view(1, 1, 1, 2)
    there = styled(found, torch.tensor([[5.0]]), torch.tensor([[3.0]]), torch.tensor([False]))
    np.testing.assert_allclose(there.flatten(), [2.8787, 7.1213], atol=1e-4)


def test_ccsts_deviation_by_hand_and_under_noise():
    """5 - 2^2 = 1; where noise makes a second moment too small there is the constant's root."""
    style = {ccst.MEAN: np.array([2.0, 2.0]), SQUARE: np.array([5.0, 3.0])}
    np.testing.assert_allclose(deviation_of(style), [1.000005, 0.0031623], rtol=1e-5)


def test_a_style_is_over_all_positions_of_all_images(task: Task):
    method = ccst_of(task, **PIXELS)
    data = draw_examples(method, 1, 70)
    seen = data.arrays["pixels"].astype(np.float64) / 127.5 - 1.0
    entry = entry_of(method, data)
    np.testing.assert_allclose(entry[ccst.MEAN], seen.mean((0, 2, 3)), atol=1e-6)
    np.testing.assert_allclose(deviation_of(entry), seen.std((0, 2, 3)), atol=1e-4)


def test_styles_are_drawn_without_replacement_and_alike_in_all_rounds():
    drawn = drawn_styles(6000, 3, 3, 7)
    assert drawn.shape == (6000, 3)
    assert all(len(set(row)) == 3 for row in drawn.tolist())
    # Each of four styles is left out by a quarter; five deviations of that are 168.
    assert all(abs(n - 4500) < 168 for n in Counter(drawn.ravel().tolist()).values())
    assert np.array_equal(drawn, drawn_styles(6000, 3, 3, 7))
    assert not np.array_equal(drawn, drawn_styles(6000, 3, 3, 8))
    # With three sources and K = 3 everybody has each style, the own one included.
    assert np.array_equal(np.sort(drawn_styles(5, 2, 3, 1)), [[0, 1, 2]] * 5)
    assert np.array_equal(drawn_styles(4, 0, 3, 1), [[0]] * 4)


def test_the_training_set_has_k_times_its_rows(task: Task):
    method = ccst_of(task, **PIXELS, styles=2)
    data, recording = draw_examples(method, 1, 4), RecordingTrainer()
    styles = (style_for_ccst(3, 0.5, 0.1), style_for_ccst(3, -0.5, 0.2))
    view = dataclasses.replace(newcomer(method), experts=styles)
    method.client_update(view, data, recording, rng())
    rows = recording.examples
    assert rows["pixels"].shape[0] == len(rows["labels"]) == 8
    assert np.array_equal(rows["labels"], np.repeat(data.arrays["labels"], 2))
    drawn = drawn_styles(4, 2, 2, int(view.personal[DRAW])).ravel()
    assert np.array_equal(rows["is_own_style"], drawn == 2)
    for row, style in enumerate(drawn.tolist()):
        if style < 2:
            np.testing.assert_allclose(rows["style_mean"][row], styles[style][ccst.MEAN])
            deviation = deviation_of(styles[style])
            np.testing.assert_allclose(rows["style_deviation"][row], deviation, rtol=1e-6)


CNN = {"network": "cnn", "image_size": 20, "channels": (2, 3), "feature_width": 4}
CLIP = {"network": "clip"}


def stable(task: Task, **options) -> StableFDG:
    return stablefdg.build(stablefdg.Config(**options), task)


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
    moments = {MEAN: -9.0, MEAN_DEVIATION: 0.0, SPREAD: 0.25, SPREAD_DEVIATION: 0.0}
    other = {name: np.full(2, value, np.float32) for name, value in moments.items()}
    there = shared(found, rows=torch.arange(5), count=5, other=other, rng=rng(3))
    mean, spread = style_of(there)
    np.testing.assert_allclose(mean[3:].flatten(), -9.0, atol=1e-6)
    np.testing.assert_allclose(spread[3:].flatten(), 0.25, atol=1e-5)
    own = torch.cat(style_of(found), dim=1).flatten(1).numpy()
    centres = centres_of(own, 3, rng(3))
    seen = torch.cat((mean, spread), dim=1).flatten(1).numpy()[:3]
    np.testing.assert_allclose(seen, centres, atol=1e-5)


def test_an_entry_is_moments_over_images_of_moments_over_positions(task: Task):
    method = stable(task, **CLIP)
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
    method = stable(task, **{**CNN, "channels": (64, 512)})
    made = sum(
        int(np.prod(spec.shape))
        for name, spec in method.shared_spec().items()
        if name.startswith("highlighter.")
    )
    assert made == 2 * (512 * 30 + 30) == 46_170 * 2 // 3
    policy = method.pool_policy()
    assert (policy.k, policy.select, policy.exclude_self) == (1, "random", True)
    assert sum(int(np.prod(spec.shape)) for spec in policy.spec.values()) == 256


def elcfs_of(task: Task, **options) -> Elcfs:
    return elcfs.build(elcfs.Config(**{**SMALL, **options}), task)


def plain(task: Task, **options) -> fedavg.FedAvg:
    return fedavg.build(fedavg.Config(**{**SMALL, **options}), task)


def examples(method, count: int = 6) -> Examples:
    side = method.pixel_size or 32
    pixels = rng(1).integers(20, 230, (count, side, side, 3), dtype=np.uint8)
    labels = rng(1).integers(0, len(method.classes), count)
    return Examples({**method.prepare({"pixels": pixels}), "labels": labels})


def tensor(*values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def step(method, data: Examples, experts: tuple[Arrays, ...] = (), **options) -> Arrays:
    """The update of one step on all examples."""
    start = options.pop("start", None) or method.init_server(rng(2))
    once = trainer(steps=1, batch_size=64, **options)
    return method.client_update(ClientView(start, experts), data, once, rng(4)).update


def test_amplitudes_are_mixed_by_hand():
    """FFTs [[10, 2], [4, 0]] and [[12, 6], [8, 6]] in size: of the first number, (12 - 10) / 4."""
    one, other = tensor([[[1, 2], [3, 4]]]), tensor([[[8, 2], [1, 1]]])
    block = low_amplitudes(other, 0)
    assert block.item() == pytest.approx(12.0 / 4.0 / 255.0)
    for share, moved in ((1.0, 0.5), (0.5, 0.25), (0.0, 0.0)):
        mixed = mixed_in(one, block, tensor(share))
        np.testing.assert_allclose(mixed, one + moved, atol=1e-12)


@pytest.mark.parametrize(("height", "width", "half"), [(8, 8, 2), (9, 7, 3), (6, 9, 2)])
def test_blocks_by_numpy(height: int, width: int, half: int):
    """The published way: frequency 0 to the middle, another square around it, and back."""
    one, other = (rng(n).integers(90, 170, (3, height, width)).astype(float) for n in (1, 2))
    spectra = [np.fft.fftshift(np.fft.fft2(image), axes=(-2, -1)) for image in (one, other)]
    rows = slice(height // 2 - half, height // 2 + half + 1)
    columns = slice(width // 2 - half, width // 2 + half + 1)
    amplitude = np.abs(spectra[0])
    theirs = np.abs(spectra[1])[:, rows, columns]
    amplitude[:, rows, columns] = 0.7 * amplitude[:, rows, columns] + 0.3 * theirs
    shifted = np.fft.ifftshift(amplitude * np.exp(1j * np.angle(spectra[0])), axes=(-2, -1))
    expected = np.fft.ifft2(shifted).real
    block = low_amplitudes(torch.from_numpy(other[None]), half)
    np.testing.assert_allclose(block[0], theirs / (255.0 * height * width), atol=1e-12)
    got = mixed_in(torch.from_numpy(one[None]), block, tensor(0.3))
    np.testing.assert_allclose(got[0], expected, atol=1e-9)


def test_an_entry_is_the_mean_over_images_and_no_longer_than_sqrt_3(task: Task):
    method = elcfs_of(task, band=0.1)
    data = examples(method, 70)
    entry = entry_of(method, data)
    assert entry[BLOCK].shape == (3, 3, 3) == method.pool_policy().spec[BLOCK].shape
    pixels = data.arrays["pixels"] / 255.0
    # Frequency 0 is a colour's mean.
    np.testing.assert_allclose(entry[BLOCK][:, 1, 1], pixels.mean((0, 2, 3)), rtol=1e-6)
    white = {"pixels": np.full((2, 3, 16, 16), 255, np.uint8), "labels": np.zeros(2, np.int64)}
    length = np.linalg.norm(entry_of(method, Examples(white))[BLOCK])
    assert length == pytest.approx(np.sqrt(3.0))


def brighter(data: Examples, by: int) -> Examples:
    pixels = (data.arrays["pixels"].astype(int) + by).astype(np.uint8)
    return Examples({**data.arrays, "pixels": pixels})


def alike(method: Elcfs) -> Examples:
    """Six orders of one image's pixels: all have the same colours' means."""
    pixels = examples(method, 1).arrays["pixels"][0]
    flat = pixels.reshape(3, -1)
    shuffled = [flat[:, rng(n).permutation(flat.shape[1])].reshape(pixels.shape) for n in range(6)]
    return Examples({"pixels": np.stack(shuffled), "labels": np.arange(6) % 3})


@pytest.mark.parametrize(("beta", "clip"), [(0.5, 100.0), (0.5, 1e-12), (0.0, 100.0)])
def test_the_episodic_step_is_made_of_plain_ones(task: Task, beta: float, clip: float):
    """A step on x, and one on x' from where a step of rate beta on x leads; clamped, from theta."""
    method, other = elcfs_of(task, inner_rate=beta, inner_clip=clip), plain(task)
    data, rate = alike(method), 0.01
    block = {BLOCK: entry_of(method, brighter(data, 9))[BLOCK]}
    got = step(method, data, (block, block), learning_rate=rate)
    start = method.init_server(rng(2))
    first = step(other, data, learning_rate=rate)
    led = start
    if clip > 1.0 and beta:
        moved = step(other, data, learning_rate=beta)
        led = {name: value + moved[name] for name, value in start.items()}
    second = step(other, brighter(data, 9), start=led, learning_rate=rate)
    for name, value in got.items():
        np.testing.assert_allclose(value, first[name] + second[name], atol=2e-7)
    assert any(np.abs(first[n] - second[n]).max() > 1e-5 for n in got)


def test_a_method_around_it_collects_and_trains_as_it_does(task: Task):
    """Without images held out, FedDG-GA's client is that of its base: block, pool and update."""
    base, options = elcfs_of(task, band=0.1), {**SMALL, "band": 0.1}
    config = feddg_ga.Config(base="elcfs", base_options=elcfs.Config(**options), held_out=0.0)
    around, data = feddg_ga.build(config, task), examples(base)
    assert around.pool_policy() == base.pool_policy()
    assert dataclasses.replace(around.pool_policy(), spec={}) == feddg_ga.serving(
        config, task.population
    )
    assert around.pool_policy().opens
    block = entry_of(around, data)
    np.testing.assert_array_equal(block[BLOCK], entry_of(base, data)[BLOCK])
    start = base.init_server(rng(2))
    expected, got = (step(method, data, (block,), start=start) for method in (base, around))
    for name, change in expected.items():
        np.testing.assert_array_equal(got[name], change)
    alone = step(base, data)
    assert any(np.abs(expected[name] - alone[name]).max() > 1e-6 for name in alone)
