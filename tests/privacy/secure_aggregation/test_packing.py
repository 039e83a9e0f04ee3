"""Rings of 16 to 64 bits: every width packs to its own bits, against Python integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.secure_aggregation import masking
from privacy.secure_aggregation.masking import pack, packed_bytes, unpack, word_type

WIDTHS = range(16, 65)


def by_hand(values, bits):
    """The oracle: one long integer, little-endian."""
    whole = sum(value << (at * bits) for at, value in enumerate(values))
    return whole.to_bytes(-(-len(values) * bits // 8), "little")


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("length", [1, 7, 65])
def test_a_packed_vector_is_one_long_integer(bits, length):
    rng = np.random.default_rng(bits * 1000 + length)
    values = rng.integers(0, 2**bits - 1, length, np.uint64, endpoint=True)
    values[0], values[-1] = 2**bits - 1, 2 ** (bits - 1)
    packed = bytes(pack(values.astype(word_type(bits)), bits))
    assert packed == by_hand(values.tolist(), bits)
    assert len(packed) == packed_bytes(length, bits)
    again = unpack(memoryview(packed), length, bits)
    assert again.dtype == word_type(bits)
    assert again.tolist() == values.tolist()


@pytest.mark.parametrize("bits", [17, 63])
@pytest.mark.parametrize("beyond", [-1, 1, masking._BLOCK + 3])
def test_a_long_vector_is_packed_in_blocks_and_is_still_one_long_integer(bits, beyond):
    length = masking._BLOCK + beyond
    values = np.random.default_rng(length).integers(0, 2**bits, length, np.uint64)
    packed = pack(values.astype(word_type(bits)), bits)
    digits = "".join(f"{value:0{bits}b}" for value in reversed(values.tolist()))
    assert packed == int(digits, 2).to_bytes(packed_bytes(length, bits), "little")
    assert unpack(memoryview(packed), length, bits).tolist() == values.tolist()


@settings(derandomize=True)
@given(st.sampled_from(WIDTHS), st.integers(1, 40), st.data())
def test_other_bytes_are_refused_or_come_out_again(bits, length, data):
    size = packed_bytes(length, bits)
    raw = data.draw(st.binary(min_size=max(0, size - 1), max_size=size + 1))
    vector = unpack(memoryview(raw), length, bits)
    if len(raw) != size or int.from_bytes(raw, "little") >> (bits * length):
        assert vector is None
    else:
        assert bytes(pack(vector, bits)) == raw
