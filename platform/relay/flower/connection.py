"""The connection to SuperLink: nodes' keys, where SuperLink is, and what is inside messages.

Flower takes keys of NIST curves as OpenSSH writes them. A message is one record of bytes with a
secret that the answer repeats: SuperLink does not compare who sends an answer with whom the answer
claims to be from. The secret is drawn anew for each message and only its addressee can fetch it, so
no other node can answer.
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
    """Make a node's key in a new file that only its owner reads; return the public key as a line.

    Raises:
        ConfigError: If the file exists or cannot be written.
    """
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
    """Read a node's private key.

    Raises:
        ConfigError: If the file holds no such key, or others may read it.
    """
    try:
        if path.stat().st_mode & 0o077:
            raise ConfigError(f"{path}: others may read it; valid: permissions 600")
        key = load_ssh_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path}: is no key; valid: as `key` makes it") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path}: valid: a key of a NIST curve, as `key` makes it")
    return key


def request_certificate(path: Path, name: str) -> str:
    """Return a request for a certificate of a node's own key; the owner of the root signs it.

    Args:
        path: Of the private key, which is not in the request.
        name: The client's.

    Raises:
        ConfigError: If there is no such key.
    """
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return request.sign(read_key(path), SHA256()).public_bytes(Encoding.PEM).decode("ascii")


def read_enrolled(path: Path) -> Mapping[str, bytes]:
    """Read each client's node key from the enrolment.

    Returns:
        Each client's key (PEM, as SuperLink compares it), by the client's name.

    Raises:
        ConfigError: If the file is no enrolment, or Flower does not take a node's key.
    """
    found = {}
    for name, line in read_nodes(path).items():
        try:
            key = load_ssh_public_key(line.encode("ascii"))
        except (ValueError, UnsupportedAlgorithm) as error:
            raise ConfigError(
                f"{path}: {name!r} has no public key; valid: as `key` says it"
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
        tls: The root of SuperLink's certificate and the own certificate; None for a connection
            without TLS.
    """

    address: str
    tls: ssl.SSLContext | None

    @classmethod
    def secured(cls, address: str, root: Path, certificate: Path, key: Any) -> Self:
        """Return a place at which both sides prove who they are.

        Args:
            address: `HOST:PORT`.
            root: The certificate that SuperLink's must lead to.
            certificate: The own one.
            key: The private key that it is for.

        Raises:
            ConfigError: If a file is missing or not valid, or the key is not the certificate's.
        """
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            tls.load_verify_locations(cafile=root)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{root}: is no certificate that SuperLink's may lead to") from error
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        # `load_cert_chain` takes files only; this one is in memory and is gone at the end.
        with os.fdopen(os.memfd_create("key"), "wb") as file:
            file.write(pem)
            file.flush()
            try:
                tls.load_cert_chain(certificate, f"/proc/self/fd/{file.fileno()}")
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(
                    f"{certificate}: is no certificate of this key; valid: what was signed of its "
                    "request"
                ) from error
        return cls(address=address, tls=tls)

    def client(self, kind: Callable[..., Client], interceptors: Sequence[Any]) -> Client:
        """Return one of Flower's clients for SuperLink's interfaces, connected to this place."""
        scheme = "http" if self.tls is None else "https"
        verify = False if self.tls is None else self.tls
        return kind(f"{scheme}://{self.address}", interceptors=list(interceptors), verify=verify)


def node_place(address: str, root: Path, certificate: Path, key: Path) -> Place:
    """Return where SuperLink is for a client's node, whose certificate is of its node key.

    Raises:
        ConfigError: As for `Place.secured`, or if there is no such key.
    """
    return Place.secured(address, root, certificate, read_key(key))


def server_place(address: str, root: Path, certificate: Path, key: Path) -> Place:
    """Return where SuperLink is for its operator, whose certificate is the server's own.

    Raises:
        ConfigError: As for `Place.secured`, or if there is no such key.
    """
    try:
        private = load_pem_private_key(key.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{key}: is no private key; valid: PEM without a password") from error
    return Place.secured(address, root, certificate, private)


def asked(node: int, packet: bytes, seconds: float) -> tuple[Any, bytes]:
    """Return a message for a node, and the secret that its answer must repeat.

    Args:
        node: SuperLink's number of the node.
        packet: The bytes that the client's process gets.
        seconds: How long the hub waits; SuperLink forgets the message then.
    """
    from flwr.app import ConfigRecord, Message, RecordDict

    secret = secrets.token_bytes(SECRET_BYTES)
    record = ConfigRecord({"packet": packet, "secret": secret, "seconds": seconds})
    content = RecordDict({RECORD: record})
    # A message of an hour ago is of no use; one that has just run out would be an error.
    return Message(content, node, TYPE, ttl=seconds + 10.0), secret


def read(message: Any) -> tuple[bytes, bytes, float]:
    """Return a message's packet, secret and seconds.

    Raises:
        ProtocolError: If the message holds anything else.
    """
    record = message.content[RECORD] if message.has_content() and RECORD in message.content else {}
    packet, secret, seconds = (record.get(key) for key in ("packet", "secret", "seconds"))
    if not isinstance(packet, bytes) or not isinstance(secret, bytes):
        raise ProtocolError("message: it holds no packet")
    if not isinstance(seconds, float):
        raise ProtocolError("message: it names no time")
    return packet, secret, seconds


def answered(message: Any, outcome: bytes, secret: bytes) -> Any:
    """Return the answer to a message."""
    from flwr.app import ConfigRecord, Message, RecordDict

    record = ConfigRecord({"packet": outcome, "secret": secret, "seconds": 0.0})
    return Message(RecordDict({RECORD: record}), reply_to=message)


def outcome_of(reply: Any, secret: bytes) -> bytes | None:
    """Return an answer's outcome; None unless it repeats the secret."""
    try:
        outcome, repeated, _ = read(reply)
    except ProtocolError:
        return None
    return outcome if hmac.compare_digest(repeated, secret) else None
