"""One attempt's talk with its clients: stages sent, bytes counted, and each result kept at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from platform.errors import ProtocolError
from platform.protection.uploads import Protection
from platform.rounds.journal import Journal, StageResult, decode_stage, encode_stage
from platform.rounds.plan import RoundPlan, Traffic
from platform.wire.messages import Relay, Stage, encode_relay
from platform.wire.transport import ClientId, Dropout, Transport

Message = TypeVar("Message")


@dataclass(kw_only=True)
class Exchange:
    """Sends stages and counts bytes.

    Attributes:
        transport: Carries the messages.
        plan: The attempt.
        protection: How uploads are protected in it.
        journal: Keeps what stages yielded.
        deadline: Seconds to wait for each stage, None for as long as it takes.
        up: Bytes received so far.
        down: Bytes sent so far.
        phase: The stage that was sent last, None before the first.
    """

    transport: Transport
    plan: RoundPlan
    protection: Protection
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
        """Return the answers that parse and belong to this attempt; all else is a dropout."""
        self.phase, empty = stage, self.plan.quorum.empty
        messages = {c: message for c, message in messages.items() if c not in empty}
        self.down += sum(map(len, messages.values()))
        answers: dict[ClientId, Message] = {}
        for client, reply in self.transport.exchange(stage, messages, self.deadline).items():
            if isinstance(reply, Dropout) or client not in messages:
                continue
            self.up += len(reply)
            message = self._read(client, reply, decode)
            if message is not None:
                answers[client] = message
        return answers

    def settled(self, stage: Stage, work: Callable[[], StageResult]) -> StageResult:
        """Return what a stage yielded: as it was kept, or else by asking, and then it is kept."""
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
        """Answer that were given before, to the same messages; they are counted once."""
        phase, up, down = self.phase, self.up, self.down
        answers = self(stage, messages, decode)
        self.phase, self.up, self.down = phase, up, down
        return answers

    @property
    def uploads_asked(self) -> bool:
        """Whether anybody may have been asked to upload, by this process or one before it."""
        before: Stage = "share" if self.protection.masked else "advertise"
        # What is asked for next is not written down anywhere else.
        return self.phase == "train" or self.journal.stage(before) is not None

    def relays(self, payloads: Mapping[ClientId, bytes]) -> dict[ClientId, bytes]:
        """Return the messages that carry these payloads."""
        envelope = self.plan.envelope
        return {c: encode_relay(Relay(envelope(c), payload)) for c, payload in payloads.items()}

    def traffic(self) -> Traffic:
        """Return mean bytes per invited client so far."""
        clients = max(1, len(self.plan.cohort))
        return Traffic(self.up // clients, self.down // clients)

    def _read(
        self, client: ClientId, reply: bytes, decode: Callable[[bytes], Message]
    ) -> Message | None:
        try:
            message: Any = decode(reply)
        except ProtocolError:
            return None
        return message if message.envelope == self.plan.envelope(client) else None
