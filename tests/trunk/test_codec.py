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


def header_of(data: bytes) -> dict:
    _, _, length = PREFIX.unpack_from(data)
    return json.loads(data[PREFIX.size : PREFIX.size + length])


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


@given(st.dictionaries(names, arrays, max_size=4))
def test_named_arrays_there_and_back(named):
    back = decode_arrays(encode_arrays(named))
    assert set(back) == set(named)
    for name, value in named.items():
        assert (back[name].dtype, back[name].shape) == (value.dtype, value.shape)
        assert np.array_equal(back[name], value)
        back[name][...] = 0  # writable, and of nobody else


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


@given(frames, st.data())
@settings(max_examples=60)
def test_a_cut_frame_is_refused(frame, data):
    whole = encode_frame(frame)
    end = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ProtocolError):
        decode_frame(whole[:end])


@given(frames, st.binary(min_size=1, max_size=9))
@settings(max_examples=60)
def test_trailing_bytes_are_refused(frame, rest):
    with pytest.raises(ProtocolError):
        decode_frame(encode_frame(frame) + rest)


@given(st.binary(max_size=200))
@example(MAGIC)
@example(PREFIX.pack(MAGIC, VERSION, 0))
@example(PREFIX.pack(MAGIC, VERSION, 2) + b"{}")
@example(PREFIX.pack(MAGIC, VERSION, 4) + b"null")
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


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.sampled_from(["float32", "bytes", "x", "kind", "name", "shape", "dtype", ""]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["kind", "fields", "buffers", "name", "dtype", "shape", "x"]), inner
            )
        ),
        max_leaves=12,
    ),
    st.binary(max_size=16),
)
def test_any_header_gives_a_frame_or_a_refusal_and_nothing_else(document, body):
    for candidate in (
        document,
        {"kind": "k", "fields": {}, "buffers": document},
        {"kind": "k", "fields": document, "buffers": []},
        {"kind": document, "fields": {}, "buffers": []},
        {"kind": "k", "fields": {}, "buffers": [document]},
    ):
        try:
            frame = decode_frame(frame_bytes(candidate, body))
        except ProtocolError:
            continue
        assert isinstance(frame.kind, str)


