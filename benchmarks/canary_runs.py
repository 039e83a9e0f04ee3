"""Audits runs of `configs/quickstart.yaml` by canary clients; table in `docs/results/`.

    python benchmarks/canary_runs.py [--repeats 2]

Fifty clients train ten steps in each of three rounds at epsilon 3.12, with and without canaries, in
turns. Time is the process's own, from the first round to the verdict: the least of all repeats, as
whatever else the machine does only adds to it. Coins and noise come from the operating system's
entropy, so bounds differ from run to run; the page shows those of the last repeat.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _scores import RESULTS, provenance

from platform.bootstrap import Surroundings, create_run
from platform.config import load_config
from platform.experiment.finishing import execute
from platform.rounds.observing import SilentObserver

PAGE = RESULTS / "privacy-audit.md"
HEADING = "## Canary clients within a run\n"
COMMON = (
    "privacy.target_epsilon=3.12",
    "cohort.dropout_rate=0",
    "rounds=3",
    "training.local_steps=10",
    "evaluation={protocol: all_classes, every: 3, local_twins: false, worth_of_sharing: false}",
    "device=cpu",
)
CLEAR = ("privacy.mechanism=central_noise", "secure_aggregation={enabled: false}")
MASKED = ("privacy.mechanism=distributed_noise",)
BASES: dict[str, tuple[str, ...]] = {
    "central_noise, no masks": CLEAR,
    "distributed_noise, masks": MASKED,
}
AUDITS: dict[str, tuple[tuple[int, int], ...]] = {
    # Canaries and their directions.
    "central_noise, no masks": ((32, 16), (256, 128), (1024, 512), (32, 1)),
    "distributed_noise, masks": ((32, 1),),
}
COLUMNS = (
    "setting",
    "canaries",
    "directions",
    "claimed eps",
    "seen eps, 95%",
    "share",
    "ceiling",
    "share",
    "seconds",
    "without",
    "extra",
    "accuracy",
    "without",
)
EXPLANATION = """
One bound for the whole run, by what its final model shows, at 512 coordinates and replace_one: two
canaries share each of 16, 128 and 512 directions, or all share one, which shows most for their
number. The ceiling is the median of runs exactly as claimed. What is seen differs from run to run
by some two deviations, 2 / L in mu, where L is the length of all that canaries send over C; what
the fifty others upload is in the way, and under masks all of their shares are in the sum where the
claim counts on 46 - 2 of them. Under masks each canary masks with everybody else, so that time
grows with the square of all who are there. A canary takes the time of its messages and trains
nothing, so the heavier training is the smaller is its part. Accuracy is lower, as canaries push the
model along all rounds, and further where many share a direction.
"""


@dataclass(frozen=True)
class Measured:
    """One run."""

    seconds: float
    summary: Mapping[str, Any]

    @property
    def accuracy(self) -> str:
        return f"{100 * self.summary['final']['accuracy']['mean']:.1f}%"


def run(overrides: tuple[str, ...]) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        url = f"storage.url=sqlite:///{folder}/sotto.db"
        config = load_config(Path("quickstart"), [*COMMON, *overrides, url])
        simulation = create_run(config, SilentObserver(), Surroundings())
        with simulation.database:
            started = time.process_time()
            summary = execute(simulation, SilentObserver())
            return Measured(time.process_time() - started, summary)


def row(base: str, without: list[Measured], measured: list[Measured]) -> str:
    found, least = measured[-1].summary["canaries"], min(one.seconds for one in measured)
    before = min(one.seconds for one in without)
    cells = (
        base,
        found["canaries"],
        found["directions"],
        f"{found['claimed']:.2f}",
        f"{found['lower_bound']:.2f}",
        f"{100 * found['share']:.0f}%",
        f"{found['ceiling']:.2f}",
        f"{100 * found['ceiling'] / found['claimed']:.0f}%",
        f"{least:.1f}",
        f"{before:.1f}",
        f"{100 * (least / before - 1.0):+.1f}%",
        measured[-1].accuracy,
        without[-1].accuracy,
    )
    return f"| {' | '.join(map(str, cells))} |"


def rows(base: str, repeats: int) -> list[str]:
    without: list[Measured] = []
    found: dict[tuple[int, int], list[Measured]] = {kind: [] for kind in AUDITS[base]}
    for _ in range(repeats):
        without.append(run(BASES[base]))
        for (canaries, directions), measured in found.items():
            audit = f"audit={{canaries: {canaries}, directions: {directions}}}"
            measured.append(run((*BASES[base], audit)))
            print(row(base, without, measured), flush=True)
    return [row(base, without, measured) for measured in found.values()]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--output", type=Path, default=PAGE)
    options = parser.parse_args()
    # Once, so that what is encoded and compiled is there.
    run((*CLEAR, "rounds=1"))
    lines = [line for base in BASES for line in rows(base, options.repeats)]
    head = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    note = ["- Command: `python benchmarks/canary_runs.py`", *provenance()[1:]]
    part = "\n".join([HEADING, *note, *head, *lines, EXPLANATION])
    before, _, _ = options.output.read_text("utf-8").partition(HEADING)
    options.output.write_text(before.rstrip("\n") + "\n\n" + part, "utf-8")


if __name__ == "__main__":
    main()
