"""Questions outside rounds: the roll call, the offer of a run, and the wish to personalise.

A round goes on without a client that does not answer. Outside rounds all clients must answer: if
one client gave no numbers or received no pool, the run would be a different run. A client answers a
repeated question as it did before, so a lost message costs one repetition. If repeating does not
help, the run stops, and keeps its finished work.

Clients introduce themselves before the coordinator asks anything else. The coordinator lets all
clients in at the start; or it starts with enough of them, and lets the others in between rounds. A
run is planned for the clients that its configuration names. A client that has not come yet has an
empty seat, like a lost client: the coordinator neither asks nor charges it.

The last question asks clients to personalise, after the last release. The result never leaves them:
each client keeps it in its own store under an attempt past the last round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol, TypeVar

from methods import Arrays
from platform.disk.opening import Records
from platform.errors import ClientsSilent, CoordinatorBehind, ProtocolError, RunStopped
from platform.rounds.leaving import LeavingTransport, record_joined
from platform.rounds.pool import FixedPool, fixed_pool
from platform.rounds.run import Progress, Roll, Run
from platform.wire import outside_rounds as wire
from platform.wire.codec import Attempt, Envelope
from platform.wire.messages import Stage
from platform.wire.transport import ClientId, Dropout, Transport
from privacy.secure_aggregation import Enrolment

TRIES: Final = 3
PART: Final = 64
"""Most clients that are asked at once."""
PART_BYTES: Final = 1 << 26
"""Bytes of messages after which no more clients are asked at once."""
SHOWN: Final = 3


class Enveloped(Protocol):
    """A message, which has an envelope."""

    @property
    def envelope(self) -> Envelope:
        """The envelope."""
        ...


Message = TypeVar("Message", bound=Enveloped)


@dataclass(frozen=True)
class Question:
    """One client's message."""

    client: ClientId
    envelope: Envelope
    message: bytes


def ask_all(
    transport: Transport,
    stage: Stage,
    questions: Iterable[Question],
    decode: Callable[[bytes], Message],
    *,
    left: Container[ClientId] = (),
) -> Iterator[tuple[ClientId, Message]]:
    """Yield every client's answer, in the order of the questions, or `ClientsSilent`.

    Questions are made as they are needed. Clients in `left` have left for good by now; the
    coordinator does not wait for them.
    """
    remaining = iter(questions)
    while part := list(islice(remaining, 1)):
        # A part's messages fit into memory.
        size = len(part[0].message)
        while len(part) < PART and size < PART_BYTES:
            more = next(remaining, None)
            if more is None:
                break
            part.append(more)
            size += len(more.message)
        answers: dict[ClientId, Message] = {}
        reasons: dict[ClientId, str] = {}
        for _ in range(TRIES):
            missing = {
                q.client: q.message
                for q in part
                if q.client not in left and q.client not in answers
            }
            if not missing:
                break
            replies = transport.exchange(stage, missing, None)
            _read(part, replies, decode, answers=answers, reasons=reasons)
        due = [question for question in part if question.client not in left]
        silent = [question.client for question in due if question.client not in answers]
        if silent:
            run_id = due[0].envelope.run_id
            more_silent = f" and {len(silent) - SHOWN} more" if len(silent) > SHOWN else ""
            raise ClientsSilent(
                f"run {run_id}: {', '.join(silent[:SHOWN])}{more_silent} cannot be heard at stage "
                f"{stage} ({reasons.get(silent[0], 'no answer')}), asked {TRIES} times; resume "
                f"with --resume {run_id}"
            )
        yield from ((q.client, answers[q.client]) for q in due)


def _read(
    part: Sequence[Question],
    replies: Mapping[ClientId, bytes | Dropout],
    decode: Callable[[bytes], Message],
    *,
    answers: dict[ClientId, Message],
    reasons: dict[ClientId, str],
) -> None:
    """Add the answers that parse and belong to their question; give a reason for each other."""
    for question in part:
        reply = replies.get(question.client)
        if reply is None:
            continue
        if isinstance(reply, Dropout):
            reasons[question.client] = reply.reason
            continue
        try:
            message = decode(reply)
        except ProtocolError:
            reasons[question.client] = "the answer is not valid"
            continue
        if message.envelope == question.envelope:
            answers[question.client] = message
        else:
            reasons[question.client] = "the answer is not valid"


