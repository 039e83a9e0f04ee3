"""A FLARE project with mutual TLS on this machine, for development and tests.

All private keys lie in one folder. With real data, each site must make its own keys.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from platform.errors import ConfigError
from platform.relay.links import await_line, development_enrolment, free_ports, start_process
from platform.relay.nvflare.site import node_of, settle

PROJECT: Final = "sotto"
ADMIN: Final = "admin@sotto.example"
SERVER: Final = "localhost"
THIS: Final = Path(sys.executable)
STARTING: Final = 180.0
"""Seconds until all sites must be connected."""


@contextlib.contextmanager
def nvflare_poc(
    hub: Path, sockets: Mapping[str, Path], folder: Path, python: Path = THIS
) -> Iterator[Path]:
    """Relay between a hub and clients' sockets through FLARE as long as the context lasts.

    The kits' folder is yielded once all sites are connected and the relay runs, within three
    minutes. A client's name is also its site's name. The coordinator may start later. The new
    folder, with keys, FLARE's own files and `*.log`, stays after the end. `python` is the
    interpreter of the environment in which FLARE is installed.
    """
    folder = folder.absolute()
    kits = provision(folder, tuple(sockets), python)
    for name, path in sockets.items():
        settle(kits / name, path)
    enrolment = folder / "enrolment.json"
    nodes = {name: node_of(kits / name / "startup") for name in sockets}
    enrolment.write_bytes(development_enrolment(nodes))
    settle(kits / SERVER, hub, enrolment)
    started: list[subprocess.Popen[bytes]] = []
    # FLARE's scripts call the first `python3` on the path.
    env = {"PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    try:
        for name in (SERVER, *sockets):
            command = [str(kits / name / "startup" / "sub_start.sh")]
            started.append(start_process(command, folder / f"{name}.log", env))
        keeper, log = [str(python), "-m", __package__, "keep"], folder / "keeper.log"
        started.append(start_process([*keeper, str(kits / ADMIN), *sockets], log, env))
        failed = f"FLARE has not started; see the logs in {folder}"
        running = f"running: {' '.join(sorted(sockets))}"
        await_line(started[-1], log, running, seconds=STARTING, failed=failed)
        yield kits
    finally:
        _end(started, folder)


def provision(folder: Path, clients: Sequence[str], python: Path = THIS) -> Path:
    """Make certificates, keys and start-up kits for a project here; return the kits' folder."""
    folder.mkdir(mode=0o700, parents=True)
    ports = free_ports(2)
    people: list[dict[str, Any]] = [
        {"name": SERVER, "type": "server", "fed_learn_port": ports[0], "admin_port": ports[1]},
        *({"name": name, "type": "client"} for name in clients),
        {"name": ADMIN, "type": "admin", "role": "project_admin"},
    ]
    builders = ("workspace.WorkspaceBuilder", "static_file.StaticFileBuilder", "cert.CertBuilder")
    options: dict[str, dict[str, str]] = {
        "static_file.StaticFileBuilder": {"config_folder": "config", "scheme": "tcp"}
    }
    project = {
        "api_version": 3,
        "name": PROJECT,
        "description": "for development",
        "participants": [{**person, "org": PROJECT} for person in people],
        "builders": [
            {"path": f"nvflare.lighter.impl.{name}", "args": options.get(name, {})}
            for name in (*builders, "signature.SignatureBuilder")
        ],
    }
    file = folder / "project.yml"
    file.write_text(yaml.safe_dump(project, sort_keys=False), "utf-8")
    command = [str(python), "-m", "nvflare.cli", "provision", "-p", str(file), "-w", str(folder)]
    done = subprocess.run(  # noqa: S603 - a fixed command of an interpreter of ours
        command, cwd=folder, capture_output=True, text=True, check=False
    )
    kits = folder / PROJECT / "prod_00"
    if done.returncode or not kits.is_dir():
        said = (done.stdout + done.stderr).strip().splitlines()[-3:]
        raise ConfigError(f"FLARE made no project ({' | '.join(said)}); valid after `make nvflare`")
    return kits


def _end(started: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    """Kill the started processes, and all others that use this folder."""
    for process in started:
        _kill(process.pid, group=True)
    while found := list(processes_of(folder)):
        for pid in found:
            _kill(pid)
        time.sleep(0.1)
    for process in started:
        process.wait()


def _kill(pid: int, *, group: bool = False) -> None:
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if group else os.kill)(pid, signal.SIGKILL)


def processes_of(folder: Path, word: str = "") -> Iterator[int]:
    """Yield the IDs of processes whose command names a path in a folder and contains a word."""
    within = f"{folder}{os.sep}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            state = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0]
            command = (entry / "cmdline").read_bytes().replace(b"\0", b"/")
            if state != b"Z" and within in command and word.encode() in command:
                yield int(entry.name)
