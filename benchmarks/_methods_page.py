"""The page and the picture of `methods_on_homonyms.py`, from its rows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _grid import Row
from _scores import OPPONENT, spread
from matplotlib.figure import Figure

from methods import Registry
from platform.results.sweeping.tables import OURS

OWN = {
    "pathological": "## Pathological: ten clients with two classes each",
    "senses": "## Senses: three clients in each of four senses, one image of each name",
}
READING = (
    "A difference smaller than the deviations beside it says nothing. Beyond the common budget,",
    "we chose the two numbers of `pfedprompt`'s memory on training images of `shapes`, because",
    "we did not have the paper's numbers: its rows (‡) are our reading.",
    "`pfedmoap`'s gate has the preset's 128 dimensions, as many as the model has features, so it",
    "pools nothing here; in [the papers' tables](paper-tables.md) it pools as much as the paper's.",
)
NOISE_PARTS = ("none", "0.0507", "0.1015", "epsilon 8")


def page(
    rows: Sequence[Row],
    methods: Sequence[str],
    rates: Mapping[tuple[str, str], str],
) -> list[str]:
    """The page of results, without its last lines."""
    final = [row for row in rows if row["stage"] == "final"]
    seeds = sorted({row["seed"] for row in final})
    lines = [
        "# Methods on homonyms",
        "",
        "`homonyms` in all six styles, the shipped tiny CLIP, 16 images of each class in all",
        "(with four senses: one image of each class per client; with a held-out style: 8 of each",
        "class and style), ten rounds of four steps of eight images",
        "(`configs/comparison.yaml`). All clients know names in one sense, except in the second",
        "table, and in the fourth, where styles of one kind share a sense. Every prompt starts",
        "at the words `a photo of a`, which leave the sense open. All other options are the",
        f"presets'. Percent; mean ± standard deviation over seeds {', '.join(seeds)}.",
        "*Over twin* is the difference to training",
        "of the same method alone, in points of the first number. Each method had the same",
        "tuning budget: for each of the four tables, one run at each of the learning rates 0.01,",
        "0.05 and 0.25 on a data set rendered from another seed, compared by the table's own first",
        "number (with `sketch` held out in the last). The last column shows the",
        "chosen rate.",
        "",
        "![accuracy of every method under the four protocols](methods-on-homonyms.svg)",
        "",
        *READING,
        "",
        *OPPONENT,
        "",
    ]
    for suite, title in OWN.items():
        lines += [title, "", *_own_table(final, suite, methods, rates), ""]
    lines += [
        "## Base to novel: trained on ten classes, asked for ten others",
        "",
        "Five clients with two base classes each. *Local* is a client's own two among the base",
        "classes, *base* all of them, *novel* the other ten; *HM* is their harmonic mean.",
        "",
        *_novel_table(final, methods, rates),
        "",
        "## Leave one domain out: trained on five styles, asked for the sixth",
        "",
        "One client per style. Every client's model is tested on all images of the held-out style,",
        "whose sense one of the five clients has.",
        "",
        *_domain_table(final, methods, rates),
        "",
        "## Noise on uploads, pathological",
        "",
        "Each client clips its upload to 0.1 and adds noise. Epsilon is per client against the",
        "server for the whole run, delta 1e-5, a client replaced. The multipliers 0.0507 and",
        "0.1015 are what pFedMoAP's appendix calls epsilon 50 and 25 (its Table 6).",
        "",
        *_noise_table(final),
        "",
    ]
    return lines


def scores(rows: Sequence[Row], name: str) -> list[float]:
    """A score's mean over the parts (domains) of a seed, one number per seed."""
    seeds = sorted({row["seed"] for row in rows})
    return [statistics.mean(float(r[name]) for r in rows if r["seed"] == seed) for seed in seeds]


def _own_table(
    final: Sequence[Row], suite: str, methods: Sequence[str], rates: Mapping[tuple[str, str], str]
) -> list[str]:
    def cells(of: Sequence[Row]) -> list[str]:
        return [spread(scores(of, name)) for name in ("own", "worst", "gain_over_local")]

    head = ("accuracy", "worst client", "over twin")
    return _table(final, suite, head, cells, methods=methods, rates=rates)