def personalise(run: Run, progress: Progress) -> float | None:
    """Let every client personalise, and keep the result in its own store; return the seconds.

    They are None where an interrupted finish had done a part of it before.
    """
    started, left = run.clock(), run.roll.left

    def envelope(client: ClientId) -> Envelope:
        return Envelope(run.run_id, *run.terms.final_attempt, progress.committed.get(client))

    claims: dict[ClientId, bytes] = {}
    if run.terms.fetches_at_end:
        # Each client names its own entry.
        places = {client: envelope(client) for client in run.roll.present}
        notices = (Question(c, e, wire.encode_pool_notice(e)) for c, e in places.items())
        answers = ask_all(run.transport, "claim", notices, wire.decode_claim, left=left)
        claims = {client: claim.handle for client, claim in answers}

    def questions() -> Iterator[Question]:
        pool, gone = _pool(run), len(left)
        for client in run.roll.present:
            if len(left) > gone:
                # A client has left meanwhile, and all entries were erased with its own.
                pool, gone = _pool(run), len(left)
            broadcast: Arrays = run.terms.method.broadcast(progress.state, client)
            fetched = None if pool is None else pool.fetch(claims.get(client, b""))
            message = wire.encode_parting(wire.Parting(envelope(client), broadcast, fetched))
            yield Question(client, envelope(client), message)

    done = ask_all(run.transport, "personalise", questions(), wire.decode_personalised, left=left)
    is_whole = all([answer.is_new for _, answer in done])
    return run.clock() - started if is_whole else None


def pool_gone(run: Run, progress: Progress) -> str | None:
    """Return why clients personalised without experts; None if they had or need no experts."""
    pool = _pool(run)
    if progress.uncollected is not None or pool is None or pool.experts or not run.roll.left:
        return progress.uncollected
    return "a client that had given an entry has left, and all entries went with its own"


def _pool(run: Run) -> FixedPool | None:
    """Return the pool that all clients fetch after the last round, if the pool is made once."""
    rules, number = run.terms.pool_rules, run.terms.protection.collects_at
    if rules is None or number is None or not run.terms.fetches_at_end:
        return None
    with run.records.read() as uow:
        return fixed_pool(uow.pool.entries(run.source), number, rules.minimum)


def call_roll(
    transport: Transport,
    run_id: str,
    clients: Sequence[ClientId],
    enrolment: Enrolment | None = None,
    *,
    begun: Attempt | None = None,
    left: Container[ClientId] = (),
) -> Roll:
    """Return the clients that take part, of all names on the transport, in order.

    `enrolment` says which keys may take part; None against a semi-honest server. `begun` is the
    newest attempt that the coordinator has begun. Clients in `left` have left for good by now; they
    are not on the roll.

    Raises:
        CoordinatorBehind: If a client has answered a newer attempt than that.
        ClientsSilent: If a client does not introduce itself.
        RunStopped: If two clients have one pseudonym: the ledger would charge one of them for both.
            If a client has no enrolled key of its own: the others would refuse its rounds.
    """
    envelope = Envelope(run_id, 0, 0)
    message = wire.encode_roll_call(envelope)
    questions = (Question(client, envelope, message) for client in clients)
    told = dict(ask_all(transport, "join", questions, wire.decode_introduction, left=left))
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
    """Refuse two clients with one pseudonym: one of them would be charged for both."""
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
        enough: How many clients must be there at the start; None for all.
        reachable: Tells which clients can be asked now; the coordinator does not wait for others.
        seconds: How long a client that comes later may take to answer.
        declined: The reasons of clients that do not take part, by name.
    """

    through: LeavingTransport
    offer: wire.Offer
    enough: int | None
    reachable: Callable[[], Container[ClientId]] | None
    seconds: float
    declined: dict[ClientId, tuple[str, ...]] = field(default_factory=dict)

    def open(self, require: Callable[[], None]) -> None:
        """Let in the clients that are there at the start; `require` checks them first.

        `RunStopped` if too few take part, or a client has another identity than before.
        """
        through, roll, run_id = self.through, self.through.roll, self.through.run_id
        if self.enough is None:
            questions = self._questions(roll.clients)
            asked = ask_all(through, "join", questions, wire.decode_acceptance, left=roll.left)
            no = [f"{client}: {' | '.join(said.reasons)}" for client, said in asked if said.reasons]
            if no:
                raise RunStopped(f"run {run_id}: not all clients take part: {'; '.join(no)}")
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

    def _questions(self, clients: Iterable[ClientId]) -> list[Question]:
        envelope, message = self.offer.envelope, wire.encode_offer(self.offer)
        return [Question(client, envelope, message) for client in clients]

    def _willing(self, clients: list[ClientId], deadline: float | None) -> list[ClientId]:
        questions, answers = self._questions(clients), dict[ClientId, wire.Acceptance]()
        replies = self.through.exchange("join", {q.client: q.message for q in questions}, deadline)
        _read(questions, replies, wire.decode_acceptance, answers=answers, reasons={})
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
