"""A federation of hundreds of data holders on one machine; every round loses a tenth of them.

    python -m benchmarks.federation_scale --clients 500 [--engine flower] [--adversary active]

Holders run the client's own code in threads (`_crowd.py`), each behind its own socket. Coordinator
and relays are processes, as people start them. At the end the benchmark compares the coordinator's
records with the holders', and writes its column of `docs/results/federation-scale.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from benchmarks._crowd import Losses, crowd
from benchmarks._crowd_checks import faults
from benchmarks._crowd_page import publish, row_of
from benchmarks._sizes import sized
from platform.parties.identities import create_key, write_enrolment
from privacy.secure_aggregation import Enrolment

CLASSES = ("circle", "square", "star")
LATEST = 3600.0
IMAGES = 2
"""A holder's images of each class for training, and for tests."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One federation.

    Attributes:
        clients: Number of clients.
        rounds: Number of rounds.
        rate: Share of the clients that is lost in each round.
        adversary: The adversary that the secure sum withstands.
        deadline: Seconds that a stage waits.
        training: Seconds that the stage of training waits.
        processes: Number of processes that share the holders.
        relays: Number of relay processes if there is no engine.
        engine: `local` or `flower`.
    """

    clients: int
    rounds: int
    rate: float
    adversary: str
    deadline: float
    training: float
    processes: int
    relays: int
    engine: str

    @property
    def names(self) -> tuple[str, ...]:
        """The holders'."""
        return tuple(f"h{number:04d}" for number in range(self.clients))

    @property
    def losses(self) -> Losses:
        """Which clients are lost, and when."""
        away = max(self.deadline, self.training) + 2.0
        return Losses(names=self.names, rate=self.rate, rounds=self.rounds, seconds=away)


