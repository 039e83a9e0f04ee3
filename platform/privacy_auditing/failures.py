"""The game behind the channel "failures": does anything but noised numbers tell clients apart?

The other games send canaries at the clipped vector. Here a client plays a whole round, from the
message with the broadcast to its last answer: the real `Client` with a store of its own, on several
data sets any two of which are neighbours under `replace_one`, among them none at all and one of
numbers at the end of their range. The coordinator is hostile: it chooses broadcasts and experts, so
large that a loss is infinite for one class and not for another.

What anybody sees without noise must be the same for all data: whether there is an answer, its
length, its names and types, and the client's ledger. What a failed client uploaded must be noise
around zero. Masks are left out; they hide numbers from this audit and change none.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from methods import Arrays, Examples
from platform.bootstrap import RunPlan
from platform.config.randomness import stream
from platform.experiment.simulation import trainer_factory
from platform.parties.client import Client
from platform.parties.profile import ClientProfile
from platform.parties.scoring import VALIDATION, EvaluationSet, MeasuredSets
from platform.privacy_auditing.outcome import Game, Vector, problems_of
from platform.protection.uploads import Protection
from platform.wire.codec import Envelope, decode_frame
from platform.wire.layout import entry_base
from platform.wire.messages import (
    Assignment,
    Invitation,
    Relay,
    decode_upload,
    encode_assignment,
    encode_invitation,
    encode_relay,
)
from privacy.auditing import AuditError, verify_distribution, verify_noise_variance
from storage import open_client_store

FAILURES = "failures"
HUGE = 3.0e38
"""As large as float32 has it, so that a sum of two is infinite."""
LARGE = 1.0e30
CLASSES = 3
"""Classes that the coordinator asks for one by one."""


@dataclass(frozen=True)
class FailureGame:
    """What is audited.

    Attributes:
        run: The run as it was planned.
        profile: Of the client, whose data is one of the data sets.
        error: Probability that a right build fails here.
    """

    run: RunPlan
    profile: ClientProfile
    error: float


@dataclass(frozen=True, kw_only=True)
class FailureAudit(Game):
    """What the game gave.

    Attributes:
        mechanism: What protects the client.
        rounds: How many hostile rounds were played.
        failed: In how many of them something failed inside the client.
        split: How many messages made some data sets fail and others not.
    """

    channel = FAILURES
    words = (
        "{rounds} rounds under hostile messages, of which {failed} failed inside the client; "
        "{split} messages failed on some data only"
    )
    mechanism: str
    rounds: int
    failed: int
    split: int


@dataclass(frozen=True)
class Told:
    """What the coordinator sends.

    Attributes:
        name: Of the message, for people.
        broadcast: What is sent to all.
        experts: What is served from the pool.
    """

    name: str
    broadcast: Arrays
    experts: tuple[Arrays, ...] = ()


@dataclass(frozen=True)
class Seen:
    """One round of one client.

    Attributes:
        facts: All that is visible and not noised.
        vector: The upload, None where there is none.
        failed: Whether something failed inside.
        answered: Whether there was an answer to each message.
    """

    facts: tuple[Any, ...]
    vector: Vector | None
    failed: bool
    answered: bool


def audit_failures(game: FailureGame) -> FailureAudit:
    """Play every hostile message with every data set."""
    rounds: list[Seen] = []
    reasons: list[str] = []
    split = 0
    for number, protection in _parts(game):
        uploads: list[Vector] = []
        for told in _messages(game, protection):
            seen = [
                play(game, told, data, number, streams=len(rounds) + i) for i, data in _data(game)
            ]
            rounds += seen
            split += len({one.failed for one in seen}) > 1
            if len({one.facts for one in seen}) > 1:
                reasons.append(f"{told.name}: clients are told apart by what is not noised")
            if any(not one.answered for one in seen):
                reasons.append(f"{told.name}: a client ends with an error in place of an answer")
            uploads += [one.vector for one in seen if one.failed and one.vector is not None]
        reasons += _problems(protection, uploads, game.error)
    mechanism = game.run.terms.config.privacy.mechanism
    return FailureAudit(
        mechanism=mechanism,
        rounds=len(rounds),
        failed=sum(r.failed for r in rounds),
        split=split,
        reasons=tuple(reasons),
    )


def first_message(game: FailureGame) -> tuple[int, Told]:
    """Return the first round's number and broadcast, which is as the method makes it."""
    number, protection = next(_parts(game))
    return number, next(_messages(game, protection))


def _parts(game: FailureGame) -> Iterator[tuple[int, Protection]]:
    """Yield a round of the run and, where there is one, the collection; with their numbers."""
    protection = game.run.terms.protection
    yield protection.first_round, protection
    if protection.collection is not None and protection.collects_at is not None:
        yield protection.collects_at, protection.collection


