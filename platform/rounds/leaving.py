"""Clients that leave a run for good: how the coordinator learns of it, and what it does then.

A client states that it has left in its next answer (`platform.wire.outside_rounds`), or the
operator removes a client that can no longer answer. After that the coordinator asks the client
nothing, as if the client were lost in every round. The coordinator must not learn which pool
entries are the client's, and erasing only those would name them. So the coordinator erases
each generation that may contain an entry of the client. The erasure and the note in the audit log
are one transaction. The client's ledger rows stay for good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from platform.disk.opening import Records
from platform.errors import ProtocolError
from platform.rounds.audit_trail import AuditTrail, parsed_detail
from platform.rounds.documents import in_rounds
from platform.rounds.run import Roll
from platform.wire.codec import peek
from platform.wire.messages import Stage
from platform.wire.outside_rounds import KIND, Left, decode_left
from platform.wire.transport import ClientId, Dropout, Transport
from privacy import Authentication
from privacy.secure_aggregation import Enrolment
from privacy.secure_aggregation.identities import verify_signature
from storage import UnitOfWork

LEFT: Final = "client.left"
REMOVED: Final = "client.removed"
JOINED: Final = "client.joined"
GONE: Final = Dropout("the client has left the run for good")


@dataclass(frozen=True, kw_only=True)
class LeftClient:
    """One client that no longer takes part.

    Attributes:
        pseudonym: Its name in the ledger, None if it never introduced itself.
        action: Whether the client left, or the operator removed it.
        time: When the coordinator noted it.
        after_round: The last round that was over then.
        generations: How many generations of the pool were erased with it.
    """

    client: ClientId
    pseudonym: str | None
    action: Literal["client.left", "client.removed"]
    time: str
    after_round: int
    generations: int


def verify_statement(
    statement: Left,
    run_id: str,
    client: ClientId,
    *,
    pseudonym: str | None,
    known: Enrolment | None,
) -> None:
    """Check that a client itself states that it has left this run, or `ProtocolError`.

    Without an enrolment clients have no keys, so the statement is as trustworthy as its transport:
    a party that carries a client's messages could also drop all of them.

    `pseudonym` is the one with which the client introduced itself, None if it never did. `known`
    names each client's key, None against a semi-honest server.
    """
    if (statement.run_id, statement.client, statement.pseudonym) != (run_id, client, pseudonym):
        raise ProtocolError("message: the statement of leaving is of another client or another run")
    if known is None:
        return
    member = known.members.get(client)
    key = b"" if member is None or member.current is None else member.current
    try:
        verify_signature(key, statement.digest, statement.signature)
    except Authentication as error:
        raise ProtocolError("message: the statement of leaving is not signed by its key") from error


def record_leaving(
    uow: UnitOfWork,
    run_id: str,
    clients: Sequence[ClientId],
    client: ClientId,
    *,
    pseudonym: str | None,
    statement: Left | None = None,
) -> None:
    """Note that a client has left, and erase generations that may hold its entries.

    The transaction ends with this. `pseudonym` is None if the client never introduced itself.
    Without a statement the operator removes the client.
    """
    took_part = {
        row.round_number for row in uow.rounds.all(run_id) if client in row.document["survivors"]
    }
    voided = uow.pool.drop_generations(run_id, took_part)
    AuditTrail(uow.audit, run_id).client_gone(
        LEFT if statement is not None else REMOVED,
        number=clients.index(client) + 1,
        pseudonym=pseudonym,
        generations=voided,
        signature=b"" if statement is None else statement.signature,
    )


def left_clients(uow: UnitOfWork, run_id: str, clients: Sequence[ClientId]) -> list[LeftClient]:
    """Return the clients that have left a run, in the order of the audit log."""
    found: list[LeftClient] = []
    last = 0
    for entry in uow.audit.query(run=run_id):
        detail = parsed_detail(entry)
        if entry.action in ("round.committed", "round.lost"):
            last = entry.round or 0
        if entry.action == LEFT or entry.action == REMOVED:
            found.append(
                LeftClient(
                    client=clients[detail["client"] - 1],
                    pseudonym=detail["pseudonym"],
                    action=LEFT if entry.action == LEFT else REMOVED,
                    time=entry.time,
                    after_round=last,
                    generations=len(detail["generations"]),
                )
            )
    return found


def joined(uow: UnitOfWork, run_id: str, clients: Sequence[ClientId]) -> dict[ClientId, str]:
    """Return the pseudonyms of all clients that have introduced themselves in a run so far."""
    entries = uow.audit.query(run=run_id, action=JOINED)
    told = [parsed_detail(entry) for entry in entries]
    return {clients[detail["client"] - 1]: detail["pseudonym"] for detail in told}


def record_joined(
    records: Records, run_id: str, clients: Sequence[ClientId], told: Mapping[ClientId, str]
) -> None:
    """Note the clients that introduced themselves, by number and pseudonym, unless already noted.

    The note stays when a client's machine is lost.
    """
    with records.read() as uow:
        known = joined(uow, run_id, clients)
    fresh = [client for client in clients if told.get(client) != known.get(client)]
    if not any(client in told for client in fresh):
        return
    with records.write() as uow:
        trail = AuditTrail(uow.audit, run_id)
        for client in fresh:
            if client in told:
                trail.client_joined(number=clients.index(client) + 1, pseudonym=told[client])


@dataclass(frozen=True, kw_only=True)
class LeavingTransport:
    """The transport of a run whose clients may leave: it sends nothing to clients that have left.

    Attributes:
        roll: Who takes part; a client that states that it has left is removed at once.
        known: Names each client's key, None against a semi-honest server.
        records: Holds the notes of clients that have left.
    """

    transport: Transport
    run_id: str
    roll: Roll
    known: Enrolment | None
    records: Records

    def exchange(
        self, stage: Stage, messages: Mapping[ClientId, bytes], deadline: float | None
    ) -> Mapping[ClientId, bytes | Dropout]:
        """Send messages to the clients that have not left, and read statements of leaving."""
        asked = {c: message for c, message in messages.items() if c not in self.roll.left}
        replies = self.transport.exchange(stage, asked, deadline) if asked else {}
        heard = {c: self._heard(c, reply) for c, reply in replies.items() if c in asked}
        return {**dict.fromkeys(messages.keys() - asked.keys(), GONE), **heard}

    def _heard(self, client: ClientId, reply: bytes | Dropout) -> bytes | Dropout:
        if isinstance(reply, Dropout):
            return reply
        try:
            is_farewell = peek(reply)[0] == KIND
        except ProtocolError:
            return reply
        if not is_farewell:
            return reply
        try:
            statement = decode_left(reply)
            pseudonym = self.roll.pseudonyms.get(client)
            verify_statement(statement, self.run_id, client, pseudonym=pseudonym, known=self.known)
        except ProtocolError as error:
            return Dropout(str(error))
        with self.records.write() as uow:
            record_leaving(
                uow,
                self.run_id,
                self.roll.clients,
                client,
                pseudonym=pseudonym,
                statement=statement,
            )
        self.roll.left.add(client)
        return GONE


@dataclass(frozen=True)
class Standing:
    """One client in one run.

    Attributes:
        survived: The last round whose result the client is part of, None before any.
        completed: The last round that is over, 0 before any.
        gone: Why the client does not take part; None for a client that does.
    """

    survived: int | None
    completed: int
    gone: str | None

    @property
    def words(self) -> str:
        """The standing in words. A client outside the last cohort counts as behind."""
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
    """Return where each client stands."""
    rounds = [row for row in uow.rounds.all(run_id) if in_rounds([row.document])]
    completed = max((row.round_number for row in rounds), default=0)
    last: dict[ClientId, int] = {}
    for row in rounds:
        last.update(dict.fromkeys(row.document["survivors"], row.round_number))
    gone = {
        one.client: f"{'left' if one.action == LEFT else 'removed'} on {one.time[:10]}"
        for one in left_clients(uow, run_id, clients)
    }
    known = joined(uow, run_id, clients)
    absent = dict.fromkeys((c for c in clients if c not in known), "has not joined")
    why = {**absent, **gone}
    return {c: Standing(last.get(c), completed, why.get(c)) for c in clients}
