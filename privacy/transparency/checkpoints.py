"""What a log publishes beside its leaves: checkpoints, changes of its key, and files of tiles.

A checkpoint (C2SP's tlog-checkpoint 1.0) is a note of three lines: the log's origin, the number of
its leaves, and the root of their tree. Who cosigns one (tlog-cosignature 1.0) says: of the trees
that I have seen of this log, each is the beginning of every later one.

A log's key is handed over to another one, or lost and replaced. A hand-over is a note that both
keys sign. Of a lost key nothing can be signed, so the new one says so alone, and whoever followed
the log has to hear from its operator, over another channel, that this is so; anybody who took the
log's place could say the same.

Tiles lie where C2SP's tlog-tiles 1.0 names their files.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

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
    read_note,
)

ROOT_BYTES: Final = 32

_TIME_BYTES: Final = 8
_SIZE: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_ORIGIN: Final = re.compile(r"[^\n+\s]{1,200}")


@dataclass(frozen=True)
class Checkpoint:
    """The size and root hash that a log states.

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
    """Return a log's checkpoint, signed by at least one of its keys.

    Raises:
        Authentication: It is no checkpoint, or not signed by any of them.
    """
    return decode_checkpoint(open_note(note, keys))


def decode_checkpoint(note: SignedNote) -> Checkpoint:
    """Read a note's text as a checkpoint; lines after the third are extensions.

    Raises:
        Authentication: It is not a checkpoint.
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


_HANDED_OVER: Final = "sotto/log-key-handed-over/v1"
_LOST: Final = "sotto/log-key-lost/v1"


@dataclass(frozen=True)
class KeyChange:
    """A change of a log's key.

    Attributes:
        old: The key until then; None where it was lost.
        new: The key from then on.
    """

    old: NoteKey | None
    new: NoteKey


def hand_over(old: NoteSigner, new: NoteSigner) -> str:
    """Return the note by which one key hands over to another."""
    note = old.sign(f"{_HANDED_OVER}\n{old.key.encode()}\n{new.key.encode()}\n")
    return note.with_signatures(new.sign(note.text).signatures).encode()


def state_lost(new: NoteSigner) -> str:
    """Return the note by which a new key says that the one before it is lost."""
    return new.sign(f"{_LOST}\n{new.key.encode()}\n").encode()


def open_change(text: str) -> KeyChange:
    """Return the change that a note states, signed by the keys that it names.

    Raises:
        Authentication: It is not a checkpoint, or not signed by all of them.
    """
    note = read_note(text)
    kind, *stated = note.text.rstrip("\n").split("\n")
    try:
        keys = [NoteKey.decode(key) for key in stated]
    except ValueError:
        keys = []
    if (kind, len(keys)) not in ((_HANDED_OVER, 2), (_LOST, 1)):
        raise Authentication("the note is no change of a log's key")
    for key in keys:
        open_note(text, [key])
    return KeyChange(keys[0] if len(keys) == 2 else None, keys[-1])


def is_change(note: SignedNote) -> bool:
    """Return whether a note says to be a change of a log's key."""
    return note.text.startswith((f"{_HANDED_OVER}\n", f"{_LOST}\n"))


TILE_WIDTH: Final = 256
_GROUP: Final = 1000


class Tile(NamedTuple):
    """One file of hashes, or of the data of leaves.

    Attributes:
        level: 0 for hashes of leaves, each next one 256 times as wide.
        position: From 0, within the level.
        width: How many it holds; a full one 256.
    """

    level: int
    position: int
    width: int

    def path(self, kind: str | None = None) -> str:
        """Return the tile's file below the log's prefix.

        Args:
            kind: In place of the level, such as ``entries``.
        """
        digits = [f"{self.position % _GROUP:03d}"]
        rest = self.position // _GROUP
        while rest:
            digits.append(f"x{rest % _GROUP:03d}")
            rest //= _GROUP
        name = "/".join(reversed(digits))
        part = "" if self.width == TILE_WIDTH else f".p/{self.width}"
        return f"tile/{self.level if kind is None else kind}/{name}{part}"


def tile_paths(size: int) -> Iterator[Tile]:
    """Yield all tiles of a log with so many leaves, level by level."""
    level, count = 0, size
    while count:
        full, part = divmod(count, TILE_WIDTH)
        yield from (Tile(level, position, TILE_WIDTH) for position in range(full))
        if part:
            yield Tile(level, full, part)
        level, count = level + 1, full
