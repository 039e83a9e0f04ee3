"""Nodes' keys: a private one where it stays, and from the enrolment which public one is whose.

Flower takes keys of NIST curves as OpenSSH writes them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from platform.errors import ConfigError
from platform.relay.enrolled import read_nodes


def create_key(path: Path) -> str:
    """Make a node's key in a new file that only its owner reads; the public half as a line.

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
        ConfigError: If it is none, or others may read it.
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
    """Return a request for a certificate of a node's own key, which whoever has the root signs.

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
    """Read whose node each public key is, from the enrolment.

    Returns:
        Each client's key (PEM, as SuperLink compares it), by the client's name.

    Raises:
        ConfigError: If it is no enrolment, or a node's key is none that Flower knows.
    """
    return {name: _public(path, name, line) for name, line in read_nodes(path).items()}


def _public(path: Path, name: str, line: str) -> bytes:
    try:
        key = load_ssh_public_key(line.encode("ascii"))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path}: {name!r} has no public key; valid: as `key` says it") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError(f"{path}: {name!r}: valid: a key of a NIST curve, as `key` makes it")
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
