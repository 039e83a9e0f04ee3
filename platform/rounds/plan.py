"""What is fixed about an attempt at a round before anything is sent, and what it yields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from methods import Arrays
from platform.protection.extras import GroupReading, NoisedMean
from platform.wire.codec import Attempt, Envelope
from platform.wire.layout import Summed
from platform.wire.messages import EnrolledCohort, MaskGraph, SumTerms
from platform.wire.transport import ClientId
from privacy import NoiseState, SignalToNoise


@dataclass(frozen=True)
class Quorum:
    """How many clients an attempt needs, and for how many it was planned.

    Attributes:
        minimum: Fewest survivors of a valid round.
        planned: Clients that the round was planned for; None takes the cohort's.
        empty: Clients of the cohort that were not there when the attempt was opened: they have not
            joined yet, or have left. They are charged nothing, so the attempt asks them nothing,
            even if they have come meanwhile.
        canaries: Clients of an audit. They are in the sum, but count neither as survivors that the
            round needs nor in its mean.
    """

    minimum: int
    planned: int | None = None
    empty: frozenset[ClientId] = frozenset()
    canaries: frozenset[ClientId] = frozenset()

    def counted(self, clients: Iterable[ClientId]) -> int:
        """Return how many of these clients count."""
        return sum(client not in self.canaries for client in clients)


@dataclass(frozen=True)
class Following:
    """What is fixed beforehand about the first attempt at the next round.

    Attributes:
        cohort: The clients that it invites, sorted; all of them are in this attempt's cohort.
        graph_seed: Orders them where they mask with some only, else empty.
        keys: By client, the message that announces the keys which it made ahead for that attempt;
            of the whole cohort, or empty.
    """

    cohort: tuple[ClientId, ...]
    graph_seed: bytes = b""
    keys: Mapping[ClientId, bytes] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SecurePlan:
    """What is fixed about an attempt's secure sum.

    Attributes:
        terms: Whose collusion it withstands.
        graph: Who masks with whom.
        identities: Each client's public key, against an active adversary only.
        enrolment_serial: Of the file that says whose keys these are, 0 without one.
        following: The attempt for which clients make keys ahead, None where they make none.
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


@dataclass(frozen=True)
class RoundFacts:
    """What a round tells all clients.

    Attributes:
        generations: Rounds whose pool entries are alive.
        clipping_norm: Of this round, where it adapts.
        collects: Whether this is the collection, in which nothing is summed.
    """

    generations: tuple[int, ...] = ()
    clipping_norm: float | None = None
    collects: bool = False


@dataclass(frozen=True, kw_only=True)
class RoundPlan:
    """What is fixed before anything is sent.

    Attributes:
        run_id: The run.
        round_number: The round, from 1.
        attempt: The attempt, from 1.
        cohort: The clients that are invited, sorted.
        committed: The last committed attempt that each client's update is part of; clients
            without one are absent.
        quorum: How many clients it needs.
        secure: Of the secure sum, None without masks.
        facts: What all clients are told alike.
    """

    run_id: str
    round_number: int
    attempt: int
    cohort: tuple[ClientId, ...]
    committed: Mapping[ClientId, Attempt]
    quorum: Quorum
    secure: SecurePlan | None = None
    facts: RoundFacts = RoundFacts()

    @property
    def planned_size(self) -> int:
        """Clients that the round was planned for, whoever came."""
        planned = self.quorum.planned
        return len(self.cohort) if planned is None else planned

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
class Readings:
    """What a noised sum tells beside the mean update; None for what it does not tell.

    Attributes:
        clipped_fraction: Noised fraction of clipped updates, under adaptive clipping only.
        signal_to_noise: Interval for the aggregate, where noise of known size is in it.
        validation: Noised mean of the survivors' validation accuracies, where they came with the
            uploads and the survivors may be counted.
        groups: Noised counts of the groups, where clients are in some.
    """

    clipped_fraction: float | None = None
    signal_to_noise: SignalToNoise | None = None
    validation: NoisedMean | None = None
    groups: GroupReading | None = None


@dataclass(frozen=True, kw_only=True)
class RoundOutcome:
    """What an attempt yields.

    Attributes:
        survivors: Clients whose vector is in the sum, sorted.
        summed: The sum.
        noise_state: What the coordinator's noise of the next sum goes on from.
        individual: Each survivor's vector where there is no secure aggregation, else None.
        entries: Pool entries of exactly the survivors, or none at all.
        entries_void: Why the round's entries were discarded, None if they were not.
        traffic: Bytes sent.
        readings: What the sum tells beside.
        ahead: What announces keys for the next round, by client that made some.
    """

    survivors: tuple[ClientId, ...] = ()
    summed: Summed
    noise_state: NoiseState = field(default_factory=dict, repr=False)
    individual: Mapping[ClientId, NDArray[np.float64]] | None = None
    entries: tuple[PoolUpload, ...] = ()
    entries_void: str | None = None
    traffic: Traffic = Traffic(0, 0)
    readings: Readings = Readings()
    ahead: Mapping[ClientId, bytes] = field(default_factory=dict)

    def keys_ahead(self, plan: RoundPlan) -> Following | None:
        """Return the next attempt with keys of all that it invites, None where any are missing."""
        following = None if plan.secure is None else plan.secure.following
        if following is None or not self.ahead.keys() >= set(following.cohort):
            return None
        return replace(following, keys={name: self.ahead[name] for name in following.cohort})
