"""How far a run has come: what its next round starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from methods import Arrays
from platform.errors import ProtocolError
from platform.rounds.plan import KeysAhead
from platform.wire.codec import (
    Attempt,
    Frame,
    decode_arrays,
    decode_frame,
    encode_arrays,
    encode_frame,
)
from platform.wire.transport import ClientId
from privacy import NoiseState

_NOISE: Final = "noise"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run has come.

    Attributes:
        completed: Number of committed rounds.
        committed: For each client the last committed attempt that its update is part of.
        state: The server state after it.
        noise_state: What the coordinator's noise of the next sum goes on from; it never leaves it.
        clipping_norm: Of the next round, where it adapts.
        ended_early: Why the rounds ended before the last, None where they did not.
        uncollected: Why a pool that is made once was not, None where it was, or is not to be.
        ahead: Keys of everybody in the next round, where they were made with the last message of
            this one. They are nowhere else until that round is opened: who is started again asks.
    """

    completed: int
    committed: Mapping[ClientId, Attempt]
    state: Arrays
    noise_state: NoiseState = field(default_factory=dict, repr=False)
    clipping_norm: float | None = None
    ended_early: str | None = None
    uncollected: str | None = None
    ahead: KeysAhead | None = None


def encode_state(state: Arrays, noise_state: NoiseState) -> bytes:
    """Return a server state as it is stored, with the noise's beside it where there is one."""
    beside = {_NOISE: encode_arrays(noise_state)} if noise_state else {}
    return encode_frame(Frame("arrays", {}, state, beside))


def decode_state(data: bytes) -> tuple[Arrays, NoiseState]:
    """Read what `encode_state` wrote; methods and clients are shown the first part only.

    Raises:
        ProtocolError: If the bytes are none.
    """
    frame = decode_frame(data)
    if frame.kind != "arrays" or frame.fields or not frame.blobs.keys() <= {_NOISE}:
        raise ProtocolError("message: this is no server state")
    beside = frame.blobs.get(_NOISE)
    return dict(frame.arrays), {} if beside is None else decode_arrays(beside)
