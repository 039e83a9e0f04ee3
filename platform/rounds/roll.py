"""The roll call: clients introduce themselves before the coordinator asks anything else.

The coordinator lets all clients in at the start; or it starts with enough of them, and lets the
others in between rounds. A run is planned for the clients that its configuration names. A client
that has not come yet has an empty seat, like a lost client: the coordinator neither asks nor
charges it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field

from platform.disk.opening import Records
from platform.errors import ClientsSilent, CoordinatorBehind, RunStopped
from platform.rounds.asking import Question, ask_all, ask_once, offer_run
from platform.rounds.leaving import LeavingTransport, record_joined
from platform.rounds.run import Roll
from platform.wire.codec import Attempt, Envelope
from platform.wire.outside_rounds import (
    Offer,
    decode_acceptance,
    decode_introduction,
    encode_offer,
    encode_roll_call,
)
from platform.wire.transport import ClientId, Transport
from privacy.secure_aggregation import Enrolment


def call_roll(
    transport: Transport,
    run_id: str,
    clients: Sequence[ClientId],
    enrolment: Enrolment | None = None,
    *,
    begun: Attempt | None = None,
    left: Container[ClientId] = (),
) -> Roll:
    """Return the clients that take part.

    Args:
        transport: Carries the messages.
        run_id: The run.
        clients: All clients' names on the transport, in order.
        enrolment: Says which keys may take part; None against a semi-honest server.
        begun: The newest attempt that the coordinator has begun, None before the first.
        left: Clients that have left the run for good by now; they are not on the roll.

    Raises:
        CoordinatorBehind: If a client has answered a newer attempt than that.
        ClientsSilent: If a client does not introduce itself.
        RunStopped: If two clients have one pseudonym: the ledger would charge one of them for both.
            If a client has no enrolled key of its own: the others would refuse its rounds.
    """
    envelope = Envelope(run_id, 0, 0)
    message = encode_roll_call(envelope)
    questions = (Question(client, envelope, message) for client in clients)
    told = dict(ask_all(transport, "join", questions, decode_introduction, left=left))
    for client, said in told.items():
        # The database may be an old copy. A round would not show that: only clients that answered
        # the attempt would notice, and the charges of all others would be lost here.
        if said.newest is not None and said.newest > (begun or (0, 0)):
            known = "none" if begun is None else f"none after round {begun[0]}, attempt {begun[1]}"
            raise CoordinatorBehind(
                f"{client} has answered round {said.newest[0]}, attempt {said.newest[1]} of run "
                f"{run_id}, and the coordinator knows of {known}; its database is older than the "
                "client's"
            )
    pseudonyms = {client: said.pseudonym for client, said in told.items()}
    require_distinct(run_id, pseudonyms)
    owners: dict[bytes, ClientId] = {}
    for client, said in told.items():
        key = said.public_key
        # The configuration decides whether there are signatures, and which file counts.
        fits = not key if enrolment is None else key in enrolment.names and key not in owners
        if not fits:
            wanted = "no key" if enrolment is None else "an enrolled key of its own"
            raise RunStopped(
                f"run {run_id}: {client} does not introduce itself with {wanted}, as "
                "secure_aggregation.enrolment requires"
            )
        owners[key] = client
    return Roll(
        pseudonyms=pseudonyms,
        identities={} if enrolment is None else {client: key for key, client in owners.items()},
        enrolment_serial=0 if enrolment is None else enrolment.serial,
    )


def require_distinct(run_id: str, pseudonyms: Mapping[ClientId, str]) -> None:
    """Refuse two clients with one pseudonym.

    Raises:
        RunStopped: If there are two; one of them would be charged for both.
    """
    most = Counter(pseudonyms.values()).most_common(1)
    if most and most[0][1] > 1:
        raise RunStopped(f"run {run_id}: two clients have the pseudonym {most[0][0]}")


def newest_attempt(records: Records, run_id: str) -> Attempt | None:
    """Return the newest attempt that the coordinator has begun, None before the first."""
    with records.read() as uow:
        found = uow.attempts.newest(run_id)
    return None if found is None else (found.round_number, found.attempt)


@dataclass(frozen=True, kw_only=True)
class Door:
    """Lets clients into one run.

    Attributes:
        through: Carries the messages, and knows the clients that take part and each client's key.
        offer: The offer of the run.
        enough: How many clients must be there at the start; None for all.
        reachable: Tells which clients can be asked now; the coordinator does not wait for others.
        seconds: How long a client that comes later may take to answer.
        declined: The reasons of clients that do not take part, by name.
    """

    through: LeavingTransport
    offer: Offer
    enough: int | None
    reachable: Callable[[], Container[ClientId]] | None
    seconds: float
    declined: dict[ClientId, tuple[str, ...]] = field(default_factory=dict)

    def open(self, require: Callable[[], None]) -> None:
        """Let in the clients that are there at the start.

        Args:
            require: Checks the clients that introduced themselves, before they are noted.

        Raises:
            ClientsSilent: If a client that the run waits for gives no answer.
            RunStopped: If too few take part, or a client has another identity than before.
        """
        through, roll, run_id = self.through, self.through.roll, self.through.run_id
        if self.enough is None:
            offer_run(through, roll.clients, self.offer, roll.left)
            self._welcome(list(roll.clients), require)
            return
        # At the start the configuration's deadline holds.
        there = self._willing(list(roll.clients), None)
        if len(there) < min(self.enough, len(roll.clients) - len(roll.left)):
            why = "".join(f"; {c}: {' | '.join(said)}" for c, said in self.declined.items())
            raise RunStopped(
                f"run {run_id}: {len(there)} of {len(roll.clients)} clients take part, and "
                f"federation.start_with is {self.enough}{why}; resume with --resume {run_id}"
            )
        self._welcome(there, require)

    def admit(self) -> None:
        """Let in clients that have come since the start, without waiting for others."""
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
                # A client that does not belong here does not stop the others.
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
