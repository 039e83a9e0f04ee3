"""One optimiser step: ordinary, with each example's gradient clipped by Opacus, or noised too.

A further protection is one more class here with the same call, chosen in `build_step`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from privacy.errors import NonFiniteUpdate
from privacy.training.per_sample import (
    Objective,
    PerSampleGradients,
    encode,
    per_sample_gradients,
    require_one_loss_each,
)
from privacy.training.plan import Clipping, PrivateSteps

Penalty = Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], Tensor]
"""A data-free term of the loss: parameters and their encoding, to a scalar."""

AT_ONCE = 64
"""Examples of a Poisson batch whose gradients are held at once; changes memory only."""


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
        """Return both together, as an objective wants them."""
        return {**self.constants, **self.trained}


class Step(Protocol):
    """Takes one batch and moves the trained tensors."""

    def __call__(self, batch: Mapping[str, Tensor]) -> None:
        """Take one optimiser step.

        Raises:
            NonFiniteUpdate: If a loss or a gradient is NaN or infinite; nothing has moved then.
                Not under dp_sgd, where an error that depends on data would be a release.
        """
        ...


class PlainStep:
    """Gradient of the batch's mean loss, by one backward pass through head and encoder."""

    def __init__(
        self,
        objective: Objective,
        variables: Variables,
        optimizer: Optimizer,
        penalty: Penalty | None,
    ) -> None:
        self._objective = objective
        self._variables = variables
        self._optimizer = optimizer
        self._penalty = penalty

    def __call__(self, batch: Mapping[str, Tensor]) -> None:
        """Take one optimiser step; see `Step`."""
        parameters, trained = self._variables.all(), self._variables.trained
        encoded = encode(self._objective, parameters, trained)
        losses = self._objective.losses(parameters, encoded, batch)
        require_one_loss_each(losses, len(batch["labels"]))
        # Here nothing is clipped, so one backward pass serves both terms.
        total = losses.mean()
        if self._penalty is not None:
            total = total + self._penalty(parameters, encoded)
        gradients = torch.autograd.grad(
            total, list(trained.values()), allow_unused=True, materialize_grads=True
        )
        require_finite_step(losses, dict(zip(trained, gradients, strict=True)))
        for tensor, gradient in zip(trained.values(), gradients, strict=True):
            tensor.grad = gradient
        self._optimizer.step()


class ClippedStep:
    """Mean of per-example gradients of bounded norm.

    The gradients are ours (`per_sample.py`); clipping them over all trained tensors jointly,
    adding them up and stepping is Opacus' own `DPOptimizer`, here without noise. Its clipping
    factor is min(1, norm / (gradient norm + 1e-6)).
    """

    def __init__(
        self,
        objective: Objective,
        variables: Variables,
        optimizer: Optimizer,
        clipping: Clipping,
        *,
        penalty: Penalty | None,
    ) -> None:
        self._objective = objective
        self._variables = variables
        from opacus.optimizers.optimizer import DPOptimizer

        self._optimizer = DPOptimizer(
            optimizer,
            noise_multiplier=0.0,
            max_grad_norm=clipping.norm,
            expected_batch_size=1,  # set anew for each batch
            loss_reduction="mean",
        )
        _attach(self._optimizer, objective, variables, penalty)

    def __call__(self, batch: Mapping[str, Tensor]) -> None:
        """Take one optimiser step; see `Step`."""
        trained = self._variables.trained
        samples = per_sample_gradients(
            self._objective, self._variables.all(), batch, trained=trained.keys()
        )
        require_finite_step(samples.losses, samples.gradients)
        for name, tensor in trained.items():
            tensor.grad_sample = samples.gradients[name]  # type: ignore[attr-defined]
        self._optimizer.expected_batch_size = len(samples.losses)
        self._optimizer.step()
        # Opacus refuses to use a gradient twice: what one step used is dropped at once.
        self._optimizer.zero_grad(set_to_none=True)


