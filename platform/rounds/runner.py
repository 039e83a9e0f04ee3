"""One attempt at one round: its messages, its journal, and the sum that it opens.

An attempt invites clients, assigns work, collects uploads, opens the sum and collects the pool
entries. The coordinator sees masked vectors and their sum. It sees a client's update only where
there is no secure aggregation. An attempt either yields an outcome or raises `RoundAborted`, which
names the phase.

The attempt's journal keeps the result of each stage before the next stage is sent. So a coordinator
that is started again continues after the last stage in the journal, and does no stage twice. It
sends the same messages, and clients repeat their answers. The journal keeps the running sum of
masked vectors and the list of their owners. The coordinator asks again for all other answers,
because the disk must not hold them: answers to the last stage would open the sum, uploads in the
clear are private, and handles would tell which client gave which pool entry. The coordinator draws
its noise once: the journal keeps the noised sum.

Clients may have made their keys ahead, with the last message of the round before. Then there is no
advertise stage: the invitation carries all keys, and clients answer with shares. If one client's
keys are missing or not valid, the coordinator asks all clients for fresh keys, also one that was
lost in the round before, and waits for it. So an attempt's keys were all made at the same time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from methods import Arrays, MethodError
from platform.disk.opening import Records
from platform.errors import PlatformError, ProtocolError, RoundAborted
from platform.protection.sums import NoisedSum, SumProtection, round_parameters
from platform.protection.uploads import Protection
from platform.rounds.plan import Readings, RoundOutcome, RoundPlan
from platform.wire import messages as wire
from platform.wire.codec import (
    Attempt,
    Frame,
    decode_arrays,
    decode_frame,
    encode_arrays,
    encode_frame,
)
from platform.wire.layout import LARGEST_COORDINATE, Summed, Totals
from platform.wire.transport import ClientId, Dropout, Transport
from privacy import (
    NoiseSource,
    NoiseState,
    PrivacyError,
    ProtocolViolation,
    SystemNoise,
    ThresholdNotMet,
)
from privacy.secure_aggregation import (
    CollectingConfirmations,
    Finished,
    ServerState,
    decode_server_state,
    encode_server_state,
)
from privacy.secure_aggregation import server as secure_server

AHEAD: Final = "ahead"
"""Stands in place of a stage for the keys, made ahead, with which an attempt was opened."""
Kept = wire.Stage | Literal["ahead"]


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """The result of a stage, and the clients that are asked next.

    Attributes:
        relays: By client that is still there, the next message of the secure aggregation; empty
            bytes without secure aggregation.
        state: The secure aggregation's state, encoded; else empty.
        handles: By client, the names of its own live pool entries; never kept.
        up: Bytes that clients have sent in the attempt so far.
        down: Bytes that clients have been sent.
    """

    relays: Mapping[ClientId, bytes] = field(default_factory=dict)
    state: bytes = field(default=b"", repr=False)
    handles: Mapping[ClientId, tuple[bytes, ...]] = field(default_factory=dict, repr=False)
    up: int = 0
    down: int = 0


@dataclass(frozen=True)
class DatabaseJournal:
    """The stages of an attempt in the coordinator's database."""

    records: Records
    run_id: str
    round_number: int
    attempt: int

    def stage(self, stage: Kept) -> bytes | None:
        """Return the stored result of a stage, None if the stage has not been completed."""
        return self._kept.get(stage)

    def keep(self, stage: wire.Stage, blob: bytes) -> None:
        """Keep a stage's result, durably."""
        key = (self.run_id, self.round_number, self.attempt)
        with self.records.write() as uow:
            uow.attempts.add_stage(*key, stage=stage, blob=blob)
        self._kept[stage] = blob

    @cached_property
    def _kept(self) -> dict[str, bytes]:
        with self.records.read() as uow:
            return uow.attempts.stages(self.run_id, self.round_number, self.attempt)


