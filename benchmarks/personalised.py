"""Personalised methods on handwriting, two classes a client: what each gains, and its worth.

Every method whose clients end with models of their own runs at epsilon 8 on the clients of
`handwriting.py`, beside a client alone at its best, class statistics, and one prompt for all. All
have the same rounds, steps, rate and C. A method that the mechanism refuses shows the refusal.

    python benchmarks/personalised.py --measure --domains digits --seeds 0 1 2
    python benchmarks/personalised.py               # the page
"""

from __future__ import annotations

import argparse
import statistics
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from _grid import Row, one_of_each, read_rows, run_missing, summarise_run
from _handwriting_page import CLIENTS, Cell, found_cells
from _scores import half_width, interval, provenance, spread
from _sizes import RESULTS, SMALLEST, sized
from handwriting import ALONE, CONFIG, KEY, PROMPT, STATISTICS, WORDS, overrides

from platform.errors import ConfigError

OUTPUT = RESULTS / "personalised.csv"
EPSILON = 8.0
NUMBERS = ("all", "own", "worth", "refusal")
TRAINED = (
    *(*PROMPT[2:], "evaluation.every=20"),
    *("training.learning_rate=0.1", "privacy.clipping_norm=1.0"),
)
PROMPTS: Mapping[str, Sequence[str]] = {
    "promptfl": (WORDS,),
    **dict.fromkeys(("promptfl_ft", "prompt_fedper", "fedpgp", "pfedprompt", "fedotp"), (WORDS,)),
    # Four tokens have no rank of eight; the published gate is an eighth as wide as its features.
    "dp_fpl": (WORDS, "method.rank=2"),
    "prompt_fedamp": (WORDS,),
    "pfedpg": (),
    "pfedmoap": (WORDS, "method.gate_dim=16"),
}
NETWORKS = (
    *("fedper", "fedrep", "lg_fedavg", "fedbabu", "ditto", "fedrod", "fedproto", "feddistill"),
    *("dbe", "fedcp", "gpfl", "fed_syn_moe", "fedgh", "fedpcl", "pm_moe"),
)
"""These train one layer and a head on CLIP's features."""
ONCE = (*STATISTICS, "method.text_weight=0.1")
SHARED = ("class statistics", "promptfl")
"""One model for all, beside which the others stand."""
WAYS: Mapping[str, Sequence[str]] = {
    SHARED[0]: ONCE,
    f"{SHARED[0]}, select": (*ONCE, "evaluation.at_home=select"),
    **{
        name: (f"method.name={name}", "method.context_tokens=4", *TRAINED, *own)
        for name, own in PROMPTS.items()
    },
    **{
        name: (
            *(f"method.name={name}", *TRAINED),
            f"method.{'base_options.' if name == 'pm_moe' else ''}network=features",
        )
        for name in NETWORKS
    },
}


def wanted(domains: Sequence[str], seeds: Sequence[int]) -> Iterator[Row]:
    """All runs, by seed and domain."""
    for seed in seeds:
        for domain in domains:
            for way in WAYS:
                values = ("final", domain, "two classes", way, "", EPSILON, seed)
                yield dict(zip(KEY, map(str, values), strict=True))


def measure(row: Row, folder: str) -> Row:
    """One run's numbers in percent and points, or why the mechanism refuses the method."""
    more = [*overrides(row), *WAYS[row["way"]], "evaluation.worth_of_sharing=true"]
    try:
        summary, _ = summarise_run(CONFIG, more, folder)
    except ConfigError as error:
        if "is not admitted by" not in str(error):
            raise
        return {**row, **dict.fromkeys(NUMBERS, ""), "refusal": str(error).partition(";")[0]}
    final, worth = summary["final"], summary["worth_of_sharing"]
    values = (
        f"{100 * final['accuracy']['mean']:.2f}",
        f"{100 * final['protocol']['own']['mean']:.2f}",
        "" if worth is None else f"{100 * worth:.2f}",
        "",
    )
    return {**row, **dict(zip(NUMBERS, values, strict=True))}


def page(rows: Sequence[Row], alones: Sequence[Row]) -> Iterator[str]:
    """The page of results."""
    known = found_cells([row for row in rows if not row["refusal"]], alones)
    found = [cell for cell in known if cell.own_gains]
    yield "# Personalised methods under privacy, beside a client alone at its best"
    yield ""
    for domain in CLIENTS:
        yield from _verdict(domain, [cell for cell in found if cell.domain == domain])
    yield from INTRODUCTION
    for domain in CLIENTS:
        yield ""
        yield from _table(domain, [cell for cell in found if cell.domain == domain], rows)
    yield ""
    yield from READING
    yield ""
    yield "| refused | what it says |"
    yield "|---|---|"
    yield from sorted({f"| {row['way']} | {row['refusal']} |" for row in rows if row["refusal"]})
    yield ""
    yield from provenance()


