"""The frame of all messages: what goes in comes out, and nothing else ever comes out."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from platform.errors import ProtocolError
from platform.wire.codec import (
    LARGEST_INTEGER,
    MAGIC,
    MAX_BUFFERS,
    MAX_HEADER,
    MAX_NAME,
    MAX_RANK,
    PREFIX,
    VERSION,
    Frame,
    decode_arrays,
    decode_frame,
    encode_arrays,
    encode_frame,
)
from tests.trunk._runs import slow

DTYPES = ("float32", "float64", "int64", "uint32", "uint64")

arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: npst.arrays(
        dtype,
        npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
        elements={"allow_nan": False, "allow_infinity": False} if "float" in dtype else None,
    )
)
names = st.text(max_size=8)
integers = st.integers(-LARGEST_INTEGER, LARGEST_INTEGER)
frames = st.builds(
    Frame,
    kind=st.text(max_size=8),
    fields=st.dictionaries(
        names, st.none() | integers | st.text(max_size=5) | st.lists(integers, max_size=3)
    ),
    arrays=st.dictionaries(names.map(lambda n: f"a{n}"), arrays, max_size=3),
    blobs=st.dictionaries(names.map(lambda n: f"b{n}"), st.binary(max_size=20), max_size=3),
)


def frame_bytes(document, body: bytes = b"") -> bytes:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return PREFIX.pack(MAGIC, VERSION, len(text)) + text + body


def buffers(*entries, body: bytes = b"") -> bytes:
    return frame_bytes({"kind": "k", "fields": {}, "buffers": list(entries)}, body)


def entry(name="x", dtype="float32", shape=(1,)):
    return {"name": name, "dtype": dtype, "shape": list(shape)}


@given(frames)
def test_there_and_back(frame):
    data = encode_frame(frame)
    back = decode_frame(data)
    assert (back.kind, back.fields, back.blobs) == (frame.kind, frame.fields, frame.blobs)
    assert set(back.arrays) == set(frame.arrays)
    for name, value in frame.arrays.items():
        assert back.arrays[name].dtype == value.dtype
        assert back.arrays[name].shape == value.shape
        assert np.array_equal(back.arrays[name], value)
    assert encode_frame(back) == data
    named = decode_arrays(encode_arrays(frame.arrays))
    for name, value in frame.arrays.items():
        assert np.array_equal(named[name], value)
        named[name][...] = 0  # writable, and of nobody else


def test_a_known_frame():
    """Little-endian throughout, whatever the machine and the array's own byte order."""
    frame = Frame("k", {"n": 1}, {"x": np.array([1.0, -2.0], ">f4")}, {"y": b"\x00\xff"})
    header = (
        b'{"buffers":[{"dtype":"float32","name":"x","shape":[2]},'
        b'{"dtype":"bytes","name":"y","shape":[2]}],"fields":{"n":1},"kind":"k"}'
    )
    prefix = b"SOTTO\x01" + struct.pack("<I", len(header))
    body = bytes.fromhex("0000803f000000c000ff")
    assert encode_frame(frame) == prefix + header + body


@given(frames, st.data(), st.binary(min_size=1, max_size=9))
@settings(max_examples=60)
def test_a_cut_frame_is_refused_and_so_are_trailing_bytes(frame, data, rest):
    whole = encode_frame(frame)
    end = data.draw(st.integers(0, len(whole) - 1))
    for spoilt in (whole[:end], whole + rest):
        with pytest.raises(ProtocolError):
            decode_frame(spoilt)


@given(st.binary(max_size=200))
@example(MAGIC)
@example(PREFIX.pack(MAGIC, VERSION, 0))
@example(PREFIX.pack(MAGIC, VERSION, 2) + b"{}")
@example(PREFIX.pack(MAGIC, VERSION, MAX_HEADER + 1) + b"{}")
def test_noise_is_refused(data):
    with pytest.raises(ProtocolError):
        decode_frame(data)


