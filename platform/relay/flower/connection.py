"""The connection to SuperLink: keys of nodes, SuperLink's address, and the content of messages.

Flower takes keys of NIST curves in the OpenSSH format. SuperLink does not check that an answer
comes from the node that the answer names. A message is therefore one record of bytes with a secret
that the answer must repeat. The sender draws a new secret for each message, and only the addressee
can fetch it, so no other node can answer.
"""

from __future__ import annotations

import hmac
import os
import secrets
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)

from platform.errors import ConfigError, ProtocolError
from platform.relay.links import read_nodes

Client = TypeVar("Client")
RECORD: Final = "sotto"
TYPE: Final = "query"
SECRET_BYTES: Final = 32


def create_key(path: Path) -> str:
    """Make a node's key in a new file that only its owner can read; return its public line."""
    key = ec.generate_private_key(ec.SECP384R1())
    text = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be made ({error.strerror}); valid: a new file"
        ) from error
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii")


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a node's private key, which no one else may read, or `ConfigError`."""
    try:
        if path.stat().st_mode & 0o077:
            raise ConfigError(f"{path}: others may read it; valid: permissions 600")
        key = load_ssh_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path}: is not a key; valid: a file that `key` made") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path}: valid: a key of a NIST curve, as `key` makes it")
    return key


def request_certificate(path: Path, name: str) -> str:
    """Return a request, without the key, that the root's owner signs for a node's certificate."""
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return request.sign(read_key(path), SHA256()).public_bytes(Encoding.PEM).decode("ascii")


def read_enrolled(path: Path) -> Mapping[str, bytes]:
    """Return each client's node key (PEM, as SuperLink compares it) by name, from the enrolment."""
    found = {}
    for name, line in read_nodes(path).items():
        try:
            key = load_ssh_public_key(line.encode("ascii"))
        except (ValueError, UnsupportedAlgorithm) as error:
            raise ConfigError(
                f"{path}: {name!r} has no public key; valid: the line that `key` prints"
            ) from error
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ConfigError(f"{path}: {name!r}: valid: a key of a NIST curve, as `key` makes it")
        found[name] = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return found


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where SuperLink is.

    Attributes:
        address: `HOST:PORT`.
        tls: The root of SuperLink's certificate, and this side's certificate; None for a
            connection without TLS.
    """

    address: str
    tls: ssl.SSLContext | None

    @classmethod
    def secured(cls, address: str, root: Path, certificate: Path, key: Any) -> Self:
        """Return a place at which both sides prove their identity (mutual TLS).

        `key` is the private key of this side's certificate; files that do not fit are refused.
        """
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            tls.load_verify_locations(cafile=root)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{root}: is not a certificate; valid: a root certificate") from error
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        # `load_cert_chain` takes files only; this file is in memory and vanishes at the end.
        with os.fdopen(os.memfd_create("key"), "wb") as file:
            file.write(pem)
            file.flush()
            try:
                tls.load_cert_chain(certificate, f"/proc/self/fd/{file.fileno()}")
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(
                    f"{certificate}: is not a certificate of this key; valid: the certificate "
                    "signed for its request"
                ) from error
        return cls(address=address, tls=tls)

    def client(self, kind: Callable[..., Client], interceptors: Sequence[Any]) -> Client:
        """Return one of Flower's clients for SuperLink's interfaces, connected to this place."""
        scheme = "http" if self.tls is None else "https"
        verify = False if self.tls is None else self.tls
        return kind(f"{scheme}://{self.address}", interceptors=list(interceptors), verify=verify)


def node_place(address: str, root: Path, certificate: Path, key: Path) -> Place:
    """Return SuperLink's place for a client's node, whose certificate is for its node key."""
    return Place.secured(address, root, certificate, read_key(key))


def server_place(address: str, root: Path, certificate: Path, key: Path) -> Place:
    """Return SuperLink's place for its operator, who uses the server's own certificate."""
    try:
        private = load_pem_private_key(key.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{key}: is not a private key; valid: PEM without a password") from error
    return Place.secured(address, root, certificate, private)


def asked(node: int, packet: bytes, seconds: float) -> tuple[Any, bytes]:
    """Return a message for a node, and the secret that the answer must repeat.

    The hub waits for `seconds`; SuperLink forgets the message after that.
    """
    from flwr.app import ConfigRecord, Message, RecordDict

    secret = secrets.token_bytes(SECRET_BYTES)
    record = ConfigRecord({"packet": packet, "secret": secret, "seconds": seconds})
    content = RecordDict({RECORD: record})
    # SuperLink must forget old messages, but a message that has just expired would be an error.
    return Message(content, node, TYPE, ttl=seconds + 10.0), secret


def read(message: Any) -> tuple[bytes, bytes, float]:
    """Return a message's packet, secret and seconds; `ProtocolError` for any other message."""
    record = message.content[RECORD] if message.has_content() and RECORD in message.content else {}
    packet, secret, seconds = (record.get(key) for key in ("packet", "secret", "seconds"))
    if not isinstance(packet, bytes) or not isinstance(secret, bytes):
        raise ProtocolError("message: it holds no packet")
    if not isinstance(seconds, float):
        raise ProtocolError("message: it holds no waiting time")
    return packet, secret, seconds


def answered(message: Any, outcome: bytes, secret: bytes) -> Any:
    """Return the answer to a message."""
    from flwr.app import ConfigRecord, Message, RecordDict

    record = ConfigRecord({"packet": outcome, "secret": secret, "seconds": 0.0})
    return Message(RecordDict({RECORD: record}), reply_to=message)


def outcome_of(reply: Any, secret: bytes) -> bytes | None:
    """Return an answer's outcome, or None if the answer does not repeat the secret."""
    try:
        outcome, repeated, _ = read(reply)
    except ProtocolError:
        return None
    return outcome if hmac.compare_digest(repeated, secret) else None
