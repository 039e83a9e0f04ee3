"""What a training plan and a clipping norm refuse, and how many steps a plan means."""

from __future__ import annotations

from typing import Any

import pytest

from privacy.training import Clipping, LocalTrainer, TrainingPlan


def make_plan(**changes: Any) -> TrainingPlan:
    return TrainingPlan(**{"batch_size": 4, "learning_rate": 0.1, **changes})


@pytest.mark.parametrize(
    ("amount", "count", "steps"),
    [
        ({"local_steps": 5}, 1, 5),
        ({"local_epochs": 1}, 4, 1),
        ({"local_epochs": 1}, 5, 2),
        ({"local_epochs": 3}, 9, 9),
        ({"local_epochs": 2}, 1, 2),
    ],
)
def test_steps_of_a_plan(amount: dict[str, int], count: int, steps: int) -> None:
    assert make_plan(**amount).steps_for(count) == steps


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"local_steps": None}, "exactly one"),
        ({"local_epochs": 1}, "exactly one"),
        ({"local_steps": 0}, "local_steps is 0"),
        ({"local_steps": None, "local_epochs": 0}, "local_epochs is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"learning_rate": float("inf")}, "learning_rate is inf"),
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1"),
        ({"weight_decay": float("nan")}, "weight_decay is nan"),
    ],
)
def test_plans_that_make_no_sense(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_plan(**{"local_steps": 3, **changes})


@pytest.mark.parametrize("norm", [0.0, -1.0, float("nan"), float("inf")])
def test_norms_that_make_no_sense(norm: float) -> None:
    with pytest.raises(ValueError, match="per_sample_clipping_norm"):
        LocalTrainer(make_plan(local_steps=1), norm)
    with pytest.raises(ValueError, match="per_sample_clipping_norm"):
        Clipping(norm)
