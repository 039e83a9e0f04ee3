"""A client's profile in one run, what follows from it, and the messages that fit the run.

From the profile follow the client's first state, its batches and its noise. The method fixes names,
shapes and dtypes of broadcasts and experts, and the model of a subspace's directions. The
configuration fixes the numbers of rounds, clients and generations. A client refuses any other
message before anything changes, with one sentence that repeats nothing of the message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, Protocol

import numpy as np

from methods import Arrays, ClientView, Examples, Method
from methods.interface.subspace import ORIGIN
from platform.config.randomness import stream
from platform.errors import ProtocolError
from platform.parties.scoring import MeasuredSets
from platform.protection.charging import Limits
from platform.protection.uploads import Protection
from platform.wire.codec import Attempt, Envelope
from platform.wire.messages import MAX_EXPERTS, Assignment, Invitation, SecureRound
from platform.wire.outside_rounds import Parting
from platform.wire.transport import ClientId
from privacy import NoiseSource, SeededNoise, SystemNoise, WithoutNoise
from privacy.secure_aggregation import Credentials
from privacy.training import LocalTrainer
from privacy.transparency import NoteKey

Looks = Mapping[str, tuple[tuple[int, ...], np.dtype[np.generic]]]
"""Shape and dtype of each array."""
_LARGEST = (1 << 31) - 1
_ROUNDING = 1e-6
"""Tolerance of a norm's logarithm, over all rounds."""


@dataclass(frozen=True, kw_only=True)
class Expectations:
    """The messages that fit one run.

    Attributes:
        broadcast: The arrays of every broadcast.
        expert: The arrays of every expert.
        experts: Most experts that a client receives in a round, maybe 0.
        fetched: The arrays of each entry of a pool that is made once, after the last round; None
            without such a pool.
        rounds: The last round in which the coordinator asks anything, the collection included.
        generations: Most rounds whose pool entries are alive; 0 if clients receive none.
        origin: The model of a subspace's directions, None without a subspace.
    """

    broadcast: Looks
    expert: Looks
    experts: int
    fetched: Looks | None = None
    rounds: int = _LARGEST
    clients: int = _LARGEST
    generations: int = _LARGEST
    origin: bytes | None = None


def expectations_of(
    method: Method, *, rounds: int = _LARGEST, clients: int = _LARGEST, generations: int = _LARGEST
) -> Expectations:
    """Return what follows from a method and a few numbers of the configuration.

    A broadcast has the same names, shapes and dtypes in every round and for every client.

    The last round includes the collection. `generations` are the rounds whose pool entries may be
    alive at once.
    """
    # Only the shapes count here, not the numbers that are drawn.
    first = method.broadcast(method.init_server(np.random.default_rng(0)))
    broadcast, policy = _looks(first), method.pool_policy()
    entry: Looks = {}
    if policy is not None:
        entry = {n: (t.shape, np.dtype(t.dtype)) for n, t in policy.spec.items()}
    known = Expectations(
        broadcast=broadcast,
        expert={},
        experts=0,
        rounds=rounds,
        clients=clients,
        generations=0,
        origin=first[ORIGIN].tobytes() if ORIGIN in first else None,
    )
    if policy is None:
        return known
    if policy.closes:
        # Clients receive a pool that is made after the last round only after all rounds.
        return replace(known, fetched=entry)
    generations = 1 if policy.opens else generations
    most = clients * generations if policy.select == "all" else policy.k
    return replace(known, expert=entry, experts=min(most, MAX_EXPERTS), generations=generations)


