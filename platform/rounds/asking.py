"""Questions outside rounds, which every client must answer: the coordinator repeats them.

A round goes on without a client that does not answer. Outside rounds all clients must answer: if
one client gave no numbers or received no pool, the run would be a different run. A client answers a
repeated question as it did before, so a lost message costs one repetition. If repeating does not
help, the run stops, and keeps its finished work.

The last question asks clients to personalise, after the last release. The result never leaves them:
each client keeps it in its own store under an attempt past the last round.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol, TypeVar

from methods import Arrays
from platform.errors import ClientsSilent, ProtocolError, RunStopped
from platform.rounds.pool import FixedPool, fixed_pool
from platform.rounds.run import Progress, Run
from platform.wire.codec import Envelope
from platform.wire.messages import Stage
from platform.wire.outside_rounds import (
    Offer,
    Parting,
    decode_acceptance,
    decode_claim,
    decode_personalised,
    encode_offer,
    encode_parting,
    encode_pool_notice,
)
from platform.wire.transport import ClientId, Dropout, Transport

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
    """Yield every client's answer, in the order of the questions.

    Args:
        transport: Carries the messages.
        stage: Their stage.
        questions: One a client, made as they are needed.
        decode: Reads an answer.
        left: Clients that have left for good by now; the coordinator does not wait for them.

    Raises:
        ClientsSilent: If a client gave no valid answer, however often it was asked.
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


def ask_once(
    transport: Transport,
    stage: Stage,
    questions: Sequence[Question],
    decode: Callable[[bytes], Message],
    *,
    deadline: float | None = None,
) -> dict[ClientId, Message]:
    """Ask each client once, and return the valid answers.

    Args:
        transport: Carries the messages.
        stage: Their stage.
        questions: One a client.
        decode: Reads an answer.
        deadline: Seconds to wait at most, None for as long as the stage takes.
    """
    answers: dict[ClientId, Message] = {}
    replies = transport.exchange(stage, {q.client: q.message for q in questions}, deadline)
    _read(questions, replies, decode, answers=answers, reasons={})
    return answers


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


def offer_run(
    transport: Transport, clients: Sequence[ClientId], offer: Offer, left: Container[ClientId] = ()
) -> None:
    """Ask all clients to take part in a run; a repeated question changes nothing.

    Args:
        transport: Carries the messages.
        clients: All clients' names.
        offer: The offer of the run.
        left: Clients that have left the run for good by now.

    Raises:
        ClientsSilent: If a client gives no answer.
        RunStopped: If a client does not take part, with its reasons.
    """
    envelope, message = offer.envelope, encode_offer(offer)
    questions = (Question(client, envelope, message) for client in clients)
    answers = dict(ask_all(transport, "join", questions, decode_acceptance, left=left))
    declined = {client: said.reasons for client, said in answers.items() if said.reasons}
    if declined:
        listed = "; ".join(f"{client}: {' | '.join(why)}" for client, why in declined.items())
        raise RunStopped(f"run {envelope.run_id}: not all clients take part: {listed}")


def personalise(run: Run, progress: Progress) -> float | None:
    """Let every client personalise, and keep the result in its own store.

    Args:
        run: The run.
        progress: After its last round.

    Returns:
        Seconds that it took; None where an interrupted finish had done a part of it before.

    Raises:
        ClientsSilent: If a client cannot be heard.
    """
    started, left = run.clock(), run.roll.left

    def envelope(client: ClientId) -> Envelope:
        return Envelope(run.run_id, *run.terms.final_attempt, progress.committed.get(client))

    claims: dict[ClientId, bytes] = {}
    if run.terms.fetches_at_end:
        # Each client names its own entry.
        places = {client: envelope(client) for client in run.roll.present}
        notices = (Question(c, e, encode_pool_notice(e)) for c, e in places.items())
        answers = ask_all(run.transport, "claim", notices, decode_claim, left=left)
        claims = {client: claim.handle for client, claim in answers}

    def questions() -> Iterator[Question]:
        pool, gone = _pool(run), len(left)
        for client in run.roll.present:
            if len(left) > gone:
                # A client has left meanwhile, and all entries were erased with its own.
                pool, gone = _pool(run), len(left)
            broadcast: Arrays = run.terms.method.broadcast(progress.state, client)
            fetched = None if pool is None else pool.fetch(claims.get(client, b""))
            message = encode_parting(Parting(envelope(client), broadcast, fetched))
            yield Question(client, envelope(client), message)

    done = ask_all(run.transport, "personalise", questions(), decode_personalised, left=left)
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
