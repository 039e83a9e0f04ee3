"""Attempts from plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from platform.rounds.plan import Quorum, RoundFacts, RoundPlan, SecurePlan
from platform.wire.codec import Attempt
from platform.wire.messages import MaskGraph, SumTerms
from platform.wire.transport import ClientId


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
    """Return an attempt; masked where there are terms of the sum."""
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
