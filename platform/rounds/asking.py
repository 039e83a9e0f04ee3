"""Questions outside rounds, where every client must be heard: asked again, a few times.

In a round whoever is silent is lost. Here nobody may be: a report without one client's numbers, or
a pool from which one was handed nothing, would be another run's. Each question has one answer
however often it is asked, so a lost message costs a repetition, and the run stops when it does not
help; what was done stays done.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol, TypeVar

from platform.errors import ClientsSilent, ProtocolError
from platform.wire.codec import Envelope
from platform.wire.messages import Stage
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
