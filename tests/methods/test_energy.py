"""The free energy of two outputs by hand, and which experts it drops."""

from __future__ import annotations

import math

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