@dataclass(frozen=True)
class MemoryJournal:
    """The stages of an attempt that is never resumed, such as a benchmark's."""

    kept: dict[Kept, bytes] = field(default_factory=dict)

    def stage(self, stage: Kept) -> bytes | None:
        """Return the result of a stage, None if it has not been completed."""
        return self.kept.get(stage)

    def keep(self, stage: wire.Stage, blob: bytes) -> None:
        """Keep a stage's result."""
        self.kept[stage] = blob


Journal = DatabaseJournal | MemoryJournal


def encode_stage(result: StageResult) -> bytes:
    """Return the part of a stage's result that is kept, as bytes."""
    blobs = {f"relay/{client}": payload for client, payload in result.relays.items()}
    blobs["state"] = result.state
    return encode_frame(Frame("stage", {"up": result.up, "down": result.down}, {}, blobs))


def decode_stage(data: bytes) -> StageResult:
    """Read the bytes of `encode_stage`, or `ProtocolError`."""
    frame = decode_frame(data)
    if frame.kind != "stage":
        raise ProtocolError("message: the stored stage is not valid")
    relays = {
        name.removeprefix("relay/"): payload
        for name, payload in sorted(frame.blobs.items())
        if name.startswith("relay/")
    }
    fields: Mapping[str, int] = frame.fields
    return StageResult(
        relays=relays, state=frame.blobs["state"], up=fields["up"], down=fields["down"]
    )


def encode_keys(keys: Mapping[ClientId, bytes]) -> bytes:
    """Return keys that were made ahead, by client, as bytes."""
    return encode_frame(Frame("keys", {}, {}, dict(keys)))


def decode_keys(data: bytes) -> dict[ClientId, bytes]:
    """Read the bytes of `encode_keys`, or `ProtocolError`."""
    frame = decode_frame(data)
    if frame.kind != "keys":
        raise ProtocolError("message: the stored keys are not valid")
    return dict(frame.blobs)


def encode_noised(noised: NoisedSum) -> bytes:
    """Return a sum with all its noise, as bytes."""
    state = {"state": encode_arrays(noised.noise_state)}
    fields = {"clients": noised.clients}
    return encode_frame(Frame("noised", fields, {"levels": noised.levels}, state))


def decode_noised(data: bytes) -> NoisedSum:
    """Read the bytes of `encode_noised`, or `ProtocolError`."""
    frame = decode_frame(data)
    if frame.kind != "noised":
        raise ProtocolError("message: the stored sum is not valid")
    state = decode_arrays(frame.blobs["state"]) if frame.blobs else {}
    return NoisedSum(frame.arrays["levels"], frame.fields["clients"], state)


Message = TypeVar("Message")


@dataclass(kw_only=True)
class Exchange:
    """Sends an attempt's stages, counts bytes and keeps results.

    Attributes:
        deadline: Seconds to wait for each stage, None for as long as it takes.
        up: Bytes received so far.
        down: Bytes sent so far.
        phase: The stage that was sent last, None before the first.
    """

    transport: Transport
    plan: RoundPlan
    journal: Journal
    deadline: float | None = None
    up: int = 0
    down: int = 0
    phase: wire.Stage | None = None

    def __call__(
        self,
        stage: wire.Stage,
        messages: Mapping[ClientId, bytes],
        decode: Callable[[bytes], Message],
    ) -> dict[ClientId, Message]:
        """Return the answers that parse and belong to this attempt; all others are dropouts."""
        self.phase, empty = stage, self.plan.empty
        messages = {c: message for c, message in messages.items() if c not in empty}
        self.down += sum(map(len, messages.values()))
        answers: dict[ClientId, Message] = {}
        for client, reply in self.transport.exchange(stage, messages, self.deadline).items():
            if isinstance(reply, Dropout) or client not in messages:
                continue
            self.up += len(reply)
            try:
                message: Any = decode(reply)
            except ProtocolError:
                continue
            if message.envelope == self.plan.envelope(client):
                answers[client] = message
        return answers

    def settled(self, stage: wire.Stage, work: Callable[[], StageResult]) -> StageResult:
        """Return a stage's result from the journal; else do the work and keep its result."""
        kept = self.journal.stage(stage)
        if kept is not None:
            result = decode_stage(kept)
            self.up, self.down = result.up, result.down
            return result
        result = replace(work(), up=self.up, down=self.down)
        self.journal.keep(stage, encode_stage(result))
        return result

    def again(
        self,
        stage: wire.Stage,
        messages: Mapping[ClientId, bytes],
        decode: Callable[[bytes], Message],
    ) -> dict[ClientId, Message]:
        """Ask once more for answers that were given before; their bytes are counted once."""
        phase, up, down = self.phase, self.up, self.down
        answers = self(stage, messages, decode)
        self.phase, self.up, self.down = phase, up, down
        return answers

    @property
    def uploads_asked(self) -> bool:
        """Whether this process, or an earlier one, may have asked a client to upload."""
        # After this stage the coordinator asks for uploads, and writes down nothing in between.
        before: wire.Stage = "share" if self.plan.protection.masked else "advertise"
        return self.phase == "train" or self.journal.stage(before) is not None

    def relays(self, payloads: Mapping[ClientId, bytes]) -> dict[ClientId, bytes]:
        """Return the messages that carry these payloads."""
        envelope = self.plan.envelope
        return {
            c: wire.encode_relay(wire.Relay(envelope(c), payload))
            for c, payload in payloads.items()
        }

    def traffic(self) -> tuple[int, int]:
        """Return mean bytes up and down per invited client so far."""
        clients = max(1, len(self.plan.cohort))
        return self.up // clients, self.down // clients


