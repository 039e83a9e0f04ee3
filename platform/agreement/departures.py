"""Whether what had a departed client's entry in it went with it, as the audit log says."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from platform.agreement.reading import RunRecords, TrailEntry

GONE: Final = ("client.left", "client.removed")
"""What the audit log says of a client that takes part no more."""


def voided(item: TrailEntry) -> Collection[int]:
    """Return the generations of the pool that went with a client."""
    found = item.detail.get("generations")
    return found if isinstance(found, list) else ()


def departure_disagreements(records: RunRecords, clients: Sequence[str]) -> Iterator[str]:
    """Yield where a client took part after it had left, or a generation that it was in is alive.

    Args:
        records: The run.
        clients: The federation's, in order; none of a simulation.
    """
    known = {item.detail.get("client"): item for item in records.entries("client.joined")}
    for item in records.entries(*GONE):
        number = item.detail.get("client")
        if type(number) is not int or not 1 <= number <= len(clients):
            yield f"{item.name} names no client of the federation"
            continue
        if number not in known and item.detail.get("pseudonym") is not None:
            yield f"{item.name} names a pseudonym that no audit entry says had joined"
        elif number in known and item.detail.get("pseudonym") != known[number].detail["pseudonym"]:
            yield f"{item.name} names another pseudonym than {known[number].name}"
        yield from _took_part(records, item, clients[number - 1])


def _took_part(records: RunRecords, item: TrailEntry, client: str) -> Iterator[str]:
    opened = {
        (e.entry.round, e.detail.get("attempt")): e.entry.sequence
        for e in records.entries("round.opened")
    }
    for row in records.rounds:
        if client not in row.document["survivors"]:
            continue
        if opened.get((row.round_number, row.attempt), 0) > item.entry.sequence:
            yield f"round {row.round_number} was opened after {item.name}, and its client is in it"
        if records.generations.get(row.round_number):
            yield (
                f"the pool has entries of round {row.round_number}, in which the client of "
                f"{item.name} took part"
            )
