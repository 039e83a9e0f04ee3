"""CCST: a style and its transfer by hand, the draws, and FedAvg where nobody else has a style."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch

from methods import Arrays, ClientView, Examples, Task, ccst
from methods.ccst import DRAW, MEAN, SQUARE, Ccst, deviation_of, drawn_styles, styled
from platform.contract.examples import draw_examples
from tests.methods._training import RecordingTrainer, rng

SMALL = {"network": "cnn", "image_size": 16, "channels": (2, 3), "feature_width": 4}
PIXELS = {**SMALL, "space": "pixels"}


def build(task: Task, **options) -> Ccst:
    return ccst.build(ccst.Config(**options), task)


def view_of(method: Ccst, experts: tuple[Arrays, ...] = ()) -> ClientView:
    return ClientView(method.init_server(rng(2)), experts, method.init_client(rng(), rng(3)))


def contributed(method: Ccst, data: Examples) -> Arrays:
    entry = method.contribute(view_of(method), data, RecordingTrainer(), rng()).pool_entry
    assert entry is not None
    return entry


def a_style(width: int, mean: float, deviation: float) -> Arrays:
    moments = {MEAN: mean, SQUARE: mean**2 + deviation**2}
    return {name: np.full(width, value, np.float32) for name, value in moments.items()}


def test_a_style_is_put_on_by_hand():
    """0 and 2 have mean 1 and deviation sqrt 2 (one less than two): 5 -+ 3 / sqrt 2."""
    found = torch.tensor([0.0, 2.0], dtype=torch.float64).view(1, 1, 1, 2)
    there = styled(found, torch.tensor([[5.0]]), torch.tensor([[3.0]]), torch.tensor([False]))
    np.testing.assert_allclose(there.flatten(), [2.8787, 7.1213], atol=1e-4)


def test_a_deviation_by_hand_and_under_noise():
    """5 - 2^2 = 1; where noise makes a second moment too small there is the constant's root."""
    style = {MEAN: np.array([2.0, 2.0]), SQUARE: np.array([5.0, 3.0])}
    np.testing.assert_allclose(deviation_of(style), [1.000005, 0.0031623], rtol=1e-5)


def test_a_style_is_over_all_positions_of_all_images(task: Task):
    method = build(task, **PIXELS)
    data = draw_examples(method, 1, 70)
    seen = data.arrays["pixels"].astype(np.float64) / 127.5 - 1.0
    entry = contributed(method, data)
    np.testing.assert_allclose(entry[MEAN], seen.mean((0, 2, 3)), atol=1e-6)
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
    method = build(task, **PIXELS, styles=2)
    data, recording = draw_examples(method, 1, 4), RecordingTrainer()
    styles = (a_style(3, 0.5, 0.1), a_style(3, -0.5, 0.2))
    view = view_of(method, styles)
    method.client_update(view, data, recording, rng())
    rows = recording.examples
    assert rows["pixels"].shape[0] == len(rows["labels"]) == 8
    assert np.array_equal(rows["labels"], np.repeat(data.arrays["labels"], 2))
    drawn = drawn_styles(4, 2, 2, int(view.personal[DRAW])).ravel()
    assert np.array_equal(rows["is_own_style"], drawn == 2)
    for row, style in enumerate(drawn.tolist()):
        if style < 2:
            np.testing.assert_allclose(rows["style_mean"][row], styles[style][MEAN])
            deviation = deviation_of(styles[style])
            np.testing.assert_allclose(rows["style_deviation"][row], deviation, rtol=1e-6)
