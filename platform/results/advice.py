"""Whether a federation is worth it: the measured cell on which the answer rests, and its gain.

Advice follows from declared public numbers and `measured.csv`; it reads no data and spends nothing.
A *cell* is one measured federation: several ways to learn in it, and arms of a client alone. Gains
are over the best of these arms. Measured epsilons are of the replacement of one client at delta
1e-5, with noise that all clients share out.

**From one cell to another.** In one noised sum the signal grows with the number of clients m, and
the noise with 1 / mu, for the Gaussian mechanism of this epsilon and delta. So a federation has the
*strength* m mu, and sqrt(m) mu where each client adds all of the noise alone. Under
`add_or_remove_one` it is sqrt(2) m mu: uploads in cones need 1 / sqrt(2) of the noise, all others a
half. Advice rests on the measured cell of the same kind (few or all classes a client, groups or
none) with the largest strength that is not above the asked one. Below the weakest cell, and where
the interval of the gain is not above 0, a client stays alone.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import takewhile
from operator import attrgetter
from typing import Any, Final, Literal

import yaml
from pydantic import TypeAdapter

from platform.config.sections import Classes, Clients, Images, Positive
from privacy import MechanismFacts
from privacy.auditing import mu_of

ALONE: Final = "alone: "
"""Before the name of an arm of a client alone, where else there is a method."""
DELTA: Final = 1e-5
"""Of measured epsilons."""
CELL: Final = attrgetter(*("data", "clients", "images", "classes_each", "groups", "epsilon"))
"""Gives what the rows of one cell have in common."""


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Public numbers of a federation.

    Attributes:
        images: Training images of a client.
        classes_each: Classes of a client; "all" where its images may be of any class.
        groups: Whether groups of clients see their classes differently.
        epsilon: Of the whole run; "inf" without noise.
    """

    clients: Clients
    images: Images
    classes_each: Classes | Literal["all"]
    groups: bool
    epsilon: Positive | Literal["inf"]


@dataclass(frozen=True, kw_only=True)
class Asked(Federation):
    """A federation that is declared, with the mechanism's name and the epsilon's meaning."""

    mechanism: str
    relation: str
    delta: float = DELTA


