"""Rings of 16 to 64 bits: every width packs to its own bits, against Python integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.secure_aggregation import Phase, masking
from privacy.secure_aggregation.masking import pack, packed_bytes, reduce_to_ring, unpack, word_type
from tests.privacy.secure_aggregation._drive import (
    make_active,
    make_parameters,
    make_vectors,
    plain_sum,
    play,
)

WIDTHS = range(16, 65)


def by_hand(values, bits):
    """The oracle: one long integer, little-endian."""
    whole = sum(value << (at * bits) for at, value in enumerate(values))
    return whole.to_bytes(-(-len(values) * bits // 8), "little")


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("length", [1, 2, 7, 64, 65, 200])
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


@pytest.mark.parametrize("bits", [17, 24, 27, 63])
@pytest.mark.parametrize("beyond", [-1, 0, 1, masking._BLOCK + 3])
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


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_a_machine_word_is_read_in_place(bits):
    raw = bytes(range(64))
    read = unpack(memoryview(raw), 64 * 8 // bits, bits)
    assert np.shares_memory(read, np.frombuffer(raw, np.uint8))
    assert not read.flags.writeable


@pytest.mark.parametrize(("bits", "word"), [(16, 2), (17, 4), (32, 4), (33, 8), (64, 8)])
def test_the_word_is_the_smallest_that_fits(bits, word):
    assert word_type(bits).itemsize == word


def test_reduction_keeps_the_low_bits():
    vector = np.array([0, 2**20, 2**20 + 5, 2**32 - 1], "<u4")
    reduce_to_ring(vector, 20)
    assert vector.tolist() == [0, 0, 5, 2**20 - 1]


@pytest.mark.parametrize("bits", WIDTHS)
def test_the_sum_is_exact_in_every_ring(bits):
    parameters = make_parameters(4, ring_bits=bits, vector_length=19, threshold=2)
    vectors = make_vectors(parameters, seed=bits)
    trace = play(parameters, vectors, lost={Phase.MASKED_INPUT: {3}})
    assert trace.finished.total.tolist() == plain_sum(parameters, vectors, (1, 2, 4))
    sizes = {len(message) for message in trace.sent[Phase.MASKED_INPUT].values()}
    assert sizes == {52 + -(-19 * bits // 8) + 16}


def test_an_active_round_in_a_narrow_ring():
    parameters = make_active(4, ring_bits=18, vector_length=5)
    vectors = make_vectors(parameters)
    finished = play(parameters, vectors).finished
    assert finished.total.tolist() == plain_sum(parameters, vectors, (1, 2, 3, 4))