def require_invitation(
    expected: Expectations, protection: Protection, invitation: Invitation
) -> None:
    """Refuse an invitation that does not fit this run, before the client uses it."""
    envelope, seat = invitation.envelope, invitation.secure
    _require_envelope(expected, envelope)
    alive = invitation.generations
    is_ascending = all(one < other for one, other in pairwise(alive))
    if len(alive) > expected.generations or not is_ascending:
        raise ProtocolError("message: the generations are not this run's")
    if alive and not 1 <= alive[0] <= alive[-1] < envelope.round_number:
        raise ProtocolError("message: the generations are not this run's")
    if seat is not None and seat.clients > expected.clients:
        raise ProtocolError("message: there are fewer clients in this run")
    adaptive, start = protection.extras.adaptive, protection.clipping_norm
    if invitation.clipping_norm is None or adaptive is None or start is None:
        # `Protection.at` checks whether there must be a norm.
        return
    if not (math.isfinite(invitation.clipping_norm) and invitation.clipping_norm > 0.0):
        raise ProtocolError("message: the clipping norm is not a length")
    moves = envelope.round_number - protection.first_round
    way = (math.log(invitation.clipping_norm) - math.log(start)) / adaptive.learning_rate
    lowest, highest = (adaptive.quantile - 1.0) * moves, adaptive.quantile * moves
    if not lowest - _ROUNDING <= way <= highest + _ROUNDING:
        raise ProtocolError("message: the clipping norm is out of reach in so few rounds")


def require_ahead(
    expected: Expectations, protection: Protection, envelope: Envelope, seat: SecureRound
) -> Protection:
    """Return an attempt's protection, if keys may be made ahead for it; refuse it otherwise.

    `envelope` is of the first attempt at the next round, and `seat` is the client's place in it.
    """
    _require_envelope(expected, envelope)
    if seat.clients > expected.clients:
        raise ProtocolError("message: there are fewer clients in this run")
    following = protection.in_round(envelope.round_number)
    if not following.masked:
        raise ProtocolError("message: keys are made ahead where the next round has masks")
    return following


def require_assignment(expected: Expectations, assignment: Assignment) -> None:
    """Refuse an assignment that does not fit this run, before the client uses it."""
    require_broadcast(expected, assignment.broadcast)
    if len(assignment.experts) > expected.experts:
        raise ProtocolError(f"message: at most {expected.experts} experts are handed out")
    if any(_looks(expert) != expected.expert for expert in assignment.experts):
        raise ProtocolError("message: an expert's arrays are not those of this run's method")


def require_broadcast(expected: Expectations, broadcast: Arrays) -> None:
    """Refuse arrays of a broadcast that are not this run's."""
    if _looks(broadcast) != expected.broadcast:
        raise ProtocolError("message: the broadcast's arrays are not those of this run's method")
    if expected.origin is not None and broadcast[ORIGIN].tobytes() != expected.origin:
        raise ProtocolError(
            "message: the directions are of another model, or another class list, than this "
            "client's own"
        )


def require_last_round_over(expected: Expectations, envelope: Envelope) -> None:
    """Refuse a message before the attempt after all rounds, at which clients personalise."""
    if (envelope.round_number, envelope.attempt) != (expected.rounds + 1, 0):
        raise ProtocolError("message: clients personalise once, after the last round")
    last = envelope.committed
    if last is not None and not (_is_attempt(expected, last) or last == (expected.rounds + 1, 0)):
        raise ProtocolError("message: the last committed attempt is not of an earlier round")


def require_parting(expected: Expectations, parting: Parting) -> None:
    """Refuse a parting that does not fit this run, before the client uses it."""
    require_last_round_over(expected, parting.envelope)
    require_broadcast(expected, parting.broadcast)
    fetched = parting.fetched
    if (fetched is None) != (expected.fetched is None):
        raise ProtocolError("message: it must have experts if the pool is made once, and only then")
    if fetched is None:
        return
    if len(fetched.experts) > expected.clients:
        raise ProtocolError("message: there are fewer clients in this run")
    if any(_looks(expert) != expected.fetched for expert in fetched.experts):
        raise ProtocolError("message: an expert's arrays are not those of this run's method")


def _looks(arrays: Arrays) -> Looks:
    return {name: (array.shape, array.dtype) for name, array in arrays.items()}


def _require_envelope(expected: Expectations, envelope: Envelope) -> None:
    here = (envelope.round_number, envelope.attempt)
    if not _is_attempt(expected, here):
        raise ProtocolError("message: this run has no such round and attempt")
    last = envelope.committed
    if last is not None and (not _is_attempt(expected, last) or last[0] >= here[0]):
        raise ProtocolError("message: the last committed attempt is not of an earlier round")


def _is_attempt(expected: Expectations, attempt: Attempt) -> bool:
    number, tries = attempt
    return 1 <= number <= expected.rounds and 1 <= tries <= _LARGEST


