"""Where SuperLink is, and how both sides of a connection to it prove who they are."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from platform.errors import ConfigError
from platform.relay.flower.keys import read_key

Client = TypeVar("Client")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where SuperLink is.

    Attributes:
        address: `HOST:PORT`.
        tls: What SuperLink's certificate must lead to, and what proves who connects; None for a
            connection without TLS.
    """

    address: str
    tls: ssl.SSLContext | None

    @classmethod
    def secured(cls, address: str, root: Path, certificate: Path, key: Any) -> Self:
        """Return a place that both sides prove who they are at.

        Args:
            address: `HOST:PORT`.
            root: The certificate that SuperLink's must lead to.
            certificate: The own one.
            key: The private key that it is for.

        Raises:
            ConfigError: If a file is missing or none, or the key is not the certificate's.
        """
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            tls.load_verify_locations(cafile=root)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{root}: is no certificate that SuperLink's may lead to") from error
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        # It takes files only; this one is in no folder, and gone at the end.
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
        """Return one of Flower's clients for SuperLink's interfaces, which asks there."""
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
    """Return where SuperLink is for who runs it, whose certificate is the server's own.

    Raises:
        ConfigError: As for `Place.secured`, or if there is no such key.
    """
    try:
        private = load_pem_private_key(key.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{key}: is no private key; valid: PEM without a password") from error
    return Place.secured(address, root, certificate, private)
