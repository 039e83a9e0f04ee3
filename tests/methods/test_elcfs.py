"""ELCFS: mixed spectra by hand and by numpy, the episodic step from plain ones, and FedAvg."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from methods import Arrays, ClientView, Examples, Task, elcfs, fedavg
from methods.elcfs import BLOCK, Elcfs, low_amplitudes, mixed_in
from tests.methods._training import RecordingTrainer, rng, trainer

SMALL = {"network": "cnn", "image_size": 16, "channels": (2, 3), "feature_width": 4}


def build(task: Task, **options) -> Elcfs:
    return elcfs.build(elcfs.Config(**{**SMALL, **options}), task)


def plain(task: Task, **options) -> fedavg.FedAvg:
    return fedavg.build(fedavg.Config(**{**SMALL, **options}), task)


def examples(method, count: int = 6, seed: int = 1) -> Examples:
    side = method.pixel_size or 32
    pixels = rng(seed).integers(20, 230, (count, side, side, 3), dtype=np.uint8)
    labels = rng(seed).integers(0, len(method.classes), count)
    return Examples({**method.prepare({"pixels": pixels}), "labels": labels})


def tensor(*values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def entry_of(method: Elcfs, data: Examples) -> Arrays:
    entry = method.contribute(ClientView({}), data, RecordingTrainer(), rng()).pool_entry
    assert entry is not None
    return entry


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
    method = build(task, band=0.1)
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
    method, other = build(task, inner_rate=beta, inner_clip=clip), plain(task)
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
