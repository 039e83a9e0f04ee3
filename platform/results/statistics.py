"""Mean and deviation over seeds of what a group of runs gave."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

Axes = tuple[tuple[str, str], ...]
"""A run's values on the axes of a sweep: key and text, in the order of the command line."""

HELD_OUT = "task.held_out_domain"
"""The axis whose values are columns: what is left out differs, not what is compared."""


class Placed(Protocol):
    """Something that has its place in a sweep: a run, or a cell that is to be one."""

    @property
    def config(self) -> str:
        """As tables call its configuration."""
        ...

    @property
    def method(self) -> str:
        """By name."""
        ...

    @property
    def seed(self) -> int:
        """Of the run."""
        ...

    @property
    def axes(self) -> Axes:
        """Its values on the axes of the sweep."""
        ...


class PlacedOnData(Placed, Protocol):
    """A run of which the data set is known too."""

    @property
    def dataset(self) -> str:
        """By name."""
        ...


R = TypeVar("R", bound=Placed)


@dataclass(frozen=True)
class Spread:
    """A number over seeds.

    Attributes:
        values: One a seed.
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation, None for a single seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Label:
    """A line of a table or a plot: a method, and its values on the axes that make lines."""

    method: str
    axes: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return ", ".join((self.method, *(f"{short(key)} {value}" for key, value in self.axes)))


def short(key: str) -> str:
    """Return the last part of a dotted key."""
    return key.rpartition(".")[2]


def label_of(run: Placed, without: Sequence[str] = (HELD_OUT,)) -> Label:
    """Return line that a run belongs to.

    Axes that make columns or a plot's abscissa are left out.
    """
    return Label(run.method, tuple(pair for pair in run.axes if pair[0] not in without))


def spread_of(
    records: Iterable[R],
    number: Callable[[R], float | None],
    *,
    parts: Sequence[str] = (),
) -> Spread | None:
    """Return a number over seeds; what a seed has several of is averaged first.

    Args:
        records: Runs that differ in their seeds, and perhaps in what is held out.
        number: Of a run, None where it was not measured.
        parts: Values of the held-out axis that a seed must have, or it does not count: the mean
            over fewer domains would be another quantity.
    """
    by_seed: dict[int, dict[str, float]] = {}
    for record in records:
        value = number(record)
        if value is not None:
            part = dict(record.axes).get(HELD_OUT, "")
            by_seed.setdefault(record.seed, {})[part] = value
    whole = [found for found in by_seed.values() if set(parts) <= found.keys()]
    values = tuple(statistics.fmean(found.values()) for found in whole)
    return Spread(values) if values else None


def group_of(config: str, records: Sequence[PlacedOnData]) -> str:
    """Return the data set, as in papers, unless two configurations have one or one has two."""
    used = {(record.config, record.dataset) for record in records}
    own = {dataset for name, dataset in used if name == config}
    sharing = [name for name, dataset in used if dataset in own]
    return own.pop() if len(own) == len(sharing) == 1 else config
