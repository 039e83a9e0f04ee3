"""One prompt for all under privacy, beside a client alone at its best, which needs no federation.

Clients hold sixteen images of `homonyms` each (`configs/sharing.yaml`): of any class, of two
classes each, or in four senses, where private experts replace the one prompt. All that is tuned has
three settings on five other seeds; then each runs on fresh seeds. Writes
`docs/results/worth-of-sharing.{csv,md}`. Keeps the rows of the CSV, so a second call continues an
interrupted benchmark. The client alone comes from `alone.py`, which writes `sharing-alone.csv`.

    python benchmarks/alone.py sharing --no-coop --seeds 0 .. 9 --kinds iid pathological senses
        --csv docs/results/sharing-alone.csv
    python benchmarks/worth_of_sharing.py [--stage tuning | final] [--seeds 0 .. 9] [--large 0 ..]
        [--sides together ..] [--kinds iid ..]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _grid import Row, one_of_each, read_rows, run_missing, summarise_run
from _sizes import RESULTS, SMALLEST, sized
from _worth_page import choose, page

from platform.data.shapes import CLASSES as OUTLINES

CONFIG = "sharing"
KEY = ("stage", "side", "kind", "setting", "clients", "epsilon", "seed")
TUNING_SEEDS = range(100, 105)
OUTPUT = RESULTS / "worth-of-sharing.csv"
ALONE = RESULTS / "sharing-alone.csv"
TUNED = (
    *(("prompt alone", "iid"), ("statistics", "iid"), ("together", "iid")),
    ("together", "senses"),
)
"""All but private experts use the settings chosen for iid federations."""
MEASURED = 20
"""Number of measured clients; their images and prompts are drawn alike."""

KINDS: Mapping[str, Sequence[str]] = {
    "iid": (),
    "pathological": (
        *("task.partition.kind=pathological", "task.partition.images_per_client=null"),
        *("task.partition.classes_per_client=2", "task.shots=8"),
    ),
    "senses": ("task.senses=clients",),
    "one mean": ("task.senses=clients",),
    "subspace": (),
}
SUBSPACE = "64 directions"
LOCAL: Mapping[str, Sequence[str]] = {
    "1 token": ("method.context_tokens=1", "training.learning_rate=0.1"),
    "4 tokens": ("method.context_tokens=4", "training.learning_rate=0.03"),
    "16 tokens": ("method.context_tokens=16", "training.learning_rate=0.03"),
}
SHARED: Mapping[str, Sequence[str]] = {
    "2 steps": ("training.local_steps=2", "training.learning_rate=0.03"),
    "1 step": (
        *("training.local_steps=1", "training.learning_rate=0.2"),
        "privacy.clipping_norm=0.5",
    ),
    "64 directions": (
        *("training.local_steps=2", "training.learning_rate=0.1", "privacy.clipping_norm=0.5"),
        *("privacy.subspace=text_jacobian", "privacy.rank=64"),
    ),
}
EXPERTS = (
    *("pool.kind=groups", "pool.floor=3.0", "rounds=6", "training.local_steps=5"),
    "privacy.clipping_norm=0.2",
)
GROUPS: Mapping[str, Sequence[str]] = {
    "6 experts, C = 0.2": (*EXPERTS, "pool.experts=6"),
    "8 experts, C = 0.2": (*EXPERTS, "pool.experts=8"),
    "6 experts, split": (*EXPERTS, "pool.experts=6", "pool.empty=split"),
}
ONCE = ("rounds=1", "privacy.clipping_norm=1.0")
STATISTICS: Mapping[str, Sequence[str]] = {
    "class means": (*ONCE, "method.name=class_statistics", "method.head=fedncm"),
    "class means, text 0.1": (*ONCE, "method.name=class_statistics", "method.text_weight=0.1"),
    "word table": (*ONCE, "method.name=word_table", f"method.words=[{','.join(OUTLINES)}]"),
}
"""Private releases without training, of class sums or of the words that CLIP reads in images."""
PROMPT_ALONE = (
    *("method.name=coop", "rounds=1", "privacy.mechanism=none"),
    *("secure_aggregation.enabled=false", f"task.clients={MEASURED}", "evaluation.every=1"),
)
FEWER_CLIENTS = (
    *("task.clients=20", "secure_aggregation.threshold=19"),
    "secure_aggregation.corrupt=1",
)
EPSILONS: Mapping[int, Sequence[float]] = {100: (8.0, 4.0), 1000: (8.0, 2.0, 1.0)}


def settings_of(side: str, kind: str) -> Mapping[str, Sequence[str]]:
    """The settings that tuning tries on a side; all sides have the same number."""
    if side == "together":
        return GROUPS if kind == "senses" else SHARED
    return LOCAL if side == "prompt alone" else STATISTICS


def tuning() -> Iterator[Row]:
    """Each setting on each of the tuning seeds, at 100 clients and epsilon 8."""
    for seed in TUNING_SEEDS:
        for side, kind in TUNED:
            for setting in settings_of(side, kind):
                yield _row("tuning", side, kind, setting, 100, 8.0, seed)


def finals(chosen: Mapping[tuple[str, str], str], seeds: Sequence[int], clients: int) -> list[Row]:
    """The chosen settings on fresh seeds, ordered by seed."""
    found = []
    for seed in seeds:
        for kind in KINDS:
            if kind == "subspace" and clients > min(EPSILONS):
                continue
            if clients == min(EPSILONS) and kind not in ("subspace", "one mean"):
                alone = chosen["prompt alone", "iid"]
                found.append(_row("final", "prompt alone", kind, alone, MEASURED, np.inf, seed))
            for epsilon in EPSILONS[clients][: 1 if kind == "one mean" else None]:
                if kind in ("iid", "pathological"):
                    once = chosen["statistics", "iid"]
                    found.append(_row("final", "statistics", kind, once, clients, epsilon, seed))
                setting = chosen["together", "senses" if kind == "senses" else "iid"]
                setting = SUBSPACE if kind == "subspace" else setting
                found.append(_row("final", "together", kind, setting, clients, epsilon, seed))
    return found


def _row(*values: Any) -> Row:
    return dict(zip(KEY, map(str, values), strict=True))


def overrides(row: Row) -> list[str]:
    """The overrides of the command line."""
    clients, large = int(row["clients"]), int(row["clients"]) > min(EPSILONS)
    found = [
        *(f"seed={row['seed']}", f"task.clients={clients}", *KINDS[row["kind"]]),
        *settings_of(row["side"], row["kind"])[row["setting"]],
        *("evaluation.protocol=all_classes", f"evaluation.measured_clients={MEASURED}"),
    ]
    if row["side"] == "prompt alone":
        return ["training.local_steps=100", *found, *PROMPT_ALONE]
    found += [f"privacy.target_epsilon={row['epsilon']}", "evaluation.every=20"]
    if large:
        # Here the coordinator adds as much noise as clients would, in a tenth of the time.
        found += ["privacy.mechanism=central_noise", "secure_aggregation.corrupt=0"]
        found += SPARSE if row["kind"] == "senses" else UNMASKED
    elif row["stage"] == "tuning":
        # A threshold that allows losing a third needs more noise than in the final runs.
        found.append("secure_aggregation.threshold=67")
    else:
        worth = float(row["epsilon"]) == max(EPSILONS[clients]) and int(row["seed"]) < 3
        worth = worth and row["kind"] != "one mean" and row["side"] == "together"
        found.append(f"evaluation.worth_of_sharing={worth}".lower())
    return found


SPARSE = ["secure_aggregation.threshold=null", "secure_aggregation.graph=k_regular"]
UNMASKED = ["secure_aggregation.enabled=false", "secure_aggregation.threshold=null"]


def measure(row: Row, folder: str) -> Row:
    """One run's numbers, in percent and points."""
    fewer = () if row["side"] == "prompt alone" else sized((), FEWER_CLIENTS)
    summary, seconds = summarise_run(CONFIG, [*overrides(row), *fewer], folder)
    final = summary["final"]
    told = [r["signal_to_noise"] for r in summary["rounds"] if "signal_to_noise" in r]
    return {
        **row,
        "all": _percent(final["accuracy"]["mean"]),
        "own": _percent(final["protocol"]["own"]["mean"]),
        "worth": _percent(summary["worth_of_sharing"]),
        "epsilon_peers": final["epsilon"]["peers"],
        "signal_to_noise": " ".join(map(_interval, told)),
        "seconds": round(seconds, 1),
    }


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"


