"""Methods on small networks, and PM-MoE over nine of them, with and without noise on uploads.

Runs `configs/model-split.yaml` with every method on `digits` (a small CNN) and `shapes` (a layer on
CLIP features), shared ratios 0 and 20 %, as sweeps: the general methods, PM-MoE over each of the
nine model-split methods (whose phase one is that method), and Fed-Syn-MoE. Writes
`docs/results/model-split.{csv,md,svg}`. A second call continues an interrupted benchmark.

New rows replace the rows of the same settings in the CSV; the other rows stay.

    python benchmarks/model_split.py [--noise none 0.0507 "epsilon 8"] [--shared 0.0 0.2] [--fresh]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _grid import Row, key_of, read_rows, write_rows
from _model_split_page import page, plot
from _scores import provenance
from _sizes import FEWER, RESULTS, sized
from _sweeps import percent, sweep, workplace

from platform.results.sweeping.grid import Grid, SweepRequest, build_grid
from platform.results.sweeping.running import Outcome

CONFIG = "model-split"
GENERAL = ("fedavg", "fedprox", "scaffold", "moon", "fedgen", "fed_syn_moe")
BASES = (*("fedper", "lg_fedavg", "fedrep", "fedrod", "fedgh", "fedbabu", "gpfl", "fedcp", "dbe"),)
KEY = ("dataset", "shared", "noise", "method", "seed")
DATA = {
    "digits": ("task.dataset=digits",),
    # Twenty classes leave few images of each, so a tenth of them would round to zero.
    "shapes": (
        *("task.dataset=shapes", "task.model={name: sotto-tiny}", "task.shots=50"),
        "task.validation_share=0.2",
    ),
}
NETWORKS = {
    "digits": ("network=cnn", "channels=[8,16]", "feature_width=64"),
    "shapes": ("network=features", "feature_width=64"),
}
SHARED = ("0.0", "0.2")
BOUND = ("privacy.mechanism=upload_noise", "privacy.clipping_norm=1.0")
NOISE = {
    # Under noise, accuracies without noise must not choose a round.
    "none": ("evaluation.selection=best_on_validation",),
    # Noise of 0.0507 C, which the appendix of pFedMoAP's paper calls epsilon 50.
    "0.0507": (*BOUND, "privacy.noise_multiplier=0.0507"),
    "epsilon 8": (*BOUND, "privacy.target_epsilon=8.0"),
}
POOL_NORM = "pool.clipping_norm=4.0"
# At 0.05, DBE diverges with the weight that its authors give to its regulariser, and SCAFFOLD with
# its control variates.
SLOW, RATE = ("dbe", "scaffold"), "0.01"
DIVERGING = {("epsilon 8", "gpfl")}
"""No run of these finishes at the common rate."""
REPLACED = {("digits", "0.2", 2): 3}
"""Seeds that deal a client too few images to validate with a tenth, and their replacements."""
GATE_ROUNDS = sized(20, 1)
TOP_K = {"0.0": "10", "0.2": "20"}
"""Half of the clients without shared data, and all clients with it, as the paper recommends."""


@dataclass(frozen=True)
class Suite:
    """A grid of the benchmark.

    Attributes:
        dataset: Its name.
        shared: The share of each class that is dealt to all clients alike.
        noise: The noise on uploads.
        grid: The runs.
    """

    dataset: str
    shared: str
    noise: str
    grid: Grid


def suites(dataset: str, shared: str, noise: str, **common: Any) -> Iterator[Suite]:
    """The general methods, and PM-MoE over each base."""
    settings = (*DATA[dataset], f"task.partition.shared_ratio={shared}", *NOISE[noise])
    general = sized(GENERAL, ("fedavg",))
    own = [f"{method}:method.{option}" for method in general for option in NETWORKS[dataset]]
    own += [f"{m}:training.learning_rate={RATE}" for m in general if m in SLOW]
    where = (dataset, shared, noise)
    yield suite_of(where, methods=general, settings=settings, own=own, **common)
    gated = (
        *(f"method.base_options.{option}" for option in NETWORKS[dataset]),
        *(f"method.top_k={TOP_K[shared]}", f"method.gate_rounds={GATE_ROUNDS}"),
        *([POOL_NORM] if noise != "none" else []),
    )
    measured = sized(BASES, ("fedper", "dbe"))
    quick = tuple(b for b in measured if b not in SLOW and (noise, b) not in DIVERGING)
    slow = tuple(base for base in measured if base in SLOW)
    for bases, rates in ((quick, ()), (slow, (f"training.learning_rate={RATE}",))):
        chosen = (f"method.base={','.join(bases)}", *rates)
        yield suite_of(
            where, methods=("pm_moe",), settings=(*settings, *gated, *chosen), own=(), **common
        )


def suite_of(
    where: tuple[str, str, str],
    *,
    methods: Sequence[str],
    settings: Sequence[str],
    own: Sequence[str],
    seeds: Sequence[int],
    storage: str,
) -> Suite:
    """One grid."""
    seeds = [REPLACED.get((*where[:2], seed), seed) for seed in seeds]
    request = SweepRequest(
        configs=(CONFIG,),
        methods=tuple(methods),
        seeds=tuple(seeds),
        settings=(*settings, *FEWER),
        method_settings=tuple(own),
        storage=storage,
    )
    return Suite(*where, build_grid(request))


def rows_of(suite: Suite, outcomes: Sequence[Outcome]) -> Iterator[Row]:
    """One row per run; two for PM-MoE, before and after its second phase. Accuracies in percent."""
    for outcome in outcomes:
        cell, summary = outcome.cell, outcome.summary or {}
        phases, base = summary["phases"], cell.run.method.options.get("base")
        if phases is None:
            yield row(suite, cell.method, cell.seed, summary, summary["final"]["accuracy"])
            continue
        yield row(suite, str(base), cell.seed, summary, phases["before"])
        after = row(suite, f"pm_moe over {base}", cell.seed, summary, phases["after"])
        yield {**after, "cost_share": round(100 * phases["cost_share"], 2)}


def row(
    suite: Suite, method: str, seed: int, summary: dict[str, Any], accuracy: dict[str, Any]
) -> Row:
    """The numbers of one model."""
    chosen = summary["best_on_validation"]
    best = None if chosen is None else chosen["accuracy"]["mean"]
    key = (suite.dataset, suite.shared, suite.noise, method, str(seed))
    return {
        **dict(zip(KEY, key, strict=True)),
        **{name: percent(accuracy[name]) for name in ("mean", "weighted", "std", "worst")},
        # Chosen among the rounds, so before any second phase.
        "best_on_validation": "" if method.startswith("pm_moe") else percent(best),
        "epsilon": str(summary["final"]["epsilon"]["server"]),
        "cost_share": "",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=sized([0, 1, 2], [0]))
    noises, data, shared = list(NOISE), list(DATA), list(SHARED)
    parser.add_argument("--noise", nargs="+", default=sized(noises, noises[-1:]), choices=noises)
    parser.add_argument("--data", nargs="+", default=sized(data, data[-1:]), choices=data)
    parser.add_argument("--shared", nargs="+", default=sized(shared, shared[-1:]), choices=shared)
    parser.add_argument("--jobs", type=int, default=sized(2, 1))
    parser.add_argument("--fresh", action="store_true", help="measure everything again")
    parser.add_argument("--output", type=Path, default=RESULTS / "model-split.csv")
    options = parser.parse_args()
    with workplace("model-split", fresh=options.fresh) as storage:
        measure(options, storage)


def measure(options: argparse.Namespace, storage: str) -> None:
    """Measure everything into the files beside `options.output`."""
    found = [
        suite
        for noise in options.noise
        for dataset in options.data
        for shared in options.shared
        for suite in suites(dataset, shared, noise, seeds=options.seeds, storage=storage)
    ]
    measured = sweep([suite.grid for suite in found], storage, options.jobs)
    pairs = zip(found, measured, strict=True)
    known = {key_of(row, KEY): row for row in read_rows(options.output)}
    known |= {key_of(row, KEY): row for pair in pairs for row in rows_of(*pair)}
    write_rows(options.output, list(known.values()), KEY)
    rows = read_rows(options.output)
    plot(rows, BASES, options.output.with_suffix(".svg"))
    text = "\n".join([*page(rows, GENERAL, BASES), *provenance()])
    options.output.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
