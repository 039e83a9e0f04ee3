"""Serialised messages: a versioned frame of one JSON header and raw buffers, and its envelope.

Layout, little-endian: magic `SOTTO`, one version byte, the header's length (uint32), the header
(canonical JSON), then the buffers back to back. The header lists each buffer's name, dtype, shape
and length, so a reader knows the exact size of the frame before it touches a buffer, and refuses
anything else, trailing bytes included. Floats must be finite.

Every frame comes from a peer, so both sides bound every number before they compute with it.
Integers fit into 64 bits (the reader counts digits before it makes a number). Names, ranks, buffers
and nesting have limits, and no key is repeated.

Every message begins with its envelope, which names its attempt.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from platform.errors import ProtocolError

MAGIC = b"SOTTO"
VERSION = 1
PREFIX = struct.Struct("<5sBI")
MAX_HEADER = 1 << 22
MAX_BUFFERS = 1 << 16
MAX_NAME = 256
"""Most characters of a kind or of a buffer's name."""
MAX_RANK = 8
MAX_DEPTH = 3
"""Most levels of nested lists and objects; the plain fields are the first level."""
LARGEST_INTEGER = (1 << 63) - 1
_DIGITS = len(str(-LARGEST_INTEGER))
_UNREADABLE = (KeyError, TypeError, ValueError, struct.error, RecursionError)
_BRACKETS = 2 * MAX_BUFFERS + 64
_HEADERS = 256
"""Short headers that the codec remembers: most headers of one stage are equal."""
SHORT = 1 << 12
"""Most bytes of a remembered header."""
_WRITTEN: dict[str, bytes] = {}
DTYPES = {
    "float32": "<f4",
    "float64": "<f8",
    "int64": "<i8",
    "uint32": "<u4",
    "uint64": "<u8",
    "bytes": "|u1",
}
_OWN_NAMES = {np.dtype(code): name for name, code in DTYPES.items() if name != "bytes"}
_Entry = tuple[str, str, tuple[int, ...]]
"""Name, dtype and shape of a buffer."""
_Place = tuple[str, str, tuple[int, ...], int, int]
"""The same, with its begin and end."""


@dataclass(frozen=True)
class Frame:
    """A decoded message: its kind, plain fields, arrays and byte strings."""

    kind: str
    fields: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]
    blobs: Mapping[str, bytes]


def encode_frame(frame: Frame) -> bytes:
    """Return the frame as bytes, equal for equal frames; refuse what `decode_frame` refuses."""
    buffers: list[bytes | memoryview] = []
    entries: list[_Entry] = []
    for name, array in sorted(frame.arrays.items()):
        dtype = _OWN_NAMES.get(array.dtype) or array.dtype.name
        if dtype not in DTYPES:
            raise ProtocolError(f"message: array {name!r} has dtype {dtype}, which is not carried")
        _finite(name, array)
        entries.append((name, dtype, array.shape))
        buffers.append(np.ascontiguousarray(array, DTYPES[dtype]).data)
    for name, blob in sorted(frame.blobs.items()):
        entries.append((name, "bytes", (len(blob),)))
        buffers.append(blob)
    header = _header(frame.kind, dict(frame.fields), entries)
    # One pass, because a network's parameters are megabytes in every message.
    return b"".join((PREFIX.pack(MAGIC, VERSION, len(header)), header, *buffers))


def _header(kind: str, fields: dict[str, Any], entries: list[_Entry]) -> bytes:
    # Equal texts mean equal plain values; most headers of one stage are equal.
    key = repr((kind, fields, entries))
    header = _WRITTEN.get(key)
    if header is None:
        buffers = [{"name": n, "dtype": d, "shape": list(shape)} for n, d, shape in entries]
        _require_bounded(kind, fields, buffers)
        document = {"kind": kind, "fields": fields, "buffers": buffers}
        header = _WRITER.encode(document).encode()
        _require_short(header)
        if len(_WRITTEN) >= _HEADERS:
            _WRITTEN.clear()
        if len(header) <= SHORT:
            _WRITTEN[key] = header
    return header


def decode_frame(data: bytes) -> Frame:
    """Read bytes that are exactly one frame of this version, or `ProtocolError`."""
    text = header_of(data)
    try:
        is_short = len(text) <= SHORT
        kind, fields, entries = _known_header(text) if is_short else _parsed_header(text)
        places = _known_places(text) if is_short else _places(entries)
        arrays, blobs = _buffers(places, memoryview(data)[PREFIX.size + len(text) :])
        return Frame(kind, dict(fields), arrays, blobs)
    except _UNREADABLE as error:
        raise ProtocolError("message: it does not parse") from error


