"""Masks and keys against a second implementation from the standard library, and their laws."""

from __future__ import annotations

import collections
import hmac
import itertools

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.base import Cipher
from cryptography.hazmat.primitives.ciphers.modes import CTR, ECB
from scipy import stats

from privacy.errors import Authentication
from privacy.randomness import draw
from privacy.secure_aggregation import Phase, client, masking
from privacy.secure_aggregation.keys import PrivateKey, is_usable, seal, self_mask_key, unseal
from privacy.secure_aggregation.masking import LARGEST_STREAM, Mask, add_masks, packed_bytes
from privacy.secure_aggregation.parameters import LARGEST_INDEX
from tests.privacy.secure_aggregation._drive import (
    make_active,
    make_parameters,
    make_regular,
    make_vectors,
    play,
)

SMALL_ORDER = [
    bytes(32),
    b"\1" + bytes(31),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    (2**255 - 20).to_bytes(32, "little"),
    (2**255 - 19).to_bytes(32, "little"),
    (2**255 - 18).to_bytes(32, "little"),
]


def hkdf(secret, info, size):
    """RFC 5869 with SHA-256 and no salt, from the standard library alone."""
    key = hmac.digest(bytes(32), secret, "sha256")
    blocks, block = b"", b""
    for counter in range(1, size // 32 + 1):
        block = hmac.digest(key, block + info + bytes([counter]), "sha256")
        blocks += block
    return blocks


def stream(key, count, size):
    """AES-256 of the counter blocks from 2 on, each encrypted for itself, as Python integers."""
    encrypt = Cipher(AES(key), ECB()).encryptor()  # noqa: S305
    counters = range(2, 2 - (-count * size // 16))
    blocks = encrypt.update(b"".join(i.to_bytes(16, "big") for i in counters))
    return [int.from_bytes(blocks[i * size : (i + 1) * size], "little") for i in range(count)]


def public_of(private):
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def derived(trace, private, own, peer, public, purpose, size=32):
    ends = sorted([(own, public_of(private)), (peer, public)])
    info = b"sotto/secure-aggregation/" + purpose + trace.parameters.digest
    info += b"".join(index.to_bytes(4, "little") + key for index, key in ends)
    secret = X25519PrivateKey.from_private_bytes(private).exchange(
        X25519PublicKey.from_public_bytes(public)
    )
    return hkdf(secret, info, size)


@pytest.mark.parametrize("ring_bits", [32, 64])
def test_the_masked_input_is_what_the_paper_says(ring_bits):
    parameters = make_parameters(3, clients=(2, 5, 9), ring_bits=ring_bits, vector_length=11)
    vectors = make_vectors(parameters)
    trace = play(parameters, vectors)
    advertised, ready = trace.states[Phase.SHARE_KEYS], trace.states[Phase.MASKED_INPUT]
    for own, state in ready.items():
        info = b"sotto/secure-aggregation/self-mask" + parameters.digest + own.to_bytes(4, "little")
        masks = [(1, hkdf(state.seed, info, 32))]
        for peer in {2, 5, 9} - {own}:
            public = public_of(advertised[peer].mask_private)
            key = derived(trace, advertised[own].mask_private, own, peer, public, b"pairwise-mask")
            masks.append((1 if own < peer else -1, key))
        expected = vectors[own].tolist()
        for sign, key in masks:
            words = stream(key, 11, ring_bits // 8)
            expected = [(x + sign * m) % 2**ring_bits for x, m in zip(expected, words, strict=True)]
        body = trace.sent[Phase.MASKED_INPUT][own][52:-16]
        assert np.frombuffer(body, f"<u{ring_bits // 8}").tolist() == expected


def test_a_box_opens_with_the_key_the_specification_gives():
    parameters = make_parameters(3, clients=(2, 5, 9))
    trace = play(parameters, make_vectors(parameters))
    advertised, shared = trace.states[Phase.SHARE_KEYS], trace.after[Phase.SHARE_KEYS]
    for dealer, receiver in itertools.permutations((2, 5, 9), 2):
        public = public_of(advertised[receiver].channel_private)
        private = advertised[dealer].channel_private
        both = derived(trace, private, dealer, receiver, public, b"channel", 64)
        key = both[:32] if dealer < receiver else both[32:]
        records = trace.sent[Phase.SHARE_KEYS][dealer][52 + 32 : -16]
        boxes = {
            int.from_bytes(records[at : at + 4], "little"): records[at + 4 : at + 98]
            for at in range(0, len(records), 98)
        }
        box = boxes[receiver]
        context = trace.sent[Phase.SHARE_KEYS][dealer][:48] + receiver.to_bytes(4, "little")
        plain = AESGCM(key).decrypt(box[:12], box[12:], context)
        held = trace.states[Phase.MASKED_INPUT][receiver].shares[dealer]
        assert plain == held.key + held.seed
        assert shared[receiver].receiving_keys[dealer] == key


def test_pairwise_masks_cancel():
    parameters = make_parameters(4, vector_length=100)
    keys = {i: PrivateKey(i, bytes([i]) * 32) for i in parameters.clients}
    total = np.zeros(100, "<u4")
    for own, peer in itertools.permutations(parameters.clients, 2):
        key = keys[own].pairwise_mask_key(parameters, peer, keys[peer].public)
        add_masks(total, [Mask(key, negative=peer < own)])
        assert key == keys[peer].pairwise_mask_key(parameters, own, keys[own].public)
    assert not total.any()


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_a_mask_is_added_in_place_and_subtracted_again(bits):
    vector = np.arange(100_000, dtype=f"<u{bits // 8}")
    before = vector.copy()
    add_masks(vector, [Mask(bytes(32), negative=False)])
    expected = stream(bytes(32), 100_000, bits // 8)
    assert vector.tolist() == [(i + m) % 2**bits for i, m in enumerate(expected)]
    add_masks(vector, [Mask(bytes(32), negative=True)])
    assert np.array_equal(vector, before)


@pytest.mark.parametrize("size", [16, 2**18 - 4, 2**18, 2**18 + 4, 2**19, 2**19 + 36])
def test_a_mask_is_the_cipher_in_counter_mode_from_block_2(size):
    # Both sides of the block in which long vectors are taken, by a mode of another name.
    key = bytes(range(32))
    counter = Cipher(AES(key), CTR((2).to_bytes(16, "big"))).encryptor()
    vector = np.zeros(size // 4, "<u4")
    add_masks(vector, [Mask(key, negative=False)])
    assert vector.tobytes() == counter.update(bytes(size))


def test_a_mask_that_the_cipher_cannot_make_in_one_stream_is_refused():
    assert LARGEST_STREAM == 16 * (2**32 - 2)
    # Views of one word, so that 64 GiB need no memory.
    longer = np.broadcast_to(np.zeros(1, "<u8"), (2**33 - 3,))
    with pytest.raises(ValueError, match="a mask has 68719476704"):
        add_masks(longer, [])
    add_masks(longer[:-1], [])
    # The longest vector of the widest ring is half of that.
    assert 8 * LARGEST_INDEX < LARGEST_STREAM


@pytest.mark.parametrize("size", [2**10, 2**20 - 4, 2**20, 2**20 + 36])
@pytest.mark.parametrize("count", [1, 7, 8, 9, 21])
def test_any_number_of_threads_gives_the_same_sum(size, count):
    masks = [Mask(bytes([i]) * 32, negative=i % 3 == 0) for i in range(count)]
    start = np.arange(size // 2, dtype="<u2")
    expected = start.copy()
    for mask in masks:
        counter = Cipher(AES(mask.key), CTR((2).to_bytes(16, "big"))).encryptor()
        words = np.frombuffer(counter.update(bytes(size)), "<u2")
        expected = expected - words if mask.negative else expected + words
    for threads in (1, 2, 3, 5, 64, None):
        total = start.copy()
        add_masks(total, iter(masks), threads=threads)
        assert np.array_equal(total, expected)


def test_an_error_in_a_thread_is_not_lost():
    masks = [Mask(bytes(32), negative=False)] * 7 + [Mask(bytes(31), negative=False)]
    for at in range(8):
        given = masks[at:] + masks[:at]
        with pytest.raises(ValueError, match="key"):
            add_masks(np.zeros(2**18, "<u4"), given, threads=2)


def test_every_pair_makes_one_stream(monkeypatch):
    # n self masks on each side and one mask of each pair at both ends, whatever the length.
    for length in (8, 2**18):
        made = []

        def counted(key, made=made):
            made.append(key)
            return AESGCM(key)

        def begun(algorithm, mode, made=made):
            made.append(algorithm.key)
            return Cipher(algorithm, mode)

        monkeypatch.setattr(masking, "AESGCM", counted)
        monkeypatch.setattr(masking, "Cipher", begun)
        parameters = make_parameters(4, vector_length=length)
        play(parameters, make_vectors(parameters))
        counts = collections.Counter(map(bytes, made))
        assert sorted(counts.values()) == [2] * (4 + 6)


def test_every_key_is_its_own():
    seen = set()
    changes = [{}, {"run_id": "other"}, {"round_number": 4}, {"attempt": 1}]
    for change in changes:
        parameters = make_parameters(4, **change)
        keys = {i: PrivateKey(i, bytes([i]) * 32) for i in parameters.clients}
        for own, peer in itertools.combinations(parameters.clients, 2):
            seen.add(keys[own].pairwise_mask_key(parameters, peer, keys[peer].public))
            channel = keys[own].channel_keys(parameters, peer, keys[peer].public)
            seen |= {channel.sending, channel.receiving}
            back = keys[peer].channel_keys(parameters, own, keys[own].public)
            assert (channel.sending, channel.receiving) == (back.receiving, back.sending)
        seen |= {self_mask_key(parameters, i, bytes(32)) for i in parameters.clients}
    assert len(seen) == len(changes) * (3 * 6 + 4)


def test_channel_keys_are_not_shown():
    parameters = make_parameters(3)
    own, peer = (PrivateKey(i, bytes([i]) * 32) for i in (1, 2))
    channel = own.channel_keys(parameters, 2, peer.public)
    for key in (channel.sending, channel.receiving, b"\1" * 32):
        for form in (repr(key)[2:-1], key.hex()):
            assert form not in repr(channel) + repr(own)


def test_two_rounds_share_no_secret_and_no_mask():
    parameters = make_parameters(4)
    vectors = {i: np.zeros(8, np.uint64) for i in parameters.clients}
    rounds = []
    for number in (0, 1):
        parameters = make_parameters(4, round_number=number)
        states = [client.advertise(parameters, i)[0] for i in parameters.clients]
        secrets = {s for state in states for s in (state.channel_private, state.mask_private)}
        assert len(secrets) == 8
        masked = play(parameters, vectors, label=str(number)).sent[Phase.MASKED_INPUT]
        rounds.append((secrets, {message[52:-16] for message in masked.values()}))
    assert not rounds[0][0] & rounds[1][0]
    assert not rounds[0][1] & rounds[1][1]
    assert all(len(masked) == 4 for _, masked in rounds)


@pytest.mark.parametrize("value", [0, 1, 2**32 - 1])
def test_masked_bytes_look_uniform_whatever_the_vector(value):
    parameters = make_parameters(3, vector_length=50_000)
    vectors = {i: np.full(50_000, value, np.uint64) for i in parameters.clients}
    masked = play(parameters, vectors, label="uniform").sent[Phase.MASKED_INPUT]
    for message in masked.values():
        body = np.frombuffer(message[52:-16], np.uint8)
        assert stats.chisquare(np.bincount(body, minlength=256)).pvalue > 1e-6
        words = body.view("<u4")
        # The same words in another order: neighbours must not depend on each other either.
        assert stats.chisquare(np.bincount(np.diff(words) >> 24, minlength=256)).pvalue > 1e-6
        assert not np.array_equal(words, np.full(50_000, value, "<u4"))


def test_two_vectors_masked_alike_are_not_told_apart():
    parameters = make_parameters(3, vector_length=50_000)
    counts = []
    for value, label in ((0, "left"), (12345, "right")):
        vectors = {i: np.full(50_000, value, np.uint64) for i in parameters.clients}
        message = play(parameters, vectors, label=label).sent[Phase.MASKED_INPUT][1]
        counts.append(np.bincount(np.frombuffer(message[52:-16], np.uint8), minlength=256))
    assert stats.chi2_contingency(counts).pvalue > 1e-6


@pytest.mark.parametrize(
    "parameters",
    [
        make_parameters(3, vector_length=50_000, ring_bits=21),
        make_parameters(3, vector_length=50_000, ring_bits=64),
        make_regular(8, degree=4, threshold=3, smallest_sum=7, vector_length=50_000, ring_bits=16),
        make_active(3, vector_length=50_000),
    ],
    ids=["21 bits", "64 bits", "k-regular", "active"],
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


def test_no_two_pairs_rounds_or_runs_share_a_mask():
    seen, count = set(), 0
    for change in ({}, {"run_id": "other"}, {"round_number": 4}, {"attempt": 1}):
        for make in (make_parameters, make_active):
            parameters = make(4, **change)
            # The very same randomness each time, as after a broken generator.
            trace = play(parameters, make_vectors(parameters), label="same")
            for own, state in trace.states[Phase.MASKED_INPUT].items():
                keys = {key for peer, key in state.mask_keys.items() if peer > own}
                keys.add(self_mask_key(parameters, own, state.seed))
                count += len(keys)
                seen |= {bytes(stream(key, 4, 8)[0].to_bytes(8, "little")) for key in keys}
    assert len(seen) == count == 8 * (6 + 4)


@pytest.mark.parametrize("top", [0, 128])
@pytest.mark.parametrize("point", SMALL_ORDER)
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


@pytest.mark.parametrize("point", SMALL_ORDER)
def test_points_of_small_order_are_refused(point):
    assert not is_usable(point)
    with pytest.raises(Authentication) as caught:
        PrivateKey(1, b"\7" * 32).pairwise_mask_key(make_parameters(3), 2, point)
    assert point.hex() not in str(caught.value)


def test_ordinary_and_misshapen_points():
    assert is_usable(public_of(b"\5" * 32))
    assert not is_usable(b"\7" * 31)
    assert not is_usable(b"\7" * 33)


@pytest.mark.parametrize("position", range(0, 94, 7))
def test_a_changed_box_does_not_open(position):
    box = bytearray(seal(bytes(32), b"x" * 66, nonce=bytes(12), associated=b"context"))
    assert len(box) == 94
    assert unseal(bytes(32), bytes(box), associated=b"context") == b"x" * 66
    box[position] ^= 1
    with pytest.raises(Authentication):
        unseal(bytes(32), bytes(box), associated=b"context")


def test_a_box_in_another_context_does_not_open():
    box = seal(bytes(32), b"x" * 66, nonce=bytes(12), associated=b"context")
    with pytest.raises(Authentication):
        unseal(bytes(32), box, associated=b"contexT")
    with pytest.raises(Authentication):
        unseal(b"\1" * 32, box, associated=b"context")


def test_a_broken_source_of_entropy_is_refused():
    with pytest.raises(ValueError, match="entropy"):
        draw(lambda size: b"", 32)


def test_the_oracle_knows_rfc_5869():
    # Test case 3 of RFC 5869, first 32 bytes: SHA-256, no salt, no info.
    expected = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
    assert hkdf(b"\x0b" * 22, b"", 32).hex() == expected
