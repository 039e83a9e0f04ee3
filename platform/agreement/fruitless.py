"""The attempts of a run that gave no result, or none so far, and which of them are charged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from platform.agreement.reading import RunRecords
from storage import LedgerRow

Place = tuple[int, int]
"""Round and attempt."""

State = Literal["open", "aborted", "lost"]

ENDED: Final[Mapping[str, State]] = {"round.aborted": "aborted", "round.lost": "lost"}
"""What an attempt is once the audit log has an entry of that action."""


@dataclass(frozen=True, kw_only=True)
class Fruitless:
    """One attempt that gave no result, or none so far.

    Attributes:
        round_number: The round.
        attempt: The attempt.
        state: `open`: it goes on, or goes on when the run does; `aborted`: given up, another may
            follow; `lost`: given up for good, the round stays without a result.
        why: The phase in which it ended, or the reason; None of an open one.
        charged: Clients whose releases count, as something may have left them.
    """

    round_number: int
    attempt: int
    state: State
    why: str | None
    charged: int

    @property
    def place(self) -> Place:
        """Round and attempt."""
        return self.round_number, self.attempt


def place_of(row: LedgerRow) -> Place:
    """Return the attempt that a ledger row is of."""
    return row.round_number, row.attempt


def is_charged(row: LedgerRow) -> bool:
    """Return whether something may have left the row's client.

    In ledgers of early versions a client that a secret draw left out has a row, and pays nothing.
    """
    return row.status != "aborted" and row.cohort_drawn is not False


def fruitless_attempts(records: RunRecords) -> tuple[Fruitless, ...]:
    """Return the attempts without a result, in order.

    Args:
        records: Of the run whose ledger and rounds these are.
    """
    charged: dict[Place, set[str]] = {}
    for row in records.ledger:
        if is_charged(row):
            charged.setdefault(place_of(row), set()).add(row.pseudonym)
    found: dict[Place, tuple[State, str | None]] = {}
    for item in records.entries(*ENDED):
        place = item.entry.round or 0, int(item.detail.get("attempt", 0))
        why = item.detail.get("reason", item.detail.get("phase"))
        found[place] = ENDED[item.entry.action], None if why is None else str(why)
    newest = records.attempt
    if newest is not None and newest.is_open:
        found[newest.round_number, newest.attempt] = "open", None
    return tuple(
        Fruitless(
            round_number=place[0],
            attempt=place[1],
            state=state,
            why=why,
            charged=len(charged.get(place, ())),
        )
        for place, (state, why) in sorted(found.items())
    )
