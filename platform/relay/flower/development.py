"""SuperLink, relay and nodes with TLS on this machine, for development and tests: gone at the end.

All private keys are made in one folder here. Where data is real, each machine makes its own.
"""

from __future__ import annotations

import contextlib
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
from platform.relay.enrolled import development_enrolment
from platform.relay.flower.development_root import DevelopmentRoot

THIS: Final = Path(sys.executable)
STARTING: Final = 300.0
"""Seconds in which all must be connected."""


@dataclass(kw_only=True)
class Running:
    """What runs, by name: `superlink`, `link`, and each client's node by the client's name.

    Attributes:
        folder: For keys, certificates and `*.log`.
        python: The interpreter of the environment in which Flower is installed.
        commands: What each was started with.
        root: Signs certificates here.
        processes: Each one's process.
    """

    folder: Path
    python: Path
    commands: dict[str, list[str]]
    root: DevelopmentRoot
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
                raise ConfigError(
                    f"Flower has not started; {log} says why; valid after `make flower`"
                )
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
        ConfigError: If Flower is not installed, or has not started in five minutes.
    """
    folder = folder.absolute()
    folder.mkdir(mode=0o700, parents=True)
    root = DevelopmentRoot.made()
    root.write(folder / "ca.pem")
    root.write_server(folder / "server.pem", folder / "server.key")
    (folder / "secret").write_bytes(secrets.token_bytes(32))
    address = f"localhost:{_free_port()}"
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
    """Make a node's key and have a certificate of it signed, as a person would; its public half.

    Raises:
        ConfigError: If Flower's environment cannot make one.
    """
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
        raise ConfigError(f"Flower: no key ({said}); valid after `make flower`")
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
    # Flower keeps what it keeps below its home, which is otherwise shared by the whole account.
    own = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(folder / "flwr")}
    return {**os.environ, **own, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
