"""Accuracy against epsilon, under each mechanism.

Runs `configs/tradeoff.yaml` (100 clients, one shared prompt of 1 or 4 tokens) for every mechanism,
epsilon and seed and writes `docs/results/tradeoff.{csv,md,svg}`. Keeps the rows of the CSV, so a
second call continues an interrupted benchmark; `--fresh` starts again.

    python benchmarks/tradeoff.py [--seeds 0 1 2] [--jobs 2] [--fresh]
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _grid import Row, among, created_run, one_of_each, read_rows, run_missing, summarise_run
from _scores import provenance, spread
from _sizes import RESULTS, sized
from _worth_page import alone_at
from worth_of_sharing import ALONE

from platform.experiment.evaluation import examine, over_clients
from platform.parties.scoring import LOCAL
from platform.results.charts import Line, LinePicture, Panel, Scale, encoded, point

CONFIG = "tradeoff"
KEY = ("tokens", "mechanism", "target", "seed")
EPSILONS = (1.0, 2.0, 4.0, 8.0)
TOKENS = (1, 4)
CLIPPING_NORM = 0.3
MECHANISMS = {
    "untrained": [],
    "none": [],
    "dp_sgd": [
        "privacy.mechanism=dp_sgd",
        "privacy.per_sample_clipping_norm=1.0",
        "privacy.sampling_probability=1.0",
        # With a norm of one per image, steps are shorter.
        "training.learning_rate=0.1",
    ],
    "upload_noise": [
        "privacy.mechanism=upload_noise",
        f"privacy.clipping_norm={CLIPPING_NORM}",
    ],
    "distributed_noise": [
        "privacy.mechanism=distributed_noise",
        f"privacy.clipping_norm={CLIPPING_NORM}",
        "secure_aggregation.enabled=true",
        *sized(
            ("secure_aggregation.corrupt=5", "secure_aggregation.threshold=95"),
            ("secure_aggregation.corrupt=1", "secure_aggregation.threshold=19"),
        ),
    ],
}
LABELS = {
    "untrained": "no training",
    "none": "none",
    "dp_sgd": "dp_sgd (record, add_or_remove_one)",
    "upload_noise": "upload_noise (client, replace_one)",
    "distributed_noise": "distributed_noise (client, replace_one)",
}


@dataclass(frozen=True, order=True)
class Setting:
    """One run.

    Attributes:
        seed: Seed of the run.
        tokens: Number of the prompt's tokens.
        mechanism: Name of the mechanism.
        target: Epsilon; infinity without noise.
    """

    seed: int
    tokens: int
    mechanism: str
    target: float

    def overrides(self) -> list[str]:
        """The overrides of the command line."""
        changes = [f"seed={self.seed}", f"method.context_tokens={self.tokens}"]
        if math.isfinite(self.target):
            changes.append(f"privacy.target_epsilon={self.target}")
        return [*MECHANISMS[self.mechanism], *changes, *sized((), ("task.clients=20",))]


FIELDS = (
    *(field.name for field in dataclasses.fields(Setting)),
    *("epsilon_server", "epsilon_peers", "epsilon_observer"),
    *("accuracy", "worst", "seconds"),
)


def settings(seeds: Iterable[int]) -> list[Setting]:
    """All runs, ordered by seed."""
    found = []
    for seed, tokens in itertools.product(seeds, TOKENS):
        for name, targets in targets_of():
            found.extend(Setting(seed, tokens, name, target) for target in targets)
    return found


def measure(row: Row, folder: str) -> Row:
    """One run's row."""
    setting = Setting(**row)
    if setting.mechanism == "untrained":
        return _untrained(setting, folder)
    summary, seconds = summarise_run(CONFIG, setting.overrides(), folder)
    final, spent = summary["final"], summary["final"]["epsilon"]
    return {
        **dataclasses.asdict(setting),
        **{f"epsilon_{name}": spent[name] for name in ("server", "peers", "observer")},
        "accuracy": round(100 * final["accuracy"]["mean"], 3),
        "worst": round(100 * final["accuracy"]["worst"], 3),
        "seconds": round(seconds, 1),
    }


def _untrained(setting: Setting, folder: str) -> Row:
    """The accuracy of the random prompt before any training."""
    with created_run(CONFIG, setting.overrides(), folder) as simulation:
        run = simulation.run
        scores = examine(run, run.terms.initial_state(), dict.fromkeys(run.roll.clients), [LOCAL])
    start = over_clients([each.tallies[LOCAL] for each in scores.values()])
    empty: dict[str, Any] = dict.fromkeys(FIELDS, "")
    accuracy, worst = round(100 * start.mean, 3), round(100 * start.worst, 3)
    return empty | dataclasses.asdict(setting) | {"accuracy": accuracy, "worst": worst}


def _key(row: dict[str, Any]) -> tuple[int, str, float, int]:
    target = float(row["target"])
    return int(row["tokens"]), row["mechanism"], min(target, 1e9), int(row["seed"])


def cell(rows: Sequence[dict[str, Any]], name: str) -> str:
    """Mean and sample standard deviation over seeds."""
    if rows[0][name] == "":
        return "-"
    values = [float(row[name]) for row in rows]
    if len(values) < 2:
        return f"{values[0]:.1f}"
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"


def chosen(
    rows: Sequence[dict[str, Any]], tokens: int, mechanism: str, target: float
) -> list[dict[str, Any]]:
    """The rows of one setting for all seeds."""
    wanted = (tokens, mechanism, min(target, 1e9))
    return [row for row in rows if _key(row)[:3] == wanted]


