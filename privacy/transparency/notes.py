"""Signed notes: a text with signatures below it, as C2SP's signed-note 1.0 defines them.

A note is its text, an empty line, and a line for each signature: a dash, the signer's name, and in
base64 four bytes that tell its key and the signature. Signatures by keys that a reader does not
know are none of its business.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
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
        """Return the key that a text states.

        Raises:
            ValueError: It states none.
        """
        return _decoded(text)

    def verify(self, message: bytes, signature: bytes) -> None:
        """Check a signature.

        Raises:
            Authentication: It is not this key's signature of that message.
        """
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
        """Return a note with one signature.

        Args:
            text: It ends in a new line.
        """
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
    """Return the bytes that a text encodes; refuse all but the canonical encoding.

    Raises:
        ValueError: It does not.
    """
    try:
        found = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("this is no base64") from error
    if base64.b64encode(found).decode("ascii") != text:
        raise ValueError("this is base64 of an unusual form")
    return found


def read_note(note: str) -> SignedNote:
    """Return the parts of a note; no signature is checked.

    Raises:
        Authentication: It has not the form of one.
    """
    text, separator, below = note.rpartition("\n\n")
    lines = below.split("\n")
    if not separator or lines.pop() or not 0 < len(lines) <= _MOST_SIGNATURES:
        raise Authentication("this is no signed note: signatures follow after an empty line")
    if _CONTROL.search(note):
        raise Authentication("this is no signed note: it has control characters")
    return SignedNote(text + "\n", tuple(map(read_signature, lines)))


def open_note(note: str, keys: Sequence[NoteKey]) -> SignedNote:
    """Return the parts of a note that at least one of some keys has signed.

    Args:
        note: The note.
        keys: Of which all signatures that are there must hold.

    Raises:
        Authentication: It has not the form of one, none of them signed it, or a signature of one
            of them does not hold.
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
    """Read one line below a note, without its line end.

    Raises:
        Authentication: It has not the form of one.
    """
    parts = _LINE.fullmatch(line)
    try:
        raw = decode_base64(parts[2]) if parts else b""
    except ValueError:
        raw = b""
    if parts is None or len(raw) <= _ID_BYTES:
        raise Authentication("this is no signed note: a line below it is no signature")
    return Signature(parts[1], raw[:_ID_BYTES], raw[_ID_BYTES:])
