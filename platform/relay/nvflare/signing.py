"""What a site says is signed with its own key of FLARE, and counts if that is the enrolled one.

FLARE lets in whoever has a certificate of the project's root under a site's name. The enrolment
says whose key that must be: who had another one signed under the same name answers nothing.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    SSHPublicKeyTypes,
    load_pem_private_key,
    load_ssh_public_key,
)

from platform.errors import ConfigError, ProtocolError

CERTIFICATE: Final = "client.crt"
PRIVATE_KEY: Final = "client.key"
_MEANT: Final = b"sotto/relay/outcome"
_HEAD: Final = 2
"""Bytes in which a signature's length stands before it."""


def node_of(startup: Path) -> str:
    """Return a site's public key, as OpenSSH writes it.

    Args:
        startup: The folder `startup` of the site's kit.

    Raises:
        ConfigError: If it holds no certificate of a key that signs here.
    """
    path = startup / CERTIFICATE
    try:
        key = x509.load_pem_x509_certificate(path.read_bytes()).public_key()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: is no certificate; valid: a site's kit") from error
    if not isinstance(key, rsa.RSAPublicKey):
        raise ConfigError(f"{path}: valid: the certificate of an RSA key, as FLARE makes it")
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii")


def signed(startup: Path, request: bytes, outcome: bytes) -> bytes:
    """Return an outcome with the site's signature of it and of what was asked.

    Raises:
        ConfigError: If the kit has no private key.
    """
    path = startup / PRIVATE_KEY
    try:
        key = _private_key(path.read_bytes())
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path}: is no private key; valid: a site's kit") from error
    if not isinstance(key, rsa.RSAPrivateKey):
        raise ConfigError(f"{path}: valid: an RSA key, as FLARE makes it")
    signature = key.sign(_digest(request, outcome), padding.PKCS1v15(), SHA256())
    return len(signature).to_bytes(_HEAD, "big") + signature + outcome


def verified(node: str, request: bytes, answer: object) -> bytes:
    """Return the outcome in what came back, if this node signed it for this request.

    Raises:
        ProtocolError: If it did not.
    """
    try:
        key = _public_key(node)
        if isinstance(answer, bytes) and isinstance(key, rsa.RSAPublicKey):
            end = _HEAD + int.from_bytes(answer[:_HEAD], "big")
            signature, outcome = answer[_HEAD:end], answer[end:]
            key.verify(signature, _digest(request, outcome), padding.PKCS1v15(), SHA256())
            return outcome
    except (ValueError, UnsupportedAlgorithm, InvalidSignature):
        pass
    raise ProtocolError("the site did not sign with the node key that is enrolled for it")


@lru_cache(maxsize=1)
def _private_key(pem: bytes) -> PrivateKeyTypes:
    # Its numbers are checked when it is loaded, which takes far longer than a signature.
    return load_pem_private_key(pem, password=None)


@lru_cache(maxsize=1024)
def _public_key(node: str) -> SSHPublicKeyTypes:
    return load_ssh_public_key(node.encode("ascii"))


def _digest(request: bytes, outcome: bytes) -> bytes:
    return _MEANT + hashlib.sha256(request).digest() + hashlib.sha256(outcome).digest()
