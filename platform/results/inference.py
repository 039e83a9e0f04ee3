"""Whether a difference is more than chance: paired t-tests with intervals, and Holm's correction.

Numbers of two methods are paired by seed, and two numbers of one run by client, because a seed or a
client that is easy for one is easy for the other.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from platform.results.numbers import student

LEVEL: Final = 0.05
"""A difference is beyond chance if its p is below this; intervals are of 95% too."""
_ALIKE: Final = 1e-12


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean of paired differences.

    Attributes:
        mean: Their mean; shares of 1, as all bounds.
        low: Lower bound of the 95% interval; as `high`, None where all differences are equal.
        p: Two-sided p of the hypothesis that the mean is 0.
    """

    mean: float
    low: float | None
    high: float | None
    p: float
    n: int

    @property
    def is_beyond_chance(self) -> bool:
        """Whether p is below the level."""
        return self.p < LEVEL

    def words(self, pairs: str) -> str:
        """Return the mean in points, and the answer; `pairs` names them, such as `clients`."""
        return f"{self.points()} points, {self.chance(pairs)}"

    def chance(self, pairs: str) -> str:
        """Return the interval, or why there is none, and the answer."""
        said = "" if self.is_beyond_chance else "not "
        how = f"95% over {self.n} {pairs} {self.bounds()}"
        if self.low is None:
            how = f"all {self.n} {pairs} differ alike, so there is no interval; sign test"
        return f"{how}: {said}beyond chance"

    def points(self) -> str:
        """Return the mean in points."""
        return f"{100 * self.mean:+.1f}"

    def bounds(self) -> str:
        """Return the interval in points."""
        ends = [f"{100 * end:+.1f}" for end in (self.low, self.high) if end is not None]
        return " to ".join(ends) or "no interval"

    def document(self) -> dict[str, Any]:
        """Return the numbers for JSON."""
        return asdict(self)


def interval(differences: Sequence[float]) -> Interval | None:
    """Return the mean of differences with Student's interval; None for fewer than two.

    Equal differences have no deviation, for example where few test images make accuracy coarse. A
    t-test would call any such difference certain, so the sign test decides, without an interval.
    """
    # The import takes a second, so commands without differences do not pay for it.
    from scipy import stats

    n = len(differences)
    if n < 2:
        return None
    mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
    if deviation < _ALIKE:
        p = 1.0 if abs(mean) < _ALIKE else 2.0 ** (1 - n)
        return Interval(mean=mean, low=None, high=None, p=p, n=n)
    error = deviation / math.sqrt(n)
    half = student(n - 1) * error
    p = 2 * float(stats.t.sf(abs(mean) / error, n - 1))
    return Interval(mean=mean, low=mean - half, high=mean + half, p=p, n=n)


def paired(
    first: Sequence[float | None] | None, second: Sequence[float | None] | None
) -> Interval | None:
    """Return the mean of `first - second` over pairs in which both are known.

    None if all pairs are alike: then all clients share two models and their test images, which is
    one measurement.
    """
    if first is None or second is None or len(first) != len(second):
        return None
    pairs = zip(first, second, strict=True)
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    return interval([a - b for a, b in known]) if len(set(known)) > 1 else None


def holm(ps: Sequence[float]) -> list[float]:
    """Return p of several tests, corrected by Holm (1979), in their order."""
    order, least = sorted(range(len(ps)), key=ps.__getitem__), 0.0
    found = [0.0] * len(ps)
    for rank, index in enumerate(order):
        least = max(least, min(1.0, (len(ps) - rank) * ps[index]))
        found[index] = least
    return found


def gains(summary: Mapping[str, Any]) -> dict[str, Interval | None]:
    """Return a run's `gain_over_local` and `worth_of_sharing`, each over its clients.

    None where a gain was not measured, where clients keep their accuracies, and of a harmonic mean,
    which no client has.
    """
    final, local = summary["final"], summary.get("local") or {}
    own = per_client(final)
    return {
        "gain_over_local": paired(own, per_client(local)),
        "worth_of_sharing": paired(own, (summary.get("silent") or {}).get("per_client")),
    }


def per_client(measured: Mapping[str, Any]) -> Sequence[float | None] | None:
    """Return the clients' parts of a protocol's main number; None where there are none."""
    protocol = measured.get("protocol") or {}
    if protocol.get("name") == "base_to_novel":
        return None
    accuracy = protocol.get("target") or measured.get("accuracy") or {}
    found: Sequence[float | None] | None = accuracy.get("per_client")
    return found
