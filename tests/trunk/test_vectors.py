"""Named tensors as one flat vector and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from methods import TensorSpec, UpdateSpecMismatch
from platform.wire.layout import flatten, require_spec, tensor_at, unflatten, vector_length

SPEC = {"b": TensorSpec((2, 2)), "a": TensorSpec((3,)), "c": TensorSpec(())}
ARRAYS = {
    "b": np.array([[4.0, 5.0], [6.0, 7.0]], np.float32),
    "a": np.array([1.0, 2.0, 3.0], np.float32),
    "c": np.array(8.0, np.float32),
}


def test_tensors_lie_in_the_order_of_their_names():
    vector = flatten(ARRAYS, SPEC)
    assert vector.dtype == np.float64
    assert vector.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert vector_length(SPEC) == 8


@given(st.lists(st.lists(st.integers(0, 3), max_size=3), max_size=4))
def test_any_shapes_survive(shapes):
    spec = {f"t{i}": TensorSpec(tuple(shape)) for i, shape in enumerate(shapes)}
    rng = np.random.default_rng(0)
    arrays = {n: rng.normal(size=s.shape).astype(np.float32) for n, s in spec.items()}
    vector = flatten(arrays, spec)
    assert len(vector) == vector_length(spec)
    for name, value in unflatten(vector, spec).items():
        assert value.dtype == np.float32 and np.array_equal(value, arrays[name])


def test_a_coordinate_knows_its_tensor():
    assert "".join(tensor_at(coordinate, SPEC) for coordinate in range(8)) == "aaabbbbc"
    with pytest.raises(IndexError):
        tensor_at(8, SPEC)


def test_missing_and_unannounced_tensors_are_refused():
    for arrays in ({**ARRAYS, "d": ARRAYS["a"]}, {"a": ARRAYS["a"]}):
        with pytest.raises(UpdateSpecMismatch, match=r"update: .*announced \['a', 'b', 'c'\]"):
            require_spec(arrays, SPEC)


def test_another_shape_is_refused_by_name():
    with pytest.raises(UpdateSpecMismatch, match=r"tensor 'b' has shape \(4,\).*\(2, 2\)"):
        flatten({**ARRAYS, "b": np.zeros(4)}, SPEC)
