"""Parameters and the wire format, byte by byte; decoders raise one error for everything else."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from privacy.errors import ProtocolViolation
from privacy.secure_aggregation import default_threshold, messages
from privacy.secure_aggregation.masking import word_type
from privacy.secure_aggregation.messages import Envelope, Kind, MaskedInput
from privacy.secure_aggregation.parameters import decode_parameters
from tests.privacy.secure_aggregation._drive import make_active, make_parameters


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"run_id": "x" * 65_536}, "run_id"),
        ({"round_number": 2**32}, "round_number"),
        ({"attempt": -1}, "attempt"),
        ({"corrupt": -1}, "corrupt"),
        ({"clients": (1,)}, "clients"),
        ({"clients": (0, 1, 2)}, "clients"),
        ({"clients": (1, 1, 2)}, "clients"),
        ({"clients": (3, 2, 1)}, "clients"),
        ({"threshold": 1}, "threshold"),
        ({"threshold": 6}, "threshold"),
        ({"threshold": 3, "corrupt": 3}, "corrupt"),
        ({"vector_length": 0}, "vector_length"),
        ({"ring_bits": 15}, "ring_bits"),
        ({"ring_bits": 65}, "ring_bits"),
        ({"smallest_sum": 6}, "smallest_sum"),
        ({"identities": (bytes(32),)}, "identities"),
        ({"graph_seed": bytes(32)}, "graph_seed"),
        # Semi-honest parties have no enrolment file.
        ({"enrolment_serial": 1}, "enrolment_serial"),
    ],
)
def test_a_field_out_of_range_is_named(change, named):
    with pytest.raises(ValueError, match=named):
        make_parameters(5, **change)


def test_the_smallest_and_largest_are_taken():
    make_parameters(2, threshold=2)
    make_parameters(2, clients=(1, 2**32 - 1))
    make_parameters(5, threshold=3, corrupt=2)


def test_the_enrolments_serial_is_in_the_digest_and_has_63_bits():
    digests = {make_active(5, enrolment_serial=at).digest for at in (0, 1, 5, 2**32, 2**63 - 1)}
    assert len(digests) == 5
    for serial in (-1, 2**63):
        with pytest.raises(ValueError, match="enrolment_serial"):
            make_active(5, enrolment_serial=serial)


def test_the_encoding_reads_back():
    for parameters in (
        make_parameters(5, run_id="räum", corrupt=2),
        make_active(5, enrolment_serial=2**63 - 1),
    ):
        assert decode_parameters(parameters.encode()) == parameters


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[:10],
        lambda data: b"\x01" + data[1:],
        lambda data: data[:1] + b"\x41" + data[2:],
        lambda data: data[:2] + b"\x02" + data[3:],
        lambda data: data[:2] + b"\x01" + data[3:],
        lambda data: data.replace(b"run", b"r\xffn"),
    ],
)
def test_other_encodings_are_refused(spoil):
    with pytest.raises(ValueError):
        decode_parameters(spoil(make_parameters(5).encode()))


@pytest.mark.parametrize("make", [bytearray, memoryview])
def test_what_was_read_before_is_still_to_be_bytes(make):
    encoded = make_parameters(3).encode()
    decode_parameters(encoded)
    with pytest.raises(ValueError, match="truncated"):
        decode_parameters(make(encoded))


def test_the_default_threshold_is_two_thirds_and_one():
    assert [default_threshold(n) for n in (2, 3, 4, 5, 6, 9, 10, 100)] == [
        2, 3, 3, 4, 5, 7, 7, 67,
    ]  # fmt: skip
    with pytest.raises(ValueError, match="at least 2"):
        default_threshold(1)


PARAMETERS = make_parameters(3)
DECODERS = {
    Kind.ADVERTISED_KEYS: messages.decode_advertised_keys,
    Kind.ROSTER: messages.decode_roster,
    Kind.DEALT_SHARES: messages.decode_dealt_shares,
    Kind.FORWARDED_SHARES: messages.decode_forwarded_shares,
    Kind.MASKED_INPUT: messages.decode_masked_input,
    Kind.SURVIVORS: messages.decode_survivors,
    Kind.REVEALED_SHARES: messages.decode_revealed_shares,
}
FROM_SERVER = {Kind.ROSTER, Kind.FORWARDED_SHARES, Kind.SURVIVORS}


def envelope(kind):
    party = "receiver" if kind in FROM_SERVER else "sender"
    return Envelope(PARAMETERS, kind, **{party: 2})


@pytest.mark.parametrize("bits", [21, 32])
def test_complaints_stand_before_the_vector(bits):
    parameters = make_parameters(3, ring_bits=bits, vector_length=5)
    words = np.arange(5).astype(word_type(bits))
    plain = messages.encode_masked_input(parameters, 2, MaskedInput(words))
    message = messages.encode_masked_input(parameters, 2, MaskedInput(words, (1, 3)))
    assert message[52:60] == struct.pack("<2I", 1, 3)
    assert message[60:-16] == plain[52:-16]
    read = messages.decode_masked_input(parameters, 2, message)
    assert read.withheld == (1, 3)
    assert np.array_equal(read.vector, words)
    sender = Envelope(parameters, Kind.MASKED_INPUT, sender=2)
    for complaints in ((3, 1), (1, 1), (0, 1)):
        before = struct.pack("<2I", *complaints)
        closed = sender.close(before, vector=plain[52:-16])
        with pytest.raises(ProtocolViolation):
            messages.decode_masked_input(parameters, 2, closed)
    with pytest.raises(ProtocolViolation):
        # A masked vector that lost its first complaint, or an element at the end.
        messages.decode_masked_input(parameters, 2, message[:52] + message[56:])
    for lost in range(1, len(message)):
        with pytest.raises(ProtocolViolation):
            messages.decode_masked_input(parameters, 2, message[:-lost])
    for bit in range(8 * 52, 8 * 60):
        changed = bytearray(message)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ProtocolViolation):
            messages.decode_masked_input(parameters, 2, bytes(changed))


def test_spare_bits_after_the_vector_are_zero():
    # Five elements of 21 bits leave seven bits of the last byte.
    parameters = make_parameters(3, ring_bits=21, vector_length=5)
    sender = Envelope(parameters, Kind.MASKED_INPUT, sender=2)
    for complaints in (b"", struct.pack("<I", 3)):
        closed = sender.close(complaints, vector=bytes(13) + b"\1")
        messages.decode_masked_input(parameters, 2, closed)
        for last in (b"\2", b"\x80", b"\xff"):
            with pytest.raises(ProtocolViolation):
                closed = sender.close(complaints, vector=bytes(13) + last)
                messages.decode_masked_input(parameters, 2, closed)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Kind.ROSTER, bytes(64)),
        (Kind.DEALT_SHARES, bytes(94)),
        (Kind.FORWARDED_SHARES, bytes(94)),
        (Kind.SURVIVORS, b""),
        (Kind.REVEALED_SHARES, b"\1" + bytes(33)),
    ],
)
def test_a_repeated_or_disordered_client_is_refused(kind, value):
    start = bytes(32) if kind is Kind.DEALT_SHARES else b""
    zero, one, three = (struct.pack("<I", index) + value for index in (0, 1, 3))
    read = DECODERS[kind]
    read(PARAMETERS, 2, envelope(kind).close(start + one + three))
    for records in (three + one, one + one, zero + one, one + three + b"\0"):
        with pytest.raises(ProtocolViolation):
            read(PARAMETERS, 2, envelope(kind).close(start + records))
