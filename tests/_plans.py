"""Attempts and seats from plain numbers, for tests that change one of them at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from platform.rounds.plan import Quorum, RoundFacts, RoundPlan, SecurePlan
from platform.wire.envelopes import Attempt
from platform.wire.secure_round import EnrolledCohort, MaskGraph, SecureRound, SumTerms
from platform.wire.transport import ClientId

Numbers = Mapping[str, Any]


def a_plan(
    run_id: str,
    place: tuple[int, int],
    cohort: Sequence[ClientId],
    *,
    minimum: int = 2,
    committed: Mapping[ClientId, Attempt] | None = None,
    planned: int | None = None,
    terms: SumTerms | None = None,
    graph: MaskGraph | None = None,
    keys: tuple[Mapping[ClientId, bytes], int] = ({}, 0),
    facts: RoundFacts | None = None,
) -> RoundPlan:
    """An attempt; masked where there are terms of the sum."""
    secure = None
    if terms is not None:
        identities, serial = keys
        secure = SecurePlan(
            terms=terms,
            graph=graph or MaskGraph(),
            identities=identities,
            enrolment_serial=serial,
        )
    return RoundPlan(
        run_id=run_id,
        round_number=place[0],
        attempt=place[1],
        cohort=tuple(cohort),
        committed=committed or {},
        quorum=Quorum(minimum, planned),
        secure=secure,
        facts=facts or RoundFacts(),
    )


def changed(seat: SecureRound, **numbers: Any) -> SecureRound:
    """The seat with some of its numbers replaced, wherever in it they are."""
    terms = _replaced(seat.terms, numbers, ("threshold", "corrupt", "smallest_sum"))
    graph = _replaced(seat.graph, {k.removeprefix("graph_"): v for k, v in numbers.items()})
    enrolled = seat.enrolled
    if {"identities", "serial"} & numbers.keys():
        before = enrolled or EnrolledCohort((), 0)
        enrolled = _replaced(before, numbers)
    seat = dataclasses.replace(seat, terms=terms, graph=graph, enrolled=enrolled)
    return _replaced(seat, numbers)


def seat_from(**numbers: Any) -> SecureRound:
    """A seat from plain numbers; those that are not named are zero."""
    bare = SecureRound(index=0, clients=0, vector_length=0, ring_bits=0, terms=SumTerms(0))
    return changed(bare, **numbers)


def _replaced(value: Any, numbers: Numbers, names: Sequence[str] | None = None) -> Any:
    known = names or [field.name for field in dataclasses.fields(value)]
    return dataclasses.replace(value, **{n: v for n, v in numbers.items() if n in known})
