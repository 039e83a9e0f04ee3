"""Games in which a client or a coordinator plays whole rounds with hostile messages and peers.

The game on the channel "failures" asks: do clients differ in anything but noised numbers? The
real `Client`, with a store of its own, plays a whole round on several data sets. Any two of these
are neighbours under `replace_one`; one is empty, and one has numbers at the end of their range. The
coordinator is hostile: its broadcasts and experts are so large that a loss is infinite for one
class and finite for another. All that is visible without noise must be the same for all data:
whether there is an answer, its length, names and types, and the client's ledger. The upload of a
failed client must be noise around zero. The game uses no masks: they change no number, but would
hide the numbers from this audit.

The game on the channel "peers" asks: does a hostile peer learn more than the noised sum tells? The
real coordinator's side of a round runs with two honest clients and a peer that uploads anything: a
vector that makes a sum just too long or just short enough, half of the ring in a coordinate, a
vector far too long, numbers in place of levels. Each round is played twice, with different honest
uploads whose sum with all its noise is the same in the ring. Everything visible must be the same:
whether there is a result, the reason if there is none, and the result itself. The other channels
test the claim on that sum, so epsilon covers everything that a peer makes of the round. If uploads
travel exactly, each has its own noise, and the game compares only refusals.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from methods import Arrays, Examples
from platform.config.randomness import stream
from platform.errors import PlatformError
from platform.experiment.planning import RunPlan
from platform.experiment.privacy_auditing.outcome import Game, Vector, problems_of
from platform.experiment.simulation import trainer_factory
from platform.parties.client import Client
from platform.parties.profile import ClientProfile
from platform.parties.scoring import VALIDATION, EvaluationSet, MeasuredSets
from platform.protection.uploads import Protection
from platform.rounds.plan import RoundPlan, SecurePlan
from platform.rounds.runner import RoundRunner
from platform.wire import messages as wire
from platform.wire.codec import Envelope, decode_frame, peek
from platform.wire.layout import entry_base
from platform.wire.transport import InProcessTransport
from privacy import NO_STATE, ClientMechanism, PrivacyError, SeededNoise, SumNoise
from privacy.auditing import verify_distribution, verify_noise_variance
from privacy.secure_aggregation import Advertised
from privacy.secure_aggregation import client as secure_client
from storage import open_client_store

FAILURES = "failures"
HUGE = 3.0e38
"""So large in float32 that a sum of two is infinite."""
LARGE = 1.0e30
CLASSES = 3
"""Number of classes that the coordinator asks for one by one."""


@dataclass(frozen=True)
class FailureGame:
    """A game of whole rounds; the client's data is one of the data sets."""

    run: RunPlan
    profile: ClientProfile
    error: float


@dataclass(frozen=True, kw_only=True)
class FailureAudit(Game):
    """The outcome of the game with failures.

    Attributes:
        failed: Number of rounds in which something failed inside the client.
        split: Number of messages that failed on some data sets only.
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
    """A message of the coordinator: its name for people, the broadcast, and the experts."""

    name: str
    broadcast: Arrays
    experts: tuple[Arrays, ...] = ()


@dataclass(frozen=True)
class Seen:
    """The view of one client's round.

    Attributes:
        facts: Everything visible that is not noised.
        vector: The upload; None without an upload.
        failed: Whether something failed inside the client.
        answered: Whether the client answered each message.
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
                reasons.append(f"{told.name}: clients differ in visible data without noise")
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
    """Return the first round's number, and the method's own broadcast."""
    number, protection = next(_parts(game))
    return number, next(_messages(game, protection))


def _parts(game: FailureGame) -> Iterator[tuple[int, Protection]]:
    """Yield a round of the run and, if there is one, the collection, with their numbers."""
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
        hostile = {name: np.array(array) for name, array in honest.items()}
        for array in hostile.values():
            if array.dtype.kind == "f" and array.shape == (count,):
                array[:] = HUGE
                array[wanted] = -HUGE
        yield Told(f"a broadcast against class {wanted}", hostile)
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


