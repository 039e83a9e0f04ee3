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

OUT_OF_RANGE = {
    "run_id": ("x" * 65_536,),
    "round_number": (2**32,),
    "attempt": (-1,),
    # The threshold is 4.
    "corrupt": (-1, 4),
    "clients": ((1,), (0, 1, 2), (1, 1, 2), (3, 2, 1)),
    "threshold": (1, 6),
    "vector_length": (0,),
    "ring_bits": (15, 65),
    "smallest_sum": (6,),
    "identities": ((bytes(32),),),
    "graph_seed": (bytes(32),),
    # Semi-honest parties have no enrolment file.
    "enrolment_serial": (1,),
}


@pytest.mark.parametrize("named", OUT_OF_RANGE)
def test_a_field_out_of_range_is_named(named):
    for value in OUT_OF_RANGE[named]:
        with pytest.raises(ValueError, match=named):
            make_parameters(5, **{named: value})


def test_the_smallest_and_largest_are_taken():
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
FROM_CLIENT, FROM_SERVER = {"sender": 2}, {"receiver": 2}


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
    ("kind", "parties", "decode", "value"),
    [
        (Kind.ROSTER, FROM_SERVER, messages.decode_roster, bytes(64)),
        (Kind.DEALT_SHARES, FROM_CLIENT, messages.decode_dealt_shares, bytes(94)),
        (Kind.FORWARDED_SHARES, FROM_SERVER, messages.decode_forwarded_shares, bytes(94)),
        (Kind.SURVIVORS, FROM_SERVER, messages.decode_survivors, b""),
        (Kind.REVEALED_SHARES, FROM_CLIENT, messages.decode_revealed_shares, b"\1" + bytes(33)),
    ],
)
def test_a_repeated_or_disordered_client_is_refused(kind, parties, decode, value):
    envelope = Envelope(PARAMETERS, kind, **parties)
    start = bytes(32) if kind is Kind.DEALT_SHARES else b""
    zero, one, three = (struct.pack("<I", index) + value for index in (0, 1, 3))
    decode(PARAMETERS, 2, envelope.close(start + one + three))
    for records in (three + one, one + one, zero + one, one + three + b"\0"):
        with pytest.raises(ProtocolViolation):
            decode(PARAMETERS, 2, envelope.close(start + records))
