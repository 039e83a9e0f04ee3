"""The roll call: who takes part, from clients' own words, before anything else is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence

from platform.disk.opening import Records
from platform.errors import CoordinatorBehind, RunStopped
from platform.rounds.asking import Question, ask_all
from platform.rounds.run import Roll
from platform.wire.codec import Attempt, Envelope
from platform.wire.outside_rounds import (
    Introduction,
    RollCall,
    decode_introduction,
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
    """Return who takes part.

    Args:
        transport: Carries the messages.
        run_id: The run.
        clients: All clients' names on the transport, in order.
        enrolment: Says whose keys may take part; None against a semi-honest server.
        begun: The newest attempt that the coordinator has begun, None before the first.
        left: Who has left the run for good by now, and is on no roll.

    Raises:
        CoordinatorBehind: If a client has answered a newer attempt than that.
        ClientsSilent: If one does not introduce itself.
        RunStopped: If two have one pseudonym: one of them would be charged for both. If one has
            not a key of its own that is enrolled: all others would refuse every round with it.
    """
    envelope = Envelope(run_id, 0, 0)
    message = encode_roll_call(RollCall(envelope))
    questions = (Question(client, envelope, message) for client in clients)
    told = dict(ask_all(transport, "join", questions, decode_introduction, left=left))
    _require_none_ahead(run_id, told, begun)
    pseudonyms = {client: said.pseudonym for client, said in told.items()}
    require_distinct(run_id, pseudonyms)
    keys = _keys(run_id, told, enrolment)
    serial = 0 if enrolment is None else enrolment.serial
    return Roll(pseudonyms=pseudonyms, identities=keys, enrolment_serial=serial)


def require_distinct(run_id: str, pseudonyms: Mapping[ClientId, str]) -> None:
    """Refuse two clients with one pseudonym.

    Raises:
        RunStopped: If there are such; one of them would be charged for both.
    """
    most = Counter(pseudonyms.values()).most_common(1)
    if most and most[0][1] > 1:
        raise RunStopped(f"run {run_id}: two clients have the pseudonym {most[0][0]}")


def newest_attempt(records: Records, run_id: str) -> Attempt | None:
    """Return the newest attempt that the coordinator has begun, None before the first."""
    with records.read() as uow:
        found = uow.attempts.newest(run_id)
    return None if found is None else (found.round_number, found.attempt)


def _require_none_ahead(
    run_id: str, told: Mapping[ClientId, Introduction], begun: Attempt | None
) -> None:
    """Refuse to go on from an old copy of the database.

    In a round only those clients would notice that are invited to an attempt which they answered,
    and of all others what they were charged would be lost here.
    """
    for client, said in told.items():
        if said.newest is not None and said.newest > (begun or (0, 0)):
            known = "none" if begun is None else f"none after round {begun[0]}, attempt {begun[1]}"
            raise CoordinatorBehind(
                f"{client} has answered round {said.newest[0]}, attempt {said.newest[1]} of run "
                f"{run_id}, and the coordinator knows of {known}; its database is older than the "
                "client's"
            )


def _keys(
    run_id: str, told: Mapping[ClientId, Introduction], enrolment: Enrolment | None
) -> dict[ClientId, bytes]:
    """Return the clients' keys, none where nobody may have one."""
    owners: dict[bytes, ClientId] = {}
    for client, said in told.items():
        key = said.public_key
        # What clients say decides neither whether there are signatures nor which file counts.
        fits = not key if enrolment is None else key in enrolment.names and key not in owners
        if not fits:
            wanted = "no key" if enrolment is None else "an enrolled key of its own"
            raise RunStopped(
                f"run {run_id}: {client} does not introduce itself with {wanted}, as "
                "secure_aggregation.enrolment would have it"
            )
        owners[key] = client
    return {} if enrolment is None else {client: key for key, client in owners.items()}
