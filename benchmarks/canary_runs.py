"""Audits runs of `configs/quickstart.yaml` by canary clients; table in `docs/results/`.

    python benchmarks/canary_runs.py [--repeats 1]

Fifty clients train ten steps in each of three rounds at epsilon 3.12, with and without canaries in
turns. Times are the process's own, from the first round to the end: the whole, and the part for
canaries' answers and the verdict. Each is the least of all repeats, because other work on the
machine only adds time. Coins and noise come from the operating system's entropy, so bounds differ
from run to run, and the page shows all of them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from _scores import provenance
from _sizes import FEWER, RESULTS, sized

from platform.config import load_config
from platform.experiment import finishing
from platform.experiment.finishing import judge_canaries
from platform.experiment.planning import Surroundings, create_run
from platform.experiment.simulation import Simulation
from platform.rounds.observing import SilentObserver
from platform.wire.transport import InProcessTransport

PAGE = RESULTS / "privacy-audit.md"
HEADING = "## Canary clients within a run\n"
SMALL_MASKS = ("secure_aggregation.threshold=8", "secure_aggregation.corrupt=1")
COMMON = (
    "privacy.target_epsilon=3.12",
    "cohort.dropout_rate=0",
    "rounds=3",
    "training.local_steps=10",
    "method.context_tokens=16",
    "evaluation={protocol: all_classes, every: 3, local_twins: false, worth_of_sharing: false}",
    "device=cpu",
    *FEWER,
    *sized(
        (), ("task.clients=10", "secure_aggregation.threshold=8", "secure_aggregation.corrupt=1")
    ),
)
CLEAR = ("privacy.mechanism=central_noise", "secure_aggregation={enabled: false}")
MASKED = ("privacy.mechanism=distributed_noise",)
BASES: dict[str, tuple[str, ...]] = {
    "central_noise, no masks": CLEAR,
    "distributed_noise, masks": MASKED,
}
AUDITS: dict[str, tuple[tuple[int, int], ...]] = {
    # Numbers of canaries and of their directions.
    "central_noise, no masks": sized(((32, 16), (256, 128), (1024, 512), (32, 1)), ((32, 1),)),
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
    "canaries' own",
    "of the run without",
)
EXPLANATION = """
Each row gives one bound for the whole run, from its final model, at 2,048 coordinates and
replace_one. Two canaries share each of 16, 128 and 512 directions, or 32 canaries share one, which
shows most for their number. The first share is the runs' median bound over the claim; the ceiling
is the median of runs that are exactly as claimed. From run to run the seen mu has a standard
deviation of 2 / L, where L is the length of everything that canaries send, over C: 8, 23, 45 and
32. The uploads of the fifty other clients disturb the bound, and so does their training, which
works against the canaries. Under masks the sum holds the noise shares of all of them, but the claim
counts on 46 - 2, so the claim is further above the sum's mu.

A canary's own time is the time of its answers. It does not train, so its part is smaller where
training is heavier. Under masks each client masks with every other, so time grows with the square
of their number. The difference of whole runs comes from the machine more than from the canaries.

Accuracy under noise of the same seed, five rounds of two steps at epsilon 8, sixteen tokens,
without masks: 97.0% and 88.5% (seeds 0 and 1) without canaries, 86.8% and 89.8% with 32 in one
direction, which moved the model by 59% of the length of its noise.
"""


@dataclass(frozen=True)
class Measured:
    """One run."""

    seconds: float
    own: float
    summary: Mapping[str, Any]


class Stopwatch:
    """Adds up the time of some calls."""

    def __init__(self) -> None:
        """Start at zero."""
        self.seconds = 0.0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a timed version of the call."""

        def timed(*arguments: Any) -> Any:
            started = time.process_time()
            try:
                return call(*arguments)
            finally:
                self.seconds += time.process_time() - started

        return timed


def watched(simulation: Simulation, watch: Stopwatch) -> Simulation:
    """Return the same run with timed answers of its canaries."""
    within = simulation.run.transport
    if not isinstance(within, InProcessTransport):
        raise TypeError("clients are in this process")
    canaries = simulation.population.canaries
    timed = {name: watch.around(client.handle) for name, client in canaries.items()}
    transport = replace(within, handlers={**within.handlers, **timed})
    return replace(simulation, run=replace(simulation.run, transport=transport))


def run(overrides: tuple[str, ...]) -> Measured:
    """Hold a run once, from its configuration to its summary."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"storage.url=sqlite:///{folder}/sotto.db"
        config = load_config(Path("quickstart"), [*COMMON, *overrides, url])
        watch = Stopwatch()
        simulation = watched(create_run(config, SilentObserver(), Surroundings()), watch)
        with simulation.database, mock.patch.object(finishing, "judge_canaries", judged(watch)):
            started = time.process_time()
            summary = finishing.execute(simulation, SilentObserver())
            return Measured(time.process_time() - started, watch.seconds, summary)


def judged(watch: Stopwatch) -> Callable[..., Any]:
    """Return a timed version of the verdict's function."""
    return watch.around(judge_canaries)


def row(base: str, without: list[Measured], measured: list[Measured]) -> str:
    """Return one line of the table."""
    found, least = measured[-1].summary["canaries"], min(one.seconds for one in measured)
    before, own = min(one.seconds for one in without), min(one.own for one in measured)
    bounds = [one.summary["canaries"]["lower_bound"] for one in measured]
    middle = statistics.median(bounds)
    cells = (
        base,
        found["canaries"],
        found["directions"],
        f"{found['claimed']:.2f}",
        ", ".join(f"{bound:.2f}" for bound in bounds),
        f"{100 * middle / found['claimed']:.0f}%",
        f"{found['ceiling']:.2f}",
        f"{100 * found['ceiling'] / found['claimed']:.0f}%",
        f"{least:.1f}",
        f"{before:.1f}",
        f"{own:.2f}",
        f"{100 * own / before:.1f}%",
    )
    return f"| {' | '.join(map(str, cells))} |"


def rows(base: str, repeats: int) -> list[str]:
    """Return all lines of one setting."""
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
    """Measure all settings, and write their part of the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--output", type=Path, default=PAGE)
    options = parser.parse_args()
    # Run once first, so that later runs find encoded images and compiled code.
    run((*CLEAR, "rounds=1"))
    lines = [line for base in BASES for line in rows(base, options.repeats)]
    head = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    note = ["- Command: `python benchmarks/canary_runs.py`", *provenance()[1:]]
    part = "\n".join([HEADING, *note, *head, *lines, EXPLANATION])
    before, _, _ = options.output.read_text("utf-8").partition(HEADING)
    options.output.write_text(before.rstrip("\n") + "\n\n" + part, "utf-8")


if __name__ == "__main__":
    main()