class TrainerFactory(Protocol):
    """Makes a trainer."""

    def __call__(
        self, noise: NoiseSource | None, *, round_number: int | None = None
    ) -> LocalTrainer:
        """Return a trainer with noise for releases under `dp_sgd`, else the plain one.

        It has the learning rates of a round, or those after the last round (None).
        """
        ...


@dataclass(frozen=True)
class Randomness:
    """The sources of a client's randomness.

    Attributes:
        noise_source: The operating system or a seed.
        initialisation: Seed of a simulation's first states.
        batches: Seed of its batches.
        noise: Seed of its noise, where that is seeded.
    """

    noise_source: Literal["os", "seeded"]
    initialisation: int
    batches: int
    noise: int


@dataclass(frozen=True, kw_only=True)
class Safeguards:
    """How a client protects itself against the coordinator.

    Attributes:
        limits: The most that the client may be charged, None without a limit.
        credentials: The keys that it trusts in an active round, None against a semi-honest server.
        expected: The messages that it accepts in this run; None derives them from the method alone.
        log_key: The key of the coordinator's log, None to trust the first key that is seen.
        simulated: Whether all clients are in the coordinator's process, so no data owner needs
            protection.
        shows_failures: Whether failures raise instead of giving the zero vector; for tests, and
            without effect if a client is not `simulated`.
        shares_noise: Whether it adds its share of joint noise. An audit's canaries leave their
            shares out, as clients that collude with the server may.
    """

    limits: Limits | None = None
    credentials: Credentials | None = field(default=None, repr=False)
    expected: Expectations | None = None
    log_key: NoteKey | None = None
    simulated: bool = False
    shows_failures: bool = False
    shares_noise: bool = True


@dataclass(frozen=True)
class RunNames:
    """The run of a client.

    Attributes:
        source_id: The run from whose rounds state and entry come, None for this run itself.
    """

    run_id: str
    source_id: str | None = None

    @property
    def source(self) -> str:
        """The run from which a client's state and pool entry come."""
        return self.run_id if self.source_id is None else self.source_id


@dataclass(frozen=True, kw_only=True)
class ClientProfile:
    """Everything about a client that does not change within a run.

    Attributes:
        measured: The sets on which it measures its own model.
    """

    name: ClientId
    run: RunNames
    method: Method
    data: Examples
    protection: Protection
    randomness: Randomness
    safeguards: Safeguards = Safeguards()
    measured: MeasuredSets = field(default_factory=MeasuredSets)


@dataclass(frozen=True)
class PersonalState:
    """A client's personal arrays and the experts that it was handed last."""

    personal: Arrays
    experts: tuple[Arrays, ...]


def view_of(broadcast: Arrays, state: PersonalState) -> ClientView:
    """Return the arrays with which a client predicts."""
    return ClientView(broadcast, state.experts, state.personal)


def as_sent(profile: ClientProfile, view: ClientView) -> ClientView:
    """Return the view of a broadcast that came in a message of the coordinator.

    The broadcast is common to all clients, unless the method has one for each client, which depends
    on other clients' training.
    """
    return replace(view, is_common=profile.method.visibility == "aggregate_only")


def noise_of(
    profile: ClientProfile, round_number: int, purpose: str = "noise", *, attempt: int = 1
) -> NoiseSource:
    """Return a client's noise in one attempt: the operating system's, or a seed's own stream.

    A further attempt is a further release, so it has other noise.
    """
    noise: NoiseSource = SystemNoise()
    if profile.randomness.noise_source != "os":
        key = (profile.name, round_number, *(() if attempt == 1 else (attempt,)))
        noise = SeededNoise(stream(profile.randomness.noise, purpose, *key))
    return noise if profile.safeguards.shares_noise else WithoutNoise(noise)


def first_state(profile: ClientProfile) -> Arrays:
    """Return personal state before a client's first round."""
    seed = profile.randomness.initialisation
    return profile.method.init_client(
        stream(seed, "client, alike for all"), stream(seed, "client", profile.name)
    )


def batches_of(profile: ClientProfile, round_number: int) -> np.random.Generator:
    """Return the stream of a client's batches in one round, alike for its local twin."""
    return stream(profile.randomness.batches, "batches", profile.name, round_number)