def header_of(data: bytes) -> bytes:
    """Return the text of a frame's header, unread; `ProtocolError` for another beginning."""
    try:
        magic, version, length = PREFIX.unpack_from(data)
    except struct.error as error:
        raise ProtocolError("message: it does not parse") from error
    if magic != MAGIC or version != VERSION or length > MAX_HEADER:
        raise ProtocolError(f"message: it is not a version {VERSION} frame")
    end = PREFIX.size + length
    if len(data) < end:
        raise ProtocolError("message: it is cut off")
    return bytes(data[PREFIX.size : end])


def _parsed_header(text: bytes) -> tuple[str, dict[str, Any], list[dict[str, Any]]]:
    _require_short(text)
    header = _READER.decode(text.decode("ascii"))
    if not isinstance(header, dict) or set(header) != {"kind", "fields", "buffers"}:
        raise ProtocolError("message: the header is not valid")
    kind, fields, entries = header["kind"], header["fields"], header["buffers"]
    _require_bounded(kind, fields, entries)
    return kind, fields, entries


def _places(entries: Sequence[Mapping[str, Any]]) -> tuple[Sequence[_Place], int]:
    """Return the place of each buffer, and the bytes of all buffers together."""
    places: list[_Place] = []
    names: set[str] = set()
    offset = 0
    for entry in entries:
        name, dtype, shape = entry["name"], entry["dtype"], tuple(entry["shape"])
        if name in names:
            raise ProtocolError("message: a buffer is repeated")
        if dtype == "bytes" and len(shape) != 1:
            raise ProtocolError("message: a shape is not valid")
        names.add(name)
        size = math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize
        places.append((name, dtype, shape, offset, offset + size))
        offset += size
    return places, offset


# Readers do not change the values of a header.
_known_header = lru_cache(maxsize=_HEADERS)(_parsed_header)


@lru_cache(maxsize=_HEADERS)
def _known_places(text: bytes) -> tuple[Sequence[_Place], int]:
    return _places(_known_header(text)[2])


def encode_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return named arrays as bytes, for storage; refuse what messages do not carry."""
    return encode_frame(Frame("arrays", {}, arrays, {}))


def decode_arrays(data: bytes) -> dict[str, NDArray[Any]]:
    """Read the bytes of `encode_arrays`, or `ProtocolError`."""
    frame = decode_frame(data)
    if frame.kind != "arrays" or frame.blobs or frame.fields:
        raise ProtocolError("message: these are not named arrays")
    return dict(frame.arrays)


def _require_short(header: bytes) -> None:
    # Brackets are counted in the raw text: an empty list has two bytes here, dozens when parsed.
    brackets = header.count(b"[") + header.count(b"{")
    if len(header) > MAX_HEADER or brackets > _BRACKETS:
        raise ProtocolError("message: its header is too long")


def _integer(digits: str) -> int:
    # The time to read a number grows with the square of its digits.
    if len(digits) > _DIGITS:
        raise ProtocolError("message: a number is out of range")
    return int(digits)


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        _refuse(text)
    return number


def _refuse(constant: str) -> NoReturn:
    raise ProtocolError("message: a number is not finite")


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ProtocolError("message: a key is repeated")
    return found


_WRITER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
_READER = json.JSONDecoder(
    parse_int=_integer, parse_float=_number, parse_constant=_refuse, object_pairs_hook=_unique
)


def _require_bounded(kind: Any, fields: Any, entries: Any) -> None:
    if not isinstance(kind, str) or len(kind) > MAX_NAME or not isinstance(fields, dict):
        raise ProtocolError("message: the header is not valid")
    if not isinstance(entries, list) or len(entries) > MAX_BUFFERS:
        raise ProtocolError("message: the list of buffers is not valid")
    _require_plain(fields, MAX_DEPTH)
    for entry in entries:
        name, shape = entry["name"], entry["shape"]
        if len(entry) != 3 or not isinstance(name, str) or len(name) > MAX_NAME:
            raise ProtocolError("message: a buffer's name is not valid")
        if not isinstance(shape, list) or len(shape) > MAX_RANK:
            raise ProtocolError("message: a shape is not valid")
        for n in shape:
            if type(n) is not int or not 0 <= n <= LARGEST_INTEGER:
                raise ProtocolError("message: a shape is not valid")


def _require_plain(fields: dict[str, Any], depth: int) -> None:
    """Check level by level: a level is one list of all values in the level above."""
    level: list[Any] = list(fields.values())
    while level:
        depth -= 1
        below: list[Any] = []
        for value in level:
            if isinstance(value, int):
                if not -LARGEST_INTEGER <= value <= LARGEST_INTEGER:
                    raise ProtocolError("message: a number is out of range")
            elif isinstance(value, (list, dict)):
                if depth == 0:
                    raise ProtocolError("message: its fields are nested too deeply")
                below += value.values() if isinstance(value, dict) else value
        level = below


def _buffers(
    places: tuple[Sequence[_Place], int], data: memoryview
) -> tuple[dict[str, NDArray[Any]], dict[str, bytes]]:
    # Checked before anything is copied: the buffers fill the data exactly.
    if places[1] != len(data):
        raise ProtocolError("message: its buffers are cut off, or bytes are left over")
    arrays: dict[str, NDArray[Any]] = {}
    blobs: dict[str, bytes] = {}
    for name, dtype, shape, start, end in places[0]:
        if dtype == "bytes":
            blobs[name] = bytes(data[start:end])
        else:
            values = np.frombuffer(data[start:end], DTYPES[dtype]).reshape(shape)
            arrays[name] = _finite(name, values.copy())
    return arrays, blobs


def _finite(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ProtocolError(f"message: array {name!r} is not finite")
    return array


Arrays = Mapping[str, NDArray[Any]]
Attempt = tuple[int, int]
"""A round number and its attempt, both from 1."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Envelope:
    """The attempt of a message, and the attempt that was committed last.

    Outside rounds the attempt is 0, because nothing there is repeated with fresh noise.
    """

    run_id: str
    round_number: int
    attempt: int
    committed: Attempt | None = None


