"""What a sum means: weighted, uniform and summed tensors, by hand, masked and in the clear."""

from __future__ import annotations

import numpy as np
import pytest

from methods import TensorSpec, Weighting
from platform.errors import PlatformError, ProtocolError
from platform.layout import LARGEST_WEIGHT, UploadLayout, build_layout
from privacy import PrivacyError, ProtocolViolation, Quantiser

SPEC = {
    "a": TensorSpec((2,), weighting=Weighting.EXAMPLES),
    "b": TensorSpec((1,), weighting=Weighting.UNIFORM),
    "c": TensorSpec((1,), weighting=Weighting.SUM),
}
QUANTISER = Quantiser(value_bound=1.0, bits=8)
"""Levels 0 to 255, step 2/255."""
VECTORS = [np.array([0.5, -1.0, 0.2, 0.25]), np.array([-0.5, 1.0, 0.4, 0.5])]
WEIGHTS = [3, 1]
MEANS = [0.25, -0.5, 0.3, 0.75]
"""(3 x 0.5 - 0.5) / 4, (3 x -1 + 1) / 4, (0.2 + 0.4) / 2, 0.25 + 0.5."""
PLAIN_MEANS = [0.0, 0.0, 0.3, 0.75]


def masked_sum(layout: UploadLayout, vectors, weights) -> np.ndarray:
    levels = [QUANTISER.quantise(vector).levels for vector in vectors]
    return sum(layout.weigh(mine, w) for mine, w in zip(levels, weights, strict=True))


@pytest.mark.parametrize(("mechanism", "weighted"), [("none", True), ("upload_noise", False)])
def test_weights_apply_without_a_mechanism_only(mechanism, weighted):
    layout = build_layout(SPEC, mechanism)
    assert layout.weighted is weighted
    assert layout.coordinates == 4
    assert layout.length == 4 + weighted


def test_no_weight_where_no_tensor_asks_for_one():
    assert not build_layout({"b": SPEC["b"], "c": SPEC["c"]}, "none").weighted
    assert not build_layout({}, "none").weighted
    assert build_layout({}, "none").length == 0


def test_a_plain_sum_by_hand():
    layout = build_layout(SPEC, "none")
    summed = layout.average(layout.sum_plain(VECTORS, WEIGHTS))
    np.testing.assert_allclose(summed.vector, MEANS, atol=1e-15)
    assert summed.total_weight == 4.0


def test_a_plain_sum_under_a_mechanism_by_hand():
    layout = build_layout(SPEC, "upload_noise")
    summed = layout.average(layout.sum_plain(VECTORS, WEIGHTS))
    np.testing.assert_allclose(summed.vector, PLAIN_MEANS, atol=1e-15)
    assert summed.total_weight == 2.0


def test_weighted_levels_by_hand():
    """Averaged levels are tripled, uniform and summed ones are not; the weight comes last."""
    layout = build_layout(SPEC, "none")
    levels = np.array([10, 20, 30, 40], np.uint64)
    assert layout.weigh(levels, 3).tolist() == [30, 60, 30, 40, 3]
    assert layout.weigh(levels, 3).dtype == np.uint64
    assert build_layout(SPEC, "upload_noise").weigh(levels, 3).tolist() == [10, 20, 30, 40]


@pytest.mark.parametrize("mechanism", ["none", "upload_noise"])
def test_a_masked_sum_is_within_half_a_step_of_a_mean(mechanism):
    layout = build_layout(SPEC, mechanism)
    total = masked_sum(layout, VECTORS, WEIGHTS)
    opened = layout.average(layout.open_sum(total, 2, QUANTISER))
    plain = layout.average(layout.sum_plain(VECTORS, WEIGHTS))
    assert opened.total_weight == plain.total_weight
    bound = np.array([0.5, 0.5, 0.5, 1.0]) * QUANTISER.step * (1 + 1e-9)
    assert (np.abs(opened.vector - plain.vector) <= bound).all()


@pytest.mark.parametrize("mechanism", ["none", "upload_noise"])
def test_many_clients(mechanism):
    rng = np.random.default_rng(0)
    layout = build_layout(SPEC, mechanism)
    vectors, weights = list(rng.uniform(-1, 1, (50, 4))), rng.integers(1, 900, 50).tolist()
    total = masked_sum(layout, vectors, weights)
    opened = layout.average(layout.open_sum(total, 50, QUANTISER))
    plain = layout.average(layout.sum_plain(vectors, weights))
    bound = np.array([0.5, 0.5, 0.5, 25.0]) * QUANTISER.step * (1 + 1e-9)
    assert (np.abs(opened.vector - plain.vector) <= bound).all()


@pytest.mark.parametrize("weight", [0, -1, LARGEST_WEIGHT + 1])
def test_a_weight_out_of_range_is_refused(weight):
    with pytest.raises(ProtocolError, match=f"weight: {weight} "):
        build_layout(SPEC, "none").weigh(np.zeros(4, np.uint64), weight)


def test_the_ring_holds_the_largest_weights():
    """Below 2^8 x 2^20 examples x 10 clients needs 32 bits; 2^20 x 2^20 x 10 needs 44."""
    layout = build_layout(SPEC, "none")
    assert layout.ring_bits(QUANTISER, 10) == 32
    assert layout.ring_bits(Quantiser(1.0, 20), 10) == 44
    assert build_layout(SPEC, "upload_noise").ring_bits(Quantiser(1.0, 20), 10) == 24
    levels = np.full(4, QUANTISER.largest_level, np.uint64)
    total = 15 * layout.weigh(levels, LARGEST_WEIGHT).astype(object)
    assert max(total) < 2**32
    assert 17 * 255 * 2**20 >= 2**32
    assert layout.ring_bits(QUANTISER, 17) == 33


def test_a_sum_without_any_weight_is_refused():
    """Clients that claim no example at all cannot turn the state into NaN."""
    layout = build_layout(SPEC, "none")
    with pytest.raises((PlatformError, PrivacyError), match="weight"):
        layout.average(layout.open_sum(np.zeros(5, np.uint64), 2, QUANTISER))


def test_a_sum_that_no_clients_can_have_made_is_refused():
    layout = build_layout(SPEC, "none")
    total = masked_sum(layout, VECTORS, WEIGHTS)
    total[0] = 4 * 255 + 1
    with pytest.raises(ProtocolViolation):
        layout.open_sum(total, 2, QUANTISER)
