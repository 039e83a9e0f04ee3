"""Where each client of a run stands by the coordinator's own records, whoever is connected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from platform.rounds.departures import LEFT, departures, joined
from platform.rounds.phases import in_rounds
from platform.wire.transport import ClientId
from storage import UnitOfWork


@dataclass(frozen=True)
class Standing:
    """One client in one run.

    Attributes:
        survived: The last round whose result it is part of, None before any.
        completed: The last round that is over, 0 before any.
        gone: Why it takes part no more, or does not yet; None of a client that takes part.
    """

    survived: int | None
    completed: int
    gone: str | None

    @property
    def words(self) -> str:
        """The same for people; who is behind by a cohort that it was not drawn into is, too."""
        if self.gone is not None:
            return self.gone
        if not self.completed:
            return "no round is over yet"
        if self.survived == self.completed:
            return f"in round {self.completed}"
        last = "none" if self.survived is None else str(self.survived)
        return f"behind: last in round {last} of {self.completed}"


def standings(
    uow: UnitOfWork, run_id: str, clients: Sequence[ClientId]
) -> dict[ClientId, Standing]:
    """Return where each client stands.

    Args:
        uow: Read from here.
        run_id: The run.
        clients: All clients' names, in order.
    """
    rounds = [row for row in uow.rounds.all(run_id) if in_rounds([row.document])]
    completed = max((row.round_number for row in rounds), default=0)
    last: dict[ClientId, int] = {}
    for row in rounds:
        last.update(dict.fromkeys(row.document["survivors"], row.round_number))
    gone = {
        one.client: f"{'left' if one.action == LEFT else 'removed'} on {one.time[:10]}"
        for one in departures(uow, run_id, clients)
    }
    known = joined(uow, run_id, clients)
    absent = dict.fromkeys((c for c in clients if c not in known), "has not joined")
    why = {**absent, **gone}
    return {c: Standing(last.get(c), completed, why.get(c)) for c in clients}
