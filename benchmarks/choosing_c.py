"""Three ways to a clipping norm: a dry run on public images, adaptive clipping, and a guess.

Writes `docs/results/choosing-c.md`.

    python benchmarks/choosing_c.py [--seeds 0 1 2]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _scores import provenance, spread
from _sizes import RESULTS, sized

from platform.bootstrap import Surroundings, create_run
from platform.cli.trying import rehearse
from platform.config import parse_config
from platform.experiment.finishing import execute
from platform.rounds.observing import SilentObserver

GUESS = 0.1
EPSILONS = sized((2.0, 8.0), (8.0,))
CLIENTS, RANK, ROUNDS, STEPS = sized((50, 16, 3, 4), (10, 4, 1, 1))
TREE: dict[str, Any] = {
    "name": "choosing-c",
    "rounds": ROUNDS,
    "device": "cpu",
    "task": {
        "dataset": "homonyms",
        "clients": CLIENTS,
        "shots": 1,
        "test_per_class": sized(60, 6),
        "partition": {"kind": "iid"},
    },
    "method": {"name": "promptfl", "context_tokens": 4},
    "training": {"local_steps": STEPS, "learning_rate": 0.05, "batch_size": 16},
    "privacy": {
        "mechanism": "upload_noise",
        "clipping_norm": GUESS,
        "target_epsilon": EPSILONS[0],
        "noise_source": "seeded",
        "subspace": "text_jacobian",
        "rank": RANK,
    },
    "evaluation": {"local_twins": False, "worth_of_sharing": False, "every": ROUNDS},
}
WAYS = ("guess", "dry run", "half of it", "adaptive")


@dataclass(frozen=True)
class Tried:
    """One way under one epsilon.

    Attributes:
        way: How C was found.
        epsilon: What the run may spend.
        norms: C, a number a seed; the last round's where it adapts.
        accuracies: Final accuracy in percent, a number a seed.
    """

    way: str
    epsilon: float
    norms: tuple[float, ...]
    accuracies: tuple[float, ...]

    def row(self) -> str:
        """A row of the table."""
        norm = f"{statistics.mean(self.norms):.3g}" if self.norms else "-"
        return f"| {self.epsilon:g} | {self.way} | {norm} | {spread(self.accuracies)} |"


def dry_run(seed: int) -> tuple[float, int, float]:
    """What is recommended, on how many public images, and in how many seconds."""
    start = time.process_time()
    config = parse_config({**TREE, "seed": seed})
    found = rehearse(config, Surroundings(), SilentObserver(), rounds=1)
    norm, examples = found["clipping_norm"], found["public"]["examples"]
    return norm, examples, time.process_time() - start


def finished(seed: int, folder: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """A run's summary."""
    changes = [*overrides, f"seed={seed}", f"storage.url=sqlite:///{folder}/sotto.db"]
    simulation = create_run(parse_config(TREE, changes), SilentObserver(), Surroundings())
    try:
        return execute(simulation, SilentObserver())
    finally:
        simulation.database.close()


def settings(way: str, recommended: float) -> list[str]:
    """What a way changes."""
    factor = {"dry run": 1.0, "half of it": 0.5}.get(way)
    if factor is not None:
        return [f"privacy.clipping_norm={factor * recommended!r}"]
    adapts = "privacy.adaptive_clipping={quantile: 0.5, learning_rate: 1.0, flag_ratio: 0.1}"
    return [adapts] if way == "adaptive" else []


FOUND: list[tuple[float, int, float]] = []


