"""Local training: the only way by which a method's parameters meet a client's data.

numpy in, numpy out; nothing is aliased, no state outlives a fit but its report. It satisfies the
`Trainer` protocol of the methods' interface by shape, without importing it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privacy.errors import NonFiniteUpdate
from privacy.training.per_sample import Objective
from privacy.training.plan import (
    Clipping,
    FitReport,
    TrainingPlan,
    require_count,
    require_not_negative,
)
from privacy.training.steps import StepOutcome, Variables, build_step

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


@dataclass(frozen=True)
class LocalTrainer:
    """SGD over a client's own data, each example's gradient clipped if a norm is given.

    Attributes:
        plan: Amount of training and optimiser.
        per_sample_clipping_norm: Largest L2 norm of one example's gradient over all trained
            parameters together; None trains without clipping.
        device: Where torch computes.
        reports: One entry per fit, in order, for whoever owns the trainer; unnoised, so for the
            client's own eyes. Not part of the interface that methods see.
    """

    plan: TrainingPlan
    per_sample_clipping_norm: float | None = None
    device: str | torch.device = "cpu"
    reports: list[FitReport] = field(default_factory=list, init=False, compare=False)

    def __post_init__(self) -> None:
        _ = self.clipping

    @property
    def clipping(self) -> Clipping | None:
        """The bound on one example, None if there is none."""
        norm = self.per_sample_clipping_norm
        return None if norm is None else Clipping(norm)

    @property
    def learning_rate(self) -> float:
        """The plan's step size, for corrections that depend on it."""
        return self.plan.learning_rate

    def steps_for(self, num_examples: int) -> int:
        """Steps of one fit over this many examples, where `fit` is not told otherwise."""
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
        after_step: AfterStep | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Trains the parameters that a group names and returns all of them.

        Each epoch visits a fresh permutation in batches, the last of which may be short; when
        steps are counted, epochs follow one another until they are used up.

        Args:
            objective: The loss.
            parameters: Starting values; those in no group are constants.
            examples: The client's data, row i of each array being example i, with `labels`.
            groups: Disjoint groups of trained parameters.
            rng: Draws the batches (simulation).
            steps: Number of steps in place of the plan's amount.
            after_step: Data-free correction of the trained tensors, run after each step; it is
                given views that it may change in place.

        Returns:
            The parameters after training, new arrays of unchanged shape and dtype.

        Raises:
            ValueError: If names are unknown or repeated, the data is empty, ragged or without
                labels, or a number is out of range.
            NonFiniteUpdate: If a loss, a gradient or a result is NaN or infinite.
        """
        _verify_groups(groups, parameters, objective)
        count = _count_examples(examples)
        amount = self.plan.steps_for(count) if steps is None else steps
        require_count("steps", amount)
        variables = _variables(parameters, groups, self.device)
        step = build_step(
            _hold_encoding(objective, variables),
            variables,
            _optimizer(self.plan, variables, groups),
            self.clipping,
        )
        outcomes = []
        for rows in islice(shuffled_batches(count, self.plan.batch_size, rng), amount):
            outcomes.append(step(_to_tensors(examples, rows, self.device)))
            _correct(variables, after_step)
        result = _to_arrays(parameters, variables)
        self.reports.append(_report(outcomes, self.clipping))
        return result


def shuffled_batches(
    count: int, batch_size: int, rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Row numbers of batches without end: one permutation per epoch, cut into pieces.

    Args:
        count: Number of examples.
        batch_size: Rows per batch; the last batch of an epoch holds what is left.
        rng: Draws a permutation when an epoch begins.

    Yields:
        Row numbers, shape (at most `batch_size`,), int64.
    """
    while True:
        order = rng.permutation(count)
        for start in range(0, count, batch_size):
            yield order[start : start + batch_size]


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
            require_not_negative("learning_rate of a group", group.learning_rate)


def _count_examples(examples: Arrays) -> int:
    if "labels" not in examples:
        raise ValueError(f"examples hold {sorted(examples)}; 'labels' is missing")
    sizes = {name: len(array) for name, array in examples.items()}
    if len(set(sizes.values())) != 1:
        raise ValueError(f"examples have rows {sizes}; valid is one number of rows for all arrays")
    if sizes["labels"] == 0:
        raise ValueError("examples hold no rows; valid is at least one example to train on")
    return sizes["labels"]


def _variables(
    parameters: Arrays, groups: Sequence[ParameterGroup], device: str | torch.device
) -> Variables:
    tensors = {name: _to_tensor(array, device) for name, array in parameters.items()}
    trained = {name: tensors.pop(name).requires_grad_() for g in groups for name in g.names}
    return Variables(trained=trained, constants=tensors)


def _optimizer(
    plan: TrainingPlan, variables: Variables, groups: Sequence[ParameterGroup]
) -> torch.optim.SGD:
    default = plan.learning_rate
    return torch.optim.SGD(
        [
            {
                "params": [variables.trained[name] for name in group.names],
                "lr": default if group.learning_rate is None else group.learning_rate,
            }
            for group in groups
        ],
        lr=default,
        momentum=plan.momentum,
        weight_decay=plan.weight_decay,
    )


def _to_tensor(array: NDArray[Any], device: str | torch.device) -> Tensor:
    # Always a copy: the caller's array may be read-only, memory-mapped or shared by clients.
    return torch.from_numpy(np.array(array, order="C")).to(device)


def _to_tensors(
    examples: Arrays, rows: NDArray[np.int64], device: str | torch.device
) -> dict[str, Tensor]:
    return {name: _to_tensor(array[rows], device) for name, array in examples.items()}


def _correct(variables: Variables, after_step: AfterStep | None) -> None:
    if after_step is not None:
        with torch.no_grad():
            after_step({name: tensor.detach() for name, tensor in variables.trained.items()})


def _to_arrays(parameters: Arrays, variables: Variables) -> dict[str, NDArray[Any]]:
    for name, tensor in variables.trained.items():
        if not bool(torch.isfinite(tensor.detach()).all()):
            raise NonFiniteUpdate(
                f"parameter {name!r} is not finite after local training; "
                "valid are finite numbers (a lower learning_rate often helps)"
            )
    tensors = variables.all()
    return {name: np.array(tensors[name].detach().cpu().numpy()) for name in parameters}


def _report(outcomes: Sequence[StepOutcome], clipping: Clipping | None) -> FitReport:
    seen = sum(outcome.examples for outcome in outcomes)
    clipped = sum(outcome.clipped for outcome in outcomes)
    return FitReport(
        steps=len(outcomes),
        examples_seen=seen,
        mean_loss=sum(outcome.loss_sum for outcome in outcomes) / seen,
        clipped_fraction=None if clipping is None else clipped / seen,
    )
