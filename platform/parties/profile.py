"""A client's profile in one run, and what follows from it: first state, batches, and noise."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import numpy as np

from methods import Arrays, ClientView, Examples, Method
from platform.config.randomness import stream
from platform.parties.expectations import Expectations
from platform.parties.scoring import MeasuredSets
from platform.protection.charging import Limits
from platform.protection.uploads import Protection
from platform.wire.transport import ClientId
from privacy import NoiseSource, SeededNoise, SystemNoise, WithoutNoise
from privacy.secure_aggregation import Credentials
from privacy.training import LocalTrainer
from privacy.transparency import NoteKey


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
        run_id: The run.
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
        name: The client's name on the transport.
        run: The client's run.
        method: The method, the same on all clients.
        data: The client's training examples.
        protection: How uploads are protected.
        randomness: Where noise, batches and first states come from.
        safeguards: How the client protects itself.
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
