"""Nine methods on `homonyms`, under four protocols, and two of them with upload noise.

Runs `configs/comparison.yaml` with each method on a pathological partition, among clients in four
senses, base to novel and leave-one-domain-out, as sweeps. It chooses a method's learning rate by
the score on a data set rendered from another seed, and keeps the rate in
`methods_on_homonyms.yaml`; `--tables` takes the rates from there and measures the rest. Writes
`docs/results/methods-on-homonyms.{csv,md,svg,tex}`. A second call continues an interrupted
benchmark; `--fresh` starts again.

    python benchmarks/methods_on_homonyms.py [--tables] [--seeds 0 1 2 3 4] [--jobs 2] [--fresh]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from _grid import Row, key_of, read_rows, write_rows
from _methods_page import page, plot
from _scores import provenance
from _sizes import FEWER, RESULTS, place, sized
from _sweeps import percent, sweep, workplace

from platform.results.sweeping.grid import Cell, Grid, SweepRequest, build_grid
from platform.results.sweeping.running import Outcome
from platform.results.sweeping.tables import Table, build_tables, record_of
from platform.results.sweeping.writing import latex

CONFIG = "comparison"
RATES = place(Path(__file__).with_suffix(".yaml"))
LEARNING_RATES = (0.01, 0.05, 0.25)
TUNING_SEED = 100
KEY = ("stage", "suite", "method", "part", "learning_rate", "seed")
HELD_OUT = sized(("painting", "infograph", "quickdraw"), ("painting",))
"""Each shares its sense with one style that is not held out."""
TUNING_DOMAIN = "sketch"
METHODS = (
    *("zero_shot", "coop", "promptfl", "prompt_fedamp", "pfedprompt", "fedclip", "pfedmoap"),
    *("fedpgp", "trip"),
)
MEASURED = sized(METHODS, ("promptfl",))
SUITES: Mapping[str, Sequence[str]] = {
    "pathological": [],
    # Three clients in each sense, with one image of each name.
    "senses": [
        *("task.senses=clients", "task.partition.kind=iid", "task.clients=12", "task.shots=1"),
    ],
    "base_to_novel": ["evaluation.protocol=base_to_novel", "task.clients=5"],
    "leave_one_domain_out": [
        *("evaluation.protocol=leave_one_domain_out", "task.partition.kind=domain"),
        *("task.clients=5", "task.shots=8", "task.senses=styles"),
    ],
}
TRIED = sized(tuple(SUITES), ("leave_one_domain_out",))
NOISED = ("promptfl", "pfedmoap")
CLIPPING_NORM = 0.1
NOISE: Mapping[str, Sequence[str]] = {
    "none": [],
    # The paper's appendix calls this epsilon 50 and 25: noise of 0.0507 C and 0.1015 C.
    "0.0507": ["privacy.noise_multiplier=0.0507"],
    "0.1015": ["privacy.noise_multiplier=0.1015"],
    "epsilon 8": ["privacy.target_epsilon=8.0"],
}
PARTS = sized(tuple(NOISE), ("epsilon 8",))


WORDS = ("method.context_tokens=4", 'method.context_init="a photo of a"')
TITLES = {
    "pathological": "Pathological: ten clients with two classes each",
    "senses": "Senses: three clients in each of four senses, with one image of each name",
    "base_to_novel": "Base to novel: trained on ten classes, asked for ten others",
    "leave_one_domain_out": "Leave one domain out: trained on five styles, asked for the sixth",
    "noise": "Noise on uploads, pathological",
}
START: Mapping[str, Sequence[str]] = {
    # Every prompt starts at words, so that only the method differs and not its random start.
    **dict.fromkeys(METHODS, WORDS),
    **dict.fromkeys(("zero_shot", "fedclip"), ()),
}

Rates = Mapping[tuple[str, str], str]


@dataclass(frozen=True)
class Suite:
    """A grid of the benchmark.

    Attributes:
        stage: `tuning` or `final`.
        name: The name of the suite.
        part: The noise on uploads in the suite `noise`, else `all`.
        grid: The runs.
    """

    stage: str
    name: str
    part: str
    grid: Grid

    def part_of(self, cell: Cell) -> str:
        """The part that a run's row names beside its suite: noise, or the held-out domain."""
        if self.name != "leave_one_domain_out":
            return self.part
        return str(cell.run.task.held_out_domain)


