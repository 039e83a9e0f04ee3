"""Signed notes, and what a log publishes as notes beside its leaves.

A signed note (C2SP's signed-note 1.0) is a text, an empty line, and a line for each signature: a
dash, the signer's name, and in base64 four bytes that tell its key and the signature. Signatures by
keys that a reader does not know are none of its business.

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
import binascii
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from privacy.errors import Authentication

LOG_KEY: Final = 1
"""Kind of a key that signs notes with plain Ed25519."""
WITNESS_KEY: Final = 4
"""Kind of a key that cosigns checkpoints, with a time beside the signature."""
SIGNATURE_BYTES: Final = 64

_ID_BYTES: Final = 4
_KEY_BYTES: Final = 32
_MOST_SIGNATURES: Final = 2_000
_REMEMBERED: Final = 1024
_LINE: Final = re.compile("\u2014 ([^\\s+]{1,200}) ([A-Za-z0-9+/=]{1,400})")
_CONTROL: Final = re.compile("[\x00-\x09\x0b-\x1f]")
_NAME: Final = re.compile(r"[^\s+]{1,200}")


class Signature(NamedTuple):
    """One line of a note: who says to have signed, the key's four bytes, and what is signed."""

    name: str
    key_id: bytes
    signature: bytes

    def encode(self) -> str:
        """Return the line, with its end."""
        raw = base64.b64encode(self.key_id + self.signature).decode("ascii")
        return f"\u2014 {self.name} {raw}\n"


@dataclass(frozen=True)
class SignedNote:
    """A text and its signatures, not checked yet.

    Attributes:
        text: It ends in a new line.
        signatures: In their order.
    """

    text: str
    signatures: tuple[Signature, ...]

    def encode(self) -> str:
        """Return the note as it is written."""
        return f"{self.text}\n{''.join([s.encode() for s in self.signatures])}"

    def with_signatures(self, more: Sequence[Signature]) -> SignedNote:
        """Return the note with more signatures below the others; one that is there is not added."""
        return SignedNote(self.text, tuple(dict.fromkeys([*self.signatures, *more])))

    def by(self, key: NoteKey) -> tuple[Signature, ...]:
        """Return the signatures that say to be by a key."""
        return tuple(s for s in self.signatures if (s.name, s.key_id) == (key.name, key.key_id))


@dataclass(frozen=True)
class NoteKey:
    """A public key by which notes are checked.

    Attributes:
        name: The signer's; without blanks and plus signs.
        public: 32 bytes of Ed25519.
        kind: What its signatures are over, one byte.

    Raises:
        ValueError: A part is malformed.
    """

    name: str
    public: bytes
    kind: int = LOG_KEY

    def __post_init__(self) -> None:
        """Refuse what could not be written as a key."""
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is no name of a signer; it has no blanks and no '+'")
        if len(self.public) != _KEY_BYTES or self.kind not in (LOG_KEY, WITNESS_KEY):
            raise ValueError("a key of a note has 32 bytes and a known kind")

    @cached_property
    def key_id(self) -> bytes:
        """Four bytes that tell name, kind and key from others, though not against an attack."""
        encoded = self.name.encode() + b"\n" + bytes([self.kind]) + self.public
        return hashlib.sha256(encoded).digest()[:_ID_BYTES]

    def encode(self) -> str:
        """Return the key as people pass it on: name, key ID and key with plus signs between."""
        key = base64.b64encode(bytes([self.kind]) + self.public).decode("ascii")
        return f"{self.name}+{self.key_id.hex()}+{key}"

    @staticmethod
    def decode(text: str) -> NoteKey:
        """Return the key that a text states; `ValueError` if it states none."""
        return _decoded(text)

    def verify(self, message: bytes, signature: bytes) -> None:
        """Check a signature; `Authentication` if it is not this key's of that message."""
        try:
            _verify(self.public, signature, message)
        except (InvalidSignature, ValueError):
            raise Authentication(f"the signature of {self.name!r} does not verify") from None