def table(rows: Sequence[dict[str, Any]], tokens: int) -> list[str]:
    """The table of one prompt length."""
    lines = [
        f"## {tokens} token{'s' if tokens > 1 else ''}",
        "",
        "| mechanism | epsilon server / peers / observer | accuracy | worst client | "
        "seconds a run |",
        "|---|---|---|---|---|",
    ]
    for name, targets in targets_of():
        for target in targets:
            of = chosen(rows, tokens, name, target)
            if not of:
                continue
            who = ("server", "peers", "observer")
            spent = "-"
            if of[0]["epsilon_server"] != "":
                spent = " / ".join(f"{float(of[0][f'epsilon_{name}']):.2f}" for name in who)
            cells = (
                *(LABELS[name], spent),
                *(cell(of, field) for field in ("accuracy", "worst")),
                # The median, because runs were interrupted and the machine was shared.
                f"{statistics.median(float(row['seconds']) for row in of):.0f}"
                if of[0]["seconds"] != ""
                else "-",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def reading(rows: Sequence[dict[str, Any]], tokens: int) -> str:
    """The points that training adds to the untrained prompt of the same seeds."""
    start = _mean(rows, tokens, "untrained", math.inf)
    gains = [
        f"{name} {_mean(rows, tokens, name, 8.0) - start:+.1f} and "
        f"{_mean(rows, tokens, name, 1.0) - start:+.1f}"
        for name in list(MECHANISMS)[2:]
    ]
    plain = _mean(rows, tokens, "none", math.inf) - start
    return (
        f"- {tokens} token{'s' if tokens > 1 else ''}: training adds {plain:+.1f} points to a "
        f"random prompt without privacy; at epsilon 8 and 1: {'; '.join(gains)}."
    )


def _mean(rows: Sequence[dict[str, Any]], tokens: int, name: str, target: float) -> float:
    return statistics.mean(float(r["accuracy"]) for r in chosen(rows, tokens, name, target))


def targets_of() -> list[tuple[str, Sequence[float]]]:
    """The epsilons of each mechanism."""
    bare = ("untrained", "none")
    return [(name, (math.inf,) if name in bare else EPSILONS) for name in MECHANISMS]


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Accuracy against epsilon, with one column per prompt length."""
    across = Scale("epsilon of the whole run, delta 1e-5", "amount")
    up = Scale("accuracy in percent", "percent")
    panels = [
        Panel(f"{tokens} token{'s' if tokens > 1 else ''}", across, up, tuple(_lines(rows, tokens)))
        for tokens in TOKENS
    ]
    picture = LinePicture(
        name=path.stem,
        title="Accuracy against epsilon",
        panels=tuple(panels),
        columns=len(TOKENS),
    )
    path.write_bytes(encoded(picture, path.suffix, "benchmarks/tradeoff.py"))


def _lines(rows: Sequence[dict[str, Any]], tokens: int) -> Iterator[Line]:
    """One line per mechanism; runs without noise are at infinity, and without training at 0."""
    for name, targets in targets_of():
        points = []
        for target in targets:
            values = [float(row["accuracy"]) for row in chosen(rows, tokens, name, target)]
            if values:
                deviation = statistics.stdev(values) if len(values) > 1 else None
                spent = 0.0 if name == "untrained" else target
                points.append(point(spent, statistics.mean(values), deviation))
        if points:
            yield Line(LABELS[name], tuple(points))


def report(rows: Sequence[dict[str, Any]], seeds: Sequence[int], jobs: int) -> str:
    """The page of results."""
    alone = alone_at(read_rows(ALONE), "iid", "all")
    lines = [
        "# What accuracy an epsilon costs",
        "",
        f"**{alone.arm.capitalize()} has {spread(list(alone.by_seed.values()))} percent**",
        "without a federation: the best that a client alone can do. So no number here is a gain;",
        "the page shows what noise costs.",
        "",
        "PromptFL on `homonyms`, 100 clients with sixteen images of any class each, five rounds,",
        "all clients in every round: `configs/tradeoff.yaml`. Mean ± standard deviation over",
        f"seeds {', '.join(map(str, seeds))}. Accuracy is in percent of all test images by twenty",
        "clients drawn at random. Rate and steps were chosen for `distributed_noise` with four",
        "tokens on other seeds ([beside a client alone](worth-of-sharing.md)), for `dp_sgd` as the",
        "best of three settings on one other seed; `upload_noise` and one token use the former.",
        "",
        "The three mechanisms promise different things: `dp_sgd` protects one *image* of a client",
        "that is added or removed, the other two a whole *client* that is replaced. Epsilons are",
        "of the whole run at delta 1e-5. Only `distributed_noise` needs secure aggregation and",
        "runs under it here (threshold 95 of 100, at most 5 colluding); its seconds include this.",
        f"Seconds are the median of whole runs, {jobs} at a time on two shared cores, with twenty",
        "prompts trained alone, which runs now leave out.",
        "",
        "![accuracy against epsilon](tradeoff.svg)",
        "",
        "## Reading",
        "",
        *(reading(rows, tokens) for tokens in TOKENS),
        "- A difference that is smaller than the standard deviations beside it says nothing.",
        "",
        *itertools.chain.from_iterable(table(rows, tokens) for tokens in TOKENS),
        *provenance(),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=sized([0, 1, 2], [0]))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--fresh", action="store_true", help="measure everything again")
    parser.add_argument("--output", type=Path, default=RESULTS / "tradeoff.csv")
    options = parser.parse_args()
    if options.fresh:
        options.output.unlink(missing_ok=True)
    wanted = [dataclasses.asdict(setting) for setting in settings(options.seeds)]
    asked = sized(wanted, one_of_each(wanted, "mechanism"))
    measured = run_missing(options.output, asked, measure, key=KEY, jobs=options.jobs)
    rows = among(measured, wanted, KEY)
    plot(rows, options.output.with_suffix(".svg"))
    text = report(rows, options.seeds, options.jobs)
    options.output.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
