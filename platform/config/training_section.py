"""Local training: its optimiser, its amount, and its rate from round to round."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from platform.config.bounds import (
    Batch,
    Decay,
    Epochs,
    Fraction,
    Positive,
    Rate,
    Rounds,
    RoundsOrNone,
    Steps,
)
from platform.config.sections import Section

Share = Annotated[float, Field(gt=0.0, le=1.0)]
Beta = Annotated[float, Field(ge=0.0, lt=1.0)]
ADAM_BETAS = (0.9, 0.999)
ADAM_EPS = 1e-8
"""Kingma and Ba 2015, Algorithm 1, which are torch's own."""


class ScheduleConfig(Section):
    """By which factor of its rate a round trains: a function of the round's number alone."""

    kind: Literal["constant", "exponential", "cosine"] = "constant"
    """After warm-up: `constant`, the rates as they are; `exponential`, `gamma` times those of the
    round before; `cosine`, falling from the rates to `final` of them along half a cosine, the last
    of whose `rounds` comes one step before its end (Loshchilov and Hutter 2017, Eq. 5).
    """
    gamma: Share | None = None
    """Factor from one round to the next; required under `exponential` only."""
    final: Fraction | None = None
    """Share of the rates that the cosine falls to; only under `cosine`. Null: 0."""
    rounds: Rounds | None = None
    """Rounds that warm-up and cosine take together, at least as many as the run has; only under
    `cosine`. Null: the run's own.
    """
    warm_up_rounds: RoundsOrNone = 0
    """Rounds before those of `kind`, which counts from the first one after them."""
    warm_up_factor: Share | None = None
    """Factor in all of these rounds; only with some. Null: it grows evenly, to 1 in the first round
    after them (Goyal et al. 2017, section 2.2).
    """

    def factor(self, round_number: int, rounds: int) -> float:
        """Return what all learning rates of a round are multiplied by, in (0, 1].

        Args:
            round_number: From 1 to `rounds`.
            rounds: Of the run.
        """
        if round_number <= self.warm_up_rounds:
            growing = round_number / (self.warm_up_rounds + 1)
            return growing if self.warm_up_factor is None else self.warm_up_factor
        past = round_number - self.warm_up_rounds - 1
        if self.kind == "exponential":
            return float((1.0 if self.gamma is None else self.gamma) ** past)
        if self.kind == "cosine":
            length, final = (self.rounds or rounds) - self.warm_up_rounds, self.final or 0.0
            return final + (1.0 - final) * (1.0 + math.cos(math.pi * past / length)) / 2.0
        return 1.0

    def least(self, rounds: int) -> float:
        """Return the smallest factor of a run with this many rounds."""
        return min(self.factor(number, rounds) for number in range(1, rounds + 1))


class TrainingConfig(Section):
    """Local training, with an optimiser that starts anew in every round."""

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """Of local training; starts anew in every round."""
    local_epochs: Epochs | None = None
    """Amount of local training in a round: exactly one of this and `local_steps`."""
    local_steps: Steps | None = None
    """Amount of local training in a round: exactly one of this and `local_epochs`."""
    batch_size: Batch = 16
    """Examples a step."""
    learning_rate: Rate = 0.002
    """Of the prompts; a method may name other rates in its own section."""
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Of `sgd` only."""
    weight_decay: Decay = 0.0
    """Of the optimiser."""
    betas: tuple[Beta, Beta] | None = None
    """How much of the mean gradient, and of the mean square, a step of `adam` or `adamw` keeps;
    null: 0.9 and 0.999 there, and nothing under `sgd`.
    """
    eps: Positive | None = None
    """What `adam` and `adamw` add to the root that they divide by; null: 1e-8 there, and nothing
    under `sgd`.
    """
    schedule: ScheduleConfig | None = None
    """Of all learning rates over rounds, a method's own included; what is trained after the last
    round (personalising, an entry of a pool that is made once) has the rates as they are. Null:
    constant.
    """

    @model_validator(mode="after")
    def _one_amount(self) -> Self:
        if (self.local_epochs is None) == (self.local_steps is None):
            raise ValueError("give exactly one of local_epochs and local_steps")
        return self

    @property
    def effective_betas(self) -> tuple[float, float]:
        """Adam's, also where they are not given."""
        return ADAM_BETAS if self.betas is None else self.betas

    @property
    def effective_eps(self) -> float:
        """Adam's, also where it is not given."""
        return ADAM_EPS if self.eps is None else self.eps

    def factor(self, round_number: int | None, rounds: int) -> float:
        """Return what all learning rates are multiplied by: in a round, or None after the last."""
        if self.schedule is None or round_number is None:
            return 1.0
        return self.schedule.factor(round_number, rounds)
