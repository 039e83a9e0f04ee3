"""The claims of `worth_of_sharing.py`, and the runs that each claim compares."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from _grid import Row

KINDS = {
    "iid": "iid: sixteen images, whatever their class",
    "pathological": "pathological: eight images of each of two classes",
    "senses": "groups: clients in four senses, private experts",
    "subspace": "iid, in 64 public directions of 512",
}
ONE_MEAN = "one mean"
KEPT = "6 experts, C = 0.2"
"""Private experts that stay as they are if no client picks them: the best of three settings."""


@dataclass(frozen=True)
class Claim:
    """One federation against clients alone, paired by seed.

    Attributes:
        kind: How images are dealt out.
        clients: Number of clients.
        epsilon: Epsilon of the whole run against peers.
        together: Accuracy on all classes, in percent, one per seed.
        alone: Accuracy of clients alone, on the same seeds.
        own: Points gained on a client's own test images, one per seed.
    """

    kind: str
    clients: int
    epsilon: float
    together: tuple[float, ...]
    alone: tuple[float, ...]
    own: tuple[float, ...]

    @property
    def gains(self) -> list[float]:
        """Points, one per seed."""
        return [a - b for a, b in zip(self.together, self.alone, strict=True)]


def claims(rows: Sequence[Row]) -> list[Claim]:
    """All federations of the final stage that have at least two seeds."""
    final = [row for row in finals_of(rows) if row["kind"] in KINDS]
    alone = {(r["kind"], r["seed"]): r for r in final if r["side"] == "alone"}
    alone |= {("subspace", seed): row for (kind, seed), row in alone.items() if kind == "iid"}
    cells: dict[tuple[str, int, float], list[Row]] = {}
    for row in final:
        if row["side"] == "together" and (row["kind"], row["seed"]) in alone:
            place = (row["kind"], int(row["clients"]), float(row["epsilon"]))
            cells.setdefault(place, []).append(row)
    found = []
    for (kind, clients, epsilon), of in cells.items():
        if len(of) > 1:
            twins = [alone[kind, row["seed"]] for row in of]
            own = _differences(of, twins, "own")
            both = _numbers(of, "all"), _numbers(twins, "all")
            found.append(Claim(kind, clients, epsilon, *both, own))
    order = list(KINDS)
    return sorted(found, key=lambda c: (order.index(c.kind), c.clients, -c.epsilon))


def finals_of(rows: Sequence[Row]) -> list[Row]:
    """The final runs that are compared: those in the settings that tuning chose."""
    chosen = choose(rows)
    alone, experts = (chosen.get(place) for place in (("alone", "iid"), ("together", "senses")))

    def is_compared(row: Row) -> bool:
        if row["side"] == "alone":
            return row["setting"] == alone
        return row["kind"] != "senses" or row["setting"] == experts

    return [row for row in rows if row["stage"] == "final" and is_compared(row)]


def over_one_mean(rows: Sequence[Row]) -> Mapping[int, tuple[list[float], list[float]]]:
    """Accuracy of one mean prompt and of private experts, at epsilon 8, by clients, per seed."""
    final = [row for row in finals_of(rows) if row["epsilon"] == "8.0"]
    place = {(row["kind"], row["clients"], row["seed"]): float(row["all"]) for row in final}
    found: dict[int, tuple[list[float], list[float]]] = {}
    for (kind, clients, seed), accuracy in sorted(place.items()):
        if kind == ONE_MEAN and ("senses", clients, seed) in place:
            means, experts = found.setdefault(int(clients), ([], []))
            means.append(accuracy)
            experts.append(place["senses", clients, seed])
    return {clients: pair for clients, pair in found.items() if len(pair[0]) > 1}


def _numbers(rows: Sequence[Row], name: str) -> tuple[float, ...]:
    return tuple(float(row[name]) for row in rows)


def _differences(rows: Sequence[Row], others: Sequence[Row], name: str) -> tuple[float, ...]:
    pairs = zip(_numbers(rows, name), _numbers(others, name), strict=True)
    return tuple(a - b for a, b in pairs)


def tried(rows: Sequence[Row]) -> dict[tuple[str, str], dict[str, list[float]]]:
    """The tuning runs' accuracies, by side and federation and then by setting."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows:
        if row["stage"] == "tuning":
            of = found.setdefault((row["side"], row["kind"]), {})
            of.setdefault(row["setting"], []).append(float(row["all"]))
    return found


def choose(rows: Sequence[Row]) -> dict[tuple[str, str], str]:
    """The setting with the best mean over the tuning seeds, for each side and kind."""
    return {
        place: max(settings, key=lambda name: statistics.mean(settings[name]))
        for place, settings in tried(rows).items()
    }