Experts = Callable[[Sequence[Sequence[bytes]]], Sequence[tuple[Arrays, ...]]]
"""Returns the experts of each of several clients, by the handles that these present."""
Rosters = Mapping[ClientId, bytes]
"""By client, all clients' keys."""
Handles = Mapping[ClientId, tuple[bytes, ...]]
"""By client, the names of its own pool entries."""
Ask = Callable[[], dict[ClientId, wire.Upload]]
HANDLE_BYTES = 32


@dataclass(frozen=True)
class MaskedSum:
    """The server's state machine, with clients' names in place of share indices."""

    state: ServerState
    places: Mapping[ClientId, int]

    @classmethod
    def start(cls, plan: RoundPlan, broadcast: Arrays) -> MaskedSum:
        """Return the protocol's first state."""
        seat = seat_of(plan, 0)
        parameters = round_parameters(plan.envelope(plan.cohort[0]), seat)
        context = wire.broadcast_digest(broadcast, plan.protection.clipping_norm)
        return cls(secure_server.start(parameters, context=context), plan.places)

    def at(self, encoded: bytes) -> MaskedSum:
        """Return the same sum at a stored state."""
        return replace(self, state=decode_server_state(encoded))

    def advance(
        self, payloads: Mapping[ClientId, bytes]
    ) -> tuple[MaskedSum, dict[ClientId, bytes]]:
        """Take one step: answers in, the next state and messages out."""
        messages = {self.places[client]: payload for client, payload in payloads.items()}
        state, outgoing = secure_server.step(self.state, messages)
        named = {name: outgoing[i] for name, i in self.places.items() if i in outgoing}
        return replace(self, state=state), named

    def settled(
        self,
        answers: Mapping[ClientId, wire.Answer | wire.Relay | wire.Upload],
        handles: Handles | None = None,
    ) -> StageResult:
        """Return the result of a stage from its answers."""
        following, relays = self.advance({c: a.payload for c, a in answers.items()})
        return StageResult(
            relays=relays, state=encode_server_state(following.state), handles=handles or {}
        )

    def finished(self) -> Finished:
        """Return the last state."""
        if not isinstance(self.state, Finished):
            raise TypeError("the protocol has not finished")
        return self.state


def seat_of(plan: RoundPlan, index: int) -> wire.SecureRound:
    """Return the part of an invitation that tells the client of this index of the secure sum."""
    layout, grid = plan.protection.layout, plan.protection.sums.grid()
    clients = len(plan.cohort)
    if plan.secure is None:
        raise ValueError("there is no secure sum in this attempt")
    return wire.SecureRound(
        index=index,
        clients=clients,
        vector_length=layout.length,
        ring_bits=layout.ring_bits(grid, clients),
        terms=plan.secure.terms,
        graph=plan.secure.graph,
        enrolled=plan.secure.enrolled(plan.cohort),
    )