def peek(data: bytes) -> tuple[str, Envelope]:
    """Return kind and envelope of any message, or `ProtocolError`; this reads only the header."""
    header = header_of(data)
    return _known(header) if len(header) <= SHORT else _peeked(header)


def opened(data: bytes, kind: str) -> tuple[Frame, Envelope]:
    """Return frame and envelope of a message of one kind, or `ProtocolError`."""
    frame = decode_frame(data)
    if frame.kind != kind:
        raise ProtocolError(f"message: {kind} was expected, not {frame.kind!r}")
    return frame, peek(data)[1]


def framed(
    kind: str,
    envelope: Envelope,
    own: Mapping[str, Any] = _NOTHING,
    *,
    arrays: Arrays = _NOTHING,
    blobs: Mapping[str, bytes] = _NOTHING,
) -> bytes:
    """Serialise a message of one kind: its envelope beside its own fields, arrays and bytes."""
    fields = {
        "run_id": envelope.run_id,
        "round": envelope.round_number,
        "attempt": envelope.attempt,
        "committed": None if envelope.committed is None else list(envelope.committed),
        **own,
    }
    return encode_frame(Frame(kind, fields, arrays, blobs))


def integers(values: Sequence[Any] | None, count: int | None = None) -> tuple[int, ...]:
    """Return a list of `count` numbers from 0 in a frame's field, or `ProtocolError`."""
    if not isinstance(values, list) or (count is not None and len(values) != count):
        raise ProtocolError("message: a list of numbers is not valid")
    if not all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values):
        raise ProtocolError("message: a number is not valid")
    return tuple(values)


def blob(frame: Frame, name: str) -> bytes:
    """Return a byte string of a frame, or `ProtocolError`."""
    if name not in frame.blobs:
        raise ProtocolError(f"message: {name} is missing")
    return frame.blobs[name]


def _peeked(header: bytes) -> tuple[str, Envelope]:
    try:
        kind, fields, _ = _known_header(header) if len(header) <= SHORT else _parsed_header(header)
    except _UNREADABLE as error:
        raise ProtocolError("message: it does not parse") from error
    run_id, committed = fields.get("run_id"), fields.get("committed")
    if not isinstance(run_id, str):
        raise ProtocolError("message: the run is missing")
    round_number, attempt = integers([fields.get("round"), fields.get("attempt")], 2)
    if committed is None:
        return kind, Envelope(run_id, round_number, attempt)
    last_round, last_attempt = integers(committed, 2)
    return kind, Envelope(run_id, round_number, attempt, (last_round, last_attempt))


# A pure function of the bytes; most headers of one stage are equal.
_known = lru_cache(maxsize=256)(_peeked)
