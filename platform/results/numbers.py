"""The numbers of a run, from its summary or its committed rounds, and their spread over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from platform.rounds.documents import ADVERSARIES, NO_ACCURACY, in_rounds

Axes = tuple[tuple[str, str], ...]
"""A run's values on the axes of a sweep: key and text, in the order of the command line."""

HELD_OUT = "task.held_out_domain"
"""The axis whose values are columns: runs of one row differ in the held-out domain."""

EPSILON = "epsilon"
"""The axis of a study whose values are targets of epsilon, or one of the next two."""
NO_NOISE: Final = "none"
SENDS_NOTHING: Final = "sends nothing"
"""The value of methods that send nothing: they spend nothing, so a study runs them once."""

R = TypeVar("R", bound="RunNumbers")


@dataclass(frozen=True)
class Spread:
    """A number over seeds: one value a seed."""

    values: tuple[float, ...]
    seeds: tuple[int, ...] = ()

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation, None for a single seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def margin(self) -> float | None:
        """Half of Student's 95% interval of the mean, None for a single seed."""
        deviation, n = self.deviation, len(self.values)
        return None if deviation is None else student(n - 1) * deviation / math.sqrt(n)


def student(freedom: int) -> float:
    """Return how many standard errors reach to either end of a 95% interval."""
    # The import takes a second, so commands without intervals do not pay for it.
    from scipy.stats import t

    return float(t.ppf(0.975, freedom))


@dataclass(frozen=True)
class Label:
    """A line of a table or a plot: a method, and its values on the axes that separate lines."""

    method: str
    axes: Axes

    def __str__(self) -> str:
        return ", ".join((self.method, *(value_words(key, value) for key, value in self.axes)))


def value_words(key: str, value: str) -> str:
    """Return a value on an axis as labels show it."""
    if key == EPSILON and value in (NO_NOISE, SENDS_NOTHING):
        return "no noise" if value == NO_NOISE else value
    return f"{short(key)} = {value}"


def short(key: str) -> str:
    """Return the last part of a dotted key."""
    return key.rpartition(".")[2]


def last_parts(keys: Sequence[str], taken: Iterable[str]) -> dict[str, str]:
    """Return each key's last part, or the whole key if the last part is not unique or is taken."""
    ends = [*map(short, keys), *taken]
    return {key: short(key) if ends.count(short(key)) == 1 else key for key in keys}


def label_of(method: str, axes: Axes, without: Sequence[str] = (HELD_OUT,)) -> Label:
    """Return a line without the axes that make columns or a plot's abscissa."""
    return Label(method, tuple(pair for pair in axes if pair[0] not in without))


def spread_of(
    records: Iterable[R], number: Callable[[R], float | None], *, parts: Sequence[str] = ()
) -> Spread | None:
    """Return a number over seeds; several numbers of one seed are averaged first.

    Runs differ in their seeds, and perhaps in the held-out domain. A seed without all of the
    held-out domains `parts` does not count: the mean over fewer would be another quantity.
    """
    by_seed: dict[int, dict[str, float]] = {}
    for record in records:
        value = number(record)
        if value is not None:
            part = dict(record.axes).get(HELD_OUT, "")
            by_seed.setdefault(record.seed, {})[part] = value
    whole = {seed: found for seed, found in by_seed.items() if set(parts) <= found.keys()}
    values = tuple(statistics.fmean(found.values()) for found in whole.values())
    return Spread(values, tuple(whole)) if values else None


def group_of(config: str, records: Sequence[RunNumbers]) -> str:
    """Return the data set if it and the configuration occur only together, else `config`."""
    used = {(record.config, record.dataset) for record in records}
    own = {dataset for name, dataset in used if name == config}
    sharing = [name for name, dataset in used if dataset in own]
    return own.pop() if len(own) == len(sharing) == 1 else config


HEADLINES: Final = {
    "client_mean": "local",
    "all_classes": "local",
    "base_to_novel": "harmonic_mean",
    "leave_one_domain_out": "target",
}
"""The main measure of each protocol."""


