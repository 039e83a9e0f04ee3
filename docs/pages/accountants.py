"""Build the page of accountants from the table of what each of them supports."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from docs.pages.markdown import table
from privacy import RELATIONS, IntegerNoise, NoiseKind
from privacy.accounting.accountants import TABLE
from privacy.accounting.accountants import entry as priced_by
from privacy.accounting.composition import Composition, FixedSizeTerm, IntegerTerm, Term

BESIDE = Path(__file__).resolve().parents[1] / "privacy.md"

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
    found = priced_by(Composition(relation, **fields), _DELTA, accountant)
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


def page(folder: Path) -> str:
    """Return the whole page for a folder, from which its link starts."""
    entries = support_table()
    accountants = list(dict.fromkeys(entry.accountant for entry in entries))
    events = list(dict.fromkeys(entry.event for entry in entries))
    head = ("release", *(f"`{name}`" for name in accountants))
    rows = [
        (
            event,
            *(
                cell([e for e in entries if (e.event, e.accountant) == (event, name)])
                for name in accountants
            ),
        )
        for event in events
    ]
    refusals = dict.fromkeys(
        f"- `{e.accountant}`, {e.event}, `{e.relation}`: {e.answer}\n"
        for e in entries
        if e.answer != "yes"
    )
    return "\n".join(
        (
            "# Accountants\n",
            f"Accountants are explained in [privacy.md]({os.path.relpath(BESIDE, folder)}).\n",
            table([head, *rows]),
            "## Why not\n",
            "".join(refusals),
        )
    )


def cell(found: Sequence[Support]) -> str:
    """Return the relations for which an accountant bounds an event."""
    able = [entry.relation for entry in found if entry.answer == "yes"]
    if len(able) == len(RELATIONS):
        return "yes"
    return f"`{able[0]}` only" if able else "no"