def _invitations(
    exchange: Exchange, clients: Iterable[ClientId], rosters: Rosters | None = None
) -> dict[ClientId, bytes]:
    """Return the invitations of some of the cohort, with all keys where those were made ahead."""
    plan, places = exchange.plan, exchange.plan.places
    norm = plan.protection.clipping_norm
    alike: dict[Attempt | None, bytes] = {}
    messages: dict[ClientId, bytes] = {}
    for client in clients:
        envelope = plan.envelope(client)
        message = alike.get(envelope.committed)
        if message is None:
            seat = None
            if plan.protection.masked:
                seat = seat_of(plan, places[client])
                if rosters is not None:
                    seat = replace(seat, roster=rosters[client])
            message = wire.encode_invitation(
                wire.Invitation(envelope, plan.generations, seat, norm)
            )
            if seat is None:
                # Only the seat differs between clients: without one, they get equal messages.
                alike[envelope.committed] = message
        messages[client] = message
    return messages


def _assignments(
    plan: RoundPlan,
    payloads: Mapping[ClientId, bytes],
    broadcasts: Callable[[ClientId], Arrays],
    experts: Mapping[ClientId, tuple[Arrays, ...]],
) -> dict[ClientId, bytes]:
    """Return each client's assignment, encoded once for all clients that get the same one.

    Most methods broadcast the same arrays to all clients, and these may be megabytes.
    """

    def which(arrays: Arrays) -> Hashable:
        # Arrays that are equal but not identical count as different.
        return tuple([(name, id(array)) for name, array in arrays.items()])

    alike: dict[Hashable, tuple[wire.Assignment, bytes]] = {}
    messages: dict[ClientId, bytes] = {}
    for client, payload in sorted(payloads.items()):
        told = wire.Assignment(plan.envelope(client), payload, broadcasts(client), experts[client])
        key = (told.envelope, payload, which(told.broadcast), tuple(map(which, told.experts)))
        if key not in alike:
            # The arrays are kept with the message, so that no other arrays can take their ids.
            alike[key] = told, wire.encode_assignment(told)
        messages[client] = alike[key][1]
    return messages


def _made_ahead(exchange: Exchange, start: MaskedSum) -> tuple[MaskedSum, Rosters] | None:
    """Return the secure sum and all clients' keys, if all were made ahead and are valid.

    The result depends on the journal only, so a coordinator that resumes the attempt agrees.
    """
    kept = exchange.journal.stage(AHEAD)
    if kept is None:
        return None
    try:
        secure, rosters = start.advance(decode_keys(kept))
    except (PrivacyError, ProtocolError, KeyError):
        return None
    return (secure, rosters) if rosters.keys() == set(exchange.plan.cohort) else None


