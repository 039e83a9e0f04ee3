"""What is fixed about an attempt at a round before anything is sent, and what it yields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from methods import Arrays
from platform.protection.extras import NoisedMean
from platform.wire.envelopes import Attempt, Envelope
from platform.wire.layout import Summed
from platform.wire.transport import ClientId
from privacy import SignalToNoise


@dataclass(frozen=True)
class RoundPlan:
    """What is fixed before anything is sent.

    Attributes:
        run_id: The run.
        round_number: The round, from 1.
        attempt: The attempt, from 1.
        cohort: The clients that are invited, sorted.
        committed: The last committed attempt that each client's update is part of; clients
            without one are absent.
        minimum: Fewest survivors of a valid round.
        threshold: Fewest survivors whose masked sum may be opened; None without masks.
        size: Clients that the round was planned for; None takes the cohort's.
        clipping_norm: Of this round, where it adapts.
        smallest_sum: Fewest vectors that a masked sum may hold; 0 takes the threshold.
        degree: Neighbours of a client in the k-regular graph, 0 for the complete one.
        identities: Each client's public key, against an active adversary only.
        enrolment_serial: Of the file that says whose keys these are, 0 without one.
        graph_seed: Orders the clients of the k-regular graph, else empty.
        corrupt: Clients that may collude with the server.
        generations: Rounds whose pool entries are alive.
        deadline: Seconds to wait for each stage, None for as long as it takes.
        collects: Whether this is the collection, in which nothing is summed.
    """

    run_id: str
    round_number: int
    attempt: int
    cohort: tuple[ClientId, ...]
    committed: Mapping[ClientId, Attempt]
    minimum: int
    threshold: int | None
    corrupt: int = 0
    generations: tuple[int, ...] = ()
    deadline: float | None = None
    size: int | None = None
    clipping_norm: float | None = None
    smallest_sum: int = 0
    degree: int = 0
    identities: Mapping[ClientId, bytes] = field(default_factory=dict)
    enrolment_serial: int = 0
    graph_seed: bytes = b""
    collects: bool = False

    @property
    def planned_size(self) -> int:
        """Clients that the round was planned for, whoever came."""
        return len(self.cohort) if self.size is None else self.size

    @property
    def places(self) -> Mapping[ClientId, int]:
        """Each client's share index in the secure aggregation, from 1."""
        return {client: i for i, client in enumerate(self.cohort, start=1)}

    def envelope(self, client: ClientId) -> Envelope:
        """Return the envelope of every message to and from one client in this attempt."""
        last = self.committed.get(client)
        return Envelope(self.run_id, self.round_number, self.attempt, last)


@dataclass(frozen=True)
class PoolUpload:
    """One pool entry as it arrived, in absolute terms."""

    handle: bytes
    entry: Arrays


@dataclass(frozen=True)
class Traffic:
    """Mean bytes per invited client."""

    up: int
    down: int


@dataclass(frozen=True)
class RoundOutcome:
    """What an attempt yields.

    Attributes:
        survivors: Clients whose vector is in the sum, sorted.
        summed: The sum.
        individual: Each survivor's vector where there is no secure aggregation, else None.
        entries: Pool entries of exactly the survivors, or none at all.
        entries_void: Why the round's entries were discarded, None if they were not.
        traffic: Bytes sent.
        clipped_fraction: Noised fraction of clipped updates, under adaptive clipping only.
        signal_to_noise: Interval for the aggregate, where noise of known size is in it.
        released_validation: Noised mean of the survivors' validation accuracies, where they came
            with the uploads and the survivors may be counted.
    """

    survivors: tuple[ClientId, ...]
    summed: Summed
    individual: Mapping[ClientId, NDArray[np.float64]] | None
    entries: tuple[PoolUpload, ...]
    entries_void: str | None
    traffic: Traffic
    clipped_fraction: float | None = None
    signal_to_noise: SignalToNoise | None = None
    released_validation: NoisedMean | None = None