def _data(game: FailureGame) -> Iterator[tuple[int, Examples]]:
    """Return the client's data, and the data sets that take its place."""
    own, count = game.profile.data.arrays, len(game.run.learning.classes)
    other = {**own, "labels": (own["labels"] + 1) % count}
    wild = {
        name: np.full_like(array, HUGE) if array.dtype == np.float32 else array
        for name, array in own.items()
    }
    none = {name: array[:0] for name, array in own.items()}
    return enumerate(map(Examples, (own, other, wild, none)))


def play(game: FailureGame, told: Told, data: Examples, number: int, *, streams: int) -> Seen:
    """Return the view of one round of a client that takes part for the first time."""
    protection, learning = game.run.terms.protection, game.run.learning
    validation = EvaluationSet(data, learning.classes)
    profile = replace(
        game.profile,
        # Each client has its own name, so that its seed gives its own noise.
        name=f"audit-{streams:05d}",
        data=data,
        protection=replace(protection, sums=replace(protection.sums, masked=False, terms=None)),
        measured=MeasuredSets({} if protection.extras.metric is None else {VALIDATION: validation}),
    )
    make_trainer = trainer_factory(game.run.terms.config, learning.device, protection)
    with tempfile.TemporaryDirectory(prefix="sotto-audit-") as folder:
        store = open_client_store(Path(folder) / "client.db")
        client = Client(profile, store, make_trainer)
        envelope = Envelope(client.profile.run.run_id, number, 1)
        norm = client.profile.protection.in_round(number).clipping_norm
        answers: list[bytes | str] = []
        try:
            for message in (
                wire.encode_invitation(wire.Invitation(envelope, (), None, norm)),
                wire.encode_assignment(
                    wire.Assignment(envelope, b"", told.broadcast, told.experts)
                ),
                wire.encode_relay(wire.Relay(envelope, b"")),
            ):
                answers.append(client.handle(message))
        # After any error the coordinator sees that there is no answer.
        except Exception as error:
            answers.append(type(error).__name__)
        rows = [replace(row, pseudonym="") for row in store.rows()]
        answered = not isinstance(answers[-1], str)
        failed = bool(store.failures(profile.run.run_id)) or not answered
    looks = tuple(map(_looks, answers))
    uploads = [wire.decode_upload(a).vector for a in answers[1:2] if isinstance(a, bytes)]
    sums = profile.protection.in_round(number).sums
    sent = [
        np.asarray(one, np.float64) if sums.exact else sums.grid().dequantise(one)
        for one in uploads
        if one is not None
    ]
    return Seen((looks, tuple(rows)), sent[0] if sent else None, failed, answered)


def _looks(answer: bytes | str) -> tuple[Any, ...]:
    """Return an answer without its numbers."""
    if isinstance(answer, str):
        return (answer,)
    frame = decode_frame(answer)
    arrays = {name: (array.shape, array.dtype.name) for name, array in frame.arrays.items()}
    blobs: Mapping[str, int] = {name: len(blob) for name, blob in frame.blobs.items()}
    return (frame.kind, repr(frame.fields), repr(arrays), repr(blobs), len(answer))


def _problems(protection: Protection, uploads: Sequence[Vector], error: float) -> tuple[str, ...]:
    """Return the differences between failed clients' uploads and noise of the right size."""
    samples = np.concatenate([np.zeros(0), *uploads])
    if not samples.size:
        return ()
    deviation = protection.mechanism.client_deviation
    if not deviation:
        return ("the upload of a failed client is not zero",) if samples.any() else ()
    return problems_of(
        (
            partial(verify_noise_variance, samples, deviation, error / 2.0),
            partial(verify_distribution, samples, deviation, error / 2.0),
        )
    )


PEERS = "peers"
HONEST, PARTIES = 2, ("client-0", "client-1", "peer-0")
REPEATS = 3
_Round = tuple[NDArray[Any], NDArray[Any], NDArray[np.int64] | None]
"""The uploads of two honest clients, and the noise that the coordinator adds, if any."""


