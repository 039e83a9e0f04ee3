"""Data-free terms of the loss, added after clipping and noise, and the choice of optimiser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from methods.interface.method import ParameterGroup
from privacy.errors import NonFiniteUpdate
from privacy.randomness import SeededNoise
from privacy.training import LocalTrainer, TrainingPlan
from tests.privacy.training._gated import (
    TRAINED,
    make_examples,
    make_gated,
    make_parameters,
    to_tensors,
)
from tests.privacy.training._linear import fit as fit_linear
from tests.privacy.training._linear import make_examples as linear_examples
from tests.privacy.training._linear import mechanism
from tests.privacy.training._linear import trainer as linear_trainer

Arrays = Mapping[str, NDArray[Any]]
CLASSES, RATE = 4, 0.1
TINY = 1e-4


def one_step(norm=None, **options):
    """All examples in one step of plain descent, so that a step is RATE times a gradient."""
    plan = TrainingPlan(local_steps=1, batch_size=8, learning_rate=RATE, **options.pop("plan", {}))
    return LocalTrainer(plan, norm).fit(
        make_gated(),
        make_parameters(CLASSES),
        make_examples(8, CLASSES),
        groups=[ParameterGroup(TRAINED)],
        rng=np.random.default_rng(5),
        **options,
    )


def pull(parameters, encoded):
    """3/2 ||context - 1||^2, whose gradient is 3 (context - 1)."""
    return 1.5 * ((parameters["context"] - 1.0) ** 2).sum()


def read_text(parameters, encoded):
    return (encoded["text"] ** 3).sum()


@pytest.mark.parametrize("norm", [None, TINY])
def test_a_penalty_adds_its_own_gradient(norm):
    """Also where every example is clipped to next to nothing: the penalty is not."""
    start, without, with_it = make_parameters(CLASSES), one_step(norm), one_step(norm, penalty=pull)
    moved = with_it["context"] - without["context"]
    np.testing.assert_allclose(moved, -RATE * 3.0 * (start["context"] - 1.0), rtol=1e-9)
    for name in set(TRAINED) - {"context"}:
        np.testing.assert_array_equal(with_it[name], without[name])
    if norm is not None:
        assert np.abs(without["context"] - start["context"]).max() <= RATE * TINY


@pytest.mark.parametrize("norm", [None, TINY])
def test_a_penalty_reaches_the_prompt_through_the_encoder(norm):
    leaves = to_tensors(make_parameters(CLASSES))
    leaves["context"].requires_grad_()
    encoded = make_gated().encode(leaves)
    read_text(leaves, encoded).backward()
    moved = one_step(norm, penalty=read_text)["context"] - one_step(norm)["context"]
    np.testing.assert_allclose(moved, -RATE * leaves["context"].grad.numpy(), rtol=1e-7, atol=1e-12)
    assert np.abs(moved).max() > 1e-4


def test_a_penalty_is_added_behind_the_noise():
    """With the same noise the two results differ by the penalty's gradient alone, undivided."""
    examples = linear_examples(np.ones((3, 5)), np.ones((3, 5)))
    private = mechanism(noise_multiplier=2.0, expected_batch_size=16.0)

    def fit(penalty):
        noise = SeededNoise(np.random.default_rng(1))
        return fit_linear(linear_trainer(private, noise), examples, penalty=penalty)

    def slope(parameters, encoded):
        return 7.0 * parameters["shared"].sum()

    without, with_it = fit(None), fit(slope)
    rate = linear_trainer(private, SeededNoise(np.random.default_rng(1))).learning_rate
    np.testing.assert_allclose(with_it["shared"] - without["shared"], -7.0 * rate, rtol=1e-5)
    np.testing.assert_array_equal(with_it["personal"], without["personal"])


def test_a_penalty_that_is_not_finite_stops_training():
    with pytest.raises(NonFiniteUpdate, match="not finite"):
        one_step(penalty=lambda parameters, encoded: parameters["context"].sum() * torch.inf)