@pytest.mark.parametrize(
    "shape",
    [
        [2**62],
        [2**63],
        [2**64],
        [2**31, 2**31, 2**31],
        [10**400],
        [0, 2**63],
        [0, 2**70],
        [2**70, 0],
        [0, 2**40, 2**40],
        [1] * 100,
        [0] * 100,
        [-1],
        [1.0],
        [True],
        [None],
        ["1"],
        "1",
        None,
        1,
        {"1": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float32", "bytes"])
def test_hostile_shapes_are_refused(shape, dtype):
    data = buffers({"name": "x", "dtype": dtype, "shape": shape}, body=b"\0" * 8)
    with pytest.raises(ProtocolError):
        decode_frame(data)
    if dtype != "bytes":
        with pytest.raises(ProtocolError):
            decode_frame(buffers({"name": "x", "dtype": dtype, "shape": shape}))


@pytest.mark.parametrize("dtype", ["float16", "object", "O", "<f4", "U4", "", None, 1, ["float32"]])
def test_unknown_dtypes_are_refused(dtype):
    with pytest.raises(ProtocolError):
        decode_frame(buffers({"name": "x", "dtype": dtype, "shape": [1]}, body=b"\0" * 4))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_that_are_not_finite_are_refused_on_both_sides(value, dtype):
    with pytest.raises(ProtocolError, match="'x' is not finite"):
        encode_arrays({"x": np.array([1.0, value], dtype)})
    good = encode_frame(Frame("arrays", {}, {"x": np.array([1.0, 2.0], dtype)}, {}))
    bad = np.array([1.0, value], dtype).tobytes()
    with pytest.raises(ProtocolError, match="'x' is not finite"):
        decode_arrays(good[: -len(bad)] + bad)


@pytest.mark.parametrize("dtype", ["float16", "int32", "bool", "complex64", "object", "U3"])
def test_other_dtypes_are_not_sent(dtype):
    with pytest.raises(ProtocolError, match="not carried"):
        encode_arrays({"x": np.zeros(2).astype(dtype)})


def test_a_repeated_name_is_refused():
    body = b"\0" * 8
    with pytest.raises(ProtocolError, match="is repeated"):
        decode_frame(buffers(entry(), entry(), body=body))
    with pytest.raises(ProtocolError, match="is repeated"):
        decode_frame(buffers(entry(), entry(dtype="bytes", shape=[4]), body=body))


@pytest.mark.parametrize("length", [MAX_HEADER + 1, 2**32 - 1])
def test_a_header_beyond_the_limit_is_refused(length):
    with pytest.raises(ProtocolError):
        decode_frame(PREFIX.pack(MAGIC, VERSION, length) + b"{}")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"kind":' * 50_000,
        b"1" * 5_000,
        b'{"kind":"k","fields":{}}',
        b'{"kind":"k","fields":{},"buffers":[],"more":1}',
        b'{"kind":1,"fields":{},"buffers":[]}',
        b'{"kind":"k","fields":7,"buffers":[]}',
        b'{"kind":"k","fields":{},"buffers":7}',
        b'{"kind":"k","fields":{},"buffers":["x"]}',
        b'{"kind":"k","fields":{},"buffers":[{}]}',
    ],
    ids=lambda text: text[:40].decode("latin-1"),
)
def test_headers_that_are_none_are_refused(text):
    with pytest.raises(ProtocolError):
        decode_frame(frame_bytes(text))


def test_another_version_is_refused():
    data = bytearray(encode_arrays({}))
    data[5] = VERSION + 1
    with pytest.raises(ProtocolError, match="version 1"):
        decode_frame(bytes(data))


def test_named_arrays_are_nothing_else():
    others = (
        Frame("other", {}, {}, {}),
        Frame("arrays", {"x": 1}, {}, {}),
        Frame("arrays", {}, {}, {"x": b""}),
    )
    for frame in others:
        with pytest.raises(ProtocolError, match="not named arrays"):
            decode_arrays(encode_frame(frame))


def test_errors_do_not_repeat_what_was_sent():
    secret = "password"  # noqa: S105
    with pytest.raises(ProtocolError) as caught:
        decode_frame(frame_bytes({"kind": secret, "fields": 1, "buffers": []}))
    assert secret not in str(caught.value)


# --- bounds before arithmetic ---------------------------------------------------------------------

LONG = b"7" * 4_200
"""Digits that Python still turns into a number, in a time that grows with their square."""


def test_numbers_are_refused_by_their_digits(monkeypatch):
    """Of 400 such numbers the product alone took most of a minute."""
    shapes = b"[" + b",".join([LONG] * 400) + b"]"
    entries = b'[{"dtype":"float32","name":"x","shape":' + shapes + b"}]"
    in_fields = b'{"kind":"k","fields":{"round":' + LONG + b'},"buffers":[]}'
    monkeypatch.setattr("platform.wire.codec.math.prod", lambda _: pytest.fail("it was multiplied"))
    for text in (b'{"kind":"k","fields":{},"buffers":' + entries + b"}", in_fields):
        with pytest.raises(ProtocolError, match="a number is out of range"):
            decode_frame(frame_bytes(text))


@pytest.mark.parametrize("number", [LARGEST_INTEGER + 1, -LARGEST_INTEGER - 1, 10**30])
def test_integers_fit_into_64_bits_on_both_sides(number):
    with pytest.raises(ProtocolError, match="out of range"):
        encode_frame(Frame("k", {"n": [number]}, {}, {}))
    with pytest.raises(ProtocolError, match="out of range"):
        decode_frame(frame_bytes({"kind": "k", "fields": {"n": number}, "buffers": []}))


@pytest.mark.parametrize("number", ["1e999", "-1e400", "NaN", "Infinity", "-Infinity"])
def test_plain_numbers_are_finite(number):
    text = f'{{"kind":"k","fields":{{"n":{number}}},"buffers":[]}}'
    with pytest.raises(ProtocolError, match="a number is not finite"):
        decode_frame(frame_bytes(text.encode()))


@pytest.mark.parametrize(
    "text",
    [
        b'{"kind":"k","kind":"k","fields":{},"buffers":[]}',
        b'{"kind":"k","fields":{"round":1,"round":2},"buffers":[]}',
        b'{"kind":"k","fields":{},"buffers":[{"name":"x","name":"x","dtype":"bytes","shape":[0]}]}',
    ],
)
def test_a_repeated_key_is_refused(text):
    """Of two readers one would take the first and one the last."""
    with pytest.raises(ProtocolError, match="a key is repeated"):
        decode_frame(frame_bytes(text))


def test_fields_are_plain():
    inside = {"a": [[1]]}
    assert decode_frame(encode_frame(Frame("k", inside, {}, {}))).fields == inside
    deeper = {"a": [[[1]]]}
    with pytest.raises(ProtocolError, match="nested"):
        encode_frame(Frame("k", deeper, {}, {}))
    with pytest.raises(ProtocolError, match="nested"):
        decode_frame(frame_bytes({"kind": "k", "fields": deeper, "buffers": []}))


def test_a_header_is_ascii():
    document = {"kind": "k", "fields": {}, "buffers": []}
    for coding in ("utf-16", "utf-32"):
        with pytest.raises(ProtocolError):
            decode_frame(frame_bytes(json.dumps(document).encode(coding)))


@pytest.mark.parametrize(
    "frame",
    [
        Frame("k" * (MAX_NAME + 1), {}, {}, {}),
        Frame("k", {}, {"n" * (MAX_NAME + 1): np.zeros(1)}, {}),
        Frame("k", {}, {"x": np.zeros((1,) * (MAX_RANK + 1))}, {}),
        Frame("k", {"text": "x" * MAX_HEADER}, {}, {}),
        Frame("k", {}, {}, dict.fromkeys(map(str, range(MAX_BUFFERS + 1)), b"")),
        Frame("k", {"n": [[] for _ in range(2 * MAX_BUFFERS + 64)]}, {}, {}),
    ],
    ids=["kind", "name", "rank", "header", "buffers", "brackets"],
)
def test_what_nobody_reads_is_not_sent(frame):
    with pytest.raises(ProtocolError):
        encode_frame(frame)


def test_empty_lists_cost_no_more_than_their_bytes(monkeypatch):
    """Two bytes each in a message, dozens in memory: they are counted before they are made."""
    text = b'{"kind":"k","buffers":[],"fields":{"n":[' + b"[]," * 1_000_000 + b"[]]}}"
    monkeypatch.setattr(
        "platform.wire.codec.json.loads", lambda *_, **__: pytest.fail("it was parsed")
    )
    with pytest.raises(ProtocolError, match="too long"):
        decode_frame(frame_bytes(text))


def test_nothing_is_copied_before_all_is_there(monkeypatch):
    """The first buffer is there, the second is not."""
    monkeypatch.setattr(
        "platform.wire.codec.np.frombuffer", lambda *_: pytest.fail("it was copied")
    )
    with pytest.raises(ProtocolError, match="cut off"):
        decode_frame(buffers(entry(), entry("y", shape=(2**40,)), body=b"\0" * 8))


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