FLIPPED = encode_frame(
    Frame(
        "assignment",
        {"run_id": "r", "round": 3, "committed": [1, 2]},
        {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.arange(2)},
        {"payload": b"secret"},
    )
)


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_gives_a_frame_or_a_refusal_and_nothing_else(bit):
    for position in range(len(FLIPPED)):
        broken = bytearray(FLIPPED)
        broken[position] ^= 1 << bit
        try:
            frame = decode_frame(bytes(broken))
        except ProtocolError:
            continue
        assert all(np.isfinite(value).all() for value in frame.arrays.values())
        # A frame that was read can be written: nothing odd got through.
        decode_frame(encode_frame(frame))


TOKENS = [
    *(b'{}[],:"'[i : i + 1] for i in range(7)),
    *(b'"kind"', b'"fields"', b'"buffers"', b'"name"', b'"dtype"', b'"shape"', b'"float32"'),
    *(b"0", b"-1", b"1e9", b"1e999", b"9" * 30, b"null", b"true", b'"\\ud800"', b"\xff", b" "),
]


@given(st.lists(st.sampled_from(TOKENS), max_size=40).map(b"".join), st.binary(max_size=16))
def test_any_text_gives_a_frame_or_a_refusal_and_nothing_else(text, body):
    for header in (
        text,
        b'{"kind":"k","fields":{},"buffers":[' + text + b"]}",
        b'{"kind":"k","buffers":[],"fields":' + text + b"}",
        b'{"kind":"k","fields":{},"buffers":[{"name":"x","dtype":"bytes","shape":' + text + b"}]}",
    ):
        try:
            frame = decode_frame(frame_bytes(header, body))
        except ProtocolError:
            continue
        decode_frame(encode_frame(frame))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_that_are_not_finite_are_refused_on_both_sides(value, dtype):
    with pytest.raises(ProtocolError, match="'x' is not finite"):
        encode_arrays({"x": np.array([1.0, value], dtype)})
    good = encode_frame(Frame("arrays", {}, {"x": np.array([1.0, 2.0], dtype)}, {}))
    bad = np.array([1.0, value], dtype).tobytes()
    with pytest.raises(ProtocolError, match="'x' is not finite"):
        decode_arrays(good[: -len(bad)] + bad)


DTYPES_REFUSED = ("float16", "object", "<f4", None, ["float32"])
SHAPES = ([2**62], [2**64], [2**31] * 3, [0, 2**70], [1] * 100, [-1], [1.0], [True], ["1"], "1", 1)
HEADERS = (
    (b"{", "parse"),
    (b"[]", "not valid"),
    (b"[" * 100_000, "parse"),
    (b'{"kind":"k","fields":{},"buffers":[],"more":1}', "header is not valid"),
    (b'{"kind":"k","fields":7,"buffers":[]}', "header is not valid"),
    (b'{"kind":"k","fields":{},"buffers":7}', "list of buffers"),
    (b'{"kind":"k","fields":{},"buffers":["x"]}', "parse"),
    (b'{"kind":"k","fields":{},"buffers":[{}]}', "parse"),
    ('{"kind":"k","fields":{},"buffers":[]}'.encode("utf-16"), "parse"),
    # Of two readers one would take the first and one the last.
    (b'{"kind":"k","fields":{"round":1,"round":2},"buffers":[]}', "key is repeated"),
    (b'{"kind":"k","fields":{"n":-1e400},"buffers":[]}', "not finite"),
    (b'{"kind":"k","fields":{"n":NaN},"buffers":[]}', "not finite"),
)
VERSIONED = MAGIC + bytes([VERSION])
REFUSED = [
    *((buffers(entry(dtype=dtype), body=b"\0" * 4), "message") for dtype in DTYPES_REFUSED),
    *(
        (buffers({"name": "x", "dtype": dtype, "shape": shape}, body=b"\0" * 8), "message")
        for shape in SHAPES
        for dtype in ("float32", "bytes")
    ),
    (buffers(entry(), entry(dtype="bytes", shape=[4]), body=b"\0" * 8), "is repeated"),
    (encode_arrays({}).replace(VERSIONED, MAGIC + bytes([VERSION + 1])), "version 1"),
    *((frame_bytes(text), words) for text, words in HEADERS),
]


@pytest.mark.parametrize(("data", "words"), REFUSED)
def test_what_is_no_frame_is_refused(data, words):
    with pytest.raises(ProtocolError, match=words):
        decode_frame(data)


