"""FedAvg over several tensors: every client trains all of them, and the mean change is added.

McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data",
Algorithm 1, written with differences to the broadcast: averaging states that started alike is
adding the average of what changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from methods.interface import method as m
from methods.interface.defaults import MethodDefaults

if TYPE_CHECKING:
    from torch import Tensor


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
        return self.train(view, data, trainer, rng)

    def train(
        self,
        view: m.ClientView,
        data: m.Examples,
        trainer: m.Trainer,
        rng: m.Rng,
        *,
        own: m.Arrays | None = None,
        groups: Sequence[m.ParameterGroup] | None = None,
        objective: m.Objective | None = None,
        penalty: m.Penalty | None = None,
        after_step: Callable[[Mapping[str, Tensor]], None] | None = None,
    ) -> m.LocalResult:
        """Return the change of what is shared, and `own` arrays after training beside it.

        `groups` is None for all that was broadcast and all own arrays, `objective` for the method's
        own, and `own` for personal state as it was. The rest are arguments of `Trainer.fit`.
        """
        start = {**view.broadcast, **({} if own is None else own)}
        trained = trainer.fit(
            self.training_objective() if objective is None else objective,
            start,
            data.arrays,
            groups=(m.ParameterGroup(tuple(start)),) if groups is None else groups,
            rng=rng,
            penalty=penalty,
            after_step=after_step,
        )
        update = {name: trained[name] - view.broadcast[name] for name in self.shared_spec()}
        kept = view.personal if own is None else {name: trained[name] for name in own}
        return m.LocalResult(update, None, kept)

    def server_update(
        self, state: m.Arrays, aggregate: m.Aggregate, pool: Sequence[m.Arrays], rng: m.Rng
    ) -> m.Arrays:
        """Add the mean change; tensors that are not summed stay as they are."""
        return plus_change(state, aggregate.values)
