"""A root that signs certificates for one machine, for development and tests."""

from __future__ import annotations

import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes

DAYS: Final = 7
NAME: Final = "sotto development"
_PEM: Final = serialization.Encoding.PEM


@dataclass(frozen=True)
class DevelopmentRoot:
    """A certificate authority whose private key is in memory only.

    Attributes:
        key: Its own.
    """

    key: ec.EllipticCurvePrivateKey

    @classmethod
    def made(cls) -> Self:
        """Make one."""
        return cls(ec.generate_private_key(ec.SECP256R1()))

    def write(self, path: Path) -> None:
        """Write its own certificate."""
        signing = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        path.write_bytes(
            _begun(_named(NAME), self.key.public_key())
            .add_extension(x509.BasicConstraints(True, None), critical=True)
            .add_extension(signing, critical=True)
            .sign(self.key, hashes.SHA256())
            .public_bytes(_PEM)
        )

    def write_server(self, certificate: Path, private_key: Path) -> None:
        """Write a certificate for this machine, and its key for its owner only."""
        own = ec.generate_private_key(ec.SECP256R1())
        here = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        certificate.write_bytes(
            _begun(_named("localhost"), own.public_key())
            .add_extension(x509.SubjectAlternativeName(here), critical=False)
            .add_extension(x509.BasicConstraints(False, None), critical=True)
            .sign(self.key, hashes.SHA256())
            .public_bytes(_PEM)
        )
        plain, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        opened = os.open(private_key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(opened, "wb") as file:
            file.write(own.private_bytes(_PEM, plain, none))

    def signed(self, request: str) -> bytes:
        """Return the certificate that somebody asks for (PEM)."""
        asked = x509.load_pem_x509_csr(request.encode("ascii"))
        return (
            _begun(asked.subject, asked.public_key())
            .add_extension(x509.BasicConstraints(False, None), critical=True)
            .sign(self.key, hashes.SHA256())
            .public_bytes(_PEM)
        )


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _begun(subject: x509.Name, key: CertificatePublicKeyTypes) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(_named(NAME))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )
