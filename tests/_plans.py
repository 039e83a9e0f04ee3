"""Seats from plain numbers, for tests that change one of them at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from platform.wire.messages import EnrolledCohort, SecureRound, SumTerms

Numbers = Mapping[str, Any]


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
