"""The free energy of two outputs by hand, and which experts it drops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from methods.networks.mixture import confidence, kept_experts, number_dropped


def score(own, other, temperature: float = 1.0) -> float:
    values = confidence(torch.tensor([own]), torch.tensor([[other]]), temperature)
    return float(values[0, 0])


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        # Beside h^j = (3, 4): v = (h_1 3, h_2 4) / (5 |h|).
        ([3.0, 4.0], math.log(math.exp(0.36) + math.exp(0.64))),
        ([30.0, 40.0], math.log(math.exp(0.36) + math.exp(0.64))),
        ([-3.0, -4.0], math.log(math.exp(-0.36) + math.exp(-0.64))),
        ([4.0, -3.0], math.log(math.exp(0.48) + math.exp(-0.48))),
        ([1.0, 0.0], math.log(math.exp(0.6) + 1.0)),
        ([0.0, 0.0], math.log(2.0)),
    ],
)
def test_the_score_by_hand(other, expected):
    assert score([3.0, 4.0], other) == pytest.approx(expected, abs=1e-6)
    assert score([0.3, 0.4], other) == pytest.approx(expected, abs=1e-6)


def test_the_temperature_by_hand():
    """T = 1/2 and v = (0.36, 0.64): log(e^0.72 + e^1.28) / 2; T to 0: the largest coordinate."""
    assert score([3.0, 4.0], [3.0, 4.0], 0.5) == pytest.approx(
        0.5 * math.log(math.exp(0.72) + math.exp(1.28)), abs=1e-6
    )
    assert score([3.0, 4.0], [3.0, 4.0], 1e-3) == pytest.approx(0.64, abs=1e-6)
    # T large: T log D plus the mean coordinate, so half of the cosine ranks experts.
    high = score([3.0, 4.0], [4.0, 3.0], 100.0) - score([3.0, 4.0], [1.0, 0.0], 100.0)
    assert high == pytest.approx((0.96 - 0.6) / 2, abs=1e-3)


@pytest.mark.parametrize("temperature", [100.0, 1000.0])
def test_a_high_temperature_drowns_nothing(temperature):
    """T log D is 6238 at D = 512 and T = 1000; what ranks experts is some 1e-4 of cosine / D."""
    rng = np.random.default_rng(1)
    outputs = rng.normal(size=(16, 20, 512)).astype(np.float32)
    wide = outputs.astype(np.float64)
    units = wide / np.sqrt((wide**2).sum(axis=2, keepdims=True))
    powers = np.exp(units * units[:, 3:4] / temperature)
    expected = temperature * np.log(powers.sum(axis=2))
    got = confidence(torch.from_numpy(outputs[:, 3]), torch.from_numpy(outputs), temperature)
    np.testing.assert_allclose(got.numpy(), expected, rtol=0.0, atol=1e-8)
    others = [k for k in range(20) if k != 3]
    kept = kept_experts(torch.from_numpy(outputs), 3, 0.5, temperature).numpy()
    for scores, stays in zip(expected, kept, strict=True):
        worst = sorted(others, key=scores.__getitem__)[:9]
        assert [k for k in range(20) if not stays[k]] == sorted(worst)


def test_a_score_stays_finite():
    assert math.isfinite(score([0.0, 0.0], [0.0, 0.0]))
    assert math.isfinite(score([1e-30, 0.0], [1e18, -1e18], 1e-3))


@pytest.mark.parametrize(
    ("gamma", "experts", "expected"),
    [
        (0.0, 20, 0),
        (0.2, 20, 3),
        (0.2, 6, 1),
        (0.2, 5, 0),
        (0.2, 1, 0),
        (0.5, 5, 2),
        (0.99, 11, 9),
        (0.29, 101, 29),  # 0.29 * 100 is 28.999999999999996
        (0.999, 2, 0),
    ],
)
def test_how_many_are_dropped(gamma, experts, expected):
    assert number_dropped(gamma, experts) == expected


def test_the_least_like_the_own_are_dropped_example_by_example():
    """Own output (1, 0) for both; the others' cosines are 1, 0, -1 in another order each time."""
    near, across, away = [2.0, 0.0], [0.0, 2.0], [-2.0, 0.0]
    own = [1.0, 0.0]
    outputs = torch.tensor([[near, own, across, away], [away, own, near, across]])
    assert kept_experts(outputs, 1, 0.0, 1.0).all()
    # One of three.
    assert kept_experts(outputs, 1, 0.34, 1.0).tolist() == [
        [True, True, True, False],
        [False, True, True, True],
    ]
    # Two of three.
    assert kept_experts(outputs, 1, 0.67, 1.0).tolist() == [
        [True, True, False, False],
        [False, True, True, False],
    ]


def test_the_own_stays_though_others_score_higher():
    """At T near 0 the largest coordinate counts: 0.5 of (1, 1) with itself, 0.71 with (1, 0)."""
    outputs = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]]])
    beside = confidence(outputs[:, 2], outputs, 0.01)[0].tolist()
    assert min(beside) == beside[2] == pytest.approx(0.507, abs=1e-3)
    assert kept_experts(outputs, 2, 0.9, 0.01).tolist() == [[False, False, True, True]]


def test_among_equals_the_first_go():
    outputs = torch.ones(3, 5, 2)
    assert kept_experts(outputs, 0, 0.5, 1.0).tolist() == [[True, False, False, True, True]] * 3


def test_denoising_against_a_plain_loop():
    rng = np.random.default_rng(0)
    outputs = rng.normal(size=(12, 7, 5)).astype(np.float32)
    kept = kept_experts(torch.from_numpy(outputs), 2, 0.5, 0.7).numpy()
    for row, stays in zip(outputs, kept, strict=True):
        scores = {}
        for k in (0, 1, 3, 4, 5, 6):
            length = math.hypot(*row[k]) * math.hypot(*row[2])
            energies = [-float(row[k][d]) * float(row[2][d]) / length for d in range(5)]
            scores[k] = 0.7 * math.log(sum(math.exp(-e / 0.7) for e in energies))
        worst = sorted(scores, key=scores.__getitem__)[:3]
        assert [k for k in range(7) if not stays[k]] == sorted(worst)
