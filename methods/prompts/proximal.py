"""Training a prompt near a point: the proximal term that several methods add to the loss.

The term sees no data. It is therefore the trainer's `penalty` and never a part of an example's
loss, so that it costs nothing of an example's clipping bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from methods.interface.method import Examples, ParameterGroup, Trainer
from methods.prompts.prompt import CONTEXT, PromptMethod, PromptObjective

Distance = Callable[[Tensor], Tensor]


def half_square(difference: Tensor) -> Tensor:
    """Return half the squared Euclidean norm, shape (): its gradient is the difference itself."""
    return 0.5 * difference.square().sum()


def half_norm(difference: Tensor) -> Tensor:
    """Return half the Euclidean norm, shape (): its gradient has length 1/2.

    And is 0 at the origin.
    """
    norm: Tensor = torch.linalg.vector_norm(difference)
    return 0.5 * norm


def train_prompt_near(
    method: PromptMethod,
    data: Examples,
    trainer: Trainer,
    rng: np.random.Generator,
    *,
    start: NDArray[Any],
    anchor: Tensor,
    weight: float,
    distance: Distance = half_square,
) -> NDArray[Any]:
    """Train a context by cross-entropy plus `weight * distance(context - anchor)`.

    Args:
        method: Whose prompt it is.
        data: The client's examples.
        trainer: Trains.
        rng: Draws the batches.
        start: Context (l, token width) to start from.
        anchor: Context (l, token width) to stay near.
        weight: Factor of the term; with 0 there is none, hence PromptFL's training bit for bit.
        distance: Half a distance of the difference, a scalar.

    Returns:
        The trained context.
    """

    def pull(parameters: Mapping[str, Tensor], encoded: Mapping[str, Tensor]) -> Tensor:
        return weight * distance(parameters[CONTEXT] - anchor)

    trained = trainer.fit(
        PromptObjective(method.encoder, method.classes),
        {CONTEXT: start},
        data.arrays,
        groups=(ParameterGroup((CONTEXT,)),),
        rng=rng,
        penalty=pull if weight else None,
    )
    return trained[CONTEXT]
