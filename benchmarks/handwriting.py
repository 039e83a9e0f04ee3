"""Federations on handwriting, on a backbone that has seen print alone, beside a client alone.

    python benchmarks/handwriting.py --stage tuning     # on handwriting_tuning, seeds 100 and 101
    python benchmarks/handwriting.py --stage alone      # every arm of alone.py, on the final seeds
    python benchmarks/handwriting.py --stage ceiling    # a network on the pixels of all clients
    python benchmarks/handwriting.py --stage final      # the tuned settings, on the final seeds
    python benchmarks/handwriting.py                    # the page, and the cells of `sotto advise`

Each stage continues where it stopped. The frozen test images are the same for all seeds; tuning
sees neither these nor the final seeds. All sides have the same clients with the same images.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import alone
from _grid import (
    Row,
    key_of,
    one_of_each,
    read_rows,
    run_missing,
    shared_folder,
    summarise_run,
    workers,
    write_rows,
)
from _handwriting_page import CLIENTS, cells, page
from _pixels import EPOCHS, class_sums, pooled_network
from _sizes import RESULTS, ROOT, SMALLEST, place, sized

from platform.config import load_config

CONFIG = "handwriting"
KEY = ("stage", "domain", "kind", "way", "setting", "epsilon", "seed")
OUTPUT = RESULTS / "handwriting.csv"
ALONE = RESULTS / "handwriting-alone.csv"
ALONE_KEY = ("domain", "kind", "seed", "arm")
CELLS = place(ROOT / "platform" / "results" / "measured.csv")
TUNING_SEEDS = (100, 101)
TUNED_AT = 4.0
MEASURED = sized(20, 2)
EPSILONS = (8.0, 4.0, 2.0)
TUNED_CLIENTS: Mapping[str, int] = {"mnist": 220, "digits": 70}
"""Clients in tuning, as its test images come out of the pool."""

KINDS: Mapping[str, Sequence[str]] = {
    "iid": (),
    "two classes": (
        *("task.partition.kind=pathological", "task.partition.images_per_client=null"),
        *("task.partition.classes_per_client=2", "task.shots=8"),
    ),
    "four hands": ("task.senses=clients",),
}
STATISTICS = ("method.name=class_statistics", "rounds=1", "privacy.clipping_norm=1.0")
PROMPT = (
    *("method.name=promptfl", "method.context_tokens=4", "rounds=5", "evaluation.every=5"),
    "training.local_steps=2",
)
REFINED = (*STATISTICS[:1], "privacy.clipping_norm=1.0", "evaluation.every=20")
WORDS = "method.context_init=a photo of a"
WARM = (*PROMPT[:2], WORDS, "method.warm_steps=200", "evaluation.every=5")
SMALL_NETWORK: Mapping[str, str] = {
    **{"network": "cnn", "channels": "[4, 8]", "feature_width": "32"},
    "image_size": "28",
}
"""A network of few numbers, as noise falls on each of them."""
PIXELS = ("task.model=null", "evaluation.every=20")
OF_PIXELS: Mapping[str, Sequence[str]] = {
    **{
        way: (
            *(*PIXELS, f"method.name={method}"),
            *(f"method.{name}={value}" for name, value in SMALL_NETWORK.items()),
        )
        for way, method in (("FedAvg on pixels", "fedavg"), ("FedPer", "fedper"))
    },
    "PM-MoE": (
        *(*PIXELS, "method.name=pm_moe", "method.base=fedper"),
        *(f"method.base_options.{name}={value}" for name, value in SMALL_NETWORK.items()),
        *("method.gate_rounds=2", "method.top_k=10"),
    ),
}
"""Methods on one small network; all train as tuning chose for FedAvg."""
WAYS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "class statistics": {
        "text 0.1": (*STATISTICS, "method.text_weight=0.1"),
        "text 0.25": (*STATISTICS, "method.text_weight=0.25"),
        "text 0.5": (*STATISTICS, "method.text_weight=0.5"),
        "FedNCM": (*STATISTICS, "method.head=fedncm"),
        "text 0.25, counts": (*STATISTICS, "method.text_weight=0.25", "method.counts=true"),
        "Fed3R": (*STATISTICS, "method.head=fed3r"),
    },
    "refined head": {
        f"{start}, {rounds} rounds, {rate}": (
            *(*REFINED, f"rounds={rounds}", f"method.refine={rate}", f"method.start={start}"),
        )
        for start, rounds, rate in (
            *(("statistics", 4, 1.0), ("statistics", 10, 1.0), ("statistics", 10, 2.0)),
            *(("text", 10, 1.0), ("text", 10, 2.0), ("text", 20, 1.0)),
        )
    },
    "PromptFL": {
        "words, 0.03, C 0.3": (
            *(*PROMPT, WORDS, "training.learning_rate=0.03", "privacy.clipping_norm=0.3"),
        ),
        "words, 0.1, C 0.3": (
            *(*PROMPT, WORDS, "training.learning_rate=0.1", "privacy.clipping_norm=0.3"),
        ),
        "words, 0.1, C 1": (
            *(*PROMPT, WORDS, "training.learning_rate=0.1", "privacy.clipping_norm=1.0"),
        ),
        "words, 0.3, C 1": (
            *(*PROMPT, WORDS, "training.learning_rate=0.3", "privacy.clipping_norm=1.0"),
        ),
        "words, 0.1, C 0.5, 64 directions": (
            *(*PROMPT, WORDS, "training.learning_rate=0.1", "privacy.clipping_norm=0.5"),
            *("privacy.subspace=text_jacobian", "privacy.rank=64"),
        ),
        "random tokens, 0.1, C 0.3": (
            *(*PROMPT, "training.learning_rate=0.1", "privacy.clipping_norm=0.3"),
        ),
    },
    "warm PromptFL": {
        f"{rounds} rounds, {rate}, C {norm}": (
            *(*WARM, f"rounds={rounds}", f"training.learning_rate={rate}"),
            *("training.local_steps=2", f"privacy.clipping_norm={norm}"),
        )
        for rounds, rate, norm in (
            *((1, 0.1, 1.0), (2, 0.1, 1.0), (3, 0.03, 1.0)),
            *((3, 0.1, 1.0), (3, 0.1, 0.3), (5, 0.1, 1.0)),
        )
    },
    "FedAvg on pixels": {
        f"{rounds} rounds, {steps} steps, {rate}, C {norm}": (
            *(f"rounds={rounds}", f"training.local_steps={steps}"),
            *(f"training.learning_rate={rate}", f"privacy.clipping_norm={norm}"),
        )
        for rounds, steps, rate, norm in (
            *((10, 10, 0.1, 1.0), (10, 10, 0.1, 0.5), (10, 20, 0.1, 1.0)),
            *((20, 10, 0.1, 1.0), (20, 10, 0.1, 0.5), (10, 10, 0.3, 1.0)),
        )
    },
}
"""Settings that tuning tries; each way has the same number."""
SUMS_OF_PIXELS = "class sums on pixels"
CHEAP = ("class statistics", "refined head")
"""Ways with every data set, kind and seed; the others have MNIST, iid and two classes, the shared
head and the first three seeds."""
EVERY_WAY = tuple(dict.fromkeys((*WAYS, *OF_PIXELS, SUMS_OF_PIXELS)))
HEADS = ("shared", "select")
"""Heads of clients at home (`evaluation.at_home`) in the final runs."""


def overrides(row: Row) -> list[str]:
    """The overrides of a run, but for its way."""
    is_tuning, domain = row["stage"] == "tuning", row["domain"]
    found = [
        *(f"seed={row['seed']}", *KINDS[row["kind"]]),
        f"task.dataset=handwriting{'_tuning' if is_tuning else ''}",
        f"task.domains=[{domain}]",
        f"task.clients={sized((TUNED_CLIENTS if is_tuning else CLIENTS)[domain], 20)}",
        f"evaluation.measured_clients={MEASURED}",
        # The coordinator adds as much noise as clients would, in a tenth of the time.
        *("privacy.mechanism=central_noise", "secure_aggregation.enabled=false"),
        *("secure_aggregation.threshold=null", "secure_aggregation.corrupt=0"),
        f"privacy.target_epsilon={row['epsilon']}",
    ]
    return (
        [*found, f"task.test_per_class={40 if domain == 'mnist' else 20}"] if is_tuning else found
    )


def tuning() -> Iterator[Row]:
    """Each setting of each way at epsilon 4, iid and with two classes."""
    for seed in TUNING_SEEDS:
        for kind in ("iid", "two classes"):
            for way, settings in WAYS.items():
                for setting in settings:
                    yield _row("tuning", "mnist", kind, way, setting, TUNED_AT, seed)


def chosen(rows: Sequence[Row]) -> dict[str, str]:
    """The setting of each way with the best mean over the tuning runs."""
    found = {}
    for way, settings in WAYS.items():
        means = {
            setting: [float(r["all"]) for r in rows if (r["way"], r["setting"]) == (way, setting)]
            for setting in settings
        }
        found[way] = max(means, key=lambda setting: statistics.fmean(means[setting] or [0.0]))
    return found


def finals(rows: Sequence[Row], seeds: Sequence[int], ways: Sequence[str]) -> Iterator[Row]:
    """The chosen settings on fresh seeds."""
    settings = chosen([row for row in rows if row["stage"] == "tuning"])
    settings |= dict.fromkeys(OF_PIXELS, settings["FedAvg on pixels"])
    settings[SUMS_OF_PIXELS] = "nearest mean"
    for way in ways:
        heads, domains, kinds, its_seeds = list(HEADS), list(CLIENTS), list(KINDS), list(seeds)
        if way not in CHEAP:
            heads, domains, kinds, its_seeds = heads[:1], domains[:1], kinds[:2], its_seeds[:3]
        for seed, domain, kind, head in product(its_seeds, domains, kinds, heads):
            # In four hands, clients hold nearly all classes, as iid.
            for epsilon in EPSILONS if (kind, head) != ("four hands", "select") else ():
                yield _row("final", domain, kind, way, f"{settings[way]}; {head}", epsilon, seed)


def _row(*values: object) -> Row:
    return dict(zip(KEY, map(str, values), strict=True))


def overrides_of(way: str, setting: str) -> tuple[list[str], str]:
    """The overrides of a way in a setting, and its head at home, if any."""
    tuned, _, head = setting.partition("; ")
    more = [*OF_PIXELS.get(way, ()), *WAYS["FedAvg on pixels" if way in OF_PIXELS else way][tuned]]
    return [*more, *([f"evaluation.at_home={head}"] if head else [])], head


def told(way: str) -> list[str]:
    """What `sotto advise` says to set, for a way as the page names it."""
    name, _, setting = way.partition(": ")
    found = [] if name == SUMS_OF_PIXELS else overrides_of(name, setting)[0]
    return [override for override in found if "evaluation.every" not in override]


def measure(row: Row, folder: str) -> Row:
    """One run's numbers, in percent."""
    if row["way"] == SUMS_OF_PIXELS:
        found = class_sums(load_config(Path(CONFIG), pixel_overrides(row)), float(row["epsilon"]))
        none = {name: "" for name in ("own", "chose_own", "epsilon_peers", "seconds")}
        return {**row, "all": f"{found:.2f}", **none}
    more, head = overrides_of(row["way"], row["setting"])
    summary, seconds = summarise_run(CONFIG, [*overrides(row), *more], folder)
    final = summary["final"]
    chose_own = final["expert_weights"][0] if head == "select" else None
    return {
        **row,
        "all": f"{100 * final['accuracy']['mean']:.2f}",
        "own": f"{100 * final['protocol']['own']['mean']:.2f}",
        "chose_own": "" if chose_own is None else f"{100 * chose_own:.0f}",
        "epsilon_peers": f"{final['epsilon']['peers']:.3f}",
        "seconds": f"{seconds:.1f}",
    }