def measure(seeds: Sequence[int], folder: Path) -> list[Any]:
    """All ways under all epsilons, and without noise."""
    FOUND[:] = [dry_run(seed) for seed in seeds]
    tried = []
    for epsilon in EPSILONS:
        for way in WAYS:
            norms, accuracies = [], []
            for seed, (recommended, _, _) in zip(seeds, FOUND, strict=True):
                asked = settings(way, recommended)
                summary = finished(seed, folder, [*asked, f"privacy.target_epsilon={epsilon}"])
                norms.append(_norm(summary, asked))
                accuracies.append(100 * summary["final"]["accuracy"]["mean"])
            tried.append(Tried(way, epsilon, tuple(norms), tuple(accuracies)))
            print(tried[-1].row(), flush=True)
    exact = [finished(seed, folder, ["privacy.mechanism=none"]) for seed in seeds]
    accuracies = [100 * summary["final"]["accuracy"]["mean"] for summary in exact]
    tried.append(Tried("no noise, no clip", float("inf"), (), tuple(accuracies)))
    print(tried[-1].row(), flush=True)
    return tried


def _norm(summary: dict[str, Any], asked: Sequence[str]) -> float:
    """C of the last round."""
    given = [text.partition("=")[2] for text in asked if text.startswith("privacy.clipping_norm=")]
    told = summary["rounds"][-1].get("clipping_norm")
    return float(given[0]) if given else GUESS if told is None else float(told)


def conclusion(tried: Sequence[Any]) -> list[str]:
    """What the table says, in words."""
    at = {(one.way, one.epsilon): statistics.mean(one.accuracies) for one in tried}
    lines = [
        f"At epsilon {epsilon:g} the dry run's C gives {at['dry run', epsilon]:.1f}%: "
        f"{at['dry run', epsilon] - at['guess', epsilon]:+.1f} points over the guess, "
        f"{at['dry run', epsilon] - at['adaptive', epsilon]:+.1f} over adaptive clipping."
        for epsilon in EPSILONS
    ]
    return [
        *lines,
        "A guess may be off to either side: here it is an eighth of the median norm, in",
        "`expert-pool` it is eleven times that. C above all norms is noise for nothing. Below",
        "all of them signal to noise stays as it is and C is the length of a step, so the median",
        "is the largest C that is worth its noise and need not be the best one. Standard",
        "deviations are as large as most differences: three seeds do not order the ways.",
        "",
    ]


def report(tried: Sequence[Any], seeds: Sequence[int]) -> str:
    """The page of results."""
    norms, images, seconds = zip(*FOUND, strict=True)
    found = ", ".join(f"{norm:.3f}" for norm in norms)
    lines = [
        "# Three ways to a clipping norm",
        "",
        f"PromptFL on `homonyms`, iid, {CLIENTS} clients with one image of each class, {ROUNDS}",
        f"rounds of {STEPS} steps, {RANK} directions (`text_jacobian`), `upload_noise`, client",
        "unit, replace_one, delta 1e-5. Final accuracy in percent, mean ± standard deviation over",
        f"seeds {', '.join(map(str, seeds))}. C is the first round's, or the last one's where it",
        "adapts.",
        "",
        f"- *guess*: C = {GUESS:g}, `expert-pool`'s, which nobody measured here.",
        "- *dry run*: what `clipping CONFIG --rounds 1` recommends, the median norm of the first",
        f"  round's uploads on {images[0]:,} public images: {found}; it",
        f"  takes {statistics.mean(seconds):.0f} s of processor time, and nothing is charged.",
        "  *Half* of that beside.",
        f"- *adaptive*: starts at {GUESS:g} and follows the median (Andrew et al. 2021), by at",
        "  most a factor of exp(0.5) a round; its flag is charged within the same epsilon.",
        "",
        "| epsilon | way | C | accuracy |",
        "|---|---|---|---|",
        *(one.row() for one in tried),
        "",
        *conclusion(tried),
        *provenance(),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=sized([0, 1, 2], [0]))
    parser.add_argument("--output", type=Path, default=RESULTS / "choosing-c.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tried = measure(options.seeds, Path(folder))
    options.output.write_text(report(tried, options.seeds), encoding="utf-8")


if __name__ == "__main__":
    main()
