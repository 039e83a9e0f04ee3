"""Fields of states as bytes, for the clients' codec and the server's."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from privacy.secure_aggregation.envelope import SERVER, refusal

DIGEST_BYTES = 32

_LENGTH = struct.Struct("<I")
_NAMED = struct.Struct("<II")


def join_fields(fields: Iterable[bytes]) -> bytes:
    """Write the length (4) and the bytes of every field."""
    return b"".join(_LENGTH.pack(len(each)) + each for each in fields)


def split_fields(body: bytes) -> list[bytes]:
    """Read back what `join_fields` wrote; a length that is too large gives a shorter field.

    Raises:
        struct.error: If a length is cut.
    """
    fields, at = [], 0
    while at < len(body):
        (size,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        fields.append(body[at : at + size])
        at += size
    return fields


def pack_named(fields: Mapping[int, bytes]) -> bytes:
    """Write index (4), length (4) and bytes of every field, in ascending order of index."""
    parts = (_NAMED.pack(index, len(fields[index])) + fields[index] for index in sorted(fields))
    return b"".join(parts)


def unpack_named(body: bytes) -> dict[int, bytes]:
    """Read back what `pack_named` wrote.

    Raises:
        ProtocolViolation: If the indices do not ascend.
        struct.error: If an index or a length is cut.
    """
    fields: dict[int, bytes] = {}
    at, last = 0, SERVER
    while at < len(body):
        index, size = _NAMED.unpack_from(body, at)
        if index <= last:
            raise refusal()
        at += _NAMED.size
        fields[last := index] = body[at : at + size]
        at += size
    return fields


def take_digest(field: bytes) -> bytes:
    """Return a field that must hold 32 bytes: a digest, a key or a seed.

    Raises:
        ProtocolViolation: If it holds another number of them.
    """
    if len(field) != DIGEST_BYTES:
        raise refusal()
    return field
