"""A fit's settings: amount of training, batches, the bound on one example, and its report.

A step sees a batch of a shuffled epoch, or a Poisson sample of secret coins.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from privacy._validate import require_not_negative, require_positive
from privacy.mechanisms import DpSgd
from privacy.randomness import Entropy, NoiseSource, require_noise_source

OptimizerName = Literal["sgd", "adam", "adamw"]


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """The amount of local training and its optimiser, which starts afresh in each fit.

    Attributes:
        local_steps: Optimiser steps of one fit; None if `local_epochs` is given.
        local_epochs: Passes over the data of one fit; None if `local_steps` is given.
        batch_size: Examples per step; all of them where there are fewer.
        learning_rate: Step size of groups that name none.
        momentum: In [0, 1); SGD's alone.
        weight_decay: L2 penalty's factor (AdamW: the decoupled decay's). It depends on no data and
            is added after clipping.
        optimizer: `sgd`, or `adam` or `adamw`. Under `dp_sgd` they see noised gradients only, so
            what is guaranteed is the same.
        betas: Adam's and AdamW's decay of the mean gradient and of the mean square, each in [0, 1).
        eps: Adam's and AdamW's term beside the root of the mean square.
        rate_factor: What all learning rates are multiplied by, those of groups included; above 0.
    """

    local_steps: int | None = None
    local_epochs: int | None = None
    batch_size: int
    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    optimizer: OptimizerName = "sgd"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    rate_factor: float = 1.0

    def __post_init__(self) -> None:
        if (self.local_steps is None) == (self.local_epochs is None):
            raise ValueError(
                f"local_steps is {self.local_steps} and local_epochs is {self.local_epochs}; "
                "valid is exactly one of them"
            )
        for name in ("local_steps", "local_epochs", "batch_size"):
            value = getattr(self, name)
            if value is not None:
                require_positive(**{name: value})
        require_positive(
            learning_rate=self.learning_rate, rate_factor=self.rate_factor, eps=self.eps
        )
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"momentum is {self.momentum}; valid is at least 0 and below 1")
        require_not_negative(weight_decay=self.weight_decay)
        valid = get_args(OptimizerName)
        if self.optimizer not in valid:
            raise ValueError(f"optimizer is {self.optimizer!r}; valid: {', '.join(valid)}")
        if self.optimizer != "sgd" and self.momentum:
            raise ValueError(
                f"momentum is {self.momentum} with optimizer {self.optimizer!r}; valid is 0"
            )
        for beta in self.betas:
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"betas are {self.betas}; valid is at least 0 and below 1")

    def steps_for(self, num_examples: int) -> int:
        """Return number of optimiser steps of one fit over this many examples (at least 1)."""
        if self.local_steps is not None:
            return self.local_steps
        # The constructor leaves exactly one of the two set.
        return (self.local_epochs or 0) * math.ceil(num_examples / self.batch_size)


@dataclass(frozen=True)
class Clipping:
    """Each example's gradient is scaled to a bounded norm; no noise, so no guarantee by itself.

    Attributes:
        norm: Largest L2 norm of one example's gradient over all trained parameters together.
    """

    norm: float

    def __post_init__(self) -> None:
        require_positive(per_sample_clipping_norm=self.norm)


@dataclass(frozen=True)
class PrivateSteps:
    """Noise in every step.

    Attributes:
        mechanism: How much of it, and which batches.
        noise: Where it comes from.
    """

    mechanism: DpSgd
    noise: NoiseSource

    def __post_init__(self) -> None:
        require_noise_source(self.noise)


_WORD = 2**64


def shuffled_batches(
    count: int, batch_size: int, rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Yield row numbers of batches without end: one permutation per epoch, cut into pieces.

    Each is int64 of shape (at most `batch_size`,); the last batch of an epoch holds what is left.
    """
    while True:
        order = rng.permutation(count)
        for start in range(0, count, batch_size):
            yield order[start : start + batch_size]


def poisson_batches(
    count: int, sampling_probability: float, entropy: Entropy
) -> Iterator[NDArray[np.int64]]:
    """Yield row numbers of batches without end, each row in each batch on a coin of its own.

    A coin is a 64-bit word below floor(probability x 2^64): the probability is never above what was
    asked for, which is what accounting needs, and below it by less than 2^-64. Row numbers ascend,
    int64; there may be none.
    """
    threshold = int(sampling_probability * _WORD)
    while True:
        words = np.frombuffer(entropy(8 * count), dtype="<u8")
        # A threshold of 2^64 itself does not fit into a word.
        taken = np.full(count, True) if threshold >= _WORD else words < np.uint64(threshold)
        yield np.flatnonzero(taken).astype(np.int64)
