"""Clients that never took part: what the run's model is worth to somebody who comes afterwards.

Each gets the last broadcast, starts its personal part as every client does, is handed no experts,
and personalises on its own images. None of it leaves the client: a newcomer is in no cohort, no
ledger and no population, and its state is thrown away once it is measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from methods import Arrays, ClientView
from platform.experiment.evaluation import Accuracy, over_clients
from platform.experiment.simulation import Simulation
from platform.parties.profile import ClientProfile, first_state
from platform.parties.scoring import LOCAL, CommonScores
from platform.parties.totality import forget, personalise
from platform.wire.outside_rounds import Tally


@dataclass(frozen=True)
class Newcomers:
    """Accuracy of clients that never took part, on their own test images.

    Attributes:
        clients: How many there are.
        before: With the broadcast and an untrained personal part.
        after: After personalising.
    """

    clients: int
    before: Accuracy
    after: Accuracy

    def document(self) -> Mapping[str, Any]:
        """Return it as `summary.json` states it."""
        return {
            "clients": self.clients,
            "before": self.before.document(),
            "after": self.after.document(),
        }


def measure_newcomers(simulation: Simulation, state: Arrays) -> Newcomers | None:
    """Measure all new clients before and after they personalise.

    Args:
        simulation: The run.
        state: The server state after the last round.

    Returns:
        None without new clients.
    """
    plan = simulation.learning.evaluation
    if not plan.new_clients:
        return None
    # The server never heard of these clients, so it has nothing for them by name.
    broadcast = simulation.learning.method.broadcast(state, None)
    counted = [_counted(simulation, profile, broadcast) for profile in _profiles(simulation)]
    before, after = (over_clients(list(tallies)) for tallies in zip(*counted, strict=True))
    return Newcomers(len(plan.new_clients), before, after)


def _counted(
    simulation: Simulation, profile: ClientProfile, broadcast: Arrays
) -> tuple[Tally, Tally]:
    """Return what one client finds on its test images, before and after it personalises."""
    untrained = ClientView(broadcast, (), first_state(profile))
    last = simulation.run.terms.training_rounds[-1]
    make_trainer = simulation.population.make_trainer
    personal = personalise(profile, make_trainer, untrained, round_number=last + 1, remember=forget)
    trained = ClientView(broadcast, (), personal)
    before, after = (
        profile.measured.tally(profile.method, view, LOCAL) for view in (untrained, trained)
    )
    return before, after


def _profiles(simulation: Simulation) -> Iterator[ClientProfile]:
    """Yield profiles like those of the clients that took part, but for name and images."""
    plan = simulation.learning.evaluation
    like = next(iter(simulation.population.clients.values())).profile
    shared = CommonScores()
    for name, client in plan.new_clients.items():
        measured = plan.sets_of(name, shared)
        yield dataclasses.replace(like, name=name, data=client.train, measured=measured)
