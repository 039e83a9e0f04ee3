"""How far a run has come: what its next round starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from methods import Arrays
from platform.rounds.plan import KeysAhead
from platform.wire.envelopes import Attempt
from platform.wire.transport import ClientId


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run has come.

    Attributes:
        completed: Number of committed rounds.
        committed: For each client the last committed attempt that its update is part of.
        state: The server state after it.
        clipping_norm: Of the next round, where it adapts.
        ended_early: Why the rounds ended before the last, None where they did not.
        uncollected: Why a pool that is made once was not, None where it was, or is not to be.
        ahead: Keys of everybody in the next round, where they were made with the last message of
            this one. They are nowhere else until that round is opened: who is started again asks.
    """

    completed: int
    committed: Mapping[ClientId, Attempt]
    state: Arrays
    clipping_norm: float | None = None
    ended_early: str | None = None
    uncollected: str | None = None
    ahead: KeysAhead | None = None
