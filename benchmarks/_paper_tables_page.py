"""Write the page of the papers' tables in small: ranks, Kendall's tau, pairs out of order."""

from __future__ import annotations

import itertools
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
    "model that ships, in four to ten rounds of three to five steps and with fewer clients.",
    "`benchmarks/paper_tables.yaml` states every change, and",
    "`python benchmarks/paper_tables.py TABLE` runs one table.",
    "",
    "*Paper* is the mean over the paper's data sets, or the paper's own average. *Here* is the",
    "mean and standard deviation over seeds, in percent of correct names. Compare ranks (1 is the",
    "best), not numbers. *Tau* is Kendall's tau-b between the columns: 1 is the same order, -1 the",
    "opposite. A pair is *out of order* if the paper ranks it the other way round and the 95% t",
    "interval of the difference here, paired by seed, excludes zero. Some of a hundred such pairs",
    "are chance. Where one style is held out, each seed holds out another style, so ± is mostly",
    "about styles. Tables that differ only in data sets share their runs. ‡ marks our reading of a",
    "paper that leaves the method open or that we did not have.",
    "",
)


@dataclass(frozen=True)
class Remark:
    """Our remarks on a table.

    Attributes:
        omitted: A pattern of the names of rows that we do not run, and why.
    """

    omitted: Mapping[str, str]


@dataclass(frozen=True)
class Result:
    """A row of a table.

    Attributes:
        table: The name of the table.
        label: The row's name.
        paper: The paper's number.
        rate: The learning rate.
        scores: Our numbers, one per seed, in percent.
    """

    table: str
    label: str
    paper: float
    rate: float
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
    tables = [
        [row for row in found if row.table == name]
        for name in dict.fromkeys(row.table for row in found)
    ]
    yield from ("| table | rows | seeds | tau | out of order |", "|---|---:|---:|---:|---:|")
    for rows in tables:
        name, pairs = rows[0].table, len(list(itertools.combinations(rows, 2)))
        shown = f"{len(rows)} | {len(rows[0].scores)} | {_tau(rows)}"
        swapped = f"{len(_swapped(rows))} of {pairs} pairs" if len(rows[0].scores) > 1 else "-"
        yield f"| [{name}](#{name}) | {shown} | {swapped} |"
    yield ""
    for rows in tables:
        yield from _table(rows)
        yield from _remark(remarks[rows[0].table])
    yield from ("## Not run", "")
    yield from (f"- {name}: {why}" for name, why in left_out.items())
    unfinished = [name for name in remarks if name not in {row.table for row in found}]
    yield from (f"- {name}: not finished." for name in unfinished)
    yield ""


def _table(rows: Sequence[Result]) -> Iterator[str]:
    yield from (f"## {rows[0].table}", "")
    yield from ("| row | rate | paper | rank | here | rank |", "|---|---:|---:|---:|---:|---:|")
    theirs, ours = _ranks([row.paper for row in rows]), _ranks([row.mean for row in rows])
    for row, their, our in zip(rows, theirs, ours, strict=True):
        shown = f"{row.rate:g} | {row.paper:.2f} | {their:g} | {_shown(row.scores)} | {our:g}"
        yield f"| {_marked(row.label)} | {shown} |"
    yield ""
    swapped = _swapped(rows)
    if swapped:
        yield "| out of order: better here | better there | here by | there by |"
        yield "|---|---|---:|---:|"
    for better, worse in swapped:
        gap = [a - b for a, b in zip(better.scores, worse.scores, strict=True)]
        here = f"{statistics.mean(gap):.1f} ± {half_width(gap):.1f}"
        yield f"| {better.label} | {worse.label} | {here} | {worse.paper - better.paper:.2f} |"
    if swapped:
        yield ""


def _shown(scores: Sequence[float]) -> str:
    """Mean and deviation; a single seed has no deviation."""
    return spread(scores) if len(scores) > 1 else f"{scores[0]:.1f}"


def _remark(remark: Remark) -> Iterator[str]:
    for pattern, why in remark.omitted.items():
        rows = "Other rows" if "*" in pattern else f"The row {pattern}"
        yield from (f"{rows}: not run. {why[0].upper()}{why[1:]}.", "")


def _marked(label: str) -> str:
    """The label, with a mark if the method is our reading of a paper."""
    registry = BUILT_IN_METHODS
    names = (name for name in METHOD.findall(label) if name in registry.available())
    return f"{label} {OURS}" if any(map(registry.reading, names)) else label


def _ranks(values: Sequence[float]) -> list[float]:
    """Rank 1 for the highest value; equal values share a rank."""
    return [float(rank) for rank in stats.rankdata([-value for value in values])]


def _tau(rows: Sequence[Result]) -> str:
    tau = stats.kendalltau([row.paper for row in rows], [row.mean for row in rows]).statistic
    return f"{tau:.2f}"


def _swapped(rows: Sequence[Result]) -> list[tuple[Result, Result]]:
    """Pairs (better here, better there) that noise does not explain."""
    return [
        (better, worse)
        for better, worse in itertools.permutations(rows, 2)
        if worse.paper > better.paper and _surely_above(better, worse)
    ]


def _surely_above(better: Result, worse: Result) -> bool:
    gap = [a - b for a, b in zip(better.scores, worse.scores, strict=True)]
    return len(gap) > 1 and statistics.mean(gap) > half_width(gap)