INTRODUCTION = (
    "",
    "Every client of [handwriting](handwriting.md) holds eight images of each of two classes,",
    "where a model of its own matters most. Privacy is that of a whole client: epsilon 8, delta",
    "1e-5, replace one, with noise of the coordinator (`central_noise`). *All* is percent of right",
    "answers on the frozen test images among all ten names, *own* on a client's own test images,",
    "both by twenty clients. Each gain is in points over the best that a client alone can do in",
    "that column, chosen afterwards and paired by seed, with a 95% t interval if there are several",
    "seeds. *Worth of sharing* is in points of *all* over the better of two runs",
    "with uploads of zeros, with noise and without.",
    "",
    "**Methods are not tuned here one by one.** All have what `PromptFL` has on handwriting (five",
    "rounds of two steps at rate 0.1, C 1, four tokens from `a photo of a` where a method has",
    "words), and else their presets; a better rate may exist. Small networks train one layer and a",
    "head on CLIP's features, and start at random.",
)
READING = (
    "A network whose head stays with the client learns the client's two classes and names no",
    "other, so it is right on *own* and wrong elsewhere. That its uploads matter little is what",
    "*worth of sharing* says: near zero, zeros would have done as well. `pm_moe` has no worth,",
    "because its pool is made once. A method without a row in a table was not measured there.",
)


def _name(cell: Cell) -> str:
    return cell.way.partition(":")[0]


def _verdict(domain: str, cells: Sequence[Cell]) -> Iterator[str]:
    rivals = [cell for cell in cells if _name(cell) not in SHARED]
    if not rivals:
        return
    first = max(rivals, key=lambda cell: statistics.fmean(cell.own_gains))
    broad = max(rivals, key=lambda cell: statistics.fmean(cell.gains))
    release = next(cell for cell in cells if _name(cell) == SHARED[0])
    won = [_name(cell) for cell in rivals if _low(cell.own_gains) > 0]
    seeds = max(len(cell.own_gains) for cell in rivals)
    said = (
        f"**{domain}**, {CLIENTS[domain]} clients, seeds: {seeds}. "
        f"{', '.join(won) or 'No personalised method'} gains over a client alone on its own "
        f"classes. The best is {_name(first)} with {_points(first.own_gains)} points. On all "
        f"classes the best is {_name(broad)} with {_points(broad.gains)}, where class statistics, "
        f"one release for all, has {_points(release.gains)}."
    )
    yield from textwrap.wrap(said, 88, initial_indent="- ", subsequent_indent="  ")


def _low(gains: Sequence[float]) -> float:
    return statistics.fmean(gains) - (half_width(gains) if len(gains) > 1 else 0.0)


def _shown(values: Sequence[float]) -> str:
    return f"{values[0]:.1f}" if len(values) == 1 else spread(values)


def _points(gains: Sequence[float]) -> str:
    return interval(gains, "+") if len(gains) > 1 else f"{gains[0]:+.1f}"


def _table(domain: str, cells: Sequence[Cell], rows: Sequence[Row]) -> Iterator[str]:
    worth: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row["domain"] == domain and row["worth"]:
            worth[row["way"]].append(float(row["worth"]))
    yield f"| {domain} | seeds | all | gain | own | own gain | worth of sharing |"
    yield "|---" * 7 + "|"
    for cell in sorted(cells, key=lambda cell: -statistics.fmean(cell.own_gains)):
        everywhere, own = (_shown(list(numbers.values())) for numbers in (cell.all, cell.own))
        yield (
            f"| {_name(cell)} | {len(cell.all)} | {everywhere} | {_points(cell.gains)} "
            f"| {own} | {_points(cell.own_gains)} | {_shown(worth[_name(cell)])} |"
        )
    for cell in cells[:1]:
        both = cell.alone, cell.alone_own
        shown = [f"{spread(list(best.by_seed.values()))} ({best.arm})" for best in both]
        yield f"| *alone* | {len(both[0].by_seed)} | {shown[0]} | | {shown[1]} | | |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--domains", choices=CLIENTS, nargs="*", default=list(CLIENTS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    if options.measure or SMALLEST:
        runs = list(wanted(options.domains, options.seeds))
        runs = sized(runs, one_of_each(runs, "domain"))
        run_missing(OUTPUT, runs, measure, key=KEY, jobs=options.jobs)
    text = "\n".join(page(read_rows(OUTPUT), read_rows(ALONE)))
    OUTPUT.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
