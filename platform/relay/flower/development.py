"""SuperLink, relay and nodes with TLS on this machine, for development and tests.

All private keys lie in one folder. With real data, each machine must make its own keys.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes

from platform.errors import ConfigError
from platform.relay.links import await_line, development_enrolment, free_ports, start_process

DAYS: Final = 7
NAME: Final = "sotto development"
_PEM: Final = serialization.Encoding.PEM


@dataclass(frozen=True)
class DevelopmentRoot:
    """A certificate authority whose private key is in memory only."""

    key: ec.EllipticCurvePrivateKey

    @classmethod
    def made(cls) -> Self:
        """Make a new authority."""
        return cls(ec.generate_private_key(ec.SECP256R1()))

    def write(self, path: Path) -> None:
        """Write the authority's own certificate."""
        signing = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        path.write_bytes(
            _begun(_named(NAME), self.key.public_key())
            .add_extension(x509.BasicConstraints(True, None), critical=True)
            .add_extension(signing, critical=True)
            .sign(self.key, hashes.SHA256())
            .public_bytes(_PEM)
        )

    def write_server(self, certificate: Path, private_key: Path) -> None:
        """Write a certificate for this machine, and a key file that only its owner can read."""
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
        """Return the certificate (PEM) for a certificate request."""
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


THIS: Final = Path(sys.executable)
STARTING: Final = 300.0
"""Seconds until all processes must be connected."""


@dataclass(kw_only=True)
class Running:
    """The processes by name: `superlink`, `link`, and each client's node by the client's name.

    Attributes:
        folder: Holds keys, certificates and `*.log`.
        python: The interpreter of the environment in which Flower is installed.
        root: Signs the certificates.
    """

    folder: Path
    python: Path
    commands: dict[str, list[str]]
    root: DevelopmentRoot
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """Start a process, for the first time or again."""
        command = [str(self.python), "-m", "platform.relay.flower", *self.commands[name]]
        log = self.folder / f"{name}.log"
        self.processes[name] = start_process(command, log, _environment(self.folder))

    def kill(self, name: str) -> None:
        """Kill a process and all processes that it started."""
        process = self.processes[name]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def wait(self, name: str, line: str) -> None:
        """Wait until a process has printed a line; `ConfigError` if it does not in time."""
        log = self.folder / f"{name}.log"
        failed = f"Flower has not started; {log} says why; valid after `make flower`"
        await_line(self.processes[name], log, line, seconds=STARTING, failed=failed)


@contextlib.contextmanager
def flower_on_localhost(
    hub: Path, sockets: Mapping[str, Path], folder: Path, python: Path = THIS
) -> Iterator[Running]:
    """Relay between a hub and clients' sockets through Flower as long as the context lasts.

    The processes are yielded once all nodes are connected, within five minutes. The coordinator may
    start later. The new folder, with keys and `*.log`, stays after the end. `python` is the
    interpreter of the environment in which Flower is installed.
    """
    folder = folder.absolute()
    folder.mkdir(mode=0o700, parents=True)
    root = DevelopmentRoot.made()
    root.write(folder / "ca.pem")
    root.write_server(folder / "server.pem", folder / "server.key")
    (folder / "secret").write_bytes(secrets.token_bytes(32))
    address = f"localhost:{free_ports(1)[0]}"
    running = Running(
        folder=folder,
        python=python,
        commands=_commands(folder, hub.absolute(), sockets, address),
        root=root,
    )
    nodes = {name: node_key(folder, name, python, root) for name in sockets}
    (folder / "enrolment.json").write_bytes(development_enrolment(nodes))
    try:
        for name in running.commands:
            running.start(name)
        running.wait("link", f"there: {' '.join(sorted(sockets))}")
        yield running
    finally:
        for name in running.processes:
            running.kill(name)


def node_key(folder: Path, name: str, python: Path, root: DevelopmentRoot) -> str:
    """Make a node's key and sign its certificate, as a person would; return the public key."""
    key = str(folder / f"{name}.key")
    public = _said(folder, python, "key", key)
    request = _said(folder, python, "request", key, name)
    (folder / f"{name}.pem").write_bytes(root.signed(request))
    return public.strip()


def _said(folder: Path, python: Path, *words: str) -> str:
    done = subprocess.run(  # noqa: S603 - a fixed command of our own
        [str(python), "-m", "platform.relay.flower", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=_environment(folder),
    )
    if done.returncode:
        said = done.stderr.strip()[-200:]
        raise ConfigError(f"Flower: made no key ({said}); valid after `make flower`")
    return done.stdout


def _commands(
    folder: Path, hub: Path, sockets: Mapping[str, Path], address: str
) -> dict[str, list[str]]:
    root, secret = str(folder / "ca.pem"), str(folder / "secret")
    own = ["--certificate", str(folder / "server.pem"), "--private-key", str(folder / "server.key")]
    _, _, port = address.rpartition(":")
    there = ["--superlink", address, "--root", root]
    listening = ["--host", "127.0.0.1", "--port", port, "--root", root, "--secret", secret]
    enrolled = ["--secret", secret, "--enrolment", str(folder / "enrolment.json")]
    return {
        "superlink": ["superlink", *listening, *own],
        "link": ["link", str(hub), *there, *own, *enrolled],
        **{
            name: [
                *("node", *there, "--certificate", str(folder / f"{name}.pem")),
                *("--key", str(folder / f"{name}.key"), "--socket", str(path.absolute())),
            ]
            for name, path in sockets.items()
        },
    }


def _environment(folder: Path) -> dict[str, str]:
    # By default all processes of the account share Flower's home folder.
    own = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(folder / "flwr")}
    return {**os.environ, **own, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