@dataclass(frozen=True)
class NoteSigner:
    """A private key that signs notes.

    Attributes:
        name: The signer's.
        private: 32 secret bytes.
        kind: What its signatures are over.
    """

    name: str
    private: bytes = field(repr=False)
    kind: int = LOG_KEY

    @cached_property
    def key(self) -> NoteKey:
        """The public half."""
        return NoteKey(self.name, self._key.public_key().public_bytes_raw(), self.kind)

    def signed(self, message: bytes) -> bytes:
        """Return the 64-byte signature of a message."""
        return self._key.sign(message)

    def sign(self, text: str) -> SignedNote:
        """Return a note with one signature; the text ends in a new line."""
        found = Signature(self.name, self.key.key_id, self.signed(text.encode()))
        return SignedNote(text, (found,))

    @cached_property
    def _key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.private)


@lru_cache(maxsize=_REMEMBERED)
def _decoded(text: str) -> NoteKey:
    """Return the key that a text states; those of the same clients come in every round."""
    name, _, rest = text.partition("+")
    key_id, _, key = rest.partition("+")
    try:
        raw = decode_base64(key)
    except ValueError as error:
        raise ValueError(f"{text!r} is no key of a note") from error
    if len(raw) != 1 + _KEY_BYTES:
        raise ValueError(f"{text!r} is no key of a note; it has {len(raw)} bytes")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{text!r} is no key of a note; its name has blanks, or none")
    found = NoteKey(name, raw[1:], raw[0])
    if found.key_id.hex() != key_id:
        raise ValueError(f"{text!r} is no key of a note; its ID is {found.key_id.hex()}")
    return found


@lru_cache(maxsize=_REMEMBERED)
def _verify(public: bytes, signature: bytes, message: bytes) -> None:
    """Check a signature; one that verified is remembered by all its bytes, none of them secret.

    All clients in one process are sent the same checkpoints.
    """
    Ed25519PublicKey.from_public_bytes(public).verify(signature, message)


def decode_base64(text: str) -> bytes:
    """Return the bytes that a text encodes; `ValueError` for all but the canonical encoding."""
    try:
        found = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("this is no base64") from error
    if base64.b64encode(found).decode("ascii") != text:
        raise ValueError("this is base64 of an unusual form")
    return found


def read_note(note: str) -> SignedNote:
    """Return the parts of a note; no signature is checked. `Authentication` if it is no note."""
    text, separator, below = note.rpartition("\n\n")
    lines = below.split("\n")
    if not separator or lines.pop() or not 0 < len(lines) <= _MOST_SIGNATURES:
        raise Authentication("this is no signed note: signatures follow after an empty line")
    if _CONTROL.search(note):
        raise Authentication("this is no signed note: it has control characters")
    return SignedNote(text + "\n", tuple(map(read_signature, lines)))


def open_note(note: str, keys: Sequence[NoteKey]) -> SignedNote:
    """Return the parts of a note that at least one of some keys has signed.

    All signatures of these keys that are there must hold. `Authentication` if one does not, none of
    them signed it, or it has not the form of a note.
    """
    found = read_note(note)
    signed = [(key, s) for key in keys for s in found.by(key)]
    if not signed:
        names = ", ".join(repr(key.name) for key in keys)
        raise Authentication(f"the note is signed by none of {names}")
    for key, signature in signed:
        key.verify(found.text.encode(), signature.signature)
    return found


def read_signature(line: str) -> Signature:
    """Read one line below a note, without its end; `Authentication` if it has not the form."""
    parts = _LINE.fullmatch(line)
    try:
        raw = decode_base64(parts[2]) if parts else b""
    except ValueError:
        raw = b""
    if parts is None or len(raw) <= _ID_BYTES:
        raise Authentication("this is no signed note: a line below it is no signature")
    return Signature(parts[1], raw[:_ID_BYTES], raw[_ID_BYTES:])


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
    """Return a checkpoint; `Authentication` if it is none, or not signed by any of the keys."""
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
    """Return the change that a note states; `Authentication` unless all its keys signed it."""
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
        """Return the tile's file below the log's prefix; `kind`, as `entries`, is for the level."""
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
