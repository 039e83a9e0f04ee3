"""A run as its coordinator conducts it: terms, clients, transport, records, and its progress.

`RunTerms` are fixed before anything is written. `Roll` is known after clients have introduced
themselves. A `Run` joins both, and its next round starts from `Progress`. Only the coordinator uses
these types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from methods import Arrays, Method
from platform.config import RunConfig
from platform.config.randomness import stream
from platform.disk.opening import Records
from platform.errors import ProtocolError
from platform.protection.building import PoolRules
from platform.protection.charging import Limits
from platform.protection.uploads import Protection
from platform.rounds.plan import Following
from platform.wire.codec import (
    Attempt,
    Frame,
    decode_arrays,
    decode_frame,
    encode_arrays,
    encode_frame,
)
from platform.wire.transport import ClientId, Transport
from privacy import CohortKind, NoiseState

_NOISE: Final = "noise"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run has come.

    Attributes:
        completed: Number of committed rounds.
        committed: For each client the last committed attempt that its update is part of.
        state: The server state after the last committed round.
        noise_state: The state from which the coordinator's noise of the next sum continues; it
            never leaves the coordinator.
        clipping_norm: The clipping norm of the next round, where it adapts.
        ended_early: Why the rounds ended before the last, None if they did not.
        uncollected: Why a pool that is made once was not made; None if it was, or is not needed.
        ahead: The first attempt at the next round with all clients' keys, where they were made with
            the last message of this round. Only this process holds the keys until that round is
            opened: a coordinator that is started again asks for others.
    """

    completed: int
    committed: Mapping[ClientId, Attempt]
    state: Arrays
    noise_state: NoiseState = field(default_factory=dict, repr=False)
    clipping_norm: float | None = None
    ended_early: str | None = None
    uncollected: str | None = None
    ahead: Following | None = None


def encode_state(state: Arrays, noise_state: NoiseState) -> bytes:
    """Return a server state as it is stored, with the state of the noise if there is one."""
    beside = {_NOISE: encode_arrays(noise_state)} if noise_state else {}
    return encode_frame(Frame("arrays", {}, state, beside))


def decode_state(data: bytes) -> tuple[Arrays, NoiseState]:
    """Read the bytes of `encode_state`; methods and clients see the first part only."""
    frame = decode_frame(data)
    if frame.kind != "arrays" or frame.fields or not frame.blobs.keys() <= {_NOISE}:
        raise ProtocolError("message: this is no server state")
    beside = frame.blobs.get(_NOISE)
    return dict(frame.arrays), {} if beside is None else decode_arrays(beside)


@dataclass(frozen=True, kw_only=True)
class RunTerms:
    """The terms of a run: all that follows from its configuration and method beforehand.

    Attributes:
        pool_rules: How the pool is served, None without one.
        cohort_kind: How cohorts are drawn where that may amplify, else None.
    """

    config: RunConfig
    method: Method
    protection: Protection
    budget: Limits
    pool_rules: PoolRules | None
    cohort_kind: CohortKind | None

    def initial_state(self) -> Arrays:
        """Return the server state before the first round."""
        seed = self.config.seed_of("initialisation")
        return self.method.init_server(stream(seed, "server"))

    @property
    def final_attempt(self) -> Attempt:
        """The key of personalised state: one round past the last, the collection included."""
        return (self.last_round + 1, 0)

    @property
    def fetches_at_end(self) -> bool:
        """Whether clients fetch a pool that was made once, after the last round."""
        return self.pool_rules is not None and self.pool_rules.policy.closes

    @property
    def training_rounds(self) -> range:
        """The numbers of the rounds that train, without a collection."""
        first = self.protection.first_round
        return range(first, first + self.config.rounds)

    @property
    def last_round(self) -> int:
        """The last number under which anything is asked for, the collection included."""
        return self.protection.last_round(self.config.rounds)


@dataclass(frozen=True, kw_only=True)
class Roll:
    """The clients of a run, as they have introduced themselves.

    Attributes:
        pseudonyms: The names that ledger and audit log use, by the clients' names; of all that have
            ever introduced themselves.
        identities: Public keys by name, against an active adversary only.
        enrolment_serial: Serial of the enrolment file, which names each client's key; 0 without it.
        named: All clients' names in order, also of clients that have not introduced themselves; if
            empty, the names in `pseudonyms` count.
        left: Clients that have left the run for good; it grows while the run goes on.
    """

    pseudonyms: dict[ClientId, str]
    identities: dict[ClientId, bytes]
    enrolment_serial: int
    named: tuple[ClientId, ...] = ()
    left: set[ClientId] = field(default_factory=set)

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """All clients' names in order, whether they are there or not."""
        return self.named or tuple(self.pseudonyms)

    @property
    def present(self) -> tuple[ClientId, ...]:
        """The names of the clients that take part, in order."""
        return tuple(c for c in self.clients if c in self.pseudonyms and c not in self.left)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run with all that its rounds need.

    Attributes:
        source_id: The run whose rounds, states, pool and ledger this run uses, None for its own.
        transport: Carries messages; the coordinator learns of clients only in this way.
        records: The database and the log of the run.
        measure: Measures a round that is over; returns the round's documents `accuracy`,
            `validation` and `protocol`.
        clock: Seconds, for durations.
    """

    run_id: str
    source_id: str | None = None
    terms: RunTerms
    roll: Roll
    transport: Transport
    records: Records
    measure: Measure
    clock: Callable[[], float]

    @property
    def source(self) -> str:
        """The run whose rounds these are."""
        return self.run_id if self.source_id is None else self.source_id


Measure = Callable[[Run, int, Progress], Mapping[str, Any]]
"""Called with the run, the number of a round that is over, and what the next one starts from."""
