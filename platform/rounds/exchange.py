"""An attempt's messages: the coordinator sends stages, counts bytes and keeps results.

An attempt is executed once. A coordinator that is started again continues after the last stage in
the journal. It sends the same messages, and clients repeat their answers. The journal keeps the
running sum of masked vectors and the list of their owners. The coordinator asks again for all other
answers, because the disk must not hold them: answers to the last stage would open the sum, uploads
in the clear are private, and handles would tell which client gave which pool entry. The coordinator
draws its noise once: the journal keeps the noised sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal, TypeVar

from platform.disk.opening import Records
from platform.errors import ProtocolError
from platform.protection.sums import NoisedSum
from platform.rounds.plan import RoundPlan
from platform.wire.codec import Frame, decode_arrays, decode_frame, encode_arrays, encode_frame
from platform.wire.messages import Relay, Stage, encode_relay
from platform.wire.transport import ClientId, Dropout, Transport

AHEAD: Final = "ahead"
"""Stands in place of a stage for the keys, made ahead, with which an attempt was opened."""
Kept = Stage | Literal["ahead"]


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
    """The stages of an attempt in the coordinator's database.

    Attributes:
        records: The coordinator's.
        run_id: The run.
        round_number: The round.
        attempt: The attempt, which is open.
    """

    records: Records
    run_id: str
    round_number: int
    attempt: int

    def stage(self, stage: Kept) -> bytes | None:
        """Return the stored result of a stage, None if the stage has not been completed."""
        return self._kept.get(stage)

    def keep(self, stage: Stage, blob: bytes) -> None:
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

    def keep(self, stage: Stage, blob: bytes) -> None:
        """Keep a stage's result."""
        self.kept[stage] = blob


Journal = DatabaseJournal | MemoryJournal


def encode_stage(result: StageResult) -> bytes:
    """Return the part of a stage's result that is kept, as bytes."""
    blobs = {f"relay/{client}": payload for client, payload in result.relays.items()}
    blobs["state"] = result.state
    return encode_frame(Frame("stage", {"up": result.up, "down": result.down}, {}, blobs))


def decode_stage(data: bytes) -> StageResult:
    """Read the bytes of `encode_stage`.

    Raises:
        ProtocolError: If the bytes are something else.
    """
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
    """Read the bytes of `encode_keys`.

    Raises:
        ProtocolError: If the bytes are something else.
    """
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
    """Read the bytes of `encode_noised`.

    Raises:
        ProtocolError: If the bytes are something else.
    """
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
        transport: Carries the messages.
        plan: The attempt.
        journal: Keeps the results of stages.
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
    phase: Stage | None = None

    def __call__(
        self,
        stage: Stage,
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

    def settled(self, stage: Stage, work: Callable[[], StageResult]) -> StageResult:
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
        stage: Stage,
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
        before: Stage = "share" if self.plan.protection.masked else "advertise"
        return self.phase == "train" or self.journal.stage(before) is not None

    def relays(self, payloads: Mapping[ClientId, bytes]) -> dict[ClientId, bytes]:
        """Return the messages that carry these payloads."""
        envelope = self.plan.envelope
        return {c: encode_relay(Relay(envelope(c), payload)) for c, payload in payloads.items()}

    def traffic(self) -> tuple[int, int]:
        """Return mean bytes up and down per invited client so far."""
        clients = max(1, len(self.plan.cohort))
        return self.up // clients, self.down // clients
