"""The plan of an attempt, fixed before anything is sent, and the outcome of the attempt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from methods import Arrays
from platform.protection.extras import GroupReading, NoisedMean
from platform.protection.uploads import Protection
from platform.wire.codec import Attempt, Envelope
from platform.wire.layout import Summed
from platform.wire.messages import EnrolledCohort, MaskGraph, SumTerms
from platform.wire.transport import ClientId
from privacy import NoiseState, SignalToNoise


@dataclass(frozen=True)
class Following:
    """The facts about the first attempt at the next round that are fixed beforehand.

    Attributes:
        cohort: The clients that it invites, sorted; all of them are in this attempt's cohort.
        graph_seed: Orders the clients where each masks with some others only, else empty.
        keys: By client, the message that announces the keys that it made ahead for that attempt;
            for the whole cohort, or empty.
    """

    cohort: tuple[ClientId, ...]
    graph_seed: bytes = b""
    keys: Mapping[ClientId, bytes] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SecurePlan:
    """The fixed facts about an attempt's secure sum.

    Attributes:
        terms: The collusion that the sum withstands.
        identities: Each client's public key, against an active adversary only.
        enrolment_serial: Serial of the enrolment file, which names each client's key; 0 without it.
        following: The attempt for which clients make keys ahead, None if they make no keys.
    """

    terms: SumTerms
    graph: MaskGraph = field(default_factory=MaskGraph)
    identities: Mapping[ClientId, bytes] = field(default_factory=dict)
    enrolment_serial: int = 0
    following: Following | None = None

    def enrolled(self, cohort: Sequence[ClientId]) -> EnrolledCohort | None:
        """Return the cohort's keys in its order, None against a semi-honest server."""
        if not self.identities:
            return None
        keys = tuple(self.identities[client] for client in cohort)
        return EnrolledCohort(keys, self.enrolment_serial)


@dataclass(frozen=True, kw_only=True)
class RoundPlan:
    """The facts about an attempt that are fixed before anything is sent.

    Attributes:
        cohort: The clients that are invited, sorted.
        committed: The last committed attempt that each client's update is part of; clients
            without one are absent.
        protection: How uploads are protected in this round, with the round's clipping norm.
        planned: Number of clients that the round was planned for; None takes the cohort's.
        empty: Clients of the cohort that were not there when the attempt was opened: they have not
            joined yet, or have left. They are charged nothing, so the attempt asks them nothing,
            even if they have come meanwhile.
        canaries: Clients of an audit. They are in the sum, but count neither as survivors that the
            round needs nor in its mean.
        generations: Rounds whose pool entries are alive.
        collects: Whether this is the collection, in which nothing is summed.
        secure: The plan of the secure sum, None without masks.
    """

    run_id: str
    round_number: int
    attempt: int
    cohort: tuple[ClientId, ...]
    committed: Mapping[ClientId, Attempt]
    protection: Protection
    minimum: int
    planned: int | None = None
    empty: frozenset[ClientId] = frozenset()
    canaries: frozenset[ClientId] = frozenset()
    generations: tuple[int, ...] = ()
    collects: bool = False
    secure: SecurePlan | None = None

    def counted(self, clients: Iterable[ClientId]) -> int:
        """Return how many of these clients are not canaries."""
        return sum(client not in self.canaries for client in clients)

    @property
    def planned_size(self) -> int:
        """Number of clients that the round was planned for; fewer may have come."""
        return len(self.cohort) if self.planned is None else self.planned

    @property
    def graph_seed(self) -> bytes:
        """Orders the clients of the k-regular graph; else empty."""
        return b"" if self.secure is None else self.secure.graph.seed

    @property
    def places(self) -> Mapping[ClientId, int]:
        """Each client's share index in the secure aggregation, from 1."""
        return {client: i for i, client in enumerate(self.cohort, start=1)}

    @property
    def next_plan(self) -> RoundPlan | None:
        """The attempt for which clients make keys ahead, as far as keys depend on it."""
        secure = self.secure
        if secure is None or secure.following is None:
            return None
        following = secure.following
        graph = MaskGraph(secure.graph.degree, following.graph_seed)
        return replace(
            self,
            round_number=self.round_number + 1,
            attempt=1,
            cohort=following.cohort,
            secure=replace(secure, graph=graph, following=None),
        )

    def envelope(self, client: ClientId) -> Envelope:
        """Return the envelope of every message to and from one client in this attempt."""
        last = self.committed.get(client)
        return Envelope(self.run_id, self.round_number, self.attempt, last)


@dataclass(frozen=True)
class Readings:
    """Further results of a noised sum, beside the mean update; None for each missing result.

    Attributes:
        clipped_fraction: Noised fraction of clipped updates, under adaptive clipping only.
        signal_to_noise: Interval for the aggregate, where noise of known size is in it.
        validation: Noised mean of the survivors' validation accuracies, where they came with the
            uploads and the survivors may be counted.
        groups: Noised counts of the groups, where clients are in groups.
    """

    clipped_fraction: float | None = None
    signal_to_noise: SignalToNoise | None = None
    validation: NoisedMean | None = None
    groups: GroupReading | None = None


@dataclass(frozen=True, kw_only=True)
class RoundOutcome:
    """The result of an attempt.

    Attributes:
        noise_state: The state from which the coordinator's noise of the next sum continues.
        individual: Each survivor's vector where there is no secure aggregation, else None.
        entries: Pool entries of exactly the survivors, each with its handle; or no entries at all.
        entries_void: Why the round's entries were discarded, None if they were not.
        bytes_up: Mean bytes that an invited client sent.
        bytes_down: Mean bytes that an invited client was sent.
        ahead: By client, the message that announces its keys for the next round.
    """

    survivors: tuple[ClientId, ...] = ()
    summed: Summed
    noise_state: NoiseState = field(default_factory=dict, repr=False)
    individual: Mapping[ClientId, NDArray[np.float64]] | None = None
    entries: tuple[tuple[bytes, Arrays], ...] = ()
    entries_void: str | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    readings: Readings = Readings()
    ahead: Mapping[ClientId, bytes] = field(default_factory=dict)

    def keys_ahead(self, plan: RoundPlan) -> Following | None:
        """Return the next attempt with the keys of all its clients, None if any key is missing."""
        following = None if plan.secure is None else plan.secure.following
        if following is None or not self.ahead.keys() >= set(following.cohort):
            return None
        return replace(following, keys={name: self.ahead[name] for name in following.cohort})