@dataclass(frozen=True)
class RoundRunner:
    """Runs attempts over one transport.

    Attributes:
        noise_of: Returns the source of the coordinator's own noise of a round and attempt.
        noise_state: The state that the coordinator's noise of the last committed sum left.
    """

    transport: Transport
    noise_of: Callable[[int, int], NoiseSource] = lambda number, attempt: SystemNoise()
    deadline: float | None = None
    noise_state: NoiseState = field(default_factory=dict, repr=False, kw_only=True)

    def run(
        self,
        plan: RoundPlan,
        broadcasts: Callable[[ClientId], Arrays],
        experts: Experts,
        journal: Journal | None = None,
    ) -> RoundOutcome:
        """Run one attempt, or continue it.

        `broadcasts` gives each client's broadcast, and `experts` the experts for handles, the same
        at each call. Without a journal the attempt is never resumed. `RoundAborted.uploads_asked`
        says whether anything may have left a client.
        """
        exchange = self._exchange(plan, journal)
        try:
            return self._run(exchange, broadcasts, experts)
        except PrivacyError as error:
            phase: str = exchange.phase or "advertise"
            if isinstance(error, ThresholdNotMet):
                phase = str(error.phase)
            raise RoundAborted(phase, str(error), uploads_asked=exchange.uploads_asked) from error

    def noise_alone(self, plan: RoundPlan, journal: Journal | None = None) -> RoundOutcome:
        """Return the outcome of a round of `central_noise` in which no client is left: the noise.

        For empty sums only. If noise also replaced the sum of a few clients, whether there is a sum
        would depend on whether one client was drawn, and would tell it.
        """
        exchange = self._exchange(plan, journal)
        totals = self._opened(exchange, plan.protection.sums.add_up(()), ())
        return self._outcome(exchange, (), totals, {})

    def _exchange(self, plan: RoundPlan, journal: Journal | None = None) -> Exchange:
        return Exchange(
            transport=self.transport,
            plan=plan,
            journal=journal or MemoryJournal(),
            deadline=self.deadline,
        )

    def _run(
        self, exchange: Exchange, broadcasts: Callable[[ClientId], Arrays], experts: Experts
    ) -> RoundOutcome:
        """Invite the clients, or go on where that was interrupted, then ask for uploads."""
        plan = exchange.plan
        secure: MaskedSum | None = None
        rosters: Rosters | None = None

        def advertise() -> StageResult:
            answers = exchange("advertise", _invitations(exchange, plan.places), wire.decode_answer)
            handles = {client: answer.handles for client, answer in answers.items()}
            if secure is None:
                return StageResult(relays=dict.fromkeys(answers, b""), handles=handles)
            return secure.settled(answers, handles)

        if not plan.protection.masked:
            joined = exchange.settled("advertise", advertise)
            handles = joined.handles
        else:
            # Only methods that broadcast the same to all clients may be summed in secret.
            secure = start = MaskedSum.start(plan, broadcasts(plan.cohort[0]))
            ahead = _made_ahead(exchange, start)
            if ahead is None:
                told = exchange.settled("advertise", advertise)
                dealing, handles = start.at(told.state), told.handles
                joined = exchange.settled(
                    "share",
                    lambda: dealing.settled(
                        exchange("share", exchange.relays(told.relays), wire.decode_relay)
                    ),
                )
            else:
                with_keys, everybodys = ahead
                rosters = everybodys

                def share() -> StageResult:
                    invited = _invitations(exchange, everybodys, everybodys)
                    answers = exchange("share", invited, wire.decode_answer)
                    named = {client: answer.handles for client, answer in answers.items()}
                    return with_keys.settled(answers, named)

                joined = exchange.settled("share", share)
                handles = joined.handles
            secure = start.at(joined.state)

        def ask() -> dict[ClientId, wire.Upload]:
            mine = handles
            if not mine and plan.generations:
                # The coordinator heard the handles before it was restarted, and did not store them.
                stage: wire.Stage = "advertise" if rosters is None else "share"
                invited = _invitations(exchange, joined.relays, rosters)
                answers = exchange.again(stage, invited, wire.decode_answer)
                mine = {client: answer.handles for client, answer in answers.items()}
            asked = sorted(joined.relays)
            served = experts([mine.get(client, ()) for client in asked])
            handed = dict(zip(asked, served, strict=True))
            messages = _assignments(plan, joined.relays, broadcasts, handed)
            return exchange("train", messages, wire.decode_upload)

        if plan.collects:
            return self._collect(exchange, ask)
        if secure is not None:
            return self._open_masked(exchange, secure, ask)
        return self._open_plain(exchange, ask)

    def _open_masked(self, exchange: Exchange, secure: MaskedSum, ask: Ask) -> RoundOutcome:
        plan = exchange.plan

        def add_up() -> StageResult:
            result = secure.settled(ask())
            _require_minimum(plan, result.relays)
            return result

        result = exchange.settled("train", add_up)
        summed = secure.at(result.state)
        if isinstance(summed.state, CollectingConfirmations):
            confirming, asked = summed, exchange.relays(result.relays)
            result = exchange.settled(
                "confirm", lambda: confirming.settled(exchange("confirm", asked, wire.decode_relay))
            )
            summed = summed.at(result.state)
        # Clients make keys ahead with their last message, if all clients that need keys are here.
        following = plan.next_plan
        places: Mapping[ClientId, int] = {}
        if following is not None and result.relays.keys() >= set(following.cohort):
            places = following.places
        messages: dict[ClientId, bytes] = {}
        for client, payload in result.relays.items():
            seat = None
            if following is not None and client in places:
                seat = seat_of(following, places[client])
            messages[client] = wire.encode_relay(wire.Relay(plan.envelope(client), payload, seat))
        answers = exchange("unmask", messages, wire.decode_disclosure)
        finished = summed.advance({c: d.payload for c, d in answers.items()})[0].finished()
        indices = frozenset(finished.survivors)
        survivors = tuple(sorted(name for name, i in summed.places.items() if i in indices))
        totals = self._opened(exchange, finished.total, survivors)
        outcome = self._outcome(exchange, survivors, totals, answers)
        return replace(outcome, ahead={c: each.ahead for c, each in answers.items() if each.ahead})

    def _open_plain(self, exchange: Exchange, ask: Ask) -> RoundOutcome:
        plan, sums, uploads = exchange.plan, exchange.plan.protection.sums, ask()
        read = {client: _usable(upload, sums) for client, upload in uploads.items()}
        sent = {client: vector for client, vector in sorted(read.items()) if vector is not None}
        _require_minimum(plan, sent)
        survivors, layout = tuple(sent), sums.layout
        answers: Mapping[ClientId, wire.Disclosure] = {}
        if plan.protection.pool_spec is not None:
            messages = exchange.relays(dict.fromkeys(survivors, b""))
            answers = exchange("unmask", messages, wire.decode_disclosure)
        if sums.exact:
            weights = [uploads[client].weight for client in survivors]
            totals = layout.sum_plain(list(sent.values()), weights)
        else:
            totals = self._opened(exchange, sums.add_up(list(sent.values())), survivors)
            sent = {client: sums.grid().dequantise(levels) for client, levels in sent.items()}
        individual = {client: vector[: layout.coordinates] for client, vector in sent.items()}
        # If uploads have no noise of their own, the method sees the noised sum only.
        shown = None if sums.mechanism.facts.is_bare_to_server else individual
        return self._outcome(exchange, survivors, totals, answers, individual=shown)

    def _collect(self, exchange: Exchange, ask: Ask) -> RoundOutcome:
        """Return the entries of a pool that is made once; each is alone, as there is no sum."""
        plan = exchange.plan
        result = exchange.settled("train", lambda: StageResult(relays=dict.fromkeys(ask(), b"")))
        answers = exchange("unmask", exchange.relays(result.relays), wire.decode_disclosure)
        names = Counter(disclosure.handle for disclosure in answers.values())
        kept = {
            client: disclosure
            for client, disclosure in sorted(answers.items())
            if names[disclosure.handle] == 1 and _is_entry(plan.protection, disclosure)
        }
        if len(kept) < plan.minimum:
            raise ThresholdNotMet(
                f"{len(kept)} of {len(plan.cohort)} clients gave a valid pool entry; at least "
                f"{plan.minimum} must (pool.minimum)",
                phase="collection",
            )
        entries = tuple((d.handle, d.entry) for d in kept.values())
        nothing = Summed(np.zeros(0), float(len(kept)))
        up, down = exchange.traffic()
        return RoundOutcome(
            survivors=tuple(kept), summed=nothing, entries=entries, bytes_up=up, bytes_down=down
        )

    def _outcome(
        self,
        exchange: Exchange,
        survivors: tuple[ClientId, ...],
        totals: Totals,
        answers: Mapping[ClientId, wire.Disclosure],
        *,
        individual: Mapping[ClientId, NDArray[np.float64]] | None = None,
    ) -> RoundOutcome:
        summed_up = frozenset(survivors)
        collected = tuple(d for c, d in sorted(answers.items()) if c in summed_up)
        plan, protection = exchange.plan, exchange.plan.protection
        # The sum contains the canaries' vectors, but the mean divides by the other clients only.
        counted = plan.counted(survivors)
        totals = replace(totals, clients=counted, weight=totals.weight - len(survivors) + counted)
        void = _entries_problem(protection, collected, len(survivors))
        kept = () if void is not None or protection.pool_spec is None else collected
        uploads = tuple((d.handle, d.entry) for d in kept)
        summed = protection.sums.average(totals, plan.planned_size)
        up, down = exchange.traffic()
        return RoundOutcome(
            survivors=survivors,
            summed=summed,
            noise_state=totals.noise_state,
            individual=individual,
            entries=uploads,
            entries_void=void,
            bytes_up=up,
            bytes_down=down,
            readings=Readings(
                protection.extras.clipped_fraction(summed),
                protection.sums.signal_to_noise(summed, counted, plan.planned_size),
                protection.extras.noised_mean(summed, protection.mechanism),
                protection.sums.group_reading(summed),
            ),
        )

    def _opened(
        self, exchange: Exchange, total: NDArray[np.uint64], survivors: tuple[ClientId, ...]
    ) -> Totals:
        """Return the totals of a sum with all its noise, decoded and checked.

        The coordinator draws its noise once for an attempt. Measurements before the round is
        committed tell clients of the noised sum, so a resumed attempt must not show the same sum
        under other noise.
        """
        plan, sums = exchange.plan, exchange.plan.protection.sums

        def draw() -> NoisedSum:
            noise = self.noise_of(plan.round_number, plan.attempt)
            return sums.noised(total, len(survivors), noise, self.noise_state)

        facts = sums.mechanism.facts
        if not (facts.is_bare_to_server or facts.keeps_state):
            return sums.open(draw())
        kept = exchange.settled("unmask", lambda: StageResult(state=encode_noised(draw())))
        return sums.open(decode_noised(kept.state))


