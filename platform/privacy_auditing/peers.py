"""The game behind the channel "peers": does a hostile peer learn more than the noised sum tells?

The real coordinator's side of a round is played among two honest clients and a peer that uploads
what it likes: a vector that makes a sum just too long or just short enough, half of the ring in a
coordinate, a vector far too long, numbers in place of levels. Each round is played twice, with
other honest uploads whose sum with all its noise is the same in the ring. All that is seen must be
the same: whether there is a result, why not, and the result itself. Epsilon covers that sum (the
other channels hold the claim against it), so it covers whatever a peer makes of the round.

Where uploads travel exactly, each is noised by itself, and only refusals are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from platform.bootstrap import RunPlan
from platform.config.randomness import stream
from platform.errors import PlatformError
from platform.privacy_auditing.outcome import Game
from platform.protection.uploads import Protection
from platform.rounds.plan import Quorum, RoundFacts, RoundPlan, SecurePlan
from platform.rounds.runner import RoundRunner
from platform.wire.codec import Envelope, peek
from platform.wire.messages import (
    Answer,
    Disclosure,
    Relay,
    SumTerms,
    Upload,
    broadcast_digest,
    decode_assignment,
    decode_invitation,
    decode_relay,
    encode_answer,
    encode_disclosure,
    encode_relay,
    encode_upload,
)
from platform.wire.transport import InProcessTransport
from privacy import NO_STATE, ClientMechanism, PrivacyError, SeededNoise, SumNoise
from privacy.secure_aggregation import Advertised
from privacy.secure_aggregation import client as masking

PEERS = "peers"
HONEST, NAMES = 2, ("client-0", "client-1", "peer-0")
REPEATS = 3
_Round = tuple[NDArray[Any], NDArray[Any], NDArray[np.int64] | None]
"""What two honest clients upload, and the steps that the coordinator adds, if any."""


@dataclass(frozen=True, kw_only=True)
class PeerAudit(Game):
    """What the game gave.

    Attributes:
        mechanism: What protects the clients.
        rounds: How many rounds with a hostile peer were played.
        lost: How many of them have no result.
    """

    channel = PEERS
    words = "{rounds} rounds with a hostile peer, {lost} without a result"
    mechanism: str
    rounds: int
    lost: int


def audit_peers(run: RunPlan) -> PeerAudit:
    """Play every upload of a hostile peer."""
    config, protection = run.terms.config, run.terms.protection
    sums = replace(protection.sums, terms=None, clients=max(len(NAMES), protection.sums.clients))
    protection = replace(protection, sums=sums, entries=None).at(protection.clipping_norm)
    rng = stream(config.seed, "audit's peers")
    played, lost, reasons = 0, 0, []
    for name, upload in _hostile(protection) if protection.layout.protected else ():
        refusals = set()
        for _ in range(REPEATS):
            seen = [_play(protection, one, upload) for one in _pair(protection, rng)]
            played += len(seen)
            refusals |= {one[1] for one in seen if one[0] != "result"}
            lost += sum(one[0] != "result" for one in seen)
            if seen[0] != seen[1]:
                reasons.append(f"{name}: a round shows more than the sum with all its noise")
        # Which sentence is said follows from the noised sum, as the pairs show; a number in it may
        # be of anything.
        if len({re.sub(r"[0-9.]+", "", one) for one in refusals}) < len(refusals):
            reasons.append(f"{name}: a number in why a round has no result depends on the data")
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
        longest = round((len(NAMES) * each - 0.25 * norm) / grid.step)
        yield "just short of the longest bare sum", first * np.uint64(longest)
    yield "half of the ring", first * np.uint64(ring // 2)
    yield "a third of the ring everywhere", np.full(length, ring // 3, np.uint64)
    if not protection.masked:
        yield "numbers in place of levels", np.full(length, 2.0**46)


def _ring(protection: Protection) -> int:
    """Return the ring's largest element."""
    return int(2 ** protection.layout.ring_bits(protection.sums.grid(), len(NAMES)) - 1)


