"""How messages travel. One method is the whole interface.

The transport in one process carries the same bytes as a socket. Tests and simulations lose messages
here, never inside a client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, Protocol

from platform.errors import ClientRestored, CoordinatorBehind, ProtocolError
from platform.wire.codec import peek
from platform.wire.messages import Stage
from privacy import BudgetExhausted, UnsupportedEvent

ClientId = str
AHEAD: Final = 64
"""Most clients whose local work is done before the first of them answers."""
WORK_STAGES: Final = ("train", "personalise")


@dataclass(frozen=True)
class Dropout:
    """A client gave no answer to a stage; `reason` is for the log and never holds data."""

    reason: str


class Transport(Protocol):
    """Carries one stage's messages to clients and their answers back."""

    def exchange(
        self, stage: Stage, messages: Mapping[ClientId, bytes], deadline: float | None
    ) -> Mapping[ClientId, bytes | Dropout]:
        """Send each client its message and wait.

        Args:
            stage: The stage of all messages.
            messages: One message a client.
            deadline: Seconds to wait at most, None for as long as it takes.

        Returns:
            One answer or dropout for each client in `messages`.
        """
        ...


Handler = Callable[[bytes], bytes]
Losses = Callable[[int, int, Sequence[ClientId]], frozenset[ClientId]]
"""Returns which of the remaining clients are lost in a round and attempt."""


def answer(handler: Handler, message: bytes) -> bytes | Dropout:
    """Return a client's answer or its dropout, for every transport; raise `CoordinatorBehind`."""
    try:
        return handler(message)
    except CoordinatorBehind:
        # If these were dropouts, all clients would be lost one by one, without a reason.
        raise
    except ClientRestored as error:
        # The text names the client, because only the client's owner can help.
        return Dropout(str(error))
    except (ProtocolError, UnsupportedEvent):
        # A release without a price has no bound, so a client takes no part in it.
        return Dropout("the client refused the message")
    except BudgetExhausted:
        # The coordinator must not learn how much the client has spent.
        return Dropout("the client takes no part (its own budget)")


@dataclass(frozen=True, kw_only=True)
class InProcessTransport:
    """All clients in this process, one after the other.

    Their writes of a stage become durable together, before the coordinator gets any answer. If the
    process is killed in between, no client has answered.

    Attributes:
        losses: Which clients go silent in a round.
        lost_at: The stage at which they are lost; its message does not reach them.
        stage: A context that makes these clients' writes durable at its end, or discards all of
            them if it raises.
        tell: Hears the stage of each answer, for observers.
        ahead: Does the local work of some clients' messages side by side, before they get them.
    """

    handlers: Mapping[ClientId, Handler]
    losses: Losses
    lost_at: Stage = "train"
    stage: Callable[[Sequence[ClientId]], AbstractContextManager[object]] = nullcontext
    tell: Callable[[Stage], None] = lambda stage: None
    ahead: Callable[[Mapping[ClientId, bytes]], None] = lambda messages: None

    def exchange(
        self, stage: Stage, messages: Mapping[ClientId, bytes], deadline: float | None
    ) -> Mapping[ClientId, bytes | Dropout]:
        """Hand each client its message in the order of their names."""
        clients = sorted(messages)
        lost: frozenset[ClientId] = frozenset()
        if clients and stage == self.lost_at:
            _, envelope = peek(messages[clients[0]])
            lost = self.losses(envelope.round_number, envelope.attempt, clients)
        with self.stage(clients):
            replies: dict[ClientId, bytes | Dropout] = dict.fromkeys(
                clients, Dropout("no answer (simulated loss)")
            )
            there = [client for client in clients if client not in lost]
            for start in range(0, len(there), AHEAD):
                some = there[start : start + AHEAD]
                if stage in WORK_STAGES:
                    self.ahead({client: messages[client] for client in some})
                replies |= {
                    client: self._deliver(stage, client, messages[client]) for client in some
                }
        # An answer may leave only after its charge is on the disk.
        return replies

    def _deliver(self, stage: Stage, client: ClientId, message: bytes) -> bytes | Dropout:
        reply = answer(self.handlers[client], message)
        if not isinstance(reply, Dropout):
            self.tell(stage)
        return reply
