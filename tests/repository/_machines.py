"""Bare machines for tests: each with systemd, a disk and a network of its own, in namespaces.

Needs root, and the image that `make machine` makes.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from tests.repository._source import ROOT

IMAGE = ROOT / "build" / "machine"
BOOT = Path(__file__).with_name("_machine.sh")
STARTING = 120.0
WHY = """
systemctl --failed --no-pager || true
systemctl show -p Id,Result,ExecMainStatus,ExecStartPre 'sotto-*' || true
journalctl --sync || true
journalctl --no-pager --lines 60
"""
"""What became of units, and what they said: it is nowhere else, and goes with the machine."""
MISSING = (
    None
    if os.geteuid() == 0 and (IMAGE / "sbin" / "init").exists()
    else "bare machines need root and their image: `make machine`"
)


@dataclass(frozen=True)
class Machine:
    """A machine that runs."""

    name: str
    pid: int

    def run(self, script: str, account: str = "root", seconds: float = 600.0) -> tuple[int, str]:
        """Type a script into a shell of an account; its exit code, and all that it printed."""
        shell = ["/usr/bin/env", "-i", "HOME=/root", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
        shell += ["/bin/bash", "-e"] if account == "root" else self._shell_of(account)
        done = subprocess.run(
            [*self._inside("--mount", "--pid", "--ipc", "--uts", "--cgroup", "--net"), *shell],
            input=script.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
        return done.returncode, done.stdout.decode(errors="replace")

    def must(self, script: str, account: str = "root", seconds: float = 600.0) -> str:
        """What a script printed, which must succeed."""
        code, said = self.run(script, account, seconds)
        if code:
            _, why = self.run(WHY, seconds=60.0)
            raise AssertionError(
                f"on {self.name}, as {account}:\n{script}\n-> {code}\n{said}\n{why}"
            )
        return said

    def write(self, path: str, content: bytes) -> None:
        """Write a file as root, for everybody to read."""
        writing = ["/bin/sh", "-c", 'mkdir -p "$(dirname "$0")" && cat > "$0" && chmod 644 "$0"']
        subprocess.run([*self._inside("--mount"), *writing, path], input=content, check=True)

    def read(self, path: str) -> bytes:
        """A file's content."""
        reading = [*self._inside("--mount"), "/bin/cat", path]
        return subprocess.run(reading, stdout=subprocess.PIPE, check=True).stdout

    def network(self, *arguments: str) -> None:
        """Do something to its network from outside."""
        subprocess.run([*self._inside("--net"), "ip", *arguments], check=True)

    def _inside(self, *which: str) -> list[str]:
        return ["nsenter", "--target", str(self.pid), *which, "--"]

    @staticmethod
    def _shell_of(account: str) -> list[str]:
        # As the guide says it.
        return ["runuser", "-l", account, "-s", "/bin/bash", "-c", "bash -e"]


@contextmanager
def running_machines(
    names: Sequence[str], folder: Path, shown: Mapping[Path, str]
) -> Iterator[dict[str, Machine]]:
    """Start machines, of which the others reach the first alone; they read the folders shown."""
    with ExitStack() as stack:
        found = {}
        for name in names:
            found[name] = stack.enter_context(_running(name, folder / name, shown))
        _connect(found[names[0]], [found[name] for name in names[1:]])
        for machine in found.values():
            _wait(machine)
        yield found


@contextmanager
def _running(name: str, own: Path, shown: Mapping[Path, str]) -> Iterator[Machine]:
    own.mkdir(parents=True)
    groups = [group / f"machine-{uuid4().hex}" for group in _groups()]
    for group in groups:
        _make(group)
    places = [str(word) for pair in shown.items() for word in pair]
    namespaces = ["--mount", "--net", "--pid", "--ipc", "--uts", "--cgroup"]
    # Two machines' units of one name would share a group, which one removes as the other enters it.
    entering = "for group; do shift; [ $group = -- ] && break; echo $$ > $group/cgroup.procs; done"
    enter = ["/bin/sh", "-ec", f'{entering}; exec "$@"', "sh", *map(str, groups), "--"]
    # Its first process dies with this one, and all others with it.
    command = ["unshare", *namespaces, "--fork", "--kill-child", "/bin/bash", str(BOOT)]
    with (own / "boot.log").open("wb") as log:
        outer = subprocess.Popen(
            [*enter, *command, str(IMAGE), str(own), name, *places],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        pid = _first_process(outer, own / "boot.log")
        # A group that holds a process itself could not be divided.
        for group in groups:
            (group.parent / "cgroup.procs").write_text(str(outer.pid))
        yield Machine(name, pid)
    finally:
        outer.kill()
        outer.wait()
        for group in groups:
            _remove(group)


def _groups() -> Iterator[Path]:
    """The control group of this process in each hierarchy."""
    mounts = [line.split()[1:4] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        wanted = set(filter(None, controllers.split(",")))
        kind = "cgroup" if wanted else "cgroup2"
        for place, of, options in mounts:
            if of == kind and wanted <= set(options.split(",")):
                yield Path(place) / path.strip("/")
                break


def _make(group: Path) -> None:
    """Make a group which a process may enter."""
    group.mkdir()
    for name in ("cpuset.cpus", "cpuset.mems"):
        if (group / name).exists() and not (group / name).read_text().strip():
            (group / name).write_text((group.parent / name).read_text())


def _remove(group: Path) -> None:
    """Remove a group and those in it, once the last process has gone."""
    end = time.monotonic() + STARTING
    while group.exists():
        assert time.monotonic() < end, f"processes are left in {group}"
        for part in (*sorted(group.rglob("*/"), reverse=True), group):
            with suppress(OSError):
                part.rmdir()
        time.sleep(0.1)


def _first_process(outer: subprocess.Popen[bytes], log: Path) -> int:
    """The pid of a machine's first process, once that is systemd."""
    children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
    end = time.monotonic() + STARTING
    while outer.poll() is None and time.monotonic() < end:
        for pid in children.read_text().split():
            if Path(f"/proc/{pid}/comm").read_text() == "systemd\n":
                return int(pid)
        time.sleep(0.1)
    raise AssertionError(f"no machine: {log.read_text()}")


def _connect(center: Machine, others: Sequence[Machine]) -> None:
    """Lay a cable from each machine to the first, which forwards nothing."""
    hosts = "127.0.0.1 localhost\n"
    for number, other in enumerate(others):
        ours, theirs = f"10.77.{number}.1", f"10.77.{number}.2"
        cable = ["ip", "link", "add", f"way{number}", "netns", str(center.pid), "type", "veth"]
        subprocess.run([*cable, "peer", "name", "way", "netns", str(other.pid)], check=True)
        for machine, device, address in ((center, f"way{number}", ours), (other, "way", theirs)):
            machine.network("link", "set", "lo", "up")
            machine.network("address", "add", f"{address}/30", "dev", device)
            machine.network("link", "set", device, "up")
        other.write("/etc/hosts", f"{hosts}{ours} {center.name}\n".encode())
    center.write("/etc/hosts", f"{hosts}127.0.0.1 {center.name}\n".encode())


def _wait(machine: Machine) -> None:
    """Wait until a machine has started. Before its bus is there, systemctl waits for nothing."""
    end = time.monotonic() + STARTING
    while machine.run("systemctl is-active dbus")[1].strip() != "active":
        assert time.monotonic() < end, f"{machine.name} has no bus"
        time.sleep(0.2)
    machine.run("systemctl is-system-running --wait", seconds=STARTING)
