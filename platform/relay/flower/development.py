"""SuperLink, relay and nodes with TLS on this machine, for development and tests: gone at the end.

All private keys are made in one folder here. Where data is real, each machine makes its own.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from platform.errors import ConfigError

THIS: Final = Path(sys.executable)
STARTING: Final = 90.0
"""Seconds in which all must be connected."""
DAYS: Final = 7


@dataclass
class Running:
    """What runs, by name: `superlink`, `link`, and each client's node by the client's name.

    Attributes:
        folder: For keys, certificates and `*.log`.
        python: The interpreter of the environment in which Flower is installed.
        commands: What each was started with.
        processes: Each one's process.
    """

    folder: Path
    python: Path
    commands: dict[str, list[str]]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """Start one of them, for the first time or again."""
        with (self.folder / f"{name}.log").open("ab") as out:
            self.processes[name] = subprocess.Popen(  # noqa: S603 - fixed commands of our own
                [str(self.python), "-m", "platform.relay.flower", *self.commands[name]],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=_environment(self.folder),
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """Kill one of them, and all that it started."""
        process = self.processes[name]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def wait(self, name: str, line: str) -> None:
        """Wait until one of them has said a line.

        Raises:
            ConfigError: If it has ended, or does not say so in time.
        """
        log, end = self.folder / f"{name}.log", time.monotonic() + STARTING
        while line not in log.read_text("utf-8", errors="replace").splitlines():
            if self.processes[name].poll() is not None or time.monotonic() > end:
                raise ConfigError(f"Flower has not started; {log} says why; valid: sotto[flower]")
            time.sleep(0.1)


@contextlib.contextmanager
def flower_on_localhost(
    hub: Path, sockets: Mapping[str, Path], folder: Path, python: Path = THIS
) -> Iterator[Running]:
    """Relay between a hub and clients' sockets through Flower as long as the context lasts.

    Args:
        hub: The coordinator's socket; it may listen later.
        sockets: Each client's socket by the client's name.
        folder: For keys and `*.log`; made anew, and left for whoever looks.
        python: The interpreter of the environment in which Flower is installed.

    Yields:
        What runs, once all nodes are connected.

    Raises:
        ConfigError: If Flower is not installed, or has not started in 90 seconds.
    """
    folder = folder.absolute()
    folder.mkdir(mode=0o700, parents=True)
    _certificates(folder)
    (folder / "secret").write_bytes(secrets.token_bytes(32))
    address = f"localhost:{_free_port()}"
    running = Running(folder, python, _commands(folder, hub.absolute(), sockets, address))
    keys = {name: running_key(folder, name, python) for name in sockets}
    (folder / "enrolled.json").write_text(json.dumps(keys), "utf-8")
    try:
        for name in running.commands:
            running.start(name)
        running.wait("link", f"there: {' '.join(sorted(sockets))}")
        yield running
    finally:
        for name in running.processes:
            running.kill(name)


def running_key(folder: Path, name: str, python: Path) -> str:
    """Make a node's key as a person would; its public half.

    Raises:
        ConfigError: If Flower's environment cannot make one.
    """
    done = subprocess.run(  # noqa: S603 - a fixed command of our own
        [str(python), "-m", "platform.relay.flower", "key", str(folder / f"{name}.key")],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=_environment(folder),
    )
    if done.returncode:
        raise ConfigError(f"Flower: no key ({done.stderr.strip()[-200:]}); valid: sotto[flower]")
    return done.stdout.strip()


def _commands(
    folder: Path, hub: Path, sockets: Mapping[str, Path], address: str
) -> dict[str, list[str]]:
    root, secret = str(folder / "ca.pem"), str(folder / "secret")
    own = ["--certificate", str(folder / "server.pem"), "--private-key", str(folder / "server.key")]
    _, _, port = address.rpartition(":")
    there = ["--superlink", address, "--root", root]
    listening = ["--host", "127.0.0.1", "--port", port, "--root", root, "--secret", secret]
    enrolled = ["--secret", secret, "--enrolled", str(folder / "enrolled.json")]
    return {
        "superlink": ["superlink", *listening, *own],
        "link": ["link", str(hub), *there, *enrolled],
        **{
            name: [
                *("node", *there, "--key", str(folder / f"{name}.key")),
                *("--socket", str(path.absolute())),
            ]
            for name, path in sockets.items()
        },
    }


def _environment(folder: Path) -> dict[str, str]:
    # Flower keeps what it keeps below its home, which is otherwise shared by the whole account.
    own = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(folder / "flwr")}
    return {**os.environ, **own, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _certificates(folder: Path) -> None:
    """Make a certificate authority and a server's certificate for this machine."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.datetime.now(datetime.UTC)

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    def begun(subject: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(named(subject))
            .issuer_name(named("sotto development"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=DAYS))
        )

    root, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    signing = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    authority = (
        begun("sotto development", root)
        .add_extension(x509.BasicConstraints(True, None), critical=True)
        .add_extension(signing, critical=True)
        .sign(root, hashes.SHA256())
    )
    here = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    server = (
        begun("localhost", own)
        .add_extension(x509.SubjectAlternativeName(here), critical=False)
        .add_extension(x509.BasicConstraints(False, None), critical=True)
        .sign(root, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(authority.public_bytes(pem))
    (folder / "server.pem").write_bytes(server.public_bytes(pem))
    plain, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    with os.fdopen(
        os.open(folder / "server.key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
    ) as file:
        file.write(own.private_bytes(pem, plain, none))
