"""What each stage of an attempt yielded, kept before the next is asked for.

An attempt is executed once. A coordinator that is started again goes on after the last stage kept
here, with the same messages, to which clients give the answers that they gave before. Of masked
vectors the running sum and the list of their owners are enough; the answers to the last stage are
not kept but asked for again, because with them the sum would lie on the disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from platform.codec import Frame, decode_frame, encode_frame
from platform.errors import ProtocolError
from platform.messages import Stage
from platform.storing import transaction
from platform.transport import ClientId
from storage import Database


@dataclass(frozen=True)
class StageResult:
    """What a stage yielded, and who is asked next.

    Attributes:
        relays: By client that is still there, what the secure aggregation sends it next; empty
            bytes without one.
        handles: By client, the names of its own live pool entries.
        state: The secure aggregation's, encoded; empty without one.
        vectors: By client, its upload where that travels in the clear, shape (d,).
        weights: By client, its weight where that travels in the clear.
        up: Bytes that clients have sent in the attempt so far.
        down: Bytes that they have been sent.
    """

    relays: Mapping[ClientId, bytes] = field(default_factory=dict)
    handles: Mapping[ClientId, tuple[bytes, ...]] = field(default_factory=dict)
    state: bytes = field(default=b"", repr=False)
    vectors: Mapping[ClientId, NDArray[np.float64]] = field(default_factory=dict, repr=False)
    weights: Mapping[ClientId, int] = field(default_factory=dict)
    up: int = 0
    down: int = 0


class Journal(Protocol):
    """Keeps the stages of one attempt."""

    def stage(self, stage: Stage) -> bytes | None:
        """What is kept of a stage, None where it has not been completed."""
        ...

    def keep(self, stage: Stage, blob: bytes) -> None:
        """Keeps what a stage yielded, durably."""
        ...


@dataclass(frozen=True)
class DatabaseJournal:
    """The stages of an attempt in the coordinator's database.

    Attributes:
        database: The coordinator's.
        run_id: The run.
        round_number: The round.
        attempt: The attempt, which is open.
    """

    database: Database
    run_id: str
    round_number: int
    attempt: int

    def stage(self, stage: Stage) -> bytes | None:
        """What is kept of a stage."""
        return self._kept.get(stage)

    def keep(self, stage: Stage, blob: bytes) -> None:
        """Keeps what a stage yielded, durably."""
        key = (self.run_id, self.round_number, self.attempt)
        with transaction(self.database) as uow:
            uow.attempts.add_stage(*key, stage=stage, blob=blob)
        self._kept[stage] = blob

    @cached_property
    def _kept(self) -> dict[str, bytes]:
        with self.database.unit_of_work(read_only=True) as uow:
            return uow.attempts.stages(self.run_id, self.round_number, self.attempt)


@dataclass(frozen=True)
class MemoryJournal:
    """The stages of an attempt that nobody goes on with, such as a benchmark's."""

    kept: dict[Stage, bytes] = field(default_factory=dict)

    def stage(self, stage: Stage) -> bytes | None:
        """What is kept of a stage."""
        return self.kept.get(stage)

    def keep(self, stage: Stage, blob: bytes) -> None:
        """Keeps what a stage yielded."""
        self.kept[stage] = blob


def encode_stage(result: StageResult) -> bytes:
    """A stage's result as bytes."""
    blobs = {f"relay/{client}": payload for client, payload in result.relays.items()}
    for client, handles in result.handles.items():
        # Joined, as handles all have one length: a client's number of them is no business of names.
        blobs[f"handles/{client}"] = b"".join(handles)
    blobs["state"] = result.state
    fields = {
        "up": result.up,
        "down": result.down,
        "weights": dict(result.weights),
        "handles": {client: [len(h) for h in names] for client, names in result.handles.items()},
    }
    return encode_frame(Frame("stage", fields, dict(result.vectors), blobs))


def decode_stage(data: bytes) -> StageResult:
    """Reads what `encode_stage` wrote.

    Raises:
        ProtocolError: If the bytes are none.
    """
    frame = decode_frame(data)
    if frame.kind != "stage":
        raise ProtocolError("message: the stored stage is not valid")
    return StageResult(
        _under(frame.blobs, "relay/"),
        {
            client: _split(joined, frame.fields["handles"][client])
            for client, joined in _under(frame.blobs, "handles/").items()
        },
        frame.blobs["state"],
        dict(frame.arrays),
        dict(frame.fields["weights"]),
        frame.fields["up"],
        frame.fields["down"],
    )


def _under(blobs: Mapping[str, bytes], prefix: str) -> dict[str, bytes]:
    return {n.removeprefix(prefix): b for n, b in sorted(blobs.items()) if n.startswith(prefix)}


def _split(joined: bytes, sizes: list[int]) -> tuple[bytes, ...]:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return tuple(joined[end - size : end] for end, size in zip(ends, sizes, strict=True))
