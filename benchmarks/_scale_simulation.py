"""One round of a real coordinator's process with synthetic clients: bytes, uses, time, memory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks._scale_clients import Crowd, identities_of
from platform.parties.identities import write_enrolment

KINDS: Final = ("regular", "complete", "active", "plain")
STAGES: Final = ("advertise", "share", "train", "confirm", "unmask")
TICKS: Final = 100.0
STARTING: Final = 900.0


@dataclass
class Watch:
    """The resources that a process has used when each stage begins."""

    pid: int
    moments: list[tuple[int, str, float, float, float]] = field(default_factory=list)

    def note(self, number: int, stage: str) -> None:
        """Remember the clock, processor time (s) and peak memory (GiB) so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        cpu = (int(fields[11]) + int(fields[12])) / TICKS
        status = Path(f"/proc/{self.pid}/status").read_text()
        peak = int(status.partition("VmHWM:")[2].split()[0]) / 2**20
        if (number, stage) == (1, "advertise"):
            # Restart the peak here: loading torch took more memory than the round takes.
            peak = int(status.partition("VmRSS:")[2].split()[0]) / 2**20
            Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        self.moments.append((number, stage, time.perf_counter(), cpu, peak))

    def stages(self, number: int) -> dict[str, tuple[float, float, float]]:
        """Return each stage's seconds, processor time, and peak memory after the stage."""
        found = {}
        for (n, stage, clock, cpu, _), (_, _, clock2, cpu2, peak) in zip(
            self.moments, self.moments[1:], strict=False
        ):
            if n == number and stage in STAGES:
                found[stage] = (clock2 - clock, cpu2 - cpu, peak)
        return found


def configuration(folder: Path, kind: str, names: tuple[str, ...], tokens: int) -> dict[str, Any]:
    """The coordinator's configuration, for one round."""
    clients = len(names)
    secure: dict[str, Any] = {"enabled": kind != "plain"}
    if kind != "plain":
        secure["corrupt"] = clients // 20
    if kind == "regular":
        secure["graph"] = "k_regular"
    if kind == "complete":
        secure["graph"] = "complete"
    if kind == "active":
        secure |= {"adversary": "active", "enrolment": str(folder / "enrolment.json")}
    mechanism = "upload_noise" if kind == "plain" else "distributed_noise"
    return {
        "name": "scale",
        "rounds": 1,
        "device": "cpu",
        "federation": {
            "clients": list(names),
            "classes": ["circle", "square", "star"],
            "socket": f"{folder}/hub.sock",
            "phase_seconds": 3600.0,
            "training_seconds": 3600.0,
        },
        "task": {"dataset": "held_by_clients", "clients": clients},
        "method": {"name": "promptfl", "context_tokens": tokens},
        "training": {"local_steps": 1, "batch_size": 4, "learning_rate": 0.05},
        "privacy": {"mechanism": mechanism, "clipping_norm": 0.1, "target_epsilon": 8.0},
        "secure_aggregation": secure,
        "evaluation": {"local_twins": False, "worth_of_sharing": False},
        "storage": {"url": f"sqlite:///{folder}/sotto.db"},
    }


def simulate(kind: str, clients: int, *, tokens: int, rate: float) -> dict[str, Any]:
    """Hold one round; return the counts and measurements.

    Args:
        kind: One of `KINDS`.
        clients: Number of clients.
        tokens: Context tokens, which fix the vector's length.
        rate: Share of the clients that is lost before it trains.
    """
    names = tuple(f"{number:06d}" for number in range(clients))
    lost = frozenset(names[:: round(1 / rate)][: round(rate * clients)]) if rate else frozenset()
    with tempfile.TemporaryDirectory(prefix="scale") as place:
        folder = Path(place)
        crowd = Crowd(names, lost)
        if kind == "active":
            crowd.identities, crowd.enrolment = identities_of(names)
            write_enrolment(folder / "enrolment.json", crowd.enrolment)
        config = folder / "run.yaml"
        config.write_text(yaml.safe_dump(configuration(folder, kind, names, tokens)))
        command = [sys.executable, "-m", "platform.coordinator", "run", str(config), "--json"]
        with (
            (folder / "log").open("wb") as log,
            subprocess.Popen(command, stdout=log, stderr=log) as coordinator,
        ):
            try:
                watch = _watched(crowd, folder, coordinator)
            except BaseException:
                coordinator.kill()
                sys.stderr.write((folder / "log").read_text()[-2000:])
                raise
            if coordinator.wait():
                raise SystemExit((folder / "log").read_text()[-2000:])
    return _found(kind, clients, lost, crowd, watch)


def _watched(crowd: Crowd, folder: Path, coordinator: subprocess.Popen[bytes]) -> Watch:
    hub, end = folder / "hub.sock", time.monotonic() + STARTING
    while not hub.exists():
        if coordinator.poll() is not None or time.monotonic() > end:
            raise SystemExit("the coordinator did not start")
        time.sleep(0.05)
    watch = Watch(coordinator.pid)
    crowd.at_stage = watch.note
    crowd.until_parted(hub)
    return watch


def _found(
    kind: str, clients: int, lost: frozenset[str], crowd: Crowd, watch: Watch
) -> dict[str, Any]:
    counted, stages = crowd.counted[1], watch.stages(1)
    joining = crowd.counted[0]
    parameters = crowd.parameters
    row: dict[str, Any] = {
        "kind": kind,
        "clients": clients,
        "lost": len(lost),
        "length": crowd.length if parameters is None else parameters.vector_length,
        "bits": 64 if parameters is None else parameters.ring_bits,
        "degree": 0 if parameters is None else parameters.degree or clients - 1,
        "threshold": 0 if parameters is None else parameters.threshold,
        "base memory": next(m[4] for m in watch.moments if m[:2] == (1, "advertise")),
        "joining down": sum(joining.down.values()),
    }
    row |= _by_stage("down", counted.down) | _by_stage("up", counted.up)
    row |= {f"used {name}": number for name, number in sorted(counted.used.items())}
    for stage, (seconds, cpu, peak) in stages.items():
        row |= {f"s {stage}": seconds, f"cpu {stage}": cpu, f"peak {stage}": peak}
    return row


def _by_stage(way: str, counted: Mapping[str, int]) -> dict[str, int]:
    return {f"{way} {stage}": counted[stage] for stage in STAGES if counted[stage]}