@dataclass(frozen=True, kw_only=True)
class PeerAudit(Game):
    """The outcome of the game with hostile peers, in rounds of which some have no result."""

    channel = PEERS
    words = "{rounds} rounds with a hostile peer, {lost} without a result"
    mechanism: str
    rounds: int
    lost: int


def audit_peers(run: RunPlan) -> PeerAudit:
    """Play every upload of a hostile peer."""
    config, protection = run.terms.config, run.terms.protection
    sums = replace(protection.sums, terms=None, clients=max(len(PARTIES), protection.sums.clients))
    protection = replace(protection, sums=sums, entries=None).at(protection.clipping_norm)
    rng = stream(config.seed, "audit's peers")
    played, lost, reasons = 0, 0, []
    for name, upload in _hostile(protection) if protection.layout.protected else ():
        refusals = set()
        for _ in range(REPEATS):
            seen = [_play_among(protection, one, upload) for one in _pair(protection, rng)]
            played += len(seen)
            refusals |= {one[1] for one in seen if one[0] != "result"}
            lost += sum(one[0] != "result" for one in seen)
            if seen[0] != seen[1]:
                reasons.append(f"{name}: a round shows more than the sum with all its noise")
        # The pairs show that the sentence follows from the noised sum; its number might not.
        if len({re.sub(r"[0-9.]+", "", one) for one in refusals}) < len(refusals):
            reasons.append(f"{name}: a number in the reason for a lost round depends on the data")
    return PeerAudit(
        mechanism=config.privacy.mechanism, rounds=played, lost=lost, reasons=tuple(reasons)
    )


