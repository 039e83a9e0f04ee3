"""Plans of training: how many steps, by which optimiser and rates, and what makes no sense."""

from __future__ import annotations

import numpy as np
import pytest

from methods.interface.method import ParameterGroup
from privacy.randomness import SeededNoise
from privacy.training import Clipping, LocalTrainer, TrainingPlan
from tests.privacy.training._linear import (
    LINEAR,
    Toy,
    make_examples,
    make_parameters,
    mechanism,
    trainer,
)

# Loss w^2 / 2 whatever the example: the gradient is w.
PARABOLA = Toy(lambda p, e, b: (p["w"] ** 2).sum() / 2.0 + 0.0 * b["labels"])


def make_plan(**changes):
    return TrainingPlan(**{"batch_size": 4, "learning_rate": 0.1, **changes})


def trained(start, *, rate=None, **plan):
    fields = {"batch_size": 1, "local_steps": 1, "learning_rate": 0.6}
    (result,) = LocalTrainer(TrainingPlan(**fields | plan)).fit(
        PARABOLA,
        {"w": np.array([start])},
        {"labels": np.zeros(1)},
        groups=[ParameterGroup(("w",), rate)],
        rng=np.random.default_rng(0),
    )["w"]
    return float(result)


ADAM = {"optimizer": "adam", "betas": (0.5, 0.5), "eps": 1.0}


def test_two_steps_of_adam_by_hand():
    # Step 1: both means are corrected to g = 3 and g^2 = 9; 0.6 x 3 / (3 + 1) = 0.45.
    assert trained(3.0, **ADAM) == pytest.approx(2.55, abs=1e-6)
    # Step 2: g = 2.55; (0.5 x 1.5 + 0.5 x 2.55) / 0.75 = 2.7 and (0.5 x 4.5 + 0.5 x 6.5025) / 0.75
    # = 7.335, whose root is 2.708321; 0.6 x 2.7 / 3.708321 = 0.436855.
    assert trained(3.0, local_steps=2, **ADAM) == pytest.approx(2.113145, abs=1e-6)


def test_adamw_decays_apart_by_hand():
    # First 3 x (1 - 0.6 x 0.1) = 2.82, then the step of 0.45 as above.
    assert trained(3.0, **{**ADAM, "optimizer": "adamw", "weight_decay": 0.1}) == pytest.approx(
        2.37, abs=1e-6
    )


@pytest.mark.parametrize("rate", [None, 0.2])
def test_the_factor_is_of_all_rates(rate):
    # 4 - 0.25 x rate x 4
    wanted = 4.0 - (0.6 if rate is None else rate)
    assert trained(4.0, rate=rate, rate_factor=0.25) == pytest.approx(wanted, abs=1e-6)
    plan = TrainingPlan(local_steps=1, batch_size=1, learning_rate=0.5, rate_factor=0.25)
    assert LocalTrainer(plan).learning_rate == 0.125


def test_the_factor_is_of_noised_steps_too():
    """One step from zero along gradient and noise: half the rate, half the way."""

    def moved(factor):
        fit = trainer(
            mechanism(noise_multiplier=1.0),
            SeededNoise(np.random.default_rng(1)),
            rate_factor=factor,
        )
        examples = make_examples(np.array([[0.6, 0.8]]))
        groups = [ParameterGroup(("shared", "personal"))]
        rng = np.random.default_rng(0)
        return fit.fit(LINEAR, make_parameters(2), examples, groups=groups, rng=rng)["shared"]

    np.testing.assert_allclose(moved(0.5), 0.5 * moved(1.0), rtol=1e-12)


@pytest.mark.parametrize(
    ("amount", "count", "steps"),
    [({"local_steps": 5}, 1, 5), ({"local_epochs": 1}, 5, 2), ({"local_epochs": 3}, 9, 9)],
)
def test_steps_of_a_plan(amount, count, steps):
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
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1"),
        ({"betas": (1.0, 0.9)}, r"betas are \(1\.0, 0\.9\)"),
        ({"betas": (0.9, -0.1)}, r"betas are \(0\.9, -0\.1\)"),
        ({"eps": 0.0}, "eps is 0.0"),
        ({"rate_factor": 0.0}, "rate_factor is 0.0"),
        ({"optimizer": "rmsprop"}, "optimizer is 'rmsprop'; valid: sgd, adam, adamw"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum is 0.9 with optimizer 'adam'"),
    ],
)
def test_plans_that_make_no_sense(changes, message):
    with pytest.raises(ValueError, match=message):
        make_plan(**{"local_steps": 3, **changes})


@pytest.mark.parametrize("norm", [0.0, float("nan")])
def test_norms_that_make_no_sense(norm):
    with pytest.raises(ValueError, match="per_sample_clipping_norm"):
        LocalTrainer(make_plan(local_steps=1), norm)
    with pytest.raises(ValueError, match="per_sample_clipping_norm"):
        Clipping(norm)