@dataclass(frozen=True, kw_only=True)
class Row(Federation):
    """A line of `measured.csv`: one way in one cell.

    Attributes:
        way: A method with its main options, or "alone: " and an arm.
        all: Accuracy on all classes in percent.
        alone: The same of a client alone at its best.
        gain: Mean paired difference of the two over seeds in points, with its 95% interval from
            `low` to `high`. None for arms of a client alone.
        own_gain: The same on the classes that a client holds. None if it was not measured.
        source: The page of results.
        settings: What sets the way in a configuration, `KEY=VALUE` between bars.
    """

    data: str
    way: str
    seeds: int
    all: float
    alone: float
    gain: float | None
    low: float | None
    high: float | None
    own_gain: float | None
    own_low: float | None
    own_high: float | None
    source: str
    settings: str | None = None

    @property
    def keys(self) -> dict[str, Any]:
        """The keys of a configuration that set the way, with their values."""
        pairs = (one.split("=", 1) for one in (self.settings or "").split(" | ") if one)
        return {key: yaml.safe_load(value) for key, value in pairs}

    def points(self, *, own: bool = False) -> str:
        """Return the gain with its interval; "-" if it was not measured."""
        names = ("own_gain", "own_low", "own_high") if own else ("gain", "low", "high")
        shown = [f"{value:+.1f}" for name in names if (value := getattr(self, name)) is not None]
        return f"{shown[0]} [{', '.join(shown[1:]) or 'no interval'}]" if shown else "-"


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What to do.

    Attributes:
        use: The way that gains most surely; None where a client stays alone.
        settings: The keys of a configuration that set that way.
        reason: Why it does.
        alone: The best arm of a client alone.
        own: The way that is best on a client's own classes; None if no cell supports an answer.
        at_home: The value of `evaluation.at_home` in that way.
        fewest_clients: Fewest at this epsilon for which a measured cell shows a gain; None if no
            number is enough, or epsilon is infinite.
        notes: Sentences on what the numbers do not say.
        cell: The rows on which this rests; below the weakest cell those of that one.
    """

    use: Row | None
    settings: dict[str, Any]
    reason: str | None
    alone: str | None
    own: Row | None
    at_home: Literal["select", "shared"] | None
    fewest_clients: int | None
    notes: list[str]
    cell: list[Row]


def measured(text: str | None = None) -> list[Row]:
    """Return the rows of the table that ships, or of the text of another one."""
    if text is None:
        text = resources.files("platform.results").joinpath("measured.csv").read_text("utf-8")
    lines = csv.DictReader(text.splitlines())
    plain = [{key: value or None for key, value in line.items()} for line in lines]
    return TypeAdapter(list[Row]).validate_python(plain)


def cells_of(rows: Iterable[Row]) -> list[list[Row]]:
    """Return the rows of each cell."""
    found = defaultdict(list)
    for row in rows:
        found[CELL(row)].append(row)
    return list(found.values())


def best(cell: Sequence[Row], end: Literal["low", "own_low"] = "low") -> Row | None:
    """Return the way whose interval of the gain has the highest lower end; None without one."""
    ways = (row for row in cell if not row.way.startswith(ALONE) and getattr(row, end) is not None)
    return max(ways, key=attrgetter(end), default=None)


def best_arm(cell: Sequence[Row]) -> str | None:
    """Return the best arm of a client alone."""
    arms = [row for row in cell if row.way.startswith(ALONE)]
    return max(arms, key=attrgetter("all")).way.removeprefix(ALONE) if arms else None


def strength(of: Federation, power: float = 1.0, delta: float = DELTA) -> float:
    """Return mu times a power of the number of clients."""
    return math.pow(of.clients, power) * mu_of(float(of.epsilon), delta)


def advise(asked: Asked, facts: MechanismFacts, rows: Sequence[Row]) -> Advice:
    """Return the advice that measured rows support, by the rule above."""

    def alike(one: Row) -> bool:
        same = (one.classes_each == "all") == (asked.classes_each == "all")
        return same and one.groups == asked.groups and not facts.is_in_steps

    def order(cell: Sequence[Row]) -> tuple[float, float]:
        return strength(cell[0]), -abs(math.log(cell[0].images / asked.images))

    def gains(cell: Sequence[Row]) -> bool:
        way = best(cell)
        return way is not None and way.low is not None and way.low > 0.0

    power = 0.5 if facts.claims and facts.noises_alone else 1.0
    reach = 1.0 if asked.relation == "replace_one" else math.sqrt(2.0)
    limit = reach * strength(asked, power, asked.delta)
    kind = sorted(cells_of(filter(alike, rows)), key=order)
    below = [cell for cell in kind if strength(cell[0]) <= limit]
    supported = list(takewhile(gains, reversed(below)))
    bound = supported[-1:] or [*filter(gains, kind[len(below) :])][:1]
    needed = asked.clients * (strength(bound[0][0]) / limit) ** (1 / power) if bound else 0.0
    cell = (below[-1:] or kind[:1] or [[]])[0]
    own = best(cell, "own_low") if below else None
    notes = {
        "nothing protects: epsilon is infinite": not facts.claims,
        f"{facts.name} protects a record, which was not measured": facts.is_in_steps,
        "epsilon does not hold against the server": facts.claims and facts.is_bare_to_server,
    }
    for name, word in (("images", "images"), ("classes_each", "classes")):
        seen, wanted = (getattr(one, name) for one in (cell[0] if cell else asked, asked))
        is_far = seen != wanted and not 0.5 <= seen / wanted <= 2.0
        notes[f"measured with {seen} {word} a client, not {wanted}: the gain may differ"] = is_far
    why = "its gain's interval is not above 0" if below else "nothing measured supports a gain"
    use = best(cell) if supported else None
    return Advice(
        use=use,
        settings={} if use is None else use.keys,
        reason=None if supported else why,
        alone=best_arm(cell),
        own=own,
        at_home=None if own is None else "select" if "select" in own.way else "shared",
        # Rounding must not ask for one client more than the cell itself has.
        fewest_clients=math.ceil(needed - 1e-6) if 0.0 < needed < math.inf else None,
        notes=[text for text, holds in notes.items() if holds],
        cell=list(cell),
    )
