"""Local training: the only way by which a method's parameters meet a client's data.

numpy in, numpy out; nothing is aliased, no state outlives a fit but its report. It satisfies the
`Trainer` protocol of the methods' interface by shape, without importing it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from privacy._validate import require_not_negative, require_positive
from privacy.mechanisms import DpSgd
from privacy.randomness import NoiseSource
from privacy.training.fits import AfterStep, Arrays, Fit, ParameterGroup
from privacy.training.per_sample import Objective
from privacy.training.plan import (
    Clipping,
    PrivateSteps,
    TrainingPlan,
    poisson_batches,
    shuffled_batches,
)
from privacy.training.provenance import ReleasedArrays, opened
from privacy.training.steps import Penalty
from privacy.training.together import carried_out


@dataclass(frozen=True)
class LocalTrainer:
    """SGD over a client's own data, with each example's gradient clipped or noised as planned.

    Under `dp_sgd` batches are Poisson samples, and their probability, the number of steps and the
    divisor are the mechanism's; of the plan only the optimiser and its numbers count.
    No error and no amount of work depends on the data then, but for the time that a step takes.
    Data may have no rows. It must be what it claims to be: a label out of range is an error.

    Attributes:
        plan: Amount of training and optimiser.
        per_sample_clipping_norm: Largest L2 norm of one example's gradient over all trained
            parameters together; None trains without clipping.
        device: Where torch computes.
        dp_sgd: Noise in every step; None trains without. Not together with the norm above.
        noise: Where the noise comes from, with `dp_sgd` only. Noise that protects goes with
            batches from the operating system's entropy; seeded noise with batches from `rng`.
        released: What fits under `dp_sgd` returned, for `require_released`.
    """

    plan: TrainingPlan
    per_sample_clipping_norm: float | None = None
    device: str | torch.device = "cpu"
    dp_sgd: DpSgd | None = None
    noise: NoiseSource | None = None
    released: ReleasedArrays = field(default_factory=ReleasedArrays, init=False, compare=False)

    def __post_init__(self) -> None:
        _ = self.bound

    @property
    def bound(self) -> Clipping | PrivateSteps | None:
        """What bounds one example's effect, None if nothing does."""
        norm = self.per_sample_clipping_norm
        if self.dp_sgd is None:
            if self.noise is not None:
                raise ValueError("noise is given without dp_sgd; valid is both or neither")
            return None if norm is None else Clipping(norm)
        if norm is not None:
            raise ValueError(
                f"per_sample_clipping_norm is {norm} beside dp_sgd, which has a norm of its own; "
                "valid is one of them"
            )
        if self.noise is None:
            raise ValueError("dp_sgd is given without noise; valid is both or neither")
        return PrivateSteps(self.dp_sgd, self.noise)

    @property
    def learning_rate(self) -> float:
        """The step size that is in force, for corrections that depend on it."""
        return self.plan.rate_factor * self.plan.learning_rate

    @property
    def charged_steps(self) -> int | None:
        """The mechanism's steps, which all fits of one release share; None without `dp_sgd`."""
        return None if self.dp_sgd is None else self.dp_sgd.steps

    def steps_for(self, num_examples: int) -> int:
        """Step of one fit over this many examples, where `fit` is not told otherwise."""
        return self.plan.steps_for(num_examples)

    def fit(
        self,
        objective: Objective,
        parameters: Arrays,
        examples: Arrays,
        *,
        groups: Sequence[ParameterGroup],
        rng: np.random.Generator,
        steps: int | None = None,
        penalty: Penalty | None = None,
        after_step: AfterStep | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Train the parameters that a group names and return all of them.

        Each epoch visits a fresh permutation in batches, the last of which may be short; when
        steps are counted, epochs follow one another until they are used up.

        Args:
            objective: The loss.
            parameters: Starting values; those in no group are constants.
            examples: The client's data, row i of each array being example i, with `labels`; under
                `dp_sgd` it may be sealed.
            groups: Disjoint groups of trained parameters.
            rng: Draws the batches (simulation).
            steps: Number of steps in place of the plan's amount; under `dp_sgd` at most the
                mechanism's.
            penalty: Data-free term of the loss, a scalar of parameters and encoding; its gradient
                is added after clipping and noise.
            after_step: Data-free correction of the trained tensors, run after each step; it is
                given views that it may change in place.

        Returns:
            The parameters after training, new arrays of unchanged shape and dtype.

        Raises:
            ValueError: If names are unknown or repeated, the data is empty, ragged or without
                labels, or a number is out of range.
            NonFiniteUpdate: If a loss, a gradient or a result is NaN or infinite; under `dp_sgd`
                only for a result, which follows from noised gradients and so tells nothing more.
            SensitivityViolation: If sealed data would be trained on without `dp_sgd`.
        """
        _verify_groups(groups, parameters, objective)
        examples = opened(examples, is_private=self.dp_sgd is not None)
        if "labels" not in examples:
            raise ValueError(f"examples hold {sorted(examples)}; 'labels' is missing")
        sizes = {name: len(array) for name, array in examples.items()}
        if len(set(sizes.values())) != 1:
            raise ValueError(
                f"examples have rows {sizes}; valid is one number of rows for all arrays"
            )
        if sizes["labels"] == 0 and self.dp_sgd is None:
            raise ValueError("examples hold no rows; valid is at least one example to train on")
        count = sizes["labels"]
        if self.dp_sgd is None:
            amount = self.plan.steps_for(count) if steps is None else steps
        else:
            amount = self.dp_sgd.steps if steps is None else steps
            if amount > self.dp_sgd.steps:
                raise ValueError(
                    f"steps is {amount}; valid is at most dp_sgd's {self.dp_sgd.steps}, which is "
                    "what is charged"
                )
        require_positive(steps=amount)
        result = carried_out(
            Fit(
                objective=objective,
                parameters=parameters,
                examples=examples,
                groups=groups,
                batches=list(islice(self._batches(count, rng), amount)),
                plan=self.plan,
                device=self.device,
                bound=self.bound,
                penalty=penalty,
                after_step=after_step,
            )
        )
        if self.dp_sgd is not None:
            trained = (result[name] for group in groups for name in group.names)
            self.released.add(trained, steps=amount)
        return result

    def _batches(self, count: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        if self.dp_sgd is None or self.noise is None:
            return shuffled_batches(count, self.plan.batch_size, rng)
        # Amplification holds against whoever does not know the coins, so noise that protects goes
        # with the operating system's, and only a simulation's seeded noise with seeded coins.
        coins = os.urandom if self.noise.protects else rng.bytes
        return poisson_batches(count, self.dp_sgd.sampling_probability, coins)


def _verify_groups(
    groups: Sequence[ParameterGroup], parameters: Arrays, objective: Objective
) -> None:
    names = [name for group in groups for name in group.names]
    for name in [*names, *sorted(objective.encoder_parameters)]:
        if name not in parameters:
            raise ValueError(f"parameter {name!r} is unknown; valid are {sorted(parameters)}")
    if not names:
        raise ValueError("groups name no parameter; valid is at least one to train")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"parameter {name!r} is named twice in groups; valid is once")
        if parameters[name].dtype.kind != "f":
            raise ValueError(
                f"parameter {name!r} has dtype {parameters[name].dtype}; "
                "valid for a trained one is a floating-point type"
            )
    for group in groups:
        if group.learning_rate is not None:
            require_not_negative(**{"learning_rate of a group": group.learning_rate})