@dataclass(frozen=True, kw_only=True)
class RunNumbers:
    """A run, finished or not.

    Attributes:
        axes: Its values on the axes of a sweep; empty for a single run.
        document: Its summary, or the known part of the summary before the end.
    """

    run_id: str
    config: str
    dataset: str
    method: str
    seed: int
    axes: Axes = ()
    protocol: str
    document: Mapping[str, Any] = field(repr=False)

    @property
    def finished(self) -> bool:
        """Whether it has a summary."""
        return "final" in self.document

    @property
    def final(self) -> Mapping[str, Any]:
        """The measurements after the last round; of an unfinished run, its latest round if any."""
        if self.finished:
            found: Mapping[str, Any] = self.document["final"]
            return found
        rounds = self.rounds
        return rounds[-1] if rounds else {}

    @property
    def rounds(self) -> Sequence[Mapping[str, Any]]:
        """The rounds that trained."""
        return in_rounds(self.document["rounds"])

    @property
    def delta(self) -> float:
        """The delta of its epsilons."""
        return float(self.document["delta"])

    @property
    def epsilons(self) -> Mapping[str, Any]:
        """Epsilons by adversary, as documents state them: infinity is the text "inf"."""
        stated = self.document["final"] if self.finished else self.document
        found: Mapping[str, Any] = stated["epsilon"]
        return found

    @property
    def sends(self) -> bool:
        """Whether an adversary has learned anything: an epsilon is not 0."""
        return any(self.epsilon(name) for name in ADVERSARIES)

    @property
    def accuracy(self) -> Mapping[str, Any]:
        """The accuracy of `final`; all null without a measurement."""
        return self.final.get("accuracy") or NO_ACCURACY

    def epsilon(self, adversary: str = "server") -> float | None:
        """Return the epsilon against an adversary; None before the first charge."""
        return number(self.epsilons[adversary])

    def headline(self) -> float | None:
        """Return the protocol's main measure, a share; None without a measurement."""
        measure = HEADLINES[self.protocol]
        if measure == "local":
            return number((self.final.get("accuracy") or {}).get("mean"))
        # The run measures these at its end only.
        protocol = self.final.get("protocol") or {}
        found = protocol.get(measure)
        return number(found.get("mean") if isinstance(found, Mapping) else found)

    def curve(self, measure: str = "mean") -> Iterator[tuple[int, float]]:
        """Yield the number and the accuracy (a share) of every measured round."""
        for document in self.rounds:
            value = number(document["accuracy"].get(measure))
            if value is not None:
                yield int(document["round"]), value

    def spent(self, adversary: str = "server") -> Iterator[tuple[int, float]]:
        """Yield each round's number and the epsilon spent until then."""
        for document in self.rounds:
            value = number(document["epsilon"][adversary])
            if value is not None:
                yield int(document["round"]), value

    def clients(self) -> dict[str, tuple[float | None, ...]]:
        """Return each measured client's accuracy, by set; empty if clients keep them."""
        twins = (self.document.get("local") or {}) if self.finished else {}
        found = {
            "accuracy": self.final.get("accuracy"),
            "own": (self.final.get("protocol") or {}).get("own"),
            "local_twin": twins.get("accuracy"),
        }
        return {
            name: tuple(map(number, accuracy["per_client"]))
            for name, accuracy in found.items()
            if accuracy and accuracy.get("per_client")
        }

    def expert_weights(self) -> tuple[float, ...]:
        """Return the mean weight of each expert; empty without experts or before the end."""
        return tuple(float(weight) for weight in self.final.get("expert_weights") or ())


def number(value: Any) -> float | None:
    """Return a number of a document; documents write infinity as "inf"."""
    return math.inf if value == "inf" else None if value is None else float(value)


def adversaries_alike(runs: Sequence[RunNumbers]) -> dict[str, str]:
    """Return groups of adversaries with equal numbers: the names in words, and the first name."""
    found: dict[tuple[Any, ...], list[str]] = {}
    for name in ADVERSARIES:
        numbers = tuple((*run.spent(name), run.epsilon(name)) for run in runs)
        found.setdefault(numbers, []).append(name)
    alike: dict[str, str] = {}
    for *first, last in found.values():
        alike[f"{', '.join(first)} and {last}" if first else last] = first[0] if first else last
    return alike


def tick_step(highest: float) -> float:
    """Return a step of 1, 2 or 5 times a power of ten with which a few ticks reach the top."""
    rough = max(highest, 1e-9) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return next(n * power for n in (1.0, 2.0, 5.0, 10.0) if n * power >= rough * (1 - 1e-9))
