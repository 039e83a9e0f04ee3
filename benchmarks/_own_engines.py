"""Rounds of the engines' own aggregation on this machine: Flower's two, and NVIDIA FLARE's."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from platform.relay.flower.connection import create_key
from platform.relay.flower.development import DevelopmentRoot
from platform.relay.nvflare.development import ADMIN, SERVER, provision

HERE = Path(__file__).parent
PROGRAMS = HERE / "_own_programs"
MARK = "SOTTO_BENCHMARK"
"""A variable in the environment of every process started here; their children inherit it."""
LATEST = 3600.0
"""Seconds that all rounds may take."""
LARGEST_ERROR = 1e-4
"""Between the average and the expected value; SecAgg+ rounds values to steps of 4e-6."""
ROUND = re.compile(
    r"^(\S+ \S+) - FedAvg - .*\n[-=]+\n +(?:Round \d+ started\.|Finished FedAvg\.) *$", re.M
)
"""When a round began, or the last round ended, in the log of FLARE's server."""
APP = """
[project]
name = "own-aggregation"
version = "1.0.0"
description = "Averages fixed values."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "sotto"

[tool.flwr.app.components]
serverapp = "own:server"
clientapp = "own:client"

[tool.flwr.app.config]
clients = {clients}
values = {values}
rounds = {rounds}
threshold = {threshold}
result = "{result}"
"""


