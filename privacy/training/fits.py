"""A fit that is ready to run: its start, its batches, its steps, and the check of its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privacy.errors import NonFiniteUpdate
from privacy.training.per_sample import Objective
from privacy.training.plan import Clipping, PrivateSteps, TrainingPlan
from privacy.training.steps import Penalty, Variables, build_step

Arrays = Mapping[str, NDArray[Any]]
AfterStep = Callable[[Mapping[str, Tensor]], None]


class ParameterGroup(Protocol):
    """Parameters trained with one learning rate."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters."""
        ...

    @property
    def learning_rate(self) -> float | None:
        """Step size; None takes the plan's."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Fit:
    """The arguments of `LocalTrainer.fit`, checked, with the rows of each step's batch drawn."""

    objective: Objective
    parameters: Arrays
    examples: Arrays
    groups: Sequence[ParameterGroup]
    batches: Sequence[NDArray[np.int64]]
    plan: TrainingPlan
    device: str | torch.device
    bound: Clipping | PrivateSteps | None
    penalty: Penalty | None
    after_step: AfterStep | None

    @cached_property
    def kind(self) -> object:
        """Equal for fits that may be one, if their objectives are the same."""
        return (
            self.bound is None,
            self.plan,
            str(self.device),
            tuple((tuple(group.names), group.learning_rate) for group in self.groups),
            tuple((name, a.shape, a.dtype.str) for name, a in self.parameters.items()),
            tuple((name, a.shape[1:], a.dtype.str) for name, a in self.examples.items()),
        )

    def run(self) -> dict[str, NDArray[Any]]:
        """Train, and return all parameters."""
        tensors = {name: to_tensor(array, self.device) for name, array in self.parameters.items()}
        names = [name for group in self.groups for name in group.names]
        trained = {name: tensors.pop(name).requires_grad_() for name in names}
        variables = Variables(trained=trained, constants=tensors)
        step = build_step(
            _hold_encoding(self.objective, variables),
            variables,
            optimizer_of(self.plan, variables, self.groups),
            self.bound,
            penalty=self.penalty,
        )
        for rows in self.batches:
            step({name: to_tensor(a[rows], self.device) for name, a in self.examples.items()})
            if self.after_step is not None:
                with torch.no_grad():
                    self.after_step({name: tensor.detach() for name, tensor in trained.items()})
        return self.result(trained)

    def result(self, trained: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
        """Return all parameters, with trained ones as new arrays; `NonFiniteUpdate` if one is."""
        for name, tensor in trained.items():
            if not bool(torch.isfinite(tensor.detach()).all()):
                raise NonFiniteUpdate(
                    f"parameter {name!r} is not finite after local training; "
                    "valid are finite numbers (a lower learning_rate often helps)"
                )
        after = {name: tensor.detach().cpu().numpy() for name, tensor in trained.items()}
        return {name: np.array(after.get(name, array)) for name, array in self.parameters.items()}


@dataclass(frozen=True)
class _HeldEncoding:
    """An objective whose encoder has run: none of its parameters is trained, so T is constant."""

    objective: Objective
    encoded: Mapping[str, Tensor]
    encoder_parameters: frozenset[str] = frozenset()

    def encode(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return self.encoded

    def losses(
        self,
        parameters: Mapping[str, Tensor],
        encoded: Mapping[str, Tensor],
        batch: Mapping[str, Tensor],
    ) -> Tensor:
        return self.objective.losses(parameters, encoded, batch)


def _hold_encoding(objective: Objective, variables: Variables) -> Objective:
    if not objective.encoder_parameters.isdisjoint(variables.trained):
        return objective
    with torch.no_grad():
        return _HeldEncoding(objective, dict(objective.encode(variables.constants)))


def optimizer_of(
    plan: TrainingPlan, variables: Variables, groups: Sequence[ParameterGroup]
) -> torch.optim.Optimizer:
    """Return a fresh optimiser of the plan; a group without a rate has the plan's."""
    default, decay = plan.rate_factor * plan.learning_rate, plan.weight_decay
    parameters = [
        {
            "params": [variables.trained[name] for name in group.names],
            "lr": plan.rate_factor
            * (plan.learning_rate if group.learning_rate is None else group.learning_rate),
        }
        for group in groups
    ]
    if plan.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=default, momentum=plan.momentum, weight_decay=decay)
    kind = torch.optim.Adam if plan.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=default, betas=plan.betas, eps=plan.eps, weight_decay=decay)


def to_tensor(array: NDArray[Any], device: str | torch.device) -> Tensor:
    """Return a copy: the caller's array may be read-only, memory-mapped or shared by clients."""
    return torch.from_numpy(np.array(array, order="C")).to(device)
