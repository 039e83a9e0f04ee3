"""Parameters refuse what no round can run with, and every field is in the digest."""

from __future__ import annotations

import pytest

from privacy.secure_aggregation import default_threshold
from privacy.secure_aggregation.parameters import decode_parameters
from tests.privacy.secure_aggregation._drive import make_active, make_parameters


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"run_id": ""}, "run_id"),
        ({"run_id": "x" * 65_536}, "run_id"),
        ({"round_number": -1}, "round_number"),
        ({"round_number": 2**32}, "round_number"),
        ({"attempt": -1}, "attempt"),
        ({"corrupt": -1}, "corrupt"),
        ({"clients": (1,)}, "clients"),
        ({"clients": ()}, "clients"),
        ({"clients": (0, 1, 2)}, "clients"),
        ({"clients": (1, 2, 2**32)}, "clients"),
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
        ({"enrolment_serial": -1}, "enrolment_serial"),
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
