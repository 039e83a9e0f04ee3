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
from platform.parties.evaluation import Accuracy, Model, measure
from platform.parties.profile import ClientProfile, PersonalState, first_state
from platform.parties.totality import forget, personalise
from platform.rounds.wiring import Wiring


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


def measure_newcomers(wiring: Wiring, state: Arrays) -> Newcomers | None:
    """Measure all new clients before and after they personalise.

    Args:
        wiring: The run.
        state: The server state after the last round.

    Returns:
        None without new clients.
    """
    plan = wiring.evaluation
    if not plan.new_clients:
        return None
    own = plan.on({name: client.test for name, client in plan.new_clients.items()})
    before, after = (
        measure(wiring.method, _models(wiring, state, personalised=done), own).local
        for done in (False, True)
    )
    return Newcomers(len(plan.new_clients), before, after)


def _models(wiring: Wiring, state: Arrays, *, personalised: bool) -> Iterator[Model]:
    # The server never heard of these clients, so it has nothing for them by name.
    broadcast = wiring.method.broadcast(state, None)
    for profile in _profiles(wiring):
        personal = first_state(profile)
        if personalised:
            personal = personalise(
                profile,
                wiring.population.make_trainer,
                ClientView(broadcast, (), personal),
                wiring.config.rounds + 1,
                forget,
            )
        yield Model(profile.name, broadcast, PersonalState(personal, ()))


def _profiles(wiring: Wiring) -> Iterator[ClientProfile]:
    """Yield profiles like those of the clients that took part, but for name and images."""
    like = next(iter(wiring.population.clients.values())).profile
    for name, client in wiring.evaluation.new_clients.items():
        yield dataclasses.replace(like, name=name, data=client.train, validation=None)