def _entries_problem(
    protection: Protection, collected: Sequence[wire.Disclosure], survivors: int
) -> str | None:
    """Return why entries may not be kept: the sum minus some of them would name the others."""
    if protection.pool_spec is None:
        return None
    if len(collected) < survivors or any(not d.entry for d in collected):
        return "a survivor's pool entry is missing"
    if survivors < 2:
        return "a single entry would name its owner"
    handles = {d.handle for d in collected}
    if len(handles) < survivors or any(len(h) != HANDLE_BYTES for h in handles):
        return "a pool handle is not valid"
    if not all(_is_entry(protection, disclosure) for disclosure in collected):
        return "a pool entry is not valid"
    return None


def _is_entry(protection: Protection, disclosure: wire.Disclosure) -> bool:
    if not disclosure.entry or len(disclosure.handle) != HANDLE_BYTES:
        return False
    try:
        protection.verify_entry(disclosure.entry)
    except (PlatformError, PrivacyError, MethodError):
        return False
    return True


def _usable(upload: wire.Upload, sums: SumProtection) -> NDArray[Any] | None:
    """Return an upload in the clear as it is summed, None if it does not fit this run.

    Each upload is checked alone, so a peer's upload cannot refuse or clip another one.
    """
    vector, layout = upload.vector, sums.layout
    # If all clients weigh the same, each states 1.
    most = layout.largest_weight if layout.weighted else 1
    if vector is None or vector.shape != (layout.protected,) or not 1 <= upload.weight <= most:
        return None
    if sums.exact:
        is_number = vector.dtype == np.float64
        fits = not vector.size or float(np.abs(vector).max()) <= LARGEST_COORDINATE
        return vector if is_number and fits else None
    try:
        return sums.grid().admit(vector)
    except ProtocolViolation:
        return None


def _require_minimum(plan: RoundPlan, survivors: Iterable[ClientId]) -> None:
    left = plan.counted(survivors)
    if left < plan.minimum:
        raise ThresholdNotMet(
            f"round {plan.round_number}: {left} of {plan.counted(plan.cohort)} clients are left "
            f"at phase masked_input; at least {plan.minimum} must be (cohort.minimum)",
            phase="masked_input",
        )
