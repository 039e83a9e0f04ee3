"""Who is let into a federation's run: all at its start, or enough then and the rest between rounds.

Everything is planned for the clients that the configuration names. Who is not there yet has a seat
that is empty, as that of a client that is lost: nothing is asked of it and it is charged nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Final

from platform.errors import ClientsSilent, RunStopped
from platform.rounds.asking import Question, ask_once
from platform.rounds.departures import Farewells, record_joined
from platform.rounds.offering import offer_run
from platform.rounds.roll import call_roll, newest_attempt, require_distinct
from platform.wire.outside_rounds import Offer, decode_acceptance, encode_offer
from platform.wire.transport import ClientId

FIRST: Final = None
"""The deadline at the start: as long as the configuration waits for clients to be there."""


@dataclass(frozen=True, kw_only=True)
class Door:
    """Lets clients into one run.

    Attributes:
        through: Carries the messages, and knows who takes part and whose keys are whose.
        offer: What clients are asked.
        enough: How many must be there at the start; None for all.
        reachable: Tells who can be asked just now; of others nothing is waited for.
        seconds: How long a client that comes later may take to answer.
        declined: Why clients take no part, by name.
    """

    through: Farewells
    offer: Offer
    enough: int | None
    reachable: Callable[[], Container[ClientId]] | None
    seconds: float
    declined: dict[ClientId, tuple[str, ...]] = field(default_factory=dict)

    def open(self, require: Callable[[], None]) -> None:
        """Let in who is there at the start.

        Args:
            require: Checks who has introduced itself, before that is noted.

        Raises:
            ClientsSilent: If one whom the run waits for gives no answer.
            RunStopped: If too few take part, or one is not whom it was.
        """
        through, roll, run_id = self.through, self.through.roll, self.through.run_id
        if self.enough is None:
            offer_run(through, roll.clients, self.offer, roll.left)
            self._welcome(list(roll.clients), require)
            return
        there = self._willing(list(roll.clients), FIRST)
        if len(there) < min(self.enough, len(roll.clients) - len(roll.left)):
            why = "".join(f"; {c}: {' | '.join(said)}" for c, said in self.declined.items())
            raise RunStopped(
                f"run {run_id}: {len(there)} of {len(roll.clients)} clients take part, and "
                f"federation.start_with is {self.enough}{why}; resume with --resume {run_id}"
            )
        self._welcome(there, require)

    def admit(self) -> None:
        """Let in who has come since, between two rounds; whoever cannot be is not waited for."""
        roll = self.through.roll
        if self.enough is None:
            return
        absent = [c for c in roll.clients if c not in roll.pseudonyms and c not in roll.left]
        near = absent if self.reachable is None else self.reachable()
        asked = [client for client in absent if client in near and client not in self.declined]
        for client in self._willing(asked, self.seconds) if asked else ():
            try:
                self._welcome([client], lambda: None)
            except ClientsSilent:
                continue
            except RunStopped as error:
                # One that does not belong here keeps nobody else from going on.
                self.declined[client] = (str(error),)

    def _willing(self, clients: list[ClientId], deadline: float | None) -> list[ClientId]:
        envelope, message = self.offer.envelope, encode_offer(self.offer)
        questions = [Question(client, envelope, message) for client in clients]
        answers = ask_once(self.through, "join", questions, decode_acceptance, deadline=deadline)
        self.declined.update({c: said.reasons for c, said in answers.items() if said.reasons})
        return [client for client in clients if client in answers and client not in self.declined]

    def _welcome(self, clients: list[ClientId], require: Callable[[], None]) -> None:
        through, roll, run_id = self.through, self.through.roll, self.through.run_id
        begun = newest_attempt(through.records, run_id)
        told = call_roll(through, run_id, clients, through.known, begun=begun, left=roll.left)
        together = {**roll.pseudonyms, **told.pseudonyms}
        require_distinct(run_id, together)
        roll.pseudonyms.update(together)
        roll.identities.update(told.identities)
        require()
        record_joined(through.records, run_id, roll.clients, told.pseudonyms)
