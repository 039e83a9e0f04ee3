"""The local twin: what a client would have reached without the federation.

Same method, seeds, number of steps and per-sample clip; no experts and nobody else's updates. No
noise where the noise is on uploads, as nothing is uploaded; the same noise in every step under
`dp_sgd`. It is a federation of one: the client's own update is the aggregate. The difference of
the final accuracies is the *gain over local*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from methods import Aggregate, Arrays, ClientView, Groups, LocalResult
from platform.config.randomness import stream
from platform.experiment.evaluation import Measured, measured
from platform.experiment.simulation import Simulation
from platform.parties.profile import (
    ClientProfile,
    PersonalState,
    TrainerFactory,
    first_state,
    noise_of,
    view_of,
)
from platform.parties.totality import forget, personalise, train_or_stay
from platform.rounds.documents import in_rounds
from platform.rounds.observing import Observer


def measure_twins(
    simulation: Simulation, observer: Observer, documents: Sequence[Mapping[str, Any]]
) -> Measured | None:
    """Return the measured clients' accuracy after the same training alone, under the same protocol.

    None where nobody asks for them: they cost as much training as the run.

    Args:
        simulation: The run.
        observer: Told of each client.
        documents: The run's rounds, as stored.
    """
    terms, plan = simulation.run.terms, simulation.learning.evaluation
    if not terms.config.evaluation.local_twins:
        return None
    start, tallies = terms.initial_state(), []
    for position, name in enumerate(plan.measured):
        client = simulation.population.clients[name]
        observer.preparing("local twins", position, len(plan.measured))
        rounds = [d["round"] for d in in_rounds(documents) if name in d["survivors"]]
        broadcast, state = train_twin(
            client.profile,
            simulation.population.make_trainer,
            start,
            rounds,
            final_round=terms.final_attempt[0],
        )
        view, measured_on = view_of(broadcast, state), client.profile.measured
        tallies.append({test: measured_on.tally(terms.method, view, test) for test in plan.tests})
    observer.preparing("local twins", 1, 1)
    return measured(plan.protocol, plan.tests, tallies)


def train_twin(
    profile: ClientProfile,
    make_trainer: TrainerFactory,
    server_state: Arrays,
    rounds: Sequence[int],
    *,
    final_round: int,
) -> tuple[Arrays, PersonalState]:
    """Train one client alone.

    Args:
        profile: The client.
        make_trainer: Its trainers.
        server_state: The server state that the federation started from.
        rounds: The rounds in which the client took part, ascending; their batches are the same.
        final_round: What fixes the batches with which all clients personalise.

    Returns:
        What would be broadcast to it, and its personal state, after `personalise`.
    """
    method, state = profile.method, server_state
    personal = first_state(profile)
    for round_number in rounds:
        broadcast = method.broadcast(state, profile.name)
        result = train_or_stay(
            profile,
            make_trainer,
            ClientView(broadcast, personal=personal),
            round_number=round_number,
            noise=noise_of(profile, round_number, "twin's noise"),
        )
        rng = _server(profile, round_number)
        state = method.server_update(state, _alone(profile, result), (), rng)
        personal = result.personal
    broadcast = method.broadcast(state, profile.name)
    view = ClientView(broadcast, personal=personal)
    personal = personalise(profile, make_trainer, view, round_number=final_round, remember=forget)
    return broadcast, PersonalState(personal, ())


def _alone(profile: ClientProfile, result: LocalResult) -> Aggregate:
    update, grouping = result.update, profile.protection.extras.groups
    groups, size = None, float(profile.data.num_examples)
    if grouping is not None:
        # The client is all of its group, and its update the whole of the sum.
        alone = np.zeros(grouping.number)
        if result.group is not None:
            alone[result.group] = size = 1.0
        groups = Groups(alone, floor=1.0)
    return Aggregate(
        update,
        size,
        cohort_size=1,
        population=1,
        individual={profile.name: update},
        groups=groups,
    )


def _server(profile: ClientProfile, round_number: int) -> np.random.Generator:
    return stream(profile.randomness.initialisation, "twin's server", profile.name, round_number)