def suite_of(
    stage: str,
    name: str,
    settings: Sequence[str],
    *,
    methods: Sequence[str],
    seeds: Sequence[int],
    storage: str,
    rates: Rates | None = None,
    part: str = "all",
) -> Suite:
    """A suite's grid; without rates, the grid tries all rates."""
    kind = "pathological" if name == "noise" else name
    own = [f"{method}:{text}" for method in methods for text in START[method]]
    if rates is None:
        tried = sized(LEARNING_RATES, LEARNING_RATES[:1])
        settings = (*settings, f"training.learning_rate={','.join(map(str, tried))}")
    else:
        trained = [method for method in methods if method != "zero_shot"]
        own += [f"{m}:training.learning_rate={rates[kind, m]}" for m in trained]
    clients = {"pathological": 10, "senses": 12}.get(kind, 5)
    if "pfedmoap" in methods:
        # All other clients' prompts, as in the paper; the platform's rule would be 2(K+1).
        own += [f"pfedmoap:method.experts={clients - 1}", f"pfedmoap:pool.minimum={clients}"]
    request = SweepRequest(
        configs=(CONFIG,),
        methods=tuple(methods),
        seeds=tuple(seeds),
        settings=(*SUITES[kind], *settings, *FEWER),
        method_settings=tuple(own),
        storage=storage,
    )
    return Suite(stage, name, part, build_grid(request))


def tuning(storage: str) -> list[Suite]:
    """Each method and suite at each learning rate on the tuning seed; one target domain."""
    trained = [method for method in MEASURED if method != "zero_shot"]
    held_out = [f"task.held_out_domain={TUNING_DOMAIN}"]
    return [
        suite_of(
            *("tuning", suite, held_out if suite == "leave_one_domain_out" else []),
            methods=trained,
            seeds=[TUNING_SEED],
            storage=storage,
        )
        for suite in TRIED
    ]


def finals(rates: Rates, seeds: Sequence[int], storage: str) -> list[Suite]:
    """Each method and suite at its rate; each of three domains is held out once."""
    domains = [f"task.held_out_domain={','.join(HELD_OUT)}"]
    common: dict[str, Any] = {"seeds": seeds, "storage": storage, "rates": rates}
    found = [
        suite_of(
            *("final", suite, domains if suite == "leave_one_domain_out" else []),
            methods=MEASURED,
            **common,
        )
        for suite in TRIED
    ]
    for part in PARTS:
        bound = ["privacy.mechanism=upload_noise", f"privacy.clipping_norm={CLIPPING_NORM}"]
        settings = [*bound, *NOISE[part]] if NOISE[part] else []
        methods = sized(NOISED, NOISED[:1])
        found.append(suite_of("final", "noise", settings, methods=methods, part=part, **common))
    return found


def rows_of(suite: Suite, outcomes: Sequence[Outcome]) -> Iterator[Row]:
    """One row per run, accuracies in percent."""
    for outcome in outcomes:
        scores, record = record_of(outcome).scores["last"], record_of(outcome)
        shown = ("worst", "base", "novel", "harmonic_mean", "target", "gain_over_local")
        rate = outcome.cell.run.training.learning_rate
        untrained = outcome.cell.method == "zero_shot"
        key = (
            *(suite.stage, suite.name, outcome.cell.method, suite.part_of(outcome.cell)),
            *(str(LEARNING_RATES[0] if untrained else rate), str(outcome.cell.seed)),
        )
        yield {
            **dict(zip(KEY, key, strict=True)),
            "own": percent(scores["local"]),
            **{name: percent(scores.get(name)) for name in shown},
            "epsilon_server": str(record.epsilon("server")),
            "seconds": round(_seconds(outcome), 1),
            "local_own": percent(scores.get("local_twin")),
        }


def _seconds(outcome: Outcome) -> float:
    """A run's seconds; of a run that an interrupted benchmark finished, only those of rounds."""
    rounds = (outcome.summary or {"rounds": []})["rounds"]
    return outcome.seconds or float(sum(document["seconds"] for document in rounds))


