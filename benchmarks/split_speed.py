"""The time of fifty rounds of twenty clients with each base method on a small network.

`digits`, with the configuration of `model_split.py` and fifty rounds, one process after another, on
two CNNs: that of our tables, and that of PM-MoE's paper. A time includes the whole run: start,
data, rounds, evaluation and reports. Writes `docs/results/split-speed.md`.

    python benchmarks/split_speed.py [--methods fedavg ...] [--networks small paper]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from _scores import provenance
from _sizes import RESULTS, sized
from model_split import BASES, GENERAL

ROUNDS = sized(50, 1)
AIM = 60.0
NETWORKS = {
    "small": ("method.channels=[8,16]", "method.feature_width=64"),
    "paper": (),
}
TITLES = {
    "small": "8 and 16 channels, 64 features",
    "paper": "32 and 64 channels, 512 features (paper)",
}


def seconds_of(method: str, network: Sequence[str], folder: Path) -> tuple[float, float]:
    """Processor time and wall time of a whole run, including the start of the interpreter."""
    settings = [
        *(f"method.name={method}", f"rounds={ROUNDS}", "evaluation.every=10", "threads=1"),
        *(f"storage.url=sqlite:///{folder}/sotto.db", *network),
    ]
    options = [option for text in settings for option in ("--set", text)]
    command = [sys.executable, "-m", "platform.coordinator", "run", "model-split", *options]
    wall, before = time.perf_counter(), processor_time()
    subprocess.run([*command, "--json"], check=True, capture_output=True)
    return processor_time() - before, time.perf_counter() - wall


def processor_time() -> float:
    """Processor seconds of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def table(methods: Sequence[str], networks: Sequence[str]) -> list[str]:
    """The table with one row per method."""
    heads = " | ".join(TITLES[network] for network in networks)
    lines = [f"| method | {heads} |", "|---|" + "---|" * len(networks)]
    for method in methods:
        cells = []
        for network in networks:
            with tempfile.TemporaryDirectory() as folder:
                used, wall = seconds_of(method, NETWORKS[network], Path(folder))
            verdict = "" if used < AIM else " **over**"
            cells.append(f"{used:.0f} s ({wall:.0f} s){verdict}")
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    methods = [*GENERAL[:-1], *BASES]
    parser = argparse.ArgumentParser(description=__doc__)
    some, networks = sized(methods, methods[:1]), list(NETWORKS)
    parser.add_argument("--methods", nargs="+", default=some, choices=methods)
    some = sized(networks, networks[:1])
    parser.add_argument("--networks", nargs="+", default=some, choices=networks)
    parser.add_argument("--output", type=Path, default=RESULTS / "split-speed.md")
    options = parser.parse_args()
    rows = table(options.methods, options.networks)
    lines = [
        "# How long a run on a small network takes",
        "",
        f"Twenty clients, {ROUNDS} rounds of one epoch of batches of ten on `digits`, no secure",
        "aggregation, no local twins; whole runs with start, evaluation in every tenth round and",
        "reports. Processor time is on one thread, and other load hardly changes it. Wall time, in",
        "brackets, is beside other work. The aim is under 60 s on two cores.",
        "",
        *rows,
        "",
        *provenance(),
    ]
    options.output.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