def _hostile(protection: Protection) -> Iterator[tuple[str, NDArray[Any]]]:
    length = protection.layout.protected
    first = np.eye(1, length, dtype=np.uint64)[0]
    if protection.sums.exact:
        yield "a huge upload", np.full(length, 1e30)
        yield "levels in place of numbers", first
        return
    grid = protection.sums.grid()
    ring, norm = _ring(protection), protection.mechanism.clipping_norm
    if norm is not None:
        groups = protection.extras.groups
        each = norm if groups is None else groups.counts.length(norm)
        longest = round((len(PARTIES) * each - 0.25 * norm) / grid.step)
        yield "just short of the longest bare sum", first * np.uint64(longest)
    yield "half of the ring", first * np.uint64(ring // 2)
    yield "a third of the ring everywhere", np.full(length, ring // 3, np.uint64)
    if not protection.masked:
        yield "numbers in place of levels", np.full(length, 2.0**46)


def _ring(protection: Protection) -> int:
    """Return the ring's largest element."""
    return int(2 ** protection.layout.ring_bits(protection.sums.grid(), len(PARTIES)) - 1)


def _pair(protection: Protection, rng: np.random.Generator) -> tuple[_Round, _Round]:
    """Return two rounds of honest clients whose sums with all noise are the same."""
    sums, length = protection.sums, protection.layout.protected
    if sums.exact:
        drawn = rng.standard_normal((HONEST, length))
        return ((drawn[0], drawn[1], None),) * 2
    grid, mechanism, noise = sums.grid(), sums.mechanism, SeededNoise(rng)
    norm = mechanism.clipping_norm
    vector = rng.standard_normal(length)
    vector *= (0.25 if norm is None else 0.25 * norm) / np.linalg.norm(vector)
    groups = protection.extras.groups
    if groups is not None:
        vector[-groups.number :] = 0.0
    one, two = (mechanism.protect(v, grid, noise, NO_STATE).levels for v in (vector, 0.0 * vector))
    # Half of C in one coordinate: both uploads have room for it.
    move = np.zeros(length, np.int64)
    move[0] = grid.largest_level // 8 if norm is None else round(norm / 2.0 / grid.step)
    move *= rng.choice([-1, 1])
    moved, ring = move.astype(np.uint64), np.uint64(_ring(protection))
    if mechanism.facts.is_bare_to_server:
        deviation = sums.mechanism.noise_in_sum(len(PARTIES)) / grid.step
        added = np.rint(deviation * noise.standard_normal(length)).astype(np.int64)
        return (one, two, added), (one + moved & ring, two, added - move)
    within = np.uint64(min(int(ring), grid.largest_level))
    return (one, two, None), (one + moved & within, two - moved & within, None)


def _play_among(protection: Protection, honest: _Round, upload: NDArray[Any]) -> tuple[Any, ...]:
    """Return everything visible of a round."""
    sums, (one, two, added) = protection.sums, honest
    fixed = cast("ClientMechanism", _WithNoise(sums.mechanism, added))
    norm, masked = protection.clipping_norm, protection.masked
    parties = [_Party(protection, vector, norm) for vector in (one, two, upload)]
    handlers = {name: party.handle for name, party in zip(PARTIES, parties, strict=True)}
    runner = RoundRunner(InProcessTransport(handlers=handlers, losses=lambda *_: frozenset()))
    noised = replace(protection, sums=replace(sums, mechanism=fixed))
    plan = RoundPlan(
        run_id="audit",
        round_number=protection.first_round,
        attempt=1,
        cohort=PARTIES,
        committed={},
        protection=noised.in_round(protection.first_round).at(norm),
        minimum=HONEST,
        secure=SecurePlan(terms=wire.SumTerms(len(PARTIES))) if masked else None,
    )
    try:
        outcome = runner.run(plan, lambda _: {}, lambda asked: [()] * len(asked))
    except (PlatformError, PrivacyError) as error:
        return type(error).__name__, str(error)
    shown = None
    if outcome.individual is not None and sums.mechanism.facts.is_bare_to_server:
        shown = {name: vector.tobytes() for name, vector in outcome.individual.items()}
    summed, readings = outcome.summed, outcome.readings
    facts = (
        outcome.survivors,
        summed.total_weight,
        summed.extras,
        outcome.bytes_up,
        outcome.bytes_down,
    )
    groups = None if readings.groups is None else readings.groups.counts.tobytes()
    read = (readings.clipped_fraction, readings.signal_to_noise, readings.validation, groups)
    return "result", summed.vector.tobytes(), facts, read, shown


class _WithNoise:
    """A mechanism with given noise for a sum; it passes all other calls to the mechanism."""

    def __init__(self, mechanism: ClientMechanism, added: NDArray[np.int64] | None) -> None:
        self._mechanism, self._added = mechanism, added

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mechanism, name)

    def around(self, clipping_norm: float) -> _WithNoise:
        """Return the same mechanism with another clipping norm."""
        return _WithNoise(self._mechanism.around(clipping_norm), self._added)

    def noise_for_sum(self, *_: object) -> SumNoise | None:
        """Return the given noise."""
        return None if self._added is None else SumNoise(self._added)


@dataclass
class _Party:
    """A client that follows the protocol with a given upload and without a store."""

    protection: Protection
    upload: NDArray[Any]
    clipping_norm: float | None
    state: Any = None

    def handle(self, message: bytes) -> bytes:
        """Answer one message of the coordinator."""
        kind, envelope = peek(message)
        if kind == "invitation":
            seat, payload = wire.decode_invitation(message).secure, b""
            if seat is not None:
                parameters = self.protection.sums.parameters(envelope, seat)
                self.state, payload = secure_client.advertise(parameters, seat.index)
            return wire.encode_answer(wire.Answer(envelope, (), payload))
        if kind == "assignment":
            told = wire.decode_assignment(message)
            if self.state is None:
                return wire.encode_upload(wire.Upload(envelope, b"", self.upload, 1))
            ready, _ = secure_client.step(self.state, told.payload)
            context = wire.broadcast_digest(told.broadcast, self.clipping_norm)
            self.state, payload = secure_client.mask(ready, self.upload, context=context)
            return wire.encode_upload(wire.Upload(envelope, payload, None, 0))
        is_first, payload = isinstance(self.state, Advertised), b""
        if self.state is not None:
            self.state, payload = secure_client.step(self.state, wire.decode_relay(message).payload)
        if is_first:
            return wire.encode_relay(wire.Relay(envelope, payload))
        return wire.encode_disclosure(
            wire.Disclosure(envelope=envelope, payload=payload, handle=b"", entry={})
        )
