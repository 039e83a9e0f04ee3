"""The page of the papers' tables in small: rankings, Kendall's tau, and what is out of order."""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from _scores import half_width, spread
from scipy import stats

from methods import Registry
from platform.sweeping.tables import OURS

METHOD = re.compile(r"`(\w+)`")

WORDS = (
    "# The papers' tables in small",
    "",
    "None of the [papers' tables](../papers/README.md) has been run on photographs here: neither",
    "weights nor images can be shipped. This is the *shape* of each: the same methods, partitions,",
    "protocols and ablations, from the same configurations, on `homonyms` and the tiny model that",
    "ships, in four to ten rounds of three to five steps, with fewer clients where the paper has",
    "thirty or a hundred. `benchmarks/paper_tables.yaml` says what each row changes, and",
    "`python benchmarks/paper_tables.py TABLE` runs one table.",
    "",
    "**How to read it.** *Paper* is the mean over the paper's data sets, or the column that it",
    "averages itself; *here* is mean and standard deviation over seeds, in percent of correct",
    "names. The numbers of the two columns do not compare, their ranks may: 1 is the best. *Tau*",
    "is Kendall's (tau-b) between the columns, 1 for the same order and -1 for the opposite. *Out",
    "of order* are pairs that the paper has the other way round and that differ here by more than",
    "noise: the 95% t interval of their difference, paired by seed, leaves zero out. Of a hundred",
    "such pairs some are chance, and with one seed nothing is known of noise. As in the papers",
    "all rows of a table have one learning rate, but for a row that says another. Where one style",
    "is held out each seed holds out another, and ± is mostly of styles. Tables that differ in",
    "nothing but data sets share their runs here. A row with ‡ is a reading of ours, where the",
    "paper leaves the method open or was not at hand.",
    "",
)


@dataclass(frozen=True)
class Remark:
    """What is said of a table.

    Attributes:
        omitted: Rows that are not run, by a pattern of their names, and why.
    """

    omitted: Mapping[str, str]


@dataclass(frozen=True)
class Result:
    """A row of a table.

    Attributes:
        table: Which.
        label: The row's name.
        paper: The paper's number.
        rate: The learning rate.
        scores: Ours, seed by seed, in percent.
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
    """The page: all tables in one, then each with what is said of it, then those not run."""
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
    few = "" if len(rows[0].scores) > 1 else " One seed, so nothing is known of noise."
    yield from ("", f"Kendall's tau: {_tau(rows)}.{few}", "")
    swapped = _swapped(rows)
    for better, worse in swapped:
        gap = [a - b for a, b in zip(better.scores, worse.scores, strict=True)]
        yield (
            f"- Out of order: {better.label} is {statistics.mean(gap):.1f} ± {half_width(gap):.1f} "
            f"above {worse.label}, which the paper has {worse.paper - better.paper:.2f} higher."
        )
    if swapped:
        yield ""


def _shown(scores: Sequence[float]) -> str:
    """Mean and deviation; of one seed no deviation is known."""
    return spread(scores) if len(scores) > 1 else f"{scores[0]:.1f}"


def _remark(remark: Remark) -> Iterator[str]:
    for pattern, why in remark.omitted.items():
        rows = "Other rows" if "*" in pattern else f"The row {pattern}"
        yield from (f"{rows}: not run. {why[0].upper()}{why[1:]}.", "")


def _marked(label: str) -> str:
    """The label, with a mark where the method is our reading of what a paper says."""
    registry = Registry(installed=False)
    names = (name for name in METHOD.findall(label) if name in registry.available())
    return f"{label} {OURS}" if any(map(registry.reading, names)) else label


def _ranks(values: Sequence[float]) -> list[float]:
    """One for the highest; those alike share a rank."""
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
