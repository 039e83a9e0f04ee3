"""Checkpoints of a log, and cosignatures of who has seen them.

A checkpoint (C2SP's tlog-checkpoint 1.0) is a note of three lines: the log's origin, the number of
its leaves, and the root of their tree. Who cosigns one (tlog-cosignature 1.0) says: of the trees
that I have seen of this log, each is the beginning of every later one.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from privacy.errors import Authentication
from privacy.transparency.notes import (
    SIGNATURE_BYTES,
    WITNESS_KEY,
    NoteKey,
    NoteSigner,
    Signature,
    SignedNote,
    decode_base64,
    open_note,
)

ROOT_BYTES: Final = 32

_TIME_BYTES: Final = 8
_SIZE: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_ORIGIN: Final = re.compile(r"[^\n+\s]{1,200}")


@dataclass(frozen=True)
class Checkpoint:
    """What a log says to be.

    Attributes:
        origin: Which log it is.
        size: The number of its leaves.
        root: Of their tree, 32 bytes.

    Raises:
        ValueError: A part is malformed.
    """

    origin: str
    size: int
    root: bytes

    def __post_init__(self) -> None:
        """Refuse what could not be written."""
        if not _ORIGIN.fullmatch(self.origin):
            raise ValueError(f"{self.origin!r} is no origin of a log")
        if type(self.size) is not int or self.size < 0 or len(self.root) != ROOT_BYTES:
            raise ValueError("a checkpoint has a size of at least 0 and a root of 32 bytes")

    def encode(self) -> str:
        """Return the text of its note."""
        root = base64.b64encode(self.root).decode("ascii")
        return f"{self.origin}\n{self.size}\n{root}\n"


def sign_checkpoint(checkpoint: Checkpoint, signer: NoteSigner) -> str:
    """Return a log's own statement of what it is, as a note."""
    return signer.sign(checkpoint.encode()).encode()


def open_checkpoint(note: str, keys: Sequence[NoteKey]) -> Checkpoint:
    """Return what a log states, signed by at least one of its keys.

    Raises:
        Authentication: It is no checkpoint, or not signed by any of them.
    """
    return decode_checkpoint(open_note(note, keys))


def decode_checkpoint(note: SignedNote) -> Checkpoint:
    """Return the checkpoint that a note's text is; lines after the third are extensions.

    Raises:
        Authentication: It is none.
    """
    lines = note.text.split("\n")
    try:
        origin, size, root = lines[:3]
        if not _SIZE.fullmatch(size):
            raise Authentication("the note is no checkpoint: its second line is no size")
        return Checkpoint(origin, int(size), decode_base64(root))
    except ValueError:
        raise Authentication("the note is no checkpoint") from None


def cosign(note: SignedNote, witness: NoteSigner, seconds: int) -> Signature:
    """Return a witness's cosignature of a checkpoint, whose consistency it has checked.

    Args:
        note: The checkpoint.
        witness: Its signer.
        seconds: The time, since 1970.
    """
    key = witness.key
    if key.kind != WITNESS_KEY:
        raise ValueError("cosignatures are made by witness keys")
    time = seconds.to_bytes(_TIME_BYTES, "big")
    return Signature(key.name, key.key_id, time + witness.signed(_cosigned(note, seconds)))


def require_cosigned(note: SignedNote, key: NoteKey) -> int:
    """Return when a witness cosigned a checkpoint: the newest time, in seconds since 1970.

    Raises:
        Authentication: It did not.
    """
    times = []
    for signature in note.by(key):
        time, rest = signature.signature[:_TIME_BYTES], signature.signature[_TIME_BYTES:]
        if len(rest) != SIGNATURE_BYTES:
            raise Authentication(f"the cosignature of {key.name!r} has another length")
        seconds = int.from_bytes(time, "big")
        key.verify(_cosigned(note, seconds), rest)
        times.append(seconds)
    if not times:
        raise Authentication(f"the checkpoint is not cosigned by {key.name!r}")
    return max(times)


def _cosigned(note: SignedNote, seconds: int) -> bytes:
    return f"cosignature/v1\ntime {seconds}\n{note.text}".encode()