def _interval(document: Any) -> str:
    if not isinstance(document, Mapping):
        return "-"
    return f"{document['low']:.2f}-{document['high']:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", choices=("tuning", "final", "page"), default="page")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(10)))
    parser.add_argument("--large", type=int, nargs="*", default=[], help="seeds of 1,000 clients")
    parser.add_argument("--kinds", choices=KINDS, nargs="*", default=list(KINDS), help="of finals")
    sides = list(dict.fromkeys(side for side, _ in TUNED))
    parser.add_argument("--sides", choices=sides, nargs="*", default=sides)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    if options.stage == "tuning" or SMALLEST:
        tries = [row for row in tuning() if row["side"] in options.sides]
        tries = sized(tries, one_of_each(tries, "side"))
        run_missing(options.output, tries, measure, key=KEY, jobs=options.jobs)
    if options.stage == "final" or SMALLEST:
        chosen = choose(read_rows(options.output))
        wanted = [*finals(chosen, options.seeds, 100), *finals(chosen, options.large, 1000)]
        wanted = [r for r in wanted if r["kind"] in options.kinds and r["side"] in options.sides]
        wanted = sized(wanted, one_of_each(wanted, "side"))
        run_missing(options.output, wanted, measure, key=KEY, jobs=options.jobs)
    text = "\n".join(page(read_rows(options.output), read_rows(ALONE)))
    options.output.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