def _novel_table(
    final: Sequence[Row], methods: Sequence[str], rates: Mapping[tuple[str, str], str]
) -> list[str]:
    names = ("harmonic_mean", "own", "base", "novel", "gain_over_local")

    def cells(of: Sequence[Row]) -> list[str]:
        return [spread(scores(of, name)) for name in names]

    head = ("HM", "local", "base", "novel", "over twin")
    return _table(final, "base_to_novel", head, cells, methods=methods, rates=rates)


def _domain_table(
    final: Sequence[Row], methods: Sequence[str], rates: Mapping[tuple[str, str], str]
) -> list[str]:
    suite = "leave_one_domain_out"
    domains = list(dict.fromkeys(row["part"] for row in final if row["suite"] == suite))

    def cells(of: Sequence[Row]) -> list[str]:
        each = [
            f"{statistics.mean(float(r['target']) for r in of if r['part'] == domain):.1f}"
            for domain in domains
        ]
        return [spread(scores(of, "target")), *each, spread(scores(of, "gain_over_local"))]

    head = ("mean", *domains, "over twin")
    return _table(final, suite, head, cells, methods=methods, rates=rates)


def _table(
    final: Sequence[Row],
    suite: str,
    head: Sequence[str],
    cells: Any,
    *,
    methods: Sequence[str],
    rates: Mapping[tuple[str, str], str],
) -> list[str]:
    columns = ("method", *head, "seconds a run", "learning rate")
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for method in methods:
        of = _of(final, suite, method)
        if of:
            seconds = f"{statistics.mean(float(row['seconds']) for row in of):.0f}"
            rate = "-" if method == "zero_shot" else rates[suite, method]
            lines.append(f"| {' | '.join((_named(method), *cells(of), seconds, rate))} |")
    return lines


def _named(method: str) -> str:
    return f"`{method}`{f' {OURS}' if Registry().reading(method) else ''}"


def _noise_table(final: Sequence[Row]) -> list[str]:
    lines = ["| method | noise | epsilon | accuracy | worst client |", "|---|---|---|---|---|"]
    for method in _methods(final, "noise"):
        for part in NOISE_PARTS:
            of = _of(final, "noise", method, part)
            spent = of[0]["epsilon_server"]
            shown = spent if spent == "inf" else f"{float(spent):.1f}"
            numbers = (spread(scores(of, name)) for name in ("own", "worst"))
            lines.append(f"| {' | '.join((_named(method), part, shown, *numbers))} |")
    return lines


def _methods(final: Sequence[Row], suite: str) -> list[str]:
    return list(dict.fromkeys(row["method"] for row in final if row["suite"] == suite))


def _of(final: Sequence[Row], suite: str, method: str, part: str | None = None) -> list[Row]:
    return [
        row
        for row in final
        if (row["suite"], row["method"]) == (suite, method) and part in (None, row["part"])
    ]


def plot(rows: Sequence[Row], methods: Sequence[str], path: Path) -> None:
    """Four panels of bars, one per protocol, with the standard deviation over seeds."""
    import matplotlib as mpl

    mpl.rcParams["svg.hashsalt"] = "sotto"
    final = [row for row in rows if row["stage"] == "final"]
    panels = {
        "pathological": ("own", "pathological: accuracy"),
        "senses": ("own", "four senses: accuracy"),
        "base_to_novel": ("harmonic_mean", "base to novel: harmonic mean"),
        "leave_one_domain_out": ("target", "held-out style: accuracy"),
    }
    figure = Figure(figsize=(11.0, 5.2), layout="constrained")
    axes = figure.subplots(1, 4, sharey=True)
    for axis, (suite, (name, title)) in zip(axes, panels.items(), strict=True):
        values = [scores(_of(final, suite, method), name) for method in methods]
        middle = [statistics.mean(v) for v in values]
        width = [statistics.stdev(v) if len(v) > 1 else 0.0 for v in values]
        best = max(middle)
        colours = ["tab:orange" if value == best else "tab:blue" for value in middle]
        axis.barh(range(len(methods)), middle, xerr=width, color=colours, capsize=2)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("percent")
        axis.grid(axis="x", alpha=0.3)
    axes[0].set_yticks(range(len(methods)), methods)
    axes[0].invert_yaxis()
    figure.savefig(path, metadata={"Date": None})
