"""What a run gave, as numbers: read from its summary, or from what it has committed so far."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from platform.results.statistics import Axes
from platform.rounds.documents import ADVERSARIES, NO_ACCURACY, in_rounds

HEADLINES: Final = {
    "client_mean": "local",
    "all_classes": "local",
    "base_to_novel": "harmonic_mean",
    "leave_one_domain_out": "target",
}
"""The one measure of each protocol."""


@dataclass(frozen=True, kw_only=True)
class RunNumbers:
    """A run, finished or not.

    Attributes:
        run_id: The run.
        config: What its configuration is called.
        dataset: By name.
        method: By name.
        seed: Of the run.
        axes: Its values on the axes of a sweep, none for a run by itself.
        protocol: By name.
        document: Its summary, or what can be said of it before there is one.
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
        """What was measured after the last round; before the end that round, or nothing."""
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
        """Of its epsilons."""
        return float(self.document["delta"])

    @property
    def epsilons(self) -> Mapping[str, Any]:
        """What it has spent by adversary, as documents have it; infinity is a word there."""
        stated = self.document["final"] if self.finished else self.document
        found: Mapping[str, Any] = stated["epsilon"]
        return found

    @property
    def accuracy(self) -> Mapping[str, Any]:
        """What `final` says of accuracy; all null where nothing was measured."""
        return self.final.get("accuracy") or NO_ACCURACY

    def epsilon(self, adversary: str = "server") -> float | None:
        """Return what it has spent against an adversary, None where nothing was charged yet."""
        return number(self.epsilons[adversary])

    def headline(self) -> float | None:
        """Return the protocol's one number, a share; None where it was not measured."""
        measure = HEADLINES[self.protocol]
        if measure == "local":
            return number((self.final.get("accuracy") or {}).get("mean"))
        # Measured at the end only.
        protocol = self.final.get("protocol") or {}
        found = protocol.get(measure)
        return number(found.get("mean") if isinstance(found, Mapping) else found)

    def curve(self, measure: str = "mean") -> Iterator[tuple[int, float]]:
        """Yield round and accuracy of every round that was measured; shares."""
        for document in self.rounds:
            value = number(document["accuracy"].get(measure))
            if value is not None:
                yield int(document["round"]), value

    def spent(self, adversary: str = "server") -> Iterator[tuple[int, float]]:
        """Yield round and epsilon until then."""
        for document in self.rounds:
            value = number(document["epsilon"][adversary])
            if value is not None:
                yield int(document["round"]), value

    def clients(self) -> dict[str, tuple[float | None, ...]]:
        """Return each measured client's accuracy by what it is on; empty where nobody may know."""
        twins = (self.document.get("local") or {}) if self.finished else {}
        found = {
            "accuracy": self.final.get("accuracy"),
            "own": (self.final.get("protocol") or {}).get("own"),
            "local_twin": twins.get("accuracy"),
        }
        return {
            name: tuple(number(value) for value in accuracy["per_client"])
            for name, accuracy in found.items()
            if accuracy and accuracy.get("per_client")
        }

    def expert_weights(self) -> tuple[float, ...]:
        """Return the mean weight of each expert, nothing without experts or before the end."""
        return tuple(float(weight) for weight in self.final.get("expert_weights") or ())


def number(value: Any) -> float | None:
    """Return a number of a document, where infinity is written as a word."""
    return math.inf if value == "inf" else None if value is None else float(value)


def adversaries_alike(runs: Sequence[RunNumbers]) -> dict[str, str]:
    """Return adversaries in words, with one of them to ask for: those of equal numbers together."""
    found: dict[tuple[Any, ...], list[str]] = {}
    for name in ADVERSARIES:
        numbers = tuple((*run.spent(name), run.epsilon(name)) for run in runs)
        found.setdefault(numbers, []).append(name)
    return {_listing(names): names[0] for names in found.values()}


def _listing(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
