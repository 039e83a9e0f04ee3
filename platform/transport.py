"""How messages travel. One method is the whole interface.

The transport in one process carries the same bytes that a socket would, and tests and simulations
lose messages here, never inside a client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from platform.messages import Stage, peek

ClientId = str


@dataclass(frozen=True)
class Dropout:
    """A client gave no answer to a stage; `reason` is for the log and never holds data."""

    reason: str


class Transport(Protocol):
    """Carries one stage's messages to clients and their answers back."""

    def exchange(
        self, stage: Stage, messages: Mapping[ClientId, bytes], deadline: float | None
    ) -> Mapping[ClientId, bytes | Dropout]:
        """Sends each client its message and waits.

        Args:
            stage: The stage all messages belong to.
            messages: One message a client.
            deadline: Seconds to wait at most, None for as long as it takes.

        Returns:
            One answer or dropout for each client that was sent a message.
        """
        ...


Handler = Callable[[bytes], bytes]
Losses = Callable[[int, int], frozenset[ClientId]]
"""Which clients are lost in a round and attempt."""


@dataclass(frozen=True)
class InProcessTransport:
    """All clients in this process, one after the other.

    Attributes:
        handlers: Each client's message handler.
        losses: Which clients go silent in a round.
        lost_at: The stage at which they are lost; its message does not reach them.
    """

    handlers: Mapping[ClientId, Handler]
    losses: Losses
    lost_at: Stage = "train"

    def exchange(
        self, stage: Stage, messages: Mapping[ClientId, bytes], deadline: float | None
    ) -> Mapping[ClientId, bytes | Dropout]:
        """Hands each client its message in the order of their names."""
        return {c: self._deliver(stage, c, messages[c]) for c in sorted(messages)}

    def _deliver(self, stage: Stage, client: ClientId, message: bytes) -> bytes | Dropout:
        _, envelope = peek(message)
        lost = self.losses(envelope.round_number, envelope.attempt)
        if stage == self.lost_at and client in lost:
            return Dropout("no answer (simulated loss)")
        return self.handlers[client](message)
