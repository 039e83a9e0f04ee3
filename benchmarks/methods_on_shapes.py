"""Accuracy without privacy on pathological shapes: mean and standard deviation over seeds.

Runs zero-shot CLIP, CoOp, PromptFL at three learning rates and pFedMoAP from
`configs/pathological.yaml` and writes `docs/results/methods-on-shapes.md`.

    python benchmarks/methods_on_shapes.py
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import platform
from platform.bootstrap import Surroundings, create_run
from platform.config import load_config
from platform.environment import environment
from platform.finishing import execute
from platform.observing import SilentObserver

PROMPTFL_RATES = (0.002, 0.02, 0.2)
OUTPUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "methods-on-shapes.md"


@dataclass(frozen=True)
class Score:
    """One method over all seeds: final accuracies and gains over local, in points."""

    label: str
    accuracies: tuple[float, ...]
    gains: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean accuracy."""
        return statistics.mean(self.accuracies)

    def row(self) -> str:
        """A row of the table."""
        return f"| {self.label} | {spread(self.accuracies)} | {spread(self.gains)} |"


def spread(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"


def score(label: str, overrides: Sequence[str], seeds: Sequence[int], folder: Path) -> Score:
    accuracies, gains = [], []
    for seed in seeds:
        changes = [*overrides, f"seed={seed}", f"storage.url=sqlite:///{folder}/sotto.db"]
        config = load_config(Path("pathological"), changes)
        wiring = create_run(config, SilentObserver(), Surroundings())
        summary = execute(wiring, SilentObserver())
        wiring.database.close()
        accuracies.append(100 * summary["final"]["accuracy"]["mean"])
        gains.append(100 * summary["gain_over_local"])
    result = Score(label, tuple(accuracies), tuple(gains))
    print(result.row(), flush=True)
    return result


def measure(seeds: Sequence[int], folder: Path) -> list[Score]:
    scores = [
        score("zero-shot CLIP", ["method.name=zero_shot"], seeds, folder),
        score("CoOp (local)", ["method.name=coop"], seeds, folder),
    ]
    for rate in PROMPTFL_RATES:
        changes = ["method.name=promptfl", f"training.learning_rate={rate}"]
        scores.append(score(f"PromptFL, learning rate {rate}", changes, seeds, folder))
    scores.append(score("pFedMoAP", [], seeds, folder))
    return scores


def report(scores: Sequence[Score], seeds: Sequence[int], command: str) -> str:
    facts = environment("cpu")
    best = max((s for s in scores if s.label.startswith("PromptFL")), key=lambda s: s.mean)
    moap, zero = scores[-1], scores[0]
    lines = [
        "# Methods on pathological shapes, without privacy",
        "",
        "Final accuracy in percent (mean over ten clients, each on its own test images, over all",
        "twenty classes) and gain over local training in points; mean ± standard deviation over",
        f"seeds {', '.join(map(str, seeds))}. Configuration: `configs/pathological.yaml`.",
        "",
        "| method | accuracy | gain over local |",
        "|---|---|---|",
        *(s.row() for s in scores),
        "",
        f"pFedMoAP against PromptFL at its best rate: {moap.mean - best.mean:+.1f} points,",
        f"against zero-shot: {moap.mean - zero.mean:+.1f} points. PromptFL at its best against",
        f"zero-shot: {best.mean - zero.mean:+.1f} points.",
        "",
        f"- Command: `{command}`",
        f"- Date: {datetime.datetime.now(datetime.UTC):%Y-%m-%d}, commit {facts['commit']}",
        f"- Python {platform.python_version()}, torch {version('torch')}, "
        f"open_clip {version('open_clip_torch')}, numpy {version('numpy')}, CPU",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scores = measure(options.seeds, Path(folder))
    command = " ".join(["python", "benchmarks/methods_on_shapes.py", *sys.argv[1:]])
    options.output.write_text(report(scores, options.seeds, command), encoding="utf-8")


if __name__ == "__main__":
    main()
