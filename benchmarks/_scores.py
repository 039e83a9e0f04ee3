"""What the accuracy benchmarks share: runs over seeds, a table, and where the numbers are from."""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from scipy import stats

import platform
from platform.bootstrap import Surroundings, create_run
from platform.config import load_config
from platform.experiment.environment import environment
from platform.experiment.finishing import execute
from platform.rounds.observing import SilentObserver

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
HEADER = ("| setting | accuracy | worst client | gain over local |", "|---|---|---|---|")
OPPONENT = (
    "The opponent here is a prompt that one client trains alone, **which is not the best that a",
    "client alone can do**: zero-shot CLIP with a search over words for each name solves",
    "`homonyms` without any federation. So no number here says what a federation gains;",
    "comparisons with stronger opponents are being measured.",
)
"""What every page says that compares with training alone."""


@dataclass(frozen=True)
class Score:
    """One setting over all seeds, in percent and points."""

    label: str
    accuracies: tuple[float, ...]
    worst: tuple[float, ...]
    gains: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean accuracy."""
        return statistics.mean(self.accuracies)

    def row(self) -> str:
        """A row of the table."""
        cells = (self.label, *map(spread, (self.accuracies, self.worst, self.gains)))
        return f"| {' | '.join(cells)} |"


def spread(values: Sequence[float]) -> str:
    """Mean and sample standard deviation; of one value 0, of none a dash."""
    if not values:
        return "-"
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.1f} ± {deviation:.1f}"


def half_width(values: Sequence[float]) -> float:
    """Half of the 95% t interval of a mean."""
    number = len(values)
    return float(stats.t.ppf(0.975, number - 1) * statistics.stdev(values) / number**0.5)


def interval(values: Sequence[float], sign: str = "") -> str:
    """Mean with its 95% t interval; `sign` is `+` for differences."""
    middle, half = statistics.mean(values), half_width(values)
    shown = (f"{value:{sign}.1f}" for value in (middle, middle - half, middle + half))
    return "{} [{}, {}]".format(*shown)


def score(
    label: str, config: str, overrides: Sequence[str], *, seeds: Sequence[int], folder: Path
) -> Score:
    """Runs a packaged configuration once a seed."""
    accuracies, worst, gains = [], [], []
    for seed in seeds:
        changes = [*overrides, f"seed={seed}", f"storage.url=sqlite:///{folder}/sotto.db"]
        loaded = load_config(Path(config), changes)
        simulation = create_run(loaded, SilentObserver(), Surroundings())
        summary = execute(simulation, SilentObserver())
        simulation.database.close()
        accuracies.append(100 * summary["final"]["accuracy"]["mean"])
        worst.append(100 * summary["final"]["accuracy"]["worst"])
        gains.append(100 * summary["gain_over_local"])
    result = Score(label, tuple(accuracies), tuple(worst), tuple(gains))
    print(result.row(), flush=True)
    return result


def provenance() -> list[str]:
    """Command, date, commit and versions."""
    facts = environment("cpu")
    name = Path(sys.argv[0]).name
    command = " ".join(["python", f"benchmarks/{name}", *sys.argv[1:]])
    return [
        f"- Command: `{command}`",
        f"- Date: {datetime.datetime.now(datetime.UTC):%Y-%m-%d}, commit {facts['commit']}",
        f"- Python {platform.python_version()}, torch {version('torch')}, "
        f"open_clip {version('open_clip_torch')}, numpy {version('numpy')}, CPU",
        "",
    ]


def run(
    name: str,
    measure: Callable[[Sequence[int], Path], list[Score]],
    report: Callable[[Sequence[Score], Sequence[int]], str],
) -> None:
    """Measures over the seeds of the command line and writes the page of results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=RESULTS / f"{name}.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scores = measure(options.seeds, Path(folder))
    options.output.write_text(report(scores, options.seeds), encoding="utf-8")