def choose(rows: Sequence[Row]) -> dict[tuple[str, str], str]:
    """The learning rate of the best tuning run for each suite and method; ties go to the lower."""
    headline = {"base_to_novel": "harmonic_mean", "leave_one_domain_out": "target"}
    chosen: dict[tuple[str, str], str] = {}
    for suite, method in dict.fromkeys((row["suite"], row["method"]) for row in rows):
        of = [row for row in rows if (row["suite"], row["method"]) == (suite, method)]
        score = headline.get(suite, "own")
        of.sort(key=lambda row: float(row["learning_rate"]))
        chosen[suite, method] = max(of, key=lambda row: float(row[score]))["learning_rate"]
    return chosen


def write_rates(rates: Rates) -> None:
    """Keep the chosen rates, by suite and method."""
    lines = [line for line in RATES.read_text("utf-8").splitlines() if line.startswith("#")]
    tree = {
        suite: {m: float(rates[suite, m]) for m in METHODS if (suite, m) in rates}
        for suite in SUITES
    }
    text = "\n".join([*lines, yaml.safe_dump(tree, sort_keys=False)])
    RATES.write_text(text, encoding="utf-8")


def read_rates() -> dict[tuple[str, str], str]:
    """The chosen rates."""
    tree = yaml.safe_load(RATES.read_text("utf-8"))
    return {(suite, method): str(v) for suite, of in tree.items() for method, v in of.items()}


def latex_tables(suites: Sequence[Suite], outcomes: Sequence[Sequence[Outcome]]) -> list[Table]:
    """The tables in the papers' form; degrees of noise are rows of one table."""
    found = []
    for suite, of in zip(suites, outcomes, strict=True):
        if suite.name != "noise":
            found += _titled(suite.name, suite.grid, of)
    noised = [pair for pair in zip(suites, outcomes, strict=True) if pair[0].name == "noise"]
    parts = tuple(suite.part for suite, _ in noised)
    shown = [
        replace(outcome, cell=replace(outcome.cell, axes=(("noise", suite.part),)))
        for suite, of in noised
        for outcome in of
    ]
    cells = tuple(outcome.cell for outcome in shown)
    grid = replace(noised[0][0].grid, axes=(("noise", parts),), cells=cells)
    return [*found, *_titled("noise", grid, shown)]


def _titled(name: str, grid: Grid, outcomes: Sequence[Outcome]) -> list[Table]:
    tables = build_tables(grid, [record_of(outcome) for outcome in outcomes])
    return [replace(table, caption=f"{TITLES[name]}. {table.caption}") for table in tables]


def in_place_of(old: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """All rows; each new row replaces the old row of the same setting."""
    return list({key_of(row, KEY): row for row in (*old, *new)}.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=sized([0, 1, 2, 3, 4], [0]))
    parser.add_argument("--jobs", type=int, default=sized(2, 1))
    parser.add_argument("--tables", action="store_true", help="with the rates chosen earlier")
    parser.add_argument("--fresh", action="store_true", help="measure everything again")
    parser.add_argument("--output", type=Path, default=RESULTS / "methods-on-homonyms.csv")
    options = parser.parse_args()
    with workplace("methods-on-homonyms", fresh=options.fresh) as storage:
        measure(options, storage)


def measure(options: argparse.Namespace, storage: str) -> None:
    """Measure everything into the files beside `options.output`."""
    known = read_rows(options.output)
    tuned = [row for row in known if row["stage"] == "tuning"]
    if not options.tables:
        tries = tuning(storage)
        measured = zip(tries, sweep([t.grid for t in tries], storage, options.jobs), strict=True)
        new = [row for suite, of in measured for row in rows_of(suite, of)]
        tuned = sized(new, in_place_of(tuned, new))
        write_rates(choose(tuned))
    rates = read_rates()
    suites = finals(rates, options.seeds, storage)
    outcomes = sweep([suite.grid for suite in suites], storage, options.jobs)
    pairs = zip(suites, outcomes, strict=True)
    rows = [row for suite, of in pairs for row in rows_of(suite, of)]
    # The page needs all methods; at the smallest size most rows are from earlier runs.
    rows = sized(rows, in_place_of([row for row in known if row["stage"] == "final"], rows))
    write_rows(options.output, [*tuned, *rows], KEY)
    rows = [row for row in read_rows(options.output) if row["stage"] == "final"]
    plot(rows, METHODS, options.output.with_suffix(".svg"))
    tables = latex_tables(suites, outcomes)
    options.output.with_suffix(".tex").write_text(latex(tables), encoding="utf-8")
    text = "\n".join([*page(rows, METHODS, rates), *provenance()])
    options.output.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