@pytest.mark.parametrize(
    "frame", [Frame("other", {}, {}, {}), Frame("arrays", {"x": 1}, {}, {"x": b""})]
)
def test_named_arrays_are_nothing_else(frame):
    with pytest.raises(ProtocolError, match="not named arrays"):
        decode_arrays(encode_frame(frame))


def test_errors_do_not_repeat_what_was_sent():
    secret = "password"  # noqa: S105
    with pytest.raises(ProtocolError) as caught:
        decode_frame(frame_bytes({"kind": secret, "fields": 1, "buffers": []}))
    assert secret not in str(caught.value)


LONG = b"7" * 4_200
"""Digits that Python still turns into a number, in a time that grows with their square."""


def test_numbers_are_refused_by_their_digits(monkeypatch):
    """Of 400 such numbers the product alone took most of a minute."""
    shapes = b"[" + b",".join([LONG] * 400) + b"]"
    entries = b'[{"dtype":"float32","name":"x","shape":' + shapes + b"}]"
    monkeypatch.setattr("platform.wire.codec.math.prod", lambda _: pytest.fail("it was multiplied"))
    with pytest.raises(ProtocolError, match="a number is out of range"):
        decode_frame(frame_bytes(b'{"kind":"k","fields":{},"buffers":' + entries + b"}"))


@pytest.mark.parametrize("number", [LARGEST_INTEGER + 1, -LARGEST_INTEGER - 1])
def test_integers_fit_into_64_bits_on_both_sides(number):
    with pytest.raises(ProtocolError, match="out of range"):
        encode_frame(Frame("k", {"n": [number]}, {}, {}))
    with pytest.raises(ProtocolError, match="out of range"):
        decode_frame(frame_bytes({"kind": "k", "fields": {"n": number}, "buffers": []}))


def test_fields_are_plain():
    inside = {"a": [[1]]}
    assert decode_frame(encode_frame(Frame("k", inside, {}, {}))).fields == inside
    deeper = {"a": [[[1]]]}
    with pytest.raises(ProtocolError, match="nested"):
        encode_frame(Frame("k", deeper, {}, {}))
    with pytest.raises(ProtocolError, match="nested"):
        decode_frame(frame_bytes({"kind": "k", "fields": deeper, "buffers": []}))


@pytest.mark.parametrize(
    "frame",
    [
        Frame("k" * (MAX_NAME + 1), {}, {}, {}),
        Frame("k", {}, {"n" * (MAX_NAME + 1): np.zeros(1)}, {}),
        Frame("k", {}, {"x": np.zeros((1,) * (MAX_RANK + 1))}, {}),
        Frame("k", {"text": "x" * MAX_HEADER}, {}, {}),
        Frame("k", {}, {"x": np.zeros(2, np.float16)}, {}),
        slow(Frame("k", {}, {}, dict.fromkeys(map(str, range(MAX_BUFFERS + 1)), b""))),
        Frame("k", {"n": [[] for _ in range(2 * MAX_BUFFERS + 64)]}, {}, {}),
    ],
    ids=["kind", "name", "rank", "header", "dtype", "buffers", "brackets"],
)
def test_what_nobody_reads_is_not_sent(frame):
    with pytest.raises(ProtocolError):
        encode_frame(frame)


def test_empty_lists_cost_no_more_than_their_bytes(monkeypatch):
    """Two bytes each in a message, dozens in memory: they are counted before they are made."""
    text = b'{"kind":"k","buffers":[],"fields":{"n":[' + b"[]," * 1_000_000 + b"[]]}}"
    monkeypatch.setattr("platform.wire.codec._READER", None)
    with pytest.raises(ProtocolError, match="too long"):
        decode_frame(frame_bytes(text))


def test_nothing_is_copied_before_all_is_there(monkeypatch):
    monkeypatch.setattr(
        "platform.wire.codec.np.frombuffer", lambda *_: pytest.fail("it was copied")
    )
    with pytest.raises(ProtocolError, match="cut off"):
        decode_frame(buffers(entry(), entry("y", shape=(2**40,)), body=b"\0" * 8))