def _messages(game: FailureGame, protection: Protection) -> Iterator[Told]:
    config, method = game.run.terms.config, game.profile.method
    rng = stream(config.seed, "audit's broadcasts")
    honest = method.broadcast(method.init_server(rng), game.profile.name)
    yield Told("the first broadcast", honest)
    yield Told("a huge broadcast", _signs(honest, HUGE, rng))
    yield Told("a large broadcast", _signs(honest, LARGE, rng))
    count = len(game.run.learning.classes)
    for wanted in np.unique(game.profile.data.arrays["labels"])[:CLASSES].tolist():
        yield Told(f"a broadcast against class {wanted}", _against(honest, wanted, count))
    policy = method.pool_policy()
    collects = protection is game.run.terms.protection.collection
    if policy is None or policy.closes or collects:
        return
    base = entry_base(honest, policy.spec)
    for size in (HUGE, LARGE):
        yield Told("huge experts", honest, (_signs(base, size, rng),) * policy.k)


def _signs(arrays: Arrays, size: float, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Return floating-point arrays of one size and random signs."""
    return {
        name: (size * rng.choice([-1.0, 1.0], array.shape)).astype(array.dtype)
        if array.dtype.kind == "f"
        else array
        for name, array in arrays.items()
    }


def _against(arrays: Arrays, label: int, classes: int) -> dict[str, NDArray[Any]]:
    """Return arrays that are smallest where they belong to this class, else largest."""
    hostile = {name: np.array(array) for name, array in arrays.items()}
    for array in hostile.values():
        if array.dtype.kind == "f" and array.shape == (classes,):
            array[:] = HUGE
            array[label] = -HUGE
    return hostile


def _data(game: FailureGame) -> Iterator[tuple[int, Examples]]:
    """Return the client's data, others in its place, and none."""
    own, count = game.profile.data.arrays, len(game.run.learning.classes)
    other = {**own, "labels": (own["labels"] + 1) % count}
    wild = {
        name: np.full_like(array, HUGE) if array.dtype == np.float32 else array
        for name, array in own.items()
    }
    none = {name: array[:0] for name, array in own.items()}
    return enumerate(map(Examples, (own, other, wild, none)))


def play(game: FailureGame, told: Told, data: Examples, number: int, *, streams: int) -> Seen:
    """Return one round of a client that was never asked before."""
    protection, learning = game.run.terms.protection, game.run.learning
    validation = EvaluationSet(data, learning.classes)
    profile = replace(
        game.profile,
        # Its own, so that noise from a seed is its own.
        name=f"audit-{streams:05d}",
        data=data,
        protection=replace(protection, sums=replace(protection.sums, masked=False, terms=None)),
        measured=MeasuredSets({} if protection.extras.metric is None else {VALIDATION: validation}),
    )
    make_trainer = trainer_factory(game.run.terms.config, learning.device, protection)
    with tempfile.TemporaryDirectory(prefix="sotto-audit-") as folder:
        store = open_client_store(Path(folder) / "client.db")
        client = Client(profile, store, make_trainer)
        answers = _answers(client, told, number)
        rows = [replace(row, pseudonym="") for row in store.rows()]
        answered = not isinstance(answers[-1], str)
        failed = bool(store.failures(profile.run.run_id)) or not answered
    looks = tuple(map(_looks, answers))
    uploads = [decode_upload(a).vector for a in answers[1:2] if isinstance(a, bytes)]
    sums = profile.protection.in_round(number).sums
    sent = [
        np.asarray(one, np.float64) if sums.exact else sums.grid().dequantise(one)
        for one in uploads
        if one is not None
    ]
    return Seen((looks, tuple(rows)), sent[0] if sent else None, failed, answered)


def _answers(client: Client, told: Told, number: int) -> Sequence[bytes | str]:
    """Return what the client answers to each message; the error's name where it ends."""
    envelope = Envelope(client.profile.run.run_id, number, 1)
    norm = client.profile.protection.in_round(number).clipping_norm
    answers: list[bytes | str] = []
    try:
        for message in (
            encode_invitation(Invitation(envelope, (), None, norm)),
            encode_assignment(Assignment(envelope, b"", told.broadcast, told.experts)),
            encode_relay(Relay(envelope, b"")),
        ):
            answers.append(client.handle(message))
    # Whatever it is, somebody sees that there is no answer.
    except Exception as error:
        answers.append(type(error).__name__)
    return answers


def _looks(answer: bytes | str) -> tuple[Any, ...]:
    """Return an answer but for its numbers."""
    if isinstance(answer, str):
        return (answer,)
    frame = decode_frame(answer)
    arrays = {name: (array.shape, array.dtype.name) for name, array in frame.arrays.items()}
    blobs: Mapping[str, int] = {name: len(blob) for name, blob in frame.blobs.items()}
    return (frame.kind, repr(frame.fields), repr(arrays), repr(blobs), len(answer))


def _problems(protection: Protection, uploads: Sequence[Vector], error: float) -> tuple[str, ...]:
    """Return whether what failed clients uploaded is noise of the right size around zero."""
    samples = np.concatenate([np.zeros(0), *uploads])
    if not samples.size:
        return ()
    deviation = protection.mechanism.client_deviation
    if not deviation:
        return problems_of((partial(_require_zero, samples),))
    return problems_of(
        (
            partial(verify_noise_variance, samples, deviation, error / 2.0),
            partial(verify_distribution, samples, deviation, error / 2.0),
        )
    )


def _require_zero(samples: Vector) -> float:
    if samples.any():
        raise AuditError("what a failed client uploads is not zero", p_value=0.0)
    return 0.0
