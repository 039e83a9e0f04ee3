"""The cost of a round without training and evaluation, beside pfl-research in the same run.

    python benchmarks/round_overhead.py [--peer PYTHON_OF_AN_ENVIRONMENT_WITH_PFL] [--late 200]

Runs are set up as always, with the usual messages, accounting, databases and cryptography. Only the
method does not train and nothing is evaluated, so a round is all overhead. Each variant runs in its
own process, one after another, on one thread. A round's time is the run's time between two commits:
on the clock, and on the processor, which other work on the machine disturbs less and which does not
include waiting for the disk. `--memory` adds a run of 1,000 clients, 100 of them in a round.

Writes the table of `docs/results/round-overhead.md` to the standard output.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from _scores import provenance
from _sizes import SMALLEST, sized

from methods import Registry
from platform.config import parse_config
from platform.experiment.planning import Surroundings, create_run
from platform.rounds.loop import Federation
from platform.rounds.observing import SilentObserver

PEER = Path(__file__).with_name("_overhead_peer.py")
EARLY = 10
CLIENTS = sized(100, 10)
NOISE = ("privacy.clipping_norm=1.0", f"privacy.noise_multiplier={sized(100.0, 10.0)}")
MASKS = ("secure_aggregation.enabled=true",)
VARIANTS: Mapping[str, Sequence[str]] = {
    "none": ("privacy.mechanism=none",),
    "upload_noise": ("privacy.mechanism=upload_noise", *NOISE),
    "central_noise": ("privacy.mechanism=central_noise", *NOISE),
    "upload_noise, budget": (
        "privacy.mechanism=upload_noise",
        "privacy.clipping_norm=1.0",
        "privacy.target_epsilon=8.0",
    ),
    "upload_noise, masks": ("privacy.mechanism=upload_noise", *NOISE, *MASKS),
    "distributed_noise, masks": ("privacy.mechanism=distributed_noise", *NOISE, *MASKS),
}
COLUMNS = (
    *("variant", "rounds 1 to 10, s", "last 10, s", "CPU, 1 to 10", "CPU, last 10"),
    *("peer's CPU", "ratio", "ratio of CPU", "memory, GiB"),
)
PEER_VARIANTS = ("none", "central_noise")


class Rounds(SilentObserver):
    """Notes when each round ends."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.cpu: list[float] = []

    def run_started(self, run_id: str, rounds: int, resumed_after: int) -> None:
        """Start the clocks."""
        self.note()

    def round_finished(self, document: Mapping[str, Any]) -> None:
        """Note the end of a round."""
        self.note()

    def note(self) -> None:
        """Note the times of the clocks."""
        self.ends.append(time.perf_counter())
        self.cpu.append(time.process_time())


def between(moments: Sequence[float]) -> list[float]:
    """The time of every round but the last, which is always evaluated."""
    return [after - before for before, after in pairwise(moments)][:-1]


def measure(variant: str, clients: int, cohort: int, rounds: int) -> dict[str, float]:
    """Run one variant; return the measurements of its rounds."""
    with tempfile.TemporaryDirectory() as folder:
        tree = {
            "name": "overhead",
            "device": "cpu",
            "rounds": rounds + 1,
            "task": {
                "dataset": "shapes",
                "domains": ["real"],
                "clients": clients,
                "shots": 1,
                "test_per_class": clients,
                "partition": {"kind": "iid"},
                "model": None,
            },
            "method": {"name": "vector"},
            "training": {"local_steps": 1},
            "cohort": {"size": cohort},
            "evaluation": {"every": 10**5, "local_twins": False},
            "storage": {"url": f"sqlite:///{folder}/sotto.db"},
        }
        config = parse_config(tree, VARIANTS[variant])
        watch = Rounds()
        surroundings = Surroundings(registry=Registry("_overhead_methods"))
        simulation = create_run(config, watch, surroundings)
        Federation(simulation.run, watch).run_rounds()
        simulation.database.close()
        stored = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    seconds, cpu = between(watch.ends), between(watch.cpu)
    return {
        "first": statistics.median(seconds[:EARLY]),
        "late": statistics.median(seconds[-EARLY:]),
        "cpu first": statistics.median(cpu[:EARLY]),
        "cpu late": statistics.median(cpu[-EARLY:]),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "stored": stored / 2**20,
    }


def in_own_process(command: Sequence[str]) -> dict[str, Any]:
    """The JSON in the last line that a process prints."""
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def ours(variant: str, clients: int, cohort: int, rounds: int) -> dict[str, Any]:
    """One variant of ours, in its own process; at the smallest size only one of them runs."""
    if SMALLEST and variant != "none":
        return measure(variant, clients, cohort, rounds)
    numbers = map(str, (clients, cohort, rounds))
    return in_own_process([sys.executable, __file__, "--only", variant, *numbers])


def report(arguments: argparse.Namespace) -> None:
    """Print the table."""
    peers: dict[str, dict[str, Any]] = {}
    if arguments.peer:
        for variant in PEER_VARIANTS:
            command = [arguments.peer, str(PEER), variant, str(CLIENTS), str(arguments.late)]
            peers[variant] = in_own_process(command)
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    for variant in arguments.variants:
        line(variant, ours(variant, CLIENTS, CLIENTS, arguments.late), peers.get(variant))
    if arguments.memory:
        line("upload_noise, 1,000 clients", ours("upload_noise", 1000, 100, 20), None)
    if peers:
        print(f"\npfl {peers['none']['version']}, in its own environment")
    print("\n".join(["", *provenance()]))


def line(name: str, found: Mapping[str, float], peer: Mapping[str, float] | None) -> None:
    """Print a row."""
    cells = [f"{found[key]:.3f}" for key in ("first", "late", "cpu first", "cpu late")]
    beside = ["-"] * 3
    if peer:
        ratios = (f"{found[key] / peer[key]:.1f}" for key in ("late", "cpu late"))
        beside = [f"{peer['cpu late']:.3f}", *ratios]
    cells += [*beside, f"{found['memory']:.2f}"]
    print(f"| {' | '.join([name, *cells])} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="a Python with pfl")
    parser.add_argument("--late", type=int, default=sized(200, 2), help="rounds of each run")
    parser.add_argument("--memory", action="store_true", help="also run 1,000 clients")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--only", nargs=4, metavar="X", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        variant, *numbers = arguments.only
        print(json.dumps(measure(variant, *map(int, numbers))))
        return
    report(arguments)


if __name__ == "__main__":
    main()