class Started:
    """Processes that work below one folder.

    Attributes:
        folder: Their working directory and logs.
        programs: The engine's environment, where they find programs by name.
        added: Variables added to their environment.
    """

    def __init__(self, folder: Path, programs: Path, added: Mapping[str, str]) -> None:
        """Start none."""
        self.folder = folder
        self.programs = programs
        self.added = {
            MARK: str(folder),
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            **added,
        }
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *words: object, **added: str) -> subprocess.Popen[bytes]:
        """Start a process; its output goes to a log of this name."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(self.programs / words[0]), *map(str, words[1:])],
                cwd=self.folder,
                env={**os.environ, **self.added, **added},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def run(self, name: str, *words: object) -> None:
        """Run one of our Python programs to its end."""
        if self.start(name, "python", *words).wait(LATEST):
            said = (self.folder / f"{name}.log").read_text("utf-8")
            raise SystemExit(f"{name} failed: {said[-2000:]}")

    def end(self) -> None:
        """Kill all these processes, and all that they have started."""
        while found := list(self._living()):
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        for process in self._processes:
            process.wait()

    def _living(self) -> Iterator[int]:
        mark = f"{MARK}={self.folder}".encode()
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


@contextmanager
def flower(folder: Path, clients: int) -> Iterator[tuple[Started, str]]:
    """A SuperLink and SuperNodes as Flower ships them; yields the processes and the address."""
    programs = environment("flower")
    root, address = DevelopmentRoot.made(), f"localhost:{free_port()}"
    root.write(folder / "ca.pem")
    root.write_server(folder / "server.pem", folder / "server.key")
    (folder / "secret").write_bytes(secrets.token_bytes(32))
    own = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}
    running = Started(folder, programs, own)
    names = [f"site-{number}" for number in range(1, clients + 1)]
    keys = [create_key(folder / f"{name}.key").strip() for name in names]
    try:
        command: list[object] = ["flower-superlink", "--host", "127.0.0.1"]
        command += ["--port", address.rpartition(":")[2], "--enable-supernode-auth"]
        command += ["--ssl-ca-certfile", folder / "ca.pem", "--ssl-certfile", folder / "server.pem"]
        command += ["--ssl-keyfile", folder / "server.key"]
        command += ["--superexec-auth-secret-file", folder / "secret"]
        command += ["--disable-runtime-dependency-installation"]
        running.start("superlink", *command, FLWR_HOME=str(folder / "home"))
        await_listening(address)
        running.run("register", PROGRAMS / "flower_start.py", "register", address, "ca.pem", *keys)
        for name in names:
            node: list[object] = ["flower-supernode", "--superlink", address]
            node += ["--root-certificates", folder / "ca.pem", "--isolation", "subprocess"]
            node += ["--auth-supernode-private-key", folder / f"{name}.key", "--port", free_port()]
            running.start(name, *node, FLWR_HOME=str(folder / f"home-{name}"))
        yield running, address
    finally:
        running.end()


def flower_rounds(
    running: Started, address: str, app: str, sizes: Mapping[str, int]
) -> list[float]:
    """Seconds of each round of one app, after a check of its averages.

    Args:
        running: A SuperLink and its nodes.
        address: The SuperLink's address.
        app: A file of `_own_programs` without its suffix.
        sizes: `clients`, `values` and `rounds`, and the `threshold` of shares.
    """
    place, result = running.folder / app, running.folder / f"{app}.json"
    place.mkdir()
    (place / "own.py").write_bytes((PROGRAMS / f"{app}.py").read_bytes())
    (place / "pyproject.toml").write_text(APP.format(result=result, **sizes))
    start = [PROGRAMS / "flower_start.py", "run", address, "ca.pem", place, sizes["clients"]]
    running.run(f"{app}-start", *start)
    end = time.monotonic() + LATEST
    while not result.exists():
        if time.monotonic() > end:
            said = (running.folder / "superlink.log").read_text("utf-8")
            raise SystemExit(f"{app}: no result; SuperLink: {said[-2000:]}")
        time.sleep(0.5)
    found = json.loads(result.read_text("utf-8"))
    if not found["error"] <= LARGEST_ERROR or len(found["seconds"]) != sizes["rounds"]:
        raise SystemExit(f"{app}: not the requested result: {found}")
    return list(found["seconds"])


def nvflare_rounds(folder: Path, sizes: Mapping[str, int]) -> list[float]:
    """Seconds of each round of FLARE's federated averaging under mutual TLS.

    Args:
        folder: For keys and logs.
        sizes: `clients`, `values` and `rounds`.
    """
    programs, place = environment("nvflare"), folder / "project"
    names = [f"site-{number}" for number in range(1, sizes["clients"] + 1)]
    kits = provision(place, names, programs / "python")
    keep_within(kits / SERVER)
    running = Started(folder, programs, {"PYTHONUNBUFFERED": "1"})
    try:
        for name in (SERVER, *names):
            running.start(name, kits / name / "startup" / "sub_start.sh")
        asked = [str(sizes[name]) for name in ("clients", "values", "rounds")]
        start = [PROGRAMS / "flare_start.py", kits / ADMIN, ADMIN]
        running.run("job", *start, PROGRAMS / "flare_client.py", *asked)
        return rounds_of(folder / f"{SERVER}.log", sizes["rounds"])
    finally:
        running.end()


def keep_within(kit: Path) -> None:
    """Keep a server's jobs in its kit; by default all servers of a machine share one folder."""
    tree = json.loads((kit / "local" / "resources.json.default").read_text("utf-8"))
    tree["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(kit / "kept")
    for component in tree["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(kit / "stored")
    (kit / "local" / "resources.json").write_text(json.dumps(tree), "utf-8")


def rounds_of(log: Path, rounds: int) -> list[float]:
    """Seconds of each round by the server's log, each up to the next round or the end."""
    found = ROUND.findall(log.read_text("utf-8"))
    times = [datetime.strptime(each, "%Y-%m-%d %H:%M:%S,%f") for each in found]
    if len(times) != rounds + 1:
        raise SystemExit(f"{log}: {len(times)} times; expected {rounds} beginnings and an end")
    return [(late - early).total_seconds() for early, late in pairwise(times)]


def environment(kind: str) -> Path:
    """The folder of an engine's programs."""
    programs = HERE.parent / f".venv-{kind}" / "bin"
    if not programs.is_dir():
        raise SystemExit(f"{programs} is missing; run `make {kind}` to build it")
    return programs


def free_port() -> int:
    """A free port."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def await_listening(address: str) -> None:
    """Wait until a server listens."""
    host, _, port = address.rpartition(":")
    end = time.monotonic() + 120.0
    while True:
        try:
            socket.create_connection((host, int(port)), 1.0).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
