"""Write the page of the papers' tables in small: ranks, Kendall's tau, pairs out of order."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from _scores import half_width, spread
from scipy import stats

from methods import BUILT_IN_METHODS
from platform.results.sweeping.tables import OURS

METHOD = re.compile(r"`(\w+)`")

WORDS = (
    "# The papers' tables in small",
    "",
    "We ran none of the [papers' tables](../papers/README.md) on photographs, because neither",
    "weights nor images can be shipped. This page has the *shape* of each table: the same methods,",
    "partitions, protocols and ablations, from the same configurations, on `homonyms` and the tiny",
    "model that ships, with fewer clients and steps. `benchmarks/paper_tables.yaml` states every",
    "change, and `python benchmarks/paper_tables.py TABLE` runs one table. `homonyms` cannot show",
    "what a federation gains, as [a client alone at its best](#systems) shows.",
    "",
    "**One tuning budget.** Every row tries four learning rates, the same for all rows of a table",
    "that have the same optimiser, on seed 100, which no table uses, and runs at the best of them.",
    "Below each table are the rates that were tried. A rate with * was the highest or the lowest",
    "of them, so a rate beyond it might be better. All other options are the papers' or the",
    "presets'.",
    "",
    "*Here* is the mean and standard deviation over seeds, in percent of correct names, of at",
    "least 300 test images. Where one style is held out, each seed holds out another. The next",
    "columns have the mean over the paper's data sets, or the paper's own average, and in brackets",
    "a row's rank there and here (1 is the best). Compare ranks, not numbers. A dash is a row that",
    "the paper lacks. Tables with the same runs are shown together.",
    "",
    "*Tau* is the mean over seeds of Kendall's tau-b between the paper's numbers and a seed's,",
    "with its 95% t interval over seeds: 1 is the same order, -1 the opposite, 0 no relation. A",
    "pair is *out of order* if the paper ranks it the other way round and the 95% t interval of",
    "the difference here, paired by seed, excludes zero. Some of a hundred such pairs are chance.",
    "‡ marks our reading of a paper that leaves the method open or that we did not have.",
    "",
)


@dataclass(frozen=True)
class Remark:
    """Our remarks on a table.

    Attributes:
        omitted: A pattern of the names of rows that we do not run, and why.
        note: What else a reader should know.
        seeds: How many seeds the table has when all its runs are finished.
    """

    omitted: Mapping[str, str]
    note: str
    seeds: int


@dataclass(frozen=True, kw_only=True)
class Result:
    """A row of a table.

    Attributes:
        table: The name of the table.
        group: The name of the table that it is shown with, which may be itself.
        label: The row's name.
        paper: The paper's number; None if the paper lacks the row.
        rate: The learning rate.
        rates: The rates that were tried.
        scores: Our numbers, one per seed, in percent.
    """

    table: str
    group: str
    label: str
    paper: float | None
    rate: float
    rates: tuple[float, ...]
    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return statistics.mean(self.scores)


def page(
    found: Sequence[Result], remarks: Mapping[str, Remark], left_out: Mapping[str, str]
) -> Iterator[str]:
    """The page: a table of all tables, then each table with its remarks, then those not run."""
    yield from WORDS
    groups: dict[str, dict[str, list[Result]]] = {}
    for row in found:
        groups.setdefault(row.group, {}).setdefault(row.table, []).append(row)
    yield from ("| table | rows | seeds | tau | out of order |", "|---|---:|---:|---:|---:|")
    for tables in groups.values():
        place = "-".join(tables)
        for name, rows in tables.items():
            yield f"| [{name}](#{place}) | {' | '.join(_summary(rows))} |"
    yield ""
    for tables in groups.values():
        yield from _tables(tables)
        for remark in dict.fromkeys(line for name in tables for line in _remark(remarks[name])):
            yield from (remark, "")
    yield from ("## Not run", "")
    yield from (f"- {name}: {why}" for name, why in left_out.items())
    yield ""
    have = {row.table: len(row.scores) for row in found}
    short: dict[str, list[str]] = {}
    for name, remark in remarks.items():
        if have.get(name, 0) < remark.seeds:
            short.setdefault(f"{have.get(name, 0)} of {remark.seeds}", []).append(name)
    if short:
        yield from ("Not finished; `python benchmarks/paper_tables.py` goes on:", "")
        yield from (f"- {seeds} seeds: {', '.join(names)}." for seeds, names in short.items())
        yield ""


def _summary(rows: Sequence[Result]) -> tuple[str, ...]:
    ranked, seeds = _of_paper(rows), len(rows[0].scores)
    if not ranked:
        return (str(len(rows)), str(seeds), "-", "-")
    pairs = len(list(itertools.combinations(ranked, 2)))
    swapped = f"{len(_swapped(rows))} of {pairs} pairs" if seeds > 1 else "-"
    return (str(len(ranked)), str(seeds), tau_words(rows), swapped)


def _of_paper(rows: Sequence[Result]) -> list[Result]:
    """The rows that the paper has."""
    return [row for row in rows if row.paper is not None]


def _tables(tables: Mapping[str, Sequence[Result]]) -> Iterator[str]:
    """Tables with the same runs as one."""
    yield from (f"## {', '.join(tables)}", "")
    compared = {name: _ranks(rows) for name, rows in tables.items() if _of_paper(rows)}
    yield f"| {' | '.join(('row', 'rate', 'here', *compared))} |"
    yield "|---" + "|---:" * (2 + len(compared)) + "|"
    every = {row.label: row for rows in tables.values() for row in rows}
    for label, row in every.items():
        edge = "*" if len(row.rates) > 1 and row.rate in (min(row.rates), max(row.rates)) else ""
        rate = f"{row.rate:g}{edge}" if len(row.rates) > 1 else "-"
        papers = (ranks.get(label, "-") for ranks in compared.values())
        yield f"| {' | '.join((_marked(label), rate, _shown(row.scores), *papers))} |"
    yield from ("", _tried(list(every.values())), "")
    for name, rows in tables.items():
        below: dict[str, list[str]] = {}
        for better, worse in _swapped(rows):
            below.setdefault(better.label, []).append(worse.label)
        if below:
            yield from (f"Out of order in {name}, better here than rows that are better there:", "")
            yield from (f"- {label}: {', '.join(others)}" for label, others in below.items())
            yield ""


def _tried(rows: Sequence[Result]) -> str:
    """The rates of all rows that tried some; rows with others are named."""
    by_rates: dict[tuple[float, ...], list[str]] = {}
    for row in rows:
        if len(row.rates) > 1:
            by_rates.setdefault(row.rates, []).append(row.label)
    usual = max(by_rates, key=lambda rates: len(by_rates[rates]))
    texts = {rates: ", ".join(f"{rate:g}" for rate in rates) for rates in by_rates}
    others = (
        f"; {', '.join(labels)}: {texts[rates]}"
        for rates, labels in by_rates.items()
        if rates != usual
    )
    return f"Rates tried: {texts[usual]}{''.join(others)}."


def _shown(scores: Sequence[float]) -> str:
    """Mean and deviation; a single seed has no deviation."""
    return spread(scores) if len(scores) > 1 else f"{scores[0]:.1f}"


def _remark(remark: Remark) -> Iterator[str]:
    if remark.note:
        yield remark.note
    for pattern, why in remark.omitted.items():
        rows = "Other rows" if "*" in pattern else f"The row {pattern}"
        yield f"{rows}: not run. {why[0].upper()}{why[1:]}."


def _marked(label: str) -> str:
    """The label, with a mark if the method is our reading of a paper."""
    registry = BUILT_IN_METHODS
    names = (name for name in METHOD.findall(label) if name in registry.available())
    return f"{label} {OURS}" if any(map(registry.reading, names)) else label


def _ranks(rows: Sequence[Result]) -> dict[str, str]:
    """The paper's number of each row that it has, with its ranks; equal numbers share a rank."""
    ranked = [(row, row.paper) for row in rows if row.paper is not None]
    theirs = stats.rankdata([-paper for _, paper in ranked])
    ours = stats.rankdata([-row.mean for row, _ in ranked])
    return {
        row.label: f"{paper:.2f} ({their:g} / {our:g})"
        for (row, paper), their, our in zip(ranked, theirs, ours, strict=True)
    }


