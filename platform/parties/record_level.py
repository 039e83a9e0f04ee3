"""Training under `dp_sgd`: the method is handed closed data and checked on what it hands back.

The bound on one record holds for what noised steps returned and for what is made of that. So the
data is sealed (only the trainer opens it), and update, pool entry and personal state must be arrays
that the trainer returned in this round, or that were known before it. Personal state is checked
because later releases start from it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from methods import ClientView, Examples, LocalResult, Trainer
from privacy import SensitivityViolation
from privacy.training import LocalTrainer, require_released, seal

Work = Callable[[ClientView, Examples, Trainer, np.random.Generator], LocalResult]
"""`Method.client_update` or `Method.contribute`."""


def train_privately(
    work: Work,
    view: ClientView,
    data: Examples,
    *,
    trainer: LocalTrainer,
    steps: int,
    rng: np.random.Generator,
) -> LocalResult:
    """Return one client's training in one round.

    Args:
        work: What the method does in this round.
        view: What the coordinator sent, pool entries released under the same mechanism, and the
            client's state, itself the outcome of this function or its initial value.
        data: The client's examples.
        trainer: With noise.
        steps: Noised steps that are charged for this round; 0 where nothing may be trained.
        rng: For batches, in a simulation.

    Raises:
        SensitivityViolation: If the method read its data by another way than the trainer, returned
            what the trainer did not, or took more steps than are charged.
    """
    trainer.released.clear()
    result = work(view, Examples(seal(data.arrays)), trainer, rng)
    constants = [view.broadcast, *view.experts, view.personal]
    parts = {
        "update": result.update,
        "pool entry": result.pool_entry or {},
        "personal state": result.personal,
    }
    for part, arrays in parts.items():
        require_released(arrays, trainer.released, constants, part=part)
    if trainer.released.steps > steps:
        raise SensitivityViolation(
            f"the method took {trainer.released.steps} noised steps in a round; {steps} are "
            "charged (training.local_steps)"
        )
    return result
