"""FedAvg over several tensors: every client trains all of them, and the mean change is added.

McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data",
Algorithm 1, written with differences to the broadcast: averaging states that started alike is
adding the average of what changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from methods.interface import method as m
from methods.interface.defaults import MethodDefaults


def plus_change(state: m.Arrays, change: m.Arrays) -> m.Arrays:
    """Return the state with a change added, in single precision; the rest stays as it is."""
    return {**state, **{n: (state[n] + v).astype(np.float32) for n, v in change.items()}}


class AveragedMethod(MethodDefaults):
    """Averages all that clients share; an objective says how a client trains it."""

    has_personal_state = False

    @property
    def averaged(self) -> frozenset[str]:
        """All shared tensors."""
        return frozenset(self.shared_spec())

    def training_objective(self) -> m.Objective:
        """Return the loss of the shared tensors, for the task's own classes."""
        raise NotImplementedError

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train what was broadcast and upload its change."""
        groups = (m.ParameterGroup(tuple(view.broadcast)),)
        objective = self.training_objective()
        trained = trainer.fit(objective, view.broadcast, data.arrays, groups=groups, rng=rng)
        return m.LocalResult(
            {n: trained[n] - view.broadcast[n] for n in view.broadcast}, None, view.personal
        )

    def server_update(
        self, state: m.Arrays, aggregate: m.Aggregate, pool: Sequence[m.Arrays], rng: m.Rng
    ) -> m.Arrays:
        """Add the mean change; tensors that are not summed stay as they are."""
        return plus_change(state, aggregate.values)
