"""How a method's parameters meet a client's data: a loss in two stages, and who trains by it.

Part of the interface of `methods/interface/method.py`, which has these names too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    Penalty = Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], Tensor]
    """A data-free term of a loss: parameters and what `Objective.encode` made of them, to ()."""

Arrays = Mapping[str, NDArray[Any]]


class Objective(Protocol):
    """A loss in two stages, so that per-example gradients stay cheap.

    The encoder sees no data: for prompts it maps context tokens to the text features of all
    classes, once a step. The head maps those features and a batch to one loss per example.
    """

    @property
    def encoder_parameters(self) -> frozenset[str]:
        """Names of the parameters that `encode` reads; the others reach the loss by `losses`."""
        ...

    def encode(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return data-free part, e.g. `{"text": (C, d)}`. Empty where there is none."""
        ...

    def losses(
        self,
        parameters: Mapping[str, Tensor],
        encoded: Mapping[str, Tensor],
        batch: Mapping[str, Tensor],
    ) -> Tensor:
        """Return loss of each example, shape (B,).

        Row i depends on example i alone, unless the method `couples_examples`.
        """
        ...


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters trained with one learning rate; None takes `training.learning_rate`.

    A schedule over rounds multiplies either.
    """

    names: tuple[str, ...]
    learning_rate: float | None = None


class Trainer(Protocol):
    """Local training. It is the only way by which a method's parameters meet a client's data."""

    @property
    def learning_rate(self) -> float:
        """The learning rate of this round, for corrections that depend on it (SCAFFOLD)."""
        ...

    @property
    def charged_steps(self) -> int | None:
        """Steps that all fits of one release may take together under `dp_sgd`; None without it.

        A method that fits twice shares them out; it cannot ask for its number of examples there.
        """
        ...

    def steps_for(self, num_examples: int) -> int:
        """Step of one fit over this many examples, where `fit` is not told otherwise."""
        ...

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
        after_step: Callable[[Mapping[str, Tensor]], None] | None = None,
    ) -> Mapping[str, NDArray[Any]]:
        """Train the parameters that a group names and return all of them.

        Args:
            objective: The loss.
            parameters: Starting values; those in no group are constants.
            examples: The client's data, row i of each array being example i.
            groups: Disjoint groups of trained parameters.
            rng: Draws the batches (simulation).
            steps: Number of steps in place of the configured amount.
            penalty: A term of the loss that sees no data, such as a proximal one. Its gradient is
                added after clipping and noise, so no example's bound is spent on it.
            after_step: Data-free correction of the trained tensors, run after clipping and noise.

        Returns:
            The parameters after training, new arrays.
        """
        ...
