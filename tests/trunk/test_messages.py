"""What coordinator and clients say: each message survives, and no other passes for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from time import process_time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from platform.errors import ProtocolError
from platform.wire import messages, outside_rounds
from platform.wire.codec import Envelope, Frame, decode_frame, encode_frame, peek
from platform.wire.layout import Fetched
from platform.wire.messages import (
    Answer,
    Assignment,
    Disclosure,
    EnrolledCohort,
    Invitation,
    MaskGraph,
    Relay,
    SecureRound,
    SumTerms,
    Upload,
)
from platform.wire.outside_rounds import (
    Claim,
    Examination,
    Introduction,
    Parting,
    Personalised,
    Scores,
)

ENVELOPE = Envelope("run-1", 3, 2, (2, 1))
EXPERTS = tuple({"context": np.full((2, 3), float(i), np.float32)} for i in range(12))
SEAT = SecureRound(
    index=4,
    clients=10,
    vector_length=8192,
    ring_bits=32,
    terms=SumTerms(7, 1, 6),
    graph=MaskGraph(8, b"s" * 32),
    enrolled=EnrolledCohort((b"k" * 32, b"l" * 32), 3),
)
AFTER = Envelope("run-1", 4, 0, (3, 2))
EXAMPLES = {
    "invitation": Invitation(ENVELOPE, (1, 2), SEAT),
    "answer": Answer(ENVELOPE, tuple(bytes([i]) * 32 for i in range(12)), b"keys"),
    "relay": Relay(ENVELOPE, b"payload"),
    "assignment": Assignment(ENVELOPE, b"boxes", {"context": np.ones((2, 3))}, EXPERTS),
    "upload": Upload(ENVELOPE, b"", np.arange(5.0), 16),
    "disclosure": Disclosure(
        envelope=ENVELOPE,
        payload=b"shares",
        handle=b"h" * 32,
        entry={"levels": np.arange(4, dtype="u8")},
        ahead=b"keys",
    ),
    "introduction": Introduction(Envelope("run-1", 0, 0), "p" * 32, b"k" * 32, (3, 2)),
    "claim": Claim(AFTER, b"h" * 32),
    "parting": Parting(AFTER, {"context": np.ones((2, 3))}, Fetched(EXPERTS, 11)),
    "personalised": Personalised(AFTER, is_new=True),
    "examination": Examination(AFTER, {"context": np.ones(2)}, ("local", "base"), weighs=True),
    "scores": Scores(AFTER, {"local": (3, 4), "base": (0, 9)}, np.full(2, 0.5), (3, 2)),
}
PLAIN = {
    "invitation": Invitation(Envelope("r", 1, 1), (), None),
    "answer": Answer(Envelope("r", 1, 1), (), b""),
    "relay": Relay(Envelope("r", 1, 1), b""),
    "assignment": Assignment(Envelope("r", 1, 1), b"", {}, ()),
    "upload": Upload(Envelope("r", 1, 1), b"masked", None, 0),
    "disclosure": Disclosure(envelope=Envelope("r", 1, 1), payload=b"", handle=b"", entry={}),
    "roll_call": Envelope("r", 0, 0),
    "introduction": Introduction(Envelope("r", 0, 0), "p"),
    "pool_notice": Envelope("r", 2, 0),
    "claim": Claim(Envelope("r", 2, 0), b""),
    "parting": Parting(Envelope("r", 2, 0), {}, None),
    "personalised": Personalised(Envelope("r", 2, 0), is_new=False),
    "examination": Examination(Envelope("r", 0, 0), {}, ()),
    "scores": Scores(Envelope("r", 0, 0), {}, None, None),
}
EXAMPLES |= {name: PLAIN[name] for name in ("roll_call", "pool_notice")}
KINDS = tuple(EXAMPLES)


def room_of(kind: str):
    return messages if hasattr(messages, f"decode_{kind}") else outside_rounds


def encode(kind: str, message) -> bytes:
    return getattr(room_of(kind), f"encode_{kind}")(message)


def decode(kind: str, data: bytes):
    if kind in ("roll_call", "pool_notice"):
        return outside_rounds.decode_bare(data, kind)
    return getattr(room_of(kind), f"decode_{kind}")(data)


def changed(data: bytes, **fields) -> bytes:
    frame = decode_frame(data)
    kept = {k: v for k, v in {**frame.fields, **fields}.items() if v is not ...}
    return encode_frame(dataclasses.replace(frame, fields=kept))


def equal(one, other) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if dataclasses.is_dataclass(one):
        names = [f.name for f in dataclasses.fields(one)]
        return type(one) is type(other) and all(
            equal(getattr(one, n), getattr(other, n)) for n in names
        )
    if isinstance(one, Mapping):
        return set(one) == set(other) and all(equal(one[n], other[n]) for n in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("examples", [EXAMPLES, PLAIN], ids=["full", "plain"])
def test_there_and_back(kind, examples):
    message = examples[kind]
    data = encode(kind, message)
    assert equal(decode(kind, data), message)
    assert encode(kind, decode(kind, data)) == data
    assert peek(data) == (kind, getattr(message, "envelope", message))


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_of_another_kind_is_refused(kind):
    for other in set(KINDS) - {kind}:
        with pytest.raises(ProtocolError, match=f"{kind} was expected"):
            decode(kind, encode(other, EXAMPLES[other]))


NO_ENVELOPES = (
    *({"run_id": 7}, {"round": -1}, {"round": "1"}, {"round": 1.5}, {"attempt": True}),
    *({"attempt": None}, {"committed": []}, {"committed": [1]}, {"committed": [1, 2, 3]}),
    *({"committed": "12"}, {"committed": [1, None]}, {"committed": {"0": 1, "1": 2}}),
    *({"run_id": ...}, {"round": ...}, {"attempt": ...}),
)


@pytest.mark.parametrize("kind", KINDS)
def test_an_envelope_of_wrong_types_or_with_a_part_missing_is_refused(kind):
    for fields in NO_ENVELOPES:
        data = changed(encode(kind, EXAMPLES[kind]), **fields)
        for read in (lambda data: decode(kind, data), peek):
            with pytest.raises(ProtocolError):
                read(data)


@pytest.mark.parametrize("kind", ["answer", "relay", "assignment", "upload", "disclosure"])
def test_a_missing_payload_or_handle_is_refused(kind):
    frame = decode_frame(encode(kind, EXAMPLES[kind]))
    for name in {"payload", "handle"} & frame.blobs.keys():
        blobs = {each: blob for each, blob in frame.blobs.items() if each != name}
        with pytest.raises(ProtocolError, match=f"{name} is missing"):
            decode(kind, encode_frame(dataclasses.replace(frame, blobs=blobs)))


FIELDS = {
    ("invitation", "secure"): (
        *([], [1, 2, 3], [1] * 7, "123456", {"a": 1}, 5, True, [*range(5), None]),
    ),
    ("invitation", "generations"): (None, ..., 1, "12", [-1], [1.5], [None]),
    ("invitation", "clipping_norm"): ("1", 1, True, [1.0]),
    ("assignment", "experts"): (13, -1, None, ..., "12", [12], 10**12),
    ("examination", "sets"): (None, ..., 5, "local", [1], {"local": 1}),
    ("upload", "weight"): (-1, 1.5, None, "3", ..., True),
}


@pytest.mark.parametrize(("kind", "field"), FIELDS)
def test_a_field_of_another_type_or_number_is_refused(kind, field):
    for value in FIELDS[kind, field]:
        with pytest.raises(ProtocolError):
            decode(kind, changed(encode(kind, EXAMPLES[kind]), **{field: value}))


def test_an_upload_whose_vector_is_none_is_refused():
    fields = {"run_id": "r", "round": 1, "attempt": 1, "weight": 1}
    others = (np.zeros(3, np.float32), np.zeros(3, np.int64), np.array(1.0))
    for vector in (np.zeros((2, 2)), *others):
        data = encode_frame(Frame("upload", fields, {"vector": vector}, {"payload": b""}))
        with pytest.raises(ProtocolError, match="not flat"):
            decode("upload", data)


@given(st.sampled_from(KINDS), st.data())
def test_a_broken_message_is_refused_or_another_message_and_nothing_else(kind, data):
    broken = bytearray(encode(kind, EXAMPLES[kind]))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(broken) - 1))
        broken[position] = data.draw(st.integers(0, 255))
    for read in KINDS:
        with suppress(ProtocolError):
            decode(read, bytes(broken))


def test_experts_are_sorted_out_in_one_pass():
    """Once a name was looked at for every expert: 8,000 empty ones took 24 seconds."""
    nothing = ({"x": np.zeros(0, np.float32)},) * 8_000
    whole, started = encode("assignment", Assignment(ENVELOPE, b"", {}, nothing)), process_time()
    assert len(decode("assignment", whole).experts) == len(nothing)
    assert process_time() - started < 3.0


def test_an_array_that_belongs_to_nothing_is_refused():
    fields = {"run_id": "r", "round": 1, "attempt": 1, "committed": None, "experts": 1}
    experts = ("expert/0000", "expert/00/x", "expert/0001/x", "expert/+000/x")
    for name in ("x", "broadcast", *experts):
        frame = Frame("assignment", fields, {name: np.zeros(1)}, {"payload": b""})
        with pytest.raises(ProtocolError):
            decode("assignment", encode_frame(frame))
