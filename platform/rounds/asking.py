"""Questions outside rounds, where every client must be heard: asked again, a few times.

A round goes on without a client that does not answer. Outside rounds all must answer: a report
without one client's numbers, or a pool from which one client was handed nothing, would be another
run's. A client answers each question alike however often it is asked. So a lost message costs a
repetition. If repeating does not help, the run stops, and what was done stays done.

The last question asks clients to personalise, after the last release. The result never leaves them.
Each keeps it in its own store under an attempt past the last round.
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
        left: Who has left for good by now; nothing is waited for or yielded of these.

    Raises:
        ClientsSilent: If a client gave no valid answer, however often it was asked.
    """
    for part in _parts(questions):
        answers: dict[ClientId, Message] = {}
        reasons: dict[ClientId, str] = {}
        for _ in range(TRIES):
            due = [q for q in part if q.client not in left]
            missing = {q.client: q.message for q in due if q.client not in answers}
            if not missing:
                break
            replies = transport.exchange(stage, missing, None)
            _read(part, replies, decode, answers=answers, reasons=reasons)
        due = [question for question in part if question.client not in left]
        _require_everybody(stage, due, answers, reasons)
        yield from ((q.client, answers[q.client]) for q in due)


def ask_once(
    transport: Transport,
    stage: Stage,
    questions: Sequence[Question],
    decode: Callable[[bytes], Message],
    *,
    deadline: float | None = None,
) -> dict[ClientId, Message]:
    """Return the answers of those clients that gave a valid one, asked once.

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


def _parts(questions: Iterable[Question]) -> Iterator[Sequence[Question]]:
    """Yield questions in parts whose messages fit into memory."""
    left = iter(questions)
    while part := list(islice(left, 1)):
        size = len(part[0].message)
        while len(part) < PART and size < PART_BYTES and (more := next(left, None)) is not None:
            part.append(more)
            size += len(more.message)
        yield part


def _read(
    part: Sequence[Question],
    replies: Mapping[ClientId, bytes | Dropout],
    decode: Callable[[bytes], Message],
    *,
    answers: dict[ClientId, Message],
    reasons: dict[ClientId, str],
) -> None:
    """Add the answers that parse and belong to their question; of all others the reason."""
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


def _require_everybody(
    stage: Stage,
    part: Sequence[Question],
    answers: Mapping[ClientId, object],
    reasons: Mapping[ClientId, str],
) -> None:
    silent = [question for question in part if question.client not in answers]
    if not silent:
        return
    run_id, named = silent[0].envelope.run_id, [question.client for question in silent[:SHOWN]]
    more = f" and {len(silent) - SHOWN} more" if len(silent) > SHOWN else ""
    reason = reasons.get(named[0], "no answer")
    raise ClientsSilent(
        f"run {run_id}: {', '.join(named)}{more} cannot be heard at stage {stage} ({reason}), "
        f"asked {TRIES} times; resume with --resume {run_id}"
    )


def offer_run(
    transport: Transport, clients: Sequence[ClientId], offer: Offer, left: Container[ClientId] = ()
) -> None:
    """Ask all clients to take part in a run; asking again changes nothing.

    Args:
        transport: Carries the messages.
        clients: All clients' names.
        offer: What they are asked.
        left: Who has left the run for good by now.

    Raises:
        ClientsSilent: If one gives no answer.
        RunStopped: If one does not take part, with what it says.
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
    claims = _claims(run, progress) if run.terms.fetches_at_end else {}
    questions = _partings(run, progress, claims)
    done = ask_all(run.transport, "personalise", questions, decode_personalised, left=left)
    is_whole = all([answer.is_new for _, answer in done])
    return run.clock() - started if is_whole else None


def pool_gone(run: Run, progress: Progress) -> str | None:
    """Return why clients personalised without experts, None where they had some, or need none."""
    pool = _pool(run)
    if progress.uncollected is not None or pool is None or pool.experts or not run.roll.left:
        return progress.uncollected
    return "a client that had given an entry has left, and all entries went with its own"


def _claims(run: Run, progress: Progress) -> dict[ClientId, bytes]:
    """Return the name that each client gives its own entry."""
    envelopes = {client: _envelope(run, progress, client) for client in run.roll.present}
    notices = (Question(c, e, encode_pool_notice(e)) for c, e in envelopes.items())
    answers = ask_all(run.transport, "claim", notices, decode_claim, left=run.roll.left)
    return {client: claim.handle for client, claim in answers}


def _partings(run: Run, progress: Progress, claims: dict[ClientId, bytes]) -> Iterator[Question]:
    pool, gone = _pool(run), len(run.roll.left)
    for client in run.roll.present:
        if len(run.roll.left) > gone:
            # All entries went with those of whoever has left meanwhile.
            pool, gone = _pool(run), len(run.roll.left)
        broadcast: Arrays = run.terms.method.broadcast(progress.state, client)
        envelope = _envelope(run, progress, client)
        fetched = None if pool is None else pool.fetch(claims.get(client, b""))
        yield Question(client, envelope, encode_parting(Parting(envelope, broadcast, fetched)))


def _envelope(run: Run, progress: Progress, client: ClientId) -> Envelope:
    return Envelope(run.run_id, *run.terms.final_attempt, progress.committed.get(client))


def _pool(run: Run) -> FixedPool | None:
    """Return what all clients fetch after the last round, where the pool is made once."""
    rules, number = run.terms.pool_rules, run.terms.protection.collects_at
    if rules is None or number is None or not run.terms.fetches_at_end:
        return None
    with run.records.read() as uow:
        return fixed_pool(uow.pool.entries(run.source), number, rules.minimum)
