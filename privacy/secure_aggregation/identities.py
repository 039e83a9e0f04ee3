"""Long-lived identities and the enrolment file that says whose they are.

Against a server that lies, a client has to know which keys belong to whom without asking the
server. Every client has one Ed25519 key pair; the public halves stand in an *enrolment*, a small
file that all parties get over another channel (by hand, in a contract, in a signed repository) and
compare by its fingerprint. A name keeps one current key; rotation retires it, revocation removes
the name, and no key ever comes back. The serial number grows with every change, so that an older
file is noticed. A name may also have the key by which whoever carries its messages knows its
machine (its *node* key): what comes from another machine is then not taken for this client's.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from privacy.errors import Authentication
from privacy.randomness import Entropy, draw
from privacy.secure_aggregation.parameters import (
    IDENTITY_BYTES,
    LARGEST_SERIAL,
    RoundParameters,
    rounded_up,
)
from privacy.transparency import WITNESS_KEY, NoteSigner

SIGNATURE_BYTES = 64
ENROLMENT_VERSION = 1

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# As OpenSSH writes public keys, without a comment: every way between machines knows these kinds.
_NODE = re.compile(
    r"(?:ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)) [A-Za-z0-9+/=]{1,2000}"
)
_SIGNED = b"sotto/secure-aggregation/signature"
_GROUP = 4
# More than the signatures that one client checks in a round of a thousand.
_REMEMBERED = 1 << 11


class Identity:
    """A client's private Ed25519 key.

    Args:
        private: 32 secret bytes.
    """

    def __init__(self, private: bytes) -> None:
        """Load the key."""
        self._key = Ed25519PrivateKey.from_private_bytes(private)
        self.public = self._key.public_key().public_bytes_raw()

    def sign(self, digest: bytes) -> bytes:
        """Return the 64-byte signature of a message's SHA-256."""
        return self._key.sign(_SIGNED + digest)

    def witness(self, name: str) -> NoteSigner:
        """Return what cosigns heads of a log with this key, under a name.

        What it signs begins otherwise than what `sign` does, so neither is taken for the other.
        """
        return NoteSigner(name, self._key.private_bytes_raw(), WITNESS_KEY)


def new_identity(*, entropy: Entropy = os.urandom) -> bytes:
    """Draw the 32 bytes of a new private key, for the client's own store."""
    return draw(entropy, IDENTITY_BYTES)


@lru_cache(maxsize=_REMEMBERED)
def verify_signature(public: bytes, digest: bytes, signature: bytes) -> None:
    """Check a signature on a message's SHA-256.

    Clients in one process are all sent the same signatures, so those that verified are remembered:
    by all their bytes, none of which is secret. Those that did not are checked every time.

    Raises:
        Authentication: If it is not the key's signature of that message.
    """
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, _SIGNED + digest)
    except (InvalidSignature, ValueError):
        raise Authentication("a signature does not verify") from None


def fingerprint(public: bytes) -> str:
    """Return what people compare: 128 bits of SHA-256 over a key, in groups of four digits."""
    digits = hashlib.sha256(b"sotto/identity" + public).hexdigest()[:32]
    return "-".join(digits[at : at + _GROUP] for at in range(0, len(digits), _GROUP))


