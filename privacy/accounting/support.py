"""Who can price what: every kind of event, relation and accountant, by asking the adapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from privacy.accounting.composition import Composition, FixedSizeTerm, IntegerTerm, Term
from privacy.accounting.table import TABLE, entry
from privacy.events import RELATIONS
from privacy.noise_laws import IntegerNoise, NoiseKind

_NOISE, _DELTA = 4.0, 1e-5
"""Of the event that is asked about; enough noise for every accountant's grid."""


@dataclass(frozen=True)
class Support:
    """Whether one accountant prices one kind of event under one relation.

    Attributes:
        event: The kind, in words.
        relation: What a neighbour is.
        accountant: "exact", "pld", "rdp" or "prv".
        answer: "yes", or the accountant's reason why not.
    """

    event: str
    relation: str
    accountant: str
    answer: str


def support_table() -> tuple[Support, ...]:
    """Ask every accountant about every kind of event under both relations.

    Loads torch and Opacus for `prv`.

    Returns:
        The answers, by event, relation and accountant in that order.
    """
    return tuple(
        Support(event, relation, accountant, _answer(relation, fields, accountant))
        for event, fields in EVENTS.items()
        for relation in RELATIONS
        for accountant in TABLE
    )


def _answer(relation: Any, fields: Mapping[str, Any], accountant: str) -> str:
    found = entry(Composition(relation, **fields), _DELTA, accountant)
    return found.removeprefix("n/a: ") if isinstance(found, str) else "yes"


def _sum_of_integers(kind: NoiseKind) -> dict[str, Any]:
    noise = IntegerNoise(kind, share_deviation=100.0, shares=10, dimension=10)
    return {"terms": (), "integer_terms": (IntegerTerm(_NOISE, noise, 1),)}


EVENTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "gaussian": {"terms": (Term(_NOISE, 1.0, 1),)},
        "poisson-sampled gaussian": {"terms": (Term(_NOISE, 0.1, 1),)},
        "fixed-size cohort": {
            "terms": (),
            "fixed_size_terms": (FixedSizeTerm(_NOISE, 10, 100, 1),),
        },
        "discrete gaussian sum": _sum_of_integers("discrete_gaussian"),
        "skellam sum": _sum_of_integers("skellam"),
    }
)
"""One composition of each kind, as fields of `Composition`."""
