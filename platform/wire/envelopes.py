"""What every message begins with: which attempt it belongs to; and how its parts are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from numpy.typing import NDArray

from platform.errors import ProtocolError
from platform.wire.codec import SHORT, Frame, decode_frame, header_of, read_header

Arrays = Mapping[str, NDArray[Any]]
Attempt = tuple[int, int]
"""A round number and its attempt, both from 1."""


@dataclass(frozen=True)
class Envelope:
    """Which attempt a message belongs to, and which one was committed last.

    Outside rounds the attempt is 0: before the first round and after the last nothing is repeated
    with fresh noise, so there is nothing to tell apart.
    """

    run_id: str
    round_number: int
    attempt: int
    committed: Attempt | None = None


def peek(data: bytes) -> tuple[str, Envelope]:
    """Return kind and envelope of any message, of which only the header is read.

    Raises:
        ProtocolError: If that does not parse.
    """
    header = header_of(data)
    return _known(header) if len(header) <= SHORT else _peeked(header)


def opened(data: bytes, kind: str) -> tuple[Frame, Envelope]:
    """Return frame and envelope of a message of one kind.

    Raises:
        ProtocolError: If it is none.
    """
    frame = decode_frame(data)
    if frame.kind != kind:
        raise ProtocolError(f"message: {kind} was expected, not {frame.kind!r}")
    return frame, peek(data)[1]


def envelope_fields(envelope: Envelope) -> dict[str, Any]:
    """Return an envelope as plain fields of a frame."""
    return {
        "run_id": envelope.run_id,
        "round": envelope.round_number,
        "attempt": envelope.attempt,
        "committed": None if envelope.committed is None else list(envelope.committed),
    }


def integers(values: Sequence[Any] | None, count: int | None = None) -> tuple[int, ...]:
    """Return numbers from a frame's field.

    Raises:
        ProtocolError: If it is no list of `count` numbers from 0.
    """
    if not isinstance(values, list) or (count is not None and len(values) != count):
        raise ProtocolError("message: a list of numbers is not valid")
    if not all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values):
        raise ProtocolError("message: a number is not valid")
    return tuple(values)


def blob(frame: Frame, name: str) -> bytes:
    """Return a byte string of a frame.

    Raises:
        ProtocolError: If it is missing.
    """
    if name not in frame.blobs:
        raise ProtocolError(f"message: {name} is missing")
    return frame.blobs[name]


def _peeked(header: bytes) -> tuple[str, Envelope]:
    kind, fields = read_header(header)
    return kind, _envelope(fields)


# A pure function of identical bytes; of one stage most headers are alike.
_known = lru_cache(maxsize=256)(_peeked)


def _envelope(fields: Mapping[str, Any]) -> Envelope:
    run_id, committed = fields.get("run_id"), fields.get("committed")
    if not isinstance(run_id, str):
        raise ProtocolError("message: the run is missing")
    round_number, attempt = integers([fields.get("round"), fields.get("attempt")], 2)
    if committed is None:
        return Envelope(run_id, round_number, attempt)
    last_round, last_attempt = integers(committed, 2)
    return Envelope(run_id, round_number, attempt, (last_round, last_attempt))
