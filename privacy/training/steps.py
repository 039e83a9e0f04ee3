"""One optimiser step, ordinary or with each example's gradient clipped by Opacus.

A further protection is one more class here with the same call, chosen in `build_step`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from privacy.errors import NonFiniteUpdate
from privacy.training.per_sample import (
    Objective,
    encode,
    per_sample_gradients,
    require_one_loss_each,
)
from privacy.training.plan import Clipping


@dataclass(frozen=True)
class StepOutcome:
    """What one step saw: the sum of its losses, and how many examples there and clipped."""

    loss_sum: float
    examples: int
    clipped: int


@dataclass(frozen=True)
class Variables:
    """The tensors of one fit, by name.

    Attributes:
        trained: Leaves that the optimiser holds.
        constants: Everything else that the objective may read.
    """

    trained: Mapping[str, Tensor]
    constants: Mapping[str, Tensor]

    def all(self) -> dict[str, Tensor]:
        """Both together, as an objective wants them."""
        return {**self.constants, **self.trained}


class Step(Protocol):
    """Takes one batch and moves the trained tensors."""

    def __call__(self, batch: Mapping[str, Tensor]) -> StepOutcome:
        """Takes one optimiser step.

        Raises:
            NonFiniteUpdate: If a loss or a gradient is NaN or infinite; nothing has moved then.
        """
        ...


class PlainStep:
    """Gradient of the batch's mean loss, by one backward pass through head and encoder."""

    def __init__(self, objective: Objective, variables: Variables, optimizer: Optimizer) -> None:
        self._objective = objective
        self._variables = variables
        self._optimizer = optimizer

    def __call__(self, batch: Mapping[str, Tensor]) -> StepOutcome:
        """Takes one optimiser step; see `Step`."""
        parameters, trained = self._variables.all(), self._variables.trained
        encoded = encode(self._objective, parameters, trained)
        losses = self._objective.losses(parameters, encoded, batch)
        size = len(batch["labels"])
        require_one_loss_each(losses, size)
        gradients = torch.autograd.grad(
            losses.mean(), list(trained.values()), allow_unused=True, materialize_grads=True
        )
        require_finite_step(losses, dict(zip(trained, gradients, strict=True)))
        for tensor, gradient in zip(trained.values(), gradients, strict=True):
            tensor.grad = gradient
        self._optimizer.step()
        return StepOutcome(loss_sum=float(losses.detach().sum()), examples=size, clipped=0)


class ClippedStep:
    """Mean of per-example gradients of bounded norm.

    The gradients are ours (`per_sample.py`); clipping them over all trained tensors jointly,
    adding them up and stepping is Opacus' own `DPOptimizer`, here without noise. Its clipping
    factor is min(1, norm / (gradient norm + 1e-6)).
    """

    def __init__(
        self, objective: Objective, variables: Variables, optimizer: Optimizer, clipping: Clipping
    ) -> None:
        self._objective = objective
        self._variables = variables
        self._clipping = clipping
        self._optimizer = _dp_optimizer(optimizer, clipping)

    def __call__(self, batch: Mapping[str, Tensor]) -> StepOutcome:
        """Takes one optimiser step; see `Step`."""
        trained = self._variables.trained
        samples = per_sample_gradients(
            self._objective, self._variables.all(), batch, trained=trained.keys()
        )
        require_finite_step(samples.losses, samples.gradients)
        for name, tensor in trained.items():
            tensor.grad_sample = samples.gradients[name]  # type: ignore[attr-defined]
        size = len(samples.losses)
        self._optimizer.expected_batch_size = size
        self._optimizer.step()
        # Opacus refuses to use a gradient twice: what one step used is dropped at once.
        self._optimizer.zero_grad(set_to_none=True)
        clipped = int((samples.norms() > self._clipping.norm).sum())
        return StepOutcome(loss_sum=float(samples.losses.sum()), examples=size, clipped=clipped)


def build_step(
    objective: Objective, variables: Variables, optimizer: Optimizer, clipping: Clipping | None
) -> Step:
    """The step that a fit repeats.

    Args:
        objective: The loss.
        variables: The fit's tensors.
        optimizer: Holds `variables.trained`.
        clipping: The bound on one example's gradient, None for ordinary training.
    """
    if clipping is None:
        return PlainStep(objective, variables, optimizer)
    return ClippedStep(objective, variables, optimizer, clipping)


def require_finite_step(losses: Tensor, gradients: Mapping[str, Tensor]) -> None:
    """Raises unless all losses and gradients are finite numbers.

    Args:
        losses: Loss of each example, shape (B,).
        gradients: Gradients by parameter name, of any shape.

    Raises:
        NonFiniteUpdate: Naming the first tensor with NaN or infinity, never its values.
    """
    for name, tensor in {"the loss": losses, **_described(gradients)}.items():
        if not bool(torch.isfinite(tensor.detach()).all()):
            raise NonFiniteUpdate(
                f"{name} is not finite in local training; "
                "valid are finite numbers (a lower learning_rate often helps)"
            )


def _described(gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"the gradient of {name!r}": tensor for name, tensor in gradients.items()}


def _dp_optimizer(optimizer: Optimizer, clipping: Clipping) -> Any:
    """Opacus' optimiser around ours; imported here, as Opacus takes longer to load than torch."""
    from opacus.optimizers.optimizer import DPOptimizer

    return DPOptimizer(
        optimizer,
        noise_multiplier=0.0,
        max_grad_norm=clipping.norm,
        expected_batch_size=1,  # set anew for each batch
        loss_reduction="mean",
    )