def node_fingerprint(node: str) -> str:
    """Return what people compare of a node key, as `ssh-keygen -l` prints it."""
    digest = hashlib.sha256(base64.b64decode(node.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode('ascii').rstrip('=')}"


@dataclass(frozen=True)
class Member:
    """One name of an enrolment.

    Attributes:
        current: The public key that it signs with; None once the name is revoked.
        retired: The keys that it signed with before, oldest first.
        node: The public key by which engines and tunnels know its machine, as OpenSSH writes it;
            None where none is bound to it.
    """

    current: bytes | None
    retired: tuple[bytes, ...] = ()
    node: str | None = None


@dataclass(frozen=True)
class Enrolment:
    """Who may take part, by name.

    Attributes:
        serial: Number of changes so far.
        members: By name, the member's keys.

    Raises:
        ValueError: If a name or key is malformed, a key occurs twice, or a revoked name has a node.
    """

    serial: int = 0
    members: Mapping[str, Member] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        """Refuse an enrolment under which a key does not name one client."""
        # `True` and `1.0` would pass for 1, and JSON would write them in another way.
        if type(self.serial) is not int or not 0 <= self.serial <= LARGEST_SERIAL:
            raise ValueError(f"serial is {self.serial}; valid are 0 to 2^63 - 1")
        for name in self.members:
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name; valid are letters, digits, '.', '_', '-'")
        keys = [key for member in self.members.values() for key in _keys(member)]
        if any(len(key) != IDENTITY_BYTES for key in keys):
            raise ValueError("a key of the enrolment does not have 32 bytes")
        if len(set(keys)) != len(keys):
            raise ValueError("a key occurs twice in the enrolment")
        nodes = {
            name: member.node for name, member in self.members.items() if member.node is not None
        }
        for name, node in nodes.items():
            if not _is_public_key(node):
                raise ValueError(f"the node of {name!r} is no public key as OpenSSH writes it")
            if self.members[name].current is None:
                raise ValueError(f"{name!r} is revoked, and has a node")
        if len(set(nodes.values())) != len(nodes):
            raise ValueError("two names have the same node in the enrolment")

    def enrol(self, name: str, public: bytes) -> Enrolment:
        """Return the enrolment with a new name; `ValueError` if name or key is or was in use."""
        if name in self.members:
            raise ValueError(f"{name!r} is enrolled already, or was")
        return self._with(name, Member(public))

    def rotate(self, name: str, public: bytes) -> Enrolment:
        """Return the enrolment with another key for a name; the old one is never valid again.

        Raises:
            ValueError: If the name is not enrolled or the key is or was in use.
        """
        member = self._current_member(name)
        return self._with(name, Member(public, tuple(_keys(member)), member.node))

    def bind(self, name: str, node: str | None) -> Enrolment:
        """Return the enrolment with another node key for a name, or none; the old one is gone.

        Raises:
            ValueError: If the name is not enrolled, or the key is malformed or another's.
        """
        return self._with(name, replace(self._current_member(name), node=node))

    def revoke(self, name: str) -> Enrolment:
        """Return the enrolment without a name, for good; `ValueError` if it is not enrolled."""
        member = self._current_member(name)
        return self._with(name, Member(None, tuple(_keys(member))))

    def _current_member(self, name: str) -> Member:
        member = self.members.get(name)
        if member is None or member.current is None:
            raise ValueError(f"{name!r} is not enrolled")
        return member

    def _with(self, name: str, member: Member) -> Enrolment:
        members = MappingProxyType({**self.members, name: member})
        return replace(self, serial=self.serial + 1, members=members)

    @cached_property
    def names(self) -> Mapping[bytes, str]:
        """The name of every key that is valid now."""
        return MappingProxyType(
            {m.current: name for name, m in self.members.items() if m.current is not None}
        )

    def encode(self) -> bytes:
        """Return the one canonical JSON of the enrolment; `decode_enrolment` reads it back."""
        members = {
            name: {
                "current": None if member.current is None else member.current.hex(),
                "node": member.node,
                "retired": [key.hex() for key in member.retired],
            }
            for name, member in self.members.items()
        }
        whole = {"version": ENROLMENT_VERSION, "serial": self.serial, "members": members}
        return json.dumps(whole, sort_keys=True, indent=1).encode() + b"\n"

    @property
    def fingerprint(self) -> str:
        """What people compare to know that they have the same file."""
        return fingerprint(self.encode())


def decode_enrolment(data: bytes, *, newest_serial: int = 0) -> Enrolment:
    """Read an enrolment file.

    Args:
        data: Exactly the canonical JSON.
        newest_serial: Serial of the newest file seen before; an older one is refused.

    Raises:
        Authentication: If the file is not canonical, not valid or too old; nobody is trusted.
    """
    try:
        whole = json.loads(data)
        members = {name: _decode_member(each) for name, each in whole["members"].items()}
        enrolment = Enrolment(whole["serial"], MappingProxyType(members))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Authentication("the enrolment file is not valid") from None
    # One encoding for each enrolment: this settles version, order, spacing and unknown keys.
    if enrolment.encode() != data:
        raise Authentication("the enrolment file is not in its canonical form")
    if enrolment.serial < newest_serial:
        raise Authentication(
            f"the enrolment file has serial {enrolment.serial}, but {newest_serial} was seen before"
        )
    return enrolment


def _decode_member(each: Any) -> Member:
    current = each["current"]
    return Member(
        None if current is None else bytes.fromhex(current),
        tuple(bytes.fromhex(key) for key in each["retired"]),
        each["node"],
    )


def _is_public_key(node: str) -> bool:
    if _NODE.fullmatch(node) is None:
        return False
    try:
        key = load_ssh_public_key(node.encode("ascii"))
    except (ValueError, UnsupportedAlgorithm):
        return False
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii") == node


def _keys(member: Member) -> Iterable[bytes]:
    return (*member.retired, *([] if member.current is None else [member.current]))


@dataclass(frozen=True)
class Credentials:
    """What a client knows about an active round without asking the server.

    Attributes:
        identity: Its own signing key.
        enrolment: Who may take part.
        corrupt_rate: Share of the cohort that it insists on being safe against, rounded up.
    """

    identity: Identity = field(repr=False)
    enrolment: Enrolment
    corrupt_rate: float = 0.0

    def require_acceptable(self, parameters: RoundParameters, client: int) -> None:
        """Check an invitation against what is known.

        Raises:
            Authentication: If the enrolment file is another, an identity is not enrolled or is
                revoked, the client's own seat bears another identity, or the threshold withstands
                too few corrupted clients.
        """
        own, offered = self.enrolment.serial, parameters.enrolment_serial
        if offered != own:
            age = "an older" if offered < own else "a newer"
            raise Authentication(
                f"the invitation is under {age} enrolment file, serial {offered}; this client's "
                f"has serial {own}"
            )
        if parameters.identity(client) != self.identity.public:
            raise Authentication("the invitation gives this client's seat to another identity")
        if not set(parameters.identities) <= self.enrolment.names.keys():
            raise Authentication("the invitation names an identity that is not enrolled")
        if parameters.corrupt < rounded_up(self.corrupt_rate, len(parameters.clients)):
            raise Authentication("the invitation withstands too few corrupted clients")