class DpSgdStep:
    """One step of differentially private SGD (Abadi et al. 2016, Algorithm 1).

    Formal guarantee: the step is a function of the Gaussian mechanism's output on a sum to which
    one record contributes a vector of norm at most C over *all* trained parameters, provided that
    batches are Poisson samples and the starting point depends on data through such outputs only.
    An empty batch takes a step of pure noise. A record whose loss, gradient or gradient's norm is
    not finite contributes zero: that is a rule about one record and public parameters, so the
    bound C stands, and nothing is raised that would tell that such a record was there.

    C holds up to rounding in the parameters' dtype; see `docs/adr/0010-record-level-privacy.md`.
    """

    def __init__(
        self,
        objective: Objective,
        variables: Variables,
        optimizer: Optimizer,
        private: PrivateSteps,
        *,
        penalty: Penalty | None,
    ) -> None:
        # Opacus takes longer to load than torch, and ordinary training needs none of it.
        from privacy.training.opacus_adapters import NoisyOptimizer

        self._objective = objective
        self._variables = variables
        self._optimizer = NoisyOptimizer(optimizer, private.mechanism, private.noise)
        _attach(self._optimizer, objective, variables, penalty)

    def __call__(self, batch: Mapping[str, Tensor]) -> None:
        """Take one optimiser step; see `Step`."""
        *earlier, last = _pieces(batch)
        # Opacus adds up the clipped sums of pieces whose step it was told to skip.
        for piece in earlier:
            self._advance(piece, is_last=False)
        self._advance(last, is_last=True)

    def _advance(self, piece: Mapping[str, Tensor], *, is_last: bool) -> None:
        trained = self._variables.trained
        samples = per_sample_gradients(
            self._objective, self._variables.all(), piece, trained=trained.keys()
        )
        usable = torch.isfinite(samples.norms()) & torch.isfinite(samples.losses)
        for name, rows in _zero_unless(usable, samples).items():
            trained[name].grad_sample = rows  # type: ignore[attr-defined]
        if not is_last:
            self._optimizer.signal_skip_step()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


def build_step(
    objective: Objective,
    variables: Variables,
    optimizer: Optimizer,
    bound: Clipping | PrivateSteps | None,
    *,
    penalty: Penalty | None = None,
) -> Step:
    """Return the step that a fit repeats; without a bound it is ordinary training."""
    if bound is None:
        return PlainStep(objective, variables, optimizer, penalty)
    if isinstance(bound, PrivateSteps):
        return DpSgdStep(objective, variables, optimizer, bound, penalty=penalty)
    return ClippedStep(objective, variables, optimizer, bound, penalty=penalty)


def require_finite_step(losses: Tensor, gradients: Mapping[str, Tensor]) -> None:
    """Raise `NonFiniteUpdate` unless all losses (B,) and gradients are finite numbers.

    It names the first tensor with NaN or infinity, never its values.
    """
    described = {f"the gradient of {name!r}": tensor for name, tensor in gradients.items()}
    for name, tensor in {"the loss": losses, **described}.items():
        if not bool(torch.isfinite(tensor.detach()).all()):
            raise not_finite(name)


def not_finite(what: str) -> NonFiniteUpdate:
    """Return the error of a step whose loss or gradient is NaN or infinite."""
    return NonFiniteUpdate(
        f"{what} is not finite in local training; "
        "valid are finite numbers (a lower learning_rate often helps)"
    )


def _attach(
    optimizer: Any, objective: Objective, variables: Variables, penalty: Penalty | None
) -> None:
    """Have Opacus' optimiser add the penalty's gradient, after clipping, noise and scaling."""
    if penalty is None:
        return

    def add_penalty(_: Any) -> None:
        parameters, trained = variables.all(), variables.trained
        with torch.enable_grad():
            value = penalty(parameters, encode(objective, parameters, trained))
            gradients = torch.autograd.grad(
                value, list(trained.values()), allow_unused=True, materialize_grads=True
            )
        for tensor, gradient in zip(trained.values(), gradients, strict=True):
            tensor.grad = gradient if tensor.grad is None else tensor.grad + gradient

    optimizer.attach_step_hook(add_penalty)


def _pieces(batch: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Yield the batch in pieces of bounded size; one piece without rows for an empty batch."""
    for rows in zip(*(torch.split(value, AT_ONCE) for value in batch.values()), strict=True):
        yield dict(zip(batch, rows, strict=True))


def _zero_unless(usable: Tensor, samples: PerSampleGradients) -> dict[str, Tensor]:
    # Not a product with the mask: zero times NaN is NaN.
    return {
        name: torch.where(usable.view(-1, *[1] * (rows.dim() - 1)), rows, 0.0)
        for name, rows in samples.gradients.items()
    }
