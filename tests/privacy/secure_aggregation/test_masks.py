"""Masks, keys and packed rings against second implementations, and their laws."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.base import Cipher
from cryptography.hazmat.primitives.ciphers.modes import CTR
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from privacy.errors import Authentication
from privacy.randomness import draw
from privacy.secure_aggregation import Phase, client, masking
from privacy.secure_aggregation.keys import PrivateKey, is_usable, seal, unseal
from privacy.secure_aggregation.masking import (
    LARGEST_STREAM,
    Mask,
    add_masks,
    pack,
    packed_bytes,
    unpack,
    word_type,
)
from privacy.secure_aggregation.parameters import LARGEST_INDEX
from tests.privacy.secure_aggregation._drive import make_active, make_parameters, make_regular, play

SMALL_ORDER = [
    bytes(32),
    b"\1" + bytes(31),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    (2**255 - 20).to_bytes(32, "little"),
    (2**255 - 19).to_bytes(32, "little"),
    (2**255 - 18).to_bytes(32, "little"),
]


def test_a_mask_that_the_cipher_cannot_make_in_one_stream_is_refused():
    assert LARGEST_STREAM == 16 * (2**32 - 2)
    # Views of one word, so that 64 GiB need no memory.
    longer = np.broadcast_to(np.zeros(1, "<u8"), (2**33 - 3,))
    with pytest.raises(ValueError, match="a mask has 68719476704"):
        add_masks(longer, [])
    add_masks(longer[:-1], [])
    # The longest vector of the widest ring is half of that.
    assert 8 * LARGEST_INDEX < LARGEST_STREAM


# Both sides of the block in which long vectors are taken.
@pytest.mark.parametrize("size", [16, 2**18 - 4, 2**18 + 4, 2**20 + 36])
@pytest.mark.parametrize("count", [1, 8, 21])
def test_any_number_of_threads_adds_the_ciphers_streams_from_block_2(size, count):
    masks = [Mask(bytes([i]) * 32, negative=i % 3 == 0) for i in range(count)]
    start = np.arange(size // 2, dtype="<u2")
    expected = start.copy()
    for mask in masks:
        counter = Cipher(AES(mask.key), CTR((2).to_bytes(16, "big"))).encryptor()
        words = np.frombuffer(counter.update(bytes(size)), "<u2")
        expected = expected - words if mask.negative else expected + words
    for threads in (1, 2, 64, None):
        total = start.copy()
        add_masks(total, iter(masks), threads=threads)
        assert np.array_equal(total, expected)


def test_an_error_in_a_thread_is_not_lost():
    masks = [Mask(bytes(32), negative=False)] * 7 + [Mask(bytes(31), negative=False)]
    for at in range(8):
        given = masks[at:] + masks[:at]
        with pytest.raises(ValueError, match="key"):
            add_masks(np.zeros(2**18, "<u4"), given, threads=2)


def test_channel_keys_are_not_shown():
    own, peer = (PrivateKey(i, bytes([i]) * 32) for i in (1, 2))
    channel = own.channel_keys(make_parameters(3), 2, peer.public)
    for key in (channel.sending, channel.receiving, b"\1" * 32):
        for form in (repr(key)[2:-1], key.hex()):
            assert form not in repr(channel) + repr(own)


def test_every_client_draws_its_own_secrets():
    states = [client.advertise(make_parameters(4), i)[0] for i in (1, 1, 2)]
    assert len({s for each in states for s in (each.channel_private, each.mask_private)}) == 6
    with pytest.raises(ValueError, match="entropy"):
        draw(lambda size: b"", 32)


@pytest.mark.parametrize(
    "parameters",
    [
        make_parameters(3, vector_length=50_000, ring_bits=21),
        make_regular(8, degree=4, threshold=3, smallest_sum=7, vector_length=50_000, ring_bits=16),
        make_active(3, vector_length=50_000),
    ],
    ids=["21 bits", "k-regular", "active"],
)
def test_very_different_vectors_look_alike_in_every_regime(parameters):
    top = 2**parameters.ring_bits - 1
    rows = []
    for label, value in (("left", 0), ("right", top)):
        vectors = {i: np.full(50_000, value, np.uint64) for i in parameters.clients}
        message = play(parameters, vectors, label=label).sent[Phase.MASKED_INPUT][1]
        size = packed_bytes(50_000, parameters.ring_bits)
        body = np.frombuffer(message[52 : 52 + size], np.uint8)
        rows.append(np.bincount(body, minlength=256))
        assert stats.chisquare(rows[-1]).pvalue > 1e-6
    assert stats.chi2_contingency(rows).pvalue > 1e-6


@pytest.mark.parametrize(("point", "top"), list(itertools.product(SMALL_ORDER, (0, 128))))
def test_a_point_is_usable_exactly_if_it_gives_a_secret(point, top):
    key = X25519PrivateKey.generate()
    whole = int.from_bytes(point, "little")
    for near in (whole - 1, whole, whole + 1, whole * 2, whole // 2):
        public = bytearray((near % 2**255).to_bytes(32, "little"))
        public[31] |= top
        try:
            key.exchange(X25519PublicKey.from_public_bytes(bytes(public)))
        except ValueError:
            assert not is_usable(bytes(public))
        else:
            assert is_usable(bytes(public))


def test_points_of_small_order_are_refused():
    for point in SMALL_ORDER:
        assert not is_usable(point)
        with pytest.raises(Authentication) as caught:
            PrivateKey(1, b"\7" * 32).pairwise_mask_key(make_parameters(3), 2, point)
        assert point.hex() not in str(caught.value)
    assert not is_usable(b"\7" * 31)
    assert not is_usable(b"\7" * 33)


def test_a_changed_box_or_one_of_another_key_or_context_does_not_open():
    box = seal(bytes(32), b"x" * 66, nonce=bytes(12), associated=b"context")
    assert len(box) == 94
    assert unseal(bytes(32), box, associated=b"context") == b"x" * 66
    for position in range(0, 94, 7):
        changed = bytearray(box)
        changed[position] ^= 1
        with pytest.raises(Authentication):
            unseal(bytes(32), bytes(changed), associated=b"context")
    for key, context in ((bytes(32), b"contexT"), (b"\1" * 32, b"context")):
        with pytest.raises(Authentication):
            unseal(key, box, associated=context)


WIDTHS = range(16, 65)


LONG = [masking._BLOCK + beyond for beyond in (-1, 1, masking._BLOCK + 3)]


@pytest.mark.parametrize(
    ("bits", "length"),
    [*itertools.product(WIDTHS, (1, 65)), *itertools.product((17, 63), LONG)],
)
def test_a_packed_vector_is_one_long_integer(bits, length):
    """Little-endian, also where it is packed in blocks."""
    rng = np.random.default_rng(bits * 1000 + length)
    values = rng.integers(0, 2**bits - 1, length, np.uint64, endpoint=True)
    values[0], values[-1] = 2**bits - 1, 2 ** (bits - 1)
    packed = bytes(pack(values.astype(word_type(bits)), bits))
    digits = "".join(f"{value:0{bits}b}" for value in reversed(values.tolist()))
    assert packed == int(digits, 2).to_bytes(-(-length * bits // 8), "little")
    assert len(packed) == packed_bytes(length, bits)
    again = unpack(memoryview(packed), length, bits)
    assert again.dtype == word_type(bits)
    assert again.tolist() == values.tolist()


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