def write_images(folder: Path, seed: int) -> None:
    """Write a holder's images, `train/CLASS/IMAGE` and `test/CLASS/IMAGE`."""
    draws = np.random.default_rng(seed)
    for part in ("train", "test"):
        for name in CLASSES:
            place = folder / part / name
            place.mkdir(parents=True)
            for number in range(IMAGES):
                pixels = draws.integers(0, 256, (16, 16, 3), np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")


def write_holders(folder: Path, setting: Setting) -> None:
    """Write each holder's images, key and settings, and the enrolment of all."""
    enrolment = Enrolment()
    for number, name in enumerate(setting.names):
        own = folder / name
        write_images(own / "images", number)
        enrolment = enrolment.enrol(name, create_key(own / "own.key").public)
        limits = {"delta": 1e-5, "epsilon_total": 8.1, "epsilon_per_run": 8.1}
        if setting.adversary == "active":
            limits |= {"adversary": "active"}
        settings = {
            "name": name,
            "data": {"root": "images"},
            "storage": "store",
            "identity": "own.key",
            "enrolment": str(folder / "enrolment.json"),
            "device": "cpu",
            "limits": limits,
        }
        (own / "client.yaml").write_text(yaml.safe_dump(settings))
    write_enrolment(folder / "enrolment.json", enrolment)


def configuration(folder: Path, setting: Setting) -> dict[str, Any]:
    """The coordinator's."""
    secure: dict[str, Any] = {"enabled": True, "corrupt": setting.clients // 20 or 1}
    if setting.adversary == "active":
        secure |= {"adversary": "active", "enrolment": str(folder / "enrolment.json")}
    else:
        secure |= {"tolerated_dropout_rate": min(2 * setting.rate, 0.2)}
    return {
        "name": "crowd",
        "seed": 5,
        "rounds": setting.rounds,
        "device": "cpu",
        "federation": {
            "clients": list(setting.names),
            "classes": list(CLASSES),
            "socket": f"{folder}/hub.sock",
            "phase_seconds": setting.deadline,
            "training_seconds": setting.training,
            "joining_seconds": 900.0,
        },
        "task": {"dataset": "held_by_clients", "clients": setting.clients},
        "method": {"name": "promptfl", "context_tokens": 4},
        "training": {"local_steps": 1, "batch_size": 4, "learning_rate": 0.05},
        "privacy": {
            "mechanism": "distributed_noise",
            "clipping_norm": 0.1,
            "target_epsilon": 8.0,
            "spare_attempts": 4,
        },
        "secure_aggregation": secure,
        "evaluation": {"local_twins": False, "worth_of_sharing": False},
        "storage": {"url": f"sqlite:///{folder}/coordinator/sotto.db"},
    }


def sotto(*arguments: str | Path) -> list[str]:
    """A command line of this installation."""
    return [sys.executable, "-m", *map(str, arguments)]


@contextmanager
def relayed(
    folder: Path, sockets: Mapping[str, Path], setting: Setting
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Carry messages between the hub and all holders' sockets."""
    if setting.engine == "flower":
        from benchmarks._crowd_flower import flower_of_many

        with flower_of_many(folder / "hub.sock", sockets, folder / "engine") as running:
            yield running
        return
    named = [f"{name}={path}" for name, path in sockets.items()]
    running = [
        subprocess.Popen(sotto("platform.relay", folder / "hub.sock", *named[i :: setting.relays]))
        for i in range(setting.relays)
    ]
    try:
        yield running
    finally:
        for relay in running:
            relay.terminate()
            relay.wait()


def peak(pid: int) -> float:
    """Peak of a living process's memory in GiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20


def conducted(folder: Path, config: Path) -> Iterator[tuple[float, dict[str, Any], int]]:
    """Each event of the coordinator: its time (s since the start), the event, and the process."""
    started = time.perf_counter()
    command = sotto("platform.coordinator", "run", config, "--json")
    log = (folder / "coordinator.txt").open("wb")
    with log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log) as process:
        for line in process.stdout or ():
            yield time.perf_counter() - started, json.loads(line), process.pid
        if process.wait():
            raise SystemExit(f"the coordinator ended with {process.returncode}: {log.name}")


def hold(folder: Path, setting: Setting) -> dict[str, Any]:
    """Hold one federation, from its folders to its checks; return its measurements."""
    (folder / "coordinator").mkdir()
    config = folder / "run.yaml"
    config.write_text(yaml.safe_dump(configuration(folder, setting)))
    found: dict[str, Any] = {"rounds": [], "waits": {}}
    since, stage, summary = 0.0, None, None
    with ExitStack() as stack:
        holders = stack.enter_context(crowd(folder, setting.losses, setting.processes))
        relays = stack.enter_context(relayed(folder, holders.sockets, setting))
        for now, event, pid in conducted(folder, config):
            if event["event"] == "waiting" and event["stage"] != stage:
                stage, since = event["stage"], now
                found["waits"].setdefault(stage, [])
            if event["event"] == "waiting" and not event["clients"]:
                found["waits"][stage].append(now - since)
                stage = None
            if event["event"] == "round":
                found["rounds"].append(event)
                found.setdefault("first", now - event["seconds"])
                print(
                    f"{now:7.1f} s: round {event['round']}, {event['dropped']} of "
                    f"{event['cohort']} lost, {event['seconds']:.1f} s, {event['bytes_up']} bytes "
                    f"up, {event['bytes_down']} down",
                    flush=True,
                )
                found["coordinator"] = peak(pid)
                found["relays"] = [peak(relay.pid) for relay in relays]
            if event["event"] == "summary":
                summary, found["seconds"] = event, now
    if summary is None:
        raise SystemExit("the coordinator gave no summary")
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    found["cpu"] = children.ru_utime + children.ru_stime
    found["holders"] = holders.used
    found["epsilon"] = summary["final"]["epsilon"]["server"]
    wrong = list(faults(folder, folder / "coordinator" / "sotto.db", summary, setting.losses))
    if wrong:
        raise SystemExit("\n".join(["not sound:", *wrong[:20]]))
    return found


def options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=sized(500, 10))
    parser.add_argument("--rounds", type=int, default=sized(10, 1))
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--adversary", choices=("semi_honest", "active"), default="semi_honest")
    parser.add_argument("--deadline", type=float, default=sized(45.0, 5.0))
    parser.add_argument("--training", type=float, default=sized(100.0, 5.0))
    parser.add_argument("--processes", type=int, default=sized(2, 1))
    parser.add_argument("--relays", type=int, default=sized(5, 1))
    parser.add_argument("--engine", choices=("local", "flower"), default="local")
    parser.add_argument("--folder", type=Path, help="where to work; the default is deleted at exit")
    return parser.parse_args()


def main() -> None:
    given = options()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    fields: Sequence[str] = tuple(Setting.__dataclass_fields__)
    setting = Setting(**{name: getattr(given, name) for name in fields})
    with ExitStack() as stack:
        folder = given.folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crowd")))
        folder.mkdir(exist_ok=True)
        write_holders(folder.resolve(), setting)
        found = hold(folder.resolve(), setting)
    given_words = " ".join(["python -m benchmarks.federation_scale", *sys.argv[1:]])
    print(json.dumps(found, default=str))
    publish(row_of(vars(given), found, given_words))


if __name__ == "__main__":
    main()