def pixel_overrides(row: Row) -> list[str]:
    """The overrides of what reads pixels without a run."""
    return [*overrides(row), "task.model=null", "method.name=fedavg"]


def measure_ceiling(seeds: Sequence[int]) -> None:
    """Add a network on all clients' pixels to the arms of `ALONE`, iid, where it is missing."""
    rows, arm = read_rows(ALONE), "pooled network on pixels"
    known = {key_of(row, ALONE_KEY) for row in rows}
    for seed in seeds:
        for domain in CLIENTS:
            row = {"domain": domain, "kind": "iid", "seed": str(seed), "arm": arm}
            if key_of(row, ALONE_KEY) in known:
                continue
            config = load_config(
                Path(CONFIG), pixel_overrides(_row("final", domain, "iid", "", "", 8.0, seed))
            )
            found = pooled_network(config, epochs=sized(EPOCHS, 1))
            empty = dict.fromkeys((*alone.SETS, "seconds"), "")
            rows.append({**row, **empty, "all": f"{found:.2f}"})
            write_rows(ALONE, rows, ALONE_KEY)
            print(arm, domain, seed, f"{found:.2f}", flush=True)


def measure_alone(seeds: Sequence[int], prompts: Sequence[int], jobs: int) -> None:
    """Measure every arm that is missing; prompts of one client only with some seeds."""
    rows = read_rows(ALONE)
    known = set() if SMALLEST else {key_of(row, ALONE_KEY[:-1]) for row in rows}
    settings = []
    for seed in seeds:
        for domain in CLIENTS:
            for kind in KINDS:
                row = _row("final", domain, kind, "", "", 8.0, seed)
                if key_of(row, ALONE_KEY[:-1]) not in known:
                    common = ["evaluation.protocol=all_classes", *overrides(row)]
                    settings.append(
                        {
                            **{"config": CONFIG, "kind": f"{domain}/{kind}", "seed": seed},
                            **{"words": [], "coop": seed in prompts, "overrides": common},
                        }
                    )
    settings = sized(settings, settings[:1])
    with shared_folder() as folder, workers(jobs) as pool:
        for number, part in enumerate(pool.map(partial(alone.rows_of, folder=folder), settings), 1):
            for row in part:
                domain, _, kind = row["kind"].partition("/")
                rows.append(
                    {"domain": domain, "kind": kind, "seed": row["seed"], "arm": row["arm"]}
                    | {name: row[name] for name in (*alone.SETS, "seconds")}
                )
            write_rows(ALONE, rows, ALONE_KEY)
            print(f"alone {number}/{len(settings)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    stages = ("tuning", "alone", "ceiling", "final", "page")
    parser.add_argument("--stage", choices=stages, default="page")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(10)))
    parser.add_argument("--ways", choices=EVERY_WAY, nargs="*", default=list(EVERY_WAY))
    parser.add_argument("--prompts", type=int, nargs="*", default=[0, 1, 2], help="seeds of CoOp")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    if options.stage == "tuning" or SMALLEST:
        tries = [row for row in tuning() if row["way"] in options.ways]
        wanted = sized(tries, one_of_each(tries, "way"))
        run_missing(OUTPUT, wanted, measure, key=KEY, jobs=options.jobs)
    if options.stage == "alone" or SMALLEST:
        measure_alone(sized(options.seeds, [0]), sized(options.prompts, []), options.jobs)
    if options.stage == "ceiling" or SMALLEST:
        measure_ceiling(sized(options.seeds[:3], [0]))
    if options.stage == "final" or SMALLEST:
        wanted = list(finals(read_rows(OUTPUT), options.seeds, options.ways))
        wanted = sized(wanted, one_of_each(wanted, "way"))
        run_missing(OUTPUT, wanted, measure, key=KEY, jobs=options.jobs)
    runs, alones = read_rows(OUTPUT), read_rows(ALONE)
    OUTPUT.with_suffix(".md").write_text("\n".join(page(runs, alones)), encoding="utf-8")
    if found := cells(runs, alones, told):
        write_rows(CELLS, found, ("data", "classes_each", "groups", "epsilon", "way"))


if __name__ == "__main__":
    main()
