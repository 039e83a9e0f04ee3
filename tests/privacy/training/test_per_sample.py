"""Per-example gradients against a loop of whole passes, and against the tempting wrong reading."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from privacy.training.per_sample import per_sample_gradients
from tests.privacy.training._gated import (
    CONTEXT,
    TRAINED,
    WIDTH,
    Gated,
    looped_gradients,
    make_examples,
    make_gated,
    make_parameters,
    to_tensors,
)
from tests.privacy.training._linear import Toy


def relative_error(ours, oracle):
    return float((ours - oracle).abs().max() / oracle.abs().max())


# 19 leaves a remainder of a chunk; 5 is as many examples as classes.
@pytest.mark.parametrize(
    ("size", "classes", "trained"),
    [
        *((1, 5, TRAINED), (5, 5, TRAINED), (19, 3, TRAINED)),
        # The others are constants.
        *((6, 4, ("context",)), (6, 4, ("mix", "gate.in_proj_weight"))),
    ],
)
def test_gradients_equal_a_loop_over_examples(size, classes, trained):
    objective = make_gated()
    parameters = to_tensors(make_parameters(classes))
    batch = to_tensors(make_examples(size, classes))
    ours = per_sample_gradients(objective, parameters, batch, trained=trained)
    oracle = looped_gradients(objective, parameters, batch, trained)
    assert tuple(ours.gradients) == trained
    for name in trained:
        assert ours.gradients[name].shape == (size, *parameters[name].shape)
        assert relative_error(ours.gradients[name], oracle[name]) < 1e-6, name
    whole = objective.losses(parameters, objective.encode(parameters), batch)
    torch.testing.assert_close(ours.losses, whole)


@dataclass(frozen=True)
class LowRank(Gated):
    """The prompt is a shared part and a personal one of low rank, U V, all of them trained."""

    encoder_parameters: frozenset[str] = frozenset({"context", "u", "v"})

    def encode(self, parameters):
        prompt = parameters["context"] + parameters["u"] @ parameters["v"]
        return Gated.encode(self, {**parameters, "context": prompt})


def test_gradients_of_low_rank_factors_equal_a_loop_over_examples():
    size, classes = 9, 4
    plain, rng = make_gated(), np.random.default_rng(5)
    objective = LowRank(plain.tower, plain.gate)
    factors = {"u": rng.normal(size=(CONTEXT, 1)), "v": rng.normal(size=(1, WIDTH))}
    parameters = to_tensors({**make_parameters(classes), **factors})
    batch, trained = to_tensors(make_examples(size, classes)), (*TRAINED, "u", "v")
    ours = per_sample_gradients(objective, parameters, batch, trained=trained)
    oracle = looped_gradients(objective, parameters, batch, trained)
    for name in trained:
        assert relative_error(ours.gradients[name], oracle[name]) < 1e-6, name


def test_rows_of_classes_are_not_rows_of_examples():
    """With B = C the wrong reading has the right shape and even the right sum."""
    objective, classes = make_gated(), 5
    parameters = to_tensors(make_parameters(classes))
    batch = to_tensors(make_examples(classes, classes))
    context = parameters["context"].clone().requires_grad_()
    text = objective.encode({**parameters, "context": context})["text"]
    encoded = {"text": text, "experts": parameters["experts"]}
    total = objective.losses(parameters, encoded, batch).sum()
    (cotangent,) = torch.autograd.grad(total, text, retain_graph=True)
    per_class = torch.stack(
        [
            torch.autograd.grad(text[c], context, cotangent[c], retain_graph=True)[0]
            for c in range(classes)
        ]
    )
    ours = per_sample_gradients(objective, parameters, batch, trained=("context",))
    oracle = looped_gradients(objective, parameters, batch, ("context",))["context"]
    assert per_class.shape == oracle.shape
    torch.testing.assert_close(per_class.sum(dim=0), oracle.sum(dim=0))
    assert relative_error(per_class, oracle) > 0.1
    assert relative_error(ours.gradients["context"], oracle) < 1e-6


# No encoder at all: losses w.x - y.
LINEAR = Toy(lambda p, e, b: b["x"] @ p["w"] - b["labels"])
AVERAGED = Toy(lambda p, e, b: (b["x"] @ p["w"]).mean())
# An encoder parameter that the head reads too, and one that nothing reads.
DECAYED = Toy(
    lambda p, e, b: b["x"] @ e["t"] + p["w"].square().sum(),
    lambda parameters: {"t": parameters["w"] ** 3},
    frozenset({"w", "idle"}),
)
DETACHED = replace(DECAYED, encoder=lambda parameters: {"t": parameters["w"].detach()})


def test_without_an_encoder_the_loss_alone_is_differentiated():
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    batch = {"x": x, "labels": torch.zeros(3)}
    parameters = {"w": torch.ones(2), "unused": torch.ones(4)}
    ours = per_sample_gradients(LINEAR, parameters, batch, trained=("w", "unused"))
    assert torch.equal(ours.gradients["w"], x)
    assert torch.equal(ours.gradients["unused"], torch.zeros(3, 4))
    assert torch.equal(ours.losses, torch.tensor([3.0, 7.0, 11.0]))


def test_a_parameter_may_reach_the_loss_through_both_stages():
    x = torch.tensor([[1.0, 0.0], [2.0, -1.0]])
    parameters = {"w": torch.tensor([1.0, 2.0]), "idle": torch.ones(3)}
    batch = {"x": x, "labels": torch.zeros(2)}
    ours = per_sample_gradients(DECAYED, parameters, batch, trained=("w", "idle"))
    # d/dw (x w^3 + w^2) = 3 x w^2 + 2 w
    assert torch.equal(ours.gradients["w"], torch.tensor([[5.0, 4.0], [8.0, -8.0]]))
    assert torch.equal(ours.gradients["idle"], torch.zeros(2, 3))


X, LABELS = torch.ones(2, 2), torch.zeros(2)


@pytest.mark.parametrize(
    ("objective", "labels", "message"),
    [
        (DETACHED, LABELS, "depends on them"),
        (AVERAGED, LABELS, "one loss per example"),
        (LINEAR, torch.zeros(3), "one number of rows"),
    ],
)
def test_what_has_no_rows_of_gradients_is_refused(objective, labels, message):
    parameters = {"w": torch.ones(2), "idle": torch.ones(3)}
    with pytest.raises(ValueError, match=message):
        per_sample_gradients(objective, parameters, {"x": X, "labels": labels}, trained=("w",))


def test_reading_an_undeclared_trained_parameter_is_noticed():
    undeclared = replace(make_gated(), encoder_parameters=frozenset())
    parameters, batch = to_tensors(make_parameters(4)), to_tensors(make_examples(3, 4))
    with pytest.raises(KeyError, match="context"):
        per_sample_gradients(undeclared, parameters, batch, trained=("context",))


@pytest.mark.slow
def test_opacus_is_not_imported_until_it_is_needed():
    code = "import sys, privacy.training; sys.exit('opacus' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
