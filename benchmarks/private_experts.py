"""How many clients private experts need by the formula, and, if asked, what accuracy they reach.

Writes `docs/results/private-experts.{md,svg,png}`. The boundary takes a second. `--measure` runs
`configs/private-experts.yaml` with private experts and with one mean for all, at each number of
clients, epsilon and seed. Rows that `private-experts.csv` already has are kept, whatever `--set`
was at the time.

    python benchmarks/private_experts.py [--measure] [--clients 100] [--experts 8]
        [--epsilons 8] [--seeds 0 1 2] [--jobs 1] [--twins] [--set KEY=VALUE ...]
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _grid import Row, among, read_rows, run_missing, summarise_run
from _private_mean import PrivateMean
from _scores import provenance
from _sizes import RESULTS, SMALLEST, sized
from matplotlib.figure import Figure

CONFIG = "private-experts"
DELTA, ROUNDS = 1e-5, 10
EPSILONS = (1.0, 2.0, 4.0, 8.0)
DIMENSIONS = (16, 32, 512)
GROUPS = (1, 2, 4, 8)
KEY = ("kind", "clients", "experts", "target", "seed")


def needed(epsilon: float, dimension: int, groups: int) -> int:
    """Clients for a signal to noise of 1 if all updates of a group agree and reach C."""
    mean = PrivateMean(
        epsilon=epsilon, delta=DELTA, rounds=ROUNDS, dimension=dimension, groups=groups
    )
    return mean.clients_needed()


def boundary_table() -> list[str]:
    """Clients by epsilon (down), and by dimension and K (across)."""
    columns = list(itertools.product(DIMENSIONS, GROUPS))
    header = " | ".join(f"d={dimension}, K={groups}" for dimension, groups in columns)
    lines = [f"| epsilon | {header} |", "|" + "---|" * (len(columns) + 1)]
    for epsilon in EPSILONS:
        cells = [f"{needed(epsilon, *column):,}" for column in columns]
        lines.append(f"| {epsilon:g} | {' | '.join(cells)} |")
    return lines


def plot(path: Path) -> None:
    """The boundary against epsilon, with a panel for each dimension."""
    import matplotlib as mpl

    mpl.rcParams["svg.hashsalt"] = "sotto"
    figure = Figure(figsize=(9.0, 3.4), layout="constrained")
    panels: Any = figure.subplots(1, len(DIMENSIONS), sharex=True, sharey=True)
    epsilons = [0.5 * 2.0 ** (step / 4.0) for step in range(21)]
    for axes, dimension in zip(panels, DIMENSIONS, strict=True):
        for groups in GROUPS:
            found = [needed(epsilon, dimension, groups) for epsilon in epsilons]
            label = "one mean" if groups == 1 else f"{groups} experts"
            axes.plot(epsilons, found, label=label)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS])
        axes.set_title(f"{dimension} coordinates")
        axes.set_xlabel(f"epsilon of {ROUNDS} rounds, delta {DELTA:g}")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("clients for signal to noise 1")
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(path.with_suffix(".png"), dpi=110)


@dataclass(frozen=True, order=True)
class Setting:
    """One run.

    Attributes:
        kind: `groups`, or `entries` for one mean.
        clients: Number of clients; all take part in every round.
        experts: K.
        target: Epsilon.
        seed: Seed of the run.
    """

    kind: str
    clients: int
    experts: int
    target: float
    seed: int

    def overrides(self) -> list[str]:
        """The overrides of the command line; the threshold is 95% of the clients."""
        experts = self.experts if self.kind == "groups" else "null"
        return [
            f"seed={self.seed}",
            f"task.clients={self.clients}",
            f"secure_aggregation.threshold={-(-19 * self.clients // 20)}",
            f"privacy.target_epsilon={self.target}",
            f"pool={{kind: {self.kind}, experts: {experts}}}",
        ]


def settings(options: argparse.Namespace) -> list[Setting]:
    """All runs, ordered by seed."""
    grid = itertools.product(options.seeds, options.clients, options.epsilons)
    return [
        Setting(kind, clients, options.experts, target, seed)
        for seed, clients, target in grid
        for kind in ("groups", "entries")
    ]


@dataclass(frozen=True)
class Measuring:
    """Measures a setting, in another process.

    Attributes:
        changes: Further overrides, for all runs.
    """

    changes: tuple[str, ...]

    def __call__(self, row: Row, folder: str) -> Row:
        """Return one run's row, in percent and points."""
        setting = Setting(**row)
        overrides = [*setting.overrides(), *self.changes]
        summary, seconds = summarise_run(CONFIG, overrides, folder)
        final, rounds = summary["final"], summary["rounds"]
        gain = summary["gain_over_local"]
        kept = [r["groups"]["kept"] for r in rounds if r["groups"]]
        return {
            **dataclasses.asdict(setting),
            "accuracy": round(100 * final["accuracy"]["mean"], 3),
            "worst": round(100 * final["accuracy"]["worst"], 3),
            "gain_over_local": "" if gain is None else round(100 * gain, 3),
            "lowest_signal_to_noise": round(_lowest(rounds), 3),
            "kept": sum(map(len, kept)),
            "seconds": round(seconds, 1),
        }


