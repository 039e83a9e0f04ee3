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
    "None of the papers' tables has been run on photographs here: neither weights nor images can",
    "be shipped. This is the *shape* of each: the same methods, partitions, protocols and",
    "ablations, from the same configurations, on `homonyms` and the tiny model that ships, in ten",
    "to twenty rounds of four or five steps. Three seeds; the paper's number is the mean over its",
    "data sets, or the column that it averages itself. A learning rate is the best of three on",
    "seed 100. *Tau* is Kendall's (tau-b) between both columns; *out of order* names pairs that",
    "the paper orders otherwise and that differ here by more than noise: the 95% t interval of",
    "their difference, paired by seed, leaves zero out. A row with ‡ is a reading of ours, where",
    "the paper leaves the method open or was not at hand.",
    "",
)


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


def page(found: Sequence[Result], reasons: Mapping[str, str]) -> Iterator[str]:
    """The page, table by table, each with why its ranks differ where that is known."""
    yield from WORDS
    tables = [
        [row for row in found if row.table == name]
        for name in dict.fromkeys(row.table for row in found)
    ]
    yield from ("| table | rows | tau | out of order |", "|---|---:|---:|---:|")
    for rows in tables:
        name = rows[0].table
        yield f"| [{name}](#{name}) | {len(rows)} | {_tau(rows)} | {len(_swapped(rows))} |"
    yield ""
    for rows in tables:
        yield from _table(rows)
        if rows[0].table in reasons:
            yield from (reasons[rows[0].table], "")


def _table(rows: Sequence[Result]) -> Iterator[str]:
    yield from (f"## {rows[0].table}", "")
    yield from ("| row | rate | paper | rank | here | rank |", "|---|---:|---:|---:|---:|---:|")
    theirs, ours = _ranks([row.paper for row in rows]), _ranks([row.mean for row in rows])
    for row, their, our in zip(rows, theirs, ours, strict=True):
        shown = f"{row.rate:g} | {row.paper:.2f} | {their:g} | {spread(row.scores)} | {our:g}"
        yield f"| {_marked(row.label)} | {shown} |"
    yield from ("", f"Kendall's tau: {_tau(rows)}.")
    for better, worse in _swapped(rows):
        gap = [a - b for a, b in zip(better.scores, worse.scores, strict=True)]
        yield (
            f"- Out of order: {better.label} is {statistics.mean(gap):.1f} ± {half_width(gap):.1f} "
            f"above {worse.label}, which the paper has {worse.paper - better.paper:.2f} higher."
        )
    yield ""


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