def _pair(protection: Protection, rng: np.random.Generator) -> tuple[_Round, _Round]:
    """Return two rounds of honest clients whose sum is the same once all noise is in it."""
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
    # Half of C in one coordinate, which both uploads have room for.
    move = np.zeros(length, np.int64)
    move[0] = grid.largest_level // 8 if norm is None else round(norm / 2.0 / grid.step)
    move *= rng.choice([-1, 1])
    moved, ring = move.astype(np.uint64), np.uint64(_ring(protection))
    if mechanism.facts.is_bare_to_server:
        deviation = sums.mechanism.noise_in_sum(len(NAMES)) / grid.step
        added = np.rint(deviation * noise.standard_normal(length)).astype(np.int64)
        return (one, two, added), (one + moved & ring, two, added - move)
    within = np.uint64(min(int(ring), grid.largest_level))
    return (one, two, None), (one + moved & within, two - moved & within, None)


def _play(protection: Protection, honest: _Round, upload: NDArray[Any]) -> tuple[Any, ...]:
    """Return all that is seen of a round."""
    sums, (one, two, added) = protection.sums, honest
    fixed = cast("ClientMechanism", _WithNoise(sums.mechanism, added))
    norm, masked = protection.clipping_norm, protection.masked
    parties = [_Party(protection, vector, norm) for vector in (one, two, upload)]
    handlers = {name: party.handle for name, party in zip(NAMES, parties, strict=True)}
    runner = RoundRunner(
        InProcessTransport(handlers=handlers, losses=lambda *_: frozenset()),
        replace(protection, sums=replace(sums, mechanism=fixed)),
    )
    plan = RoundPlan(
        run_id="audit",
        round_number=protection.first_round,
        attempt=1,
        cohort=NAMES,
        committed={},
        quorum=Quorum(HONEST),
        secure=SecurePlan(terms=SumTerms(len(NAMES))) if masked else None,
        facts=RoundFacts(clipping_norm=norm),
    )
    try:
        outcome = runner.run(plan, lambda _: {}, lambda asked: [()] * len(asked))
    except (PlatformError, PrivacyError) as error:
        return type(error).__name__, str(error)
    shown = None
    if outcome.individual is not None and sums.mechanism.facts.is_bare_to_server:
        shown = {name: vector.tobytes() for name, vector in outcome.individual.items()}
    summed, readings = outcome.summed, outcome.readings
    facts = (outcome.survivors, summed.total_weight, summed.extras, outcome.traffic)
    groups = None if readings.groups is None else readings.groups.counts.tobytes()
    read = (readings.clipped_fraction, readings.signal_to_noise, readings.validation, groups)
    return "result", summed.vector.tobytes(), facts, read, shown


class _WithNoise:
    """A mechanism whose noise for a sum is given; all else is the mechanism's."""

    def __init__(self, mechanism: ClientMechanism, added: NDArray[np.int64] | None) -> None:
        self._mechanism, self._added = mechanism, added

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mechanism, name)

    def around(self, clipping_norm: float) -> _WithNoise:
        """Return the same around another norm."""
        return _WithNoise(self._mechanism.around(clipping_norm), self._added)

    def noise_for_sum(self, *_: object) -> SumNoise | None:
        """Return what is given."""
        return None if self._added is None else SumNoise(self._added)


@dataclass
class _Party:
    """A client as the protocol sees it, which uploads what it is given and keeps no store."""

    protection: Protection
    upload: NDArray[Any]
    clipping_norm: float | None
    state: Any = None

    def handle(self, message: bytes) -> bytes:
        """Answer one message of the coordinator."""
        kind, envelope = peek(message)
        if kind == "invitation":
            return self._join(message, envelope)
        if kind == "assignment":
            return self._send(message, envelope)
        is_first, payload = isinstance(self.state, Advertised), b""
        if self.state is not None:
            self.state, payload = masking.step(self.state, decode_relay(message).payload)
        if is_first:
            return encode_relay(Relay(envelope, payload))
        return encode_disclosure(
            Disclosure(envelope=envelope, payload=payload, handle=b"", entry={})
        )

    def _join(self, message: bytes, envelope: Envelope) -> bytes:
        seat, payload = decode_invitation(message).secure, b""
        if seat is not None:
            parameters = self.protection.sums.parameters(envelope, seat)
            self.state, payload = masking.advertise(parameters, seat.index)
        return encode_answer(Answer(envelope, (), payload))

    def _send(self, message: bytes, envelope: Envelope) -> bytes:
        told = decode_assignment(message)
        if self.state is None:
            return encode_upload(Upload(envelope, b"", self.upload, 1))
        ready, _ = masking.step(self.state, told.payload)
        context = broadcast_digest(told.broadcast, self.clipping_norm)
        self.state, payload = masking.mask(ready, self.upload, context=context)
        return encode_upload(Upload(envelope, payload, None, 0))