def _lowest(rounds: Iterable[Any]) -> float:
    return min(r["signal_to_noise"]["low"] for r in rounds)


def measured_table(rows: Sequence[Row]) -> list[str]:
    """Mean and sample standard deviation over seeds, for both kinds."""
    lines = [
        "| clients | K | epsilon | private experts | one mean | seeds |",
        "|---|---|---|---|---|---|",
    ]
    for place in sorted(set(map(_place, rows))):
        both = [
            [float(r["accuracy"]) for r in rows if _place(r) == place and r["kind"] == kind]
            for kind in ("groups", "entries")
        ]
        shown = [*map(_cell, both), str(len(both[0]))]
        lines.append(f"| {place[0]:,} | {place[1]} | {place[2]:g} | {' | '.join(shown)} |")
    return lines


def _place(row: Row) -> tuple[int, int, float]:
    return int(row["clients"]), int(row["experts"]), float(row["target"])


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"


def report(rows: Sequence[Row]) -> str:
    """The page of results."""
    lines = [
        "# Private experts: how many clients they need",
        "",
        "The noised mean of a group's own clients moves the expert of that group. With K groups,",
        "the expert's signal is as long as its noise in each round if there are",
        "",
        "    n = K s sqrt(T d) / (kappa mu(epsilon, delta))",
        "",
        "clients: T rounds, d coordinates of an expert's update, s = 2 under `replace_one` (counts",
        "are free there) and sqrt(1 + r^2) under `add_or_remove_one` (r: `pool.count_ratio`), mu",
        "of the Gaussian mechanism, and kappa the norm of the mean of a group's clipped updates",
        "over C. Kappa is 1 if all updates reach C and agree, and less otherwise; divide numbers",
        f"below by kappa. {ROUNDS} rounds, all clients in each, delta {DELTA:g},",
        "`replace_one`, kappa = 1; integer noise and clients that may be lost cost a little more.",
        "K = 1 is one mean for all.",
        "The formula is compared with the code that clips, sums and adds noise in",
        "`tests/privacy/test_boundary.py`.",
        "",
        *boundary_table(),
        "",
        "![clients needed against epsilon](private-experts.svg)",
        "",
        "## Reading",
        "",
        "- K experts need K times the clients of one mean. But one mean has another signal: where",
        "  groups disagree, only what they have in common is left of it.",
        "- K counts the groups that clients are in. An expert that no client picks costs only",
        "  bandwidth, and experts beyond the number of groups make it likelier that each group",
        "  finds its own.",
        "- The number of coordinates counts by its root: 16 of 512 directions need 5.7 times fewer",
        "  clients, if the update lies in these directions.",
        "",
    ]
    if rows:
        lines += [
            "## Measured",
            "",
            f"`configs/{CONFIG}.yaml`: accuracy in percent, mean over clients, ± standard",
            "deviation over seeds.",
            "",
            *measured_table(rows),
            "",
        ]
    return "\n".join([*lines, *provenance()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true", help="also run the configuration")
    parser.add_argument("--clients", type=int, nargs="+", default=sized([100], [20]))
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[8.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=sized([0, 1, 2], [0]))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--twins", action="store_true", help="train local twins too")
    parser.add_argument("--set", dest="changes", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument("--output", type=Path, default=RESULTS / "private-experts.md")
    options = parser.parse_args()
    table = options.output.with_suffix(".csv")
    rows = read_rows(table)
    if options.measure or SMALLEST:
        wanted = [dataclasses.asdict(setting) for setting in settings(options)]
        twins = ["evaluation.local_twins=true"] if options.twins else []
        measure = Measuring((*twins, *options.changes))
        found = run_missing(table, wanted, measure, key=KEY, jobs=options.jobs)
        rows = among(found, wanted, KEY)
    plot(options.output)
    options.output.write_text(report(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