def taus(rows: Sequence[Result]) -> list[float]:
    """Kendall's tau-b between the paper and each seed; 0 if all of a seed's numbers are equal."""
    ranked = _of_paper(rows)
    papers = [row.paper for row in ranked]
    seeds = zip(*(row.scores for row in ranked), strict=True)
    found = (stats.kendalltau(papers, each).statistic for each in seeds)
    return [0.0 if math.isnan(tau) else float(tau) for tau in found]


def tau_words(rows: Sequence[Result]) -> str:
    """The mean over seeds and its 95% t interval, cut at -1 and 1; one seed has no interval."""
    found = taus(rows)
    mean = statistics.mean(found)
    if len(found) < 2:
        return f"{mean:.2f}"
    half = half_width(found)
    return f"{mean:.2f} [{max(mean - half, -1):.2f}, {min(mean + half, 1):.2f}]"


def _swapped(rows: Sequence[Result]) -> list[tuple[Result, Result]]:
    """Pairs (better here, better there) that noise does not explain."""
    return [
        (better, worse)
        for better, worse in itertools.permutations(_of_paper(rows), 2)
        if (worse.paper or 0) > (better.paper or 0) and _surely_above(better, worse)
    ]


def _surely_above(better: Result, worse: Result) -> bool:
    gap = [a - b for a, b in zip(better.scores, worse.scores, strict=True)]
    return len(gap) > 1 and statistics.mean(gap) > half_width(gap)
