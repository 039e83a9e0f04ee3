"""Per-example gradients against a loop of whole passes, and against the tempting wrong reading."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

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


def relative_error(ours: Tensor, oracle: Tensor) -> float:
    return float((ours - oracle).abs().max() / oracle.abs().max())


# 1 and 8 fill one chunk, 9 and 19 leave a remainder; 5 is as many examples as classes.
@pytest.mark.parametrize(("size", "classes"), [(1, 5), (5, 5), (8, 5), (9, 4), (19, 3), (2, 6)])
def test_gradients_equal_a_loop_over_examples(size: int, classes: int) -> None:
    objective = make_gated()
    parameters = to_tensors(make_parameters(classes))
    batch = to_tensors(make_examples(size, classes))
    ours = per_sample_gradients(objective, parameters, batch, trained=TRAINED)
    oracle = looped_gradients(objective, parameters, batch)
    assert ours.gradients.keys() == oracle.keys()
    for name in TRAINED:
        assert ours.gradients[name].shape == (size, *parameters[name].shape)
        assert relative_error(ours.gradients[name], oracle[name]) < 1e-6, name
    whole = objective.losses(parameters, objective.encode(parameters), batch)
    torch.testing.assert_close(ours.losses, whole)


@dataclass(frozen=True)
class LowRank(Gated):
    """The prompt is a shared part and a personal one of low rank, U V, all of them trained."""

    encoder_parameters: frozenset[str] = frozenset({"context", "u", "v"})

    def encode(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        prompt = parameters["context"] + parameters["u"] @ parameters["v"]
        return Gated.encode(self, {**parameters, "context": prompt})


@pytest.mark.parametrize(("size", "classes"), [(5, 5), (9, 4)])
def test_gradients_of_low_rank_factors_equal_a_loop_over_examples(size: int, classes: int) -> None:
    plain, rng = make_gated(), np.random.default_rng(5)
    objective = LowRank(plain.tower, plain.gate)
    factors = {"u": rng.normal(size=(CONTEXT, 1)), "v": rng.normal(size=(1, WIDTH))}
    parameters = to_tensors({**make_parameters(classes), **factors})
    batch, trained = to_tensors(make_examples(size, classes)), (*TRAINED, "u", "v")
    ours = per_sample_gradients(objective, parameters, batch, trained=trained)
    oracle = looped_gradients(objective, parameters, batch, trained)
    for name in trained:
        assert relative_error(ours.gradients[name], oracle[name]) < 1e-6, name


def test_every_trained_parameter_has_a_gradient_worth_comparing() -> None:
    batch = to_tensors(make_examples(5, 5))
    oracle = looped_gradients(make_gated(), to_tensors(make_parameters(5)), batch)
    assert all(
        float(g.abs().amax(dim=tuple(range(1, g.dim()))).min()) > 1e-4 for g in oracle.values()
    )


def test_rows_of_classes_are_not_rows_of_examples() -> None:
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


@pytest.mark.parametrize("trained", [("context",), ("mix", "gate.in_proj_weight"), ("mix",)])
def test_untrained_parameters_are_constants(trained: tuple[str, ...]) -> None:
    objective = make_gated()
    parameters = to_tensors(make_parameters(4))
    batch = to_tensors(make_examples(6, 4))
    ours = per_sample_gradients(objective, parameters, batch, trained=trained)
    oracle = looped_gradients(objective, parameters, batch, trained)
    assert tuple(ours.gradients) == trained
    assert all(relative_error(ours.gradients[n], oracle[n]) < 1e-6 for n in trained)


@pytest.mark.parametrize("seed", range(3))
def test_a_row_depends_on_its_own_example_alone(seed: int) -> None:
    objective, parameters = make_gated(), to_tensors(make_parameters(4))
    batch = to_tensors(make_examples(6, 4))
    before = per_sample_gradients(objective, parameters, batch, trained=TRAINED)
    batch["features"][2] = to_tensors(make_examples(1, 4, seed=10 + seed))["features"][0]
    after = per_sample_gradients(objective, parameters, batch, trained=TRAINED)
    others = [0, 1, 3, 4, 5]
    for name in TRAINED:
        torch.testing.assert_close(after.gradients[name][others], before.gradients[name][others])
        assert not torch.allclose(after.gradients[name][2], before.gradients[name][2])


def test_norms_are_of_all_parameters_together() -> None:
    parameters, batch = to_tensors(make_parameters(4)), to_tensors(make_examples(3, 4))
    ours = per_sample_gradients(make_gated(), parameters, batch, trained=TRAINED)
    squares = sum(g.reshape(3, -1).square().sum(dim=1) for g in ours.gradients.values())
    assert isinstance(squares, Tensor)
    torch.testing.assert_close(ours.norms(), squares.sqrt())


def test_an_empty_batch_gives_no_rows() -> None:
    parameters, batch = to_tensors(make_parameters(4)), to_tensors(make_examples(3, 4))
    empty = {name: value[:0] for name, value in batch.items()}
    ours = per_sample_gradients(make_gated(), parameters, empty, trained=TRAINED)
    assert ours.losses.shape == (0,)
    assert ours.norms().shape == (0,)
    for name in TRAINED:
        assert ours.gradients[name].shape == (0, *parameters[name].shape)


def test_parameters_are_left_alone() -> None:
    parameters, batch = to_tensors(make_parameters(4)), to_tensors(make_examples(3, 4))
    before = {name: value.clone() for name, value in parameters.items()}
    parameters["context"].requires_grad_()
    ours = per_sample_gradients(make_gated(), parameters, batch, trained=TRAINED)
    assert parameters["context"].grad is None
    assert not any(g.requires_grad for g in (ours.losses, *ours.gradients.values()))
    assert all(torch.equal(parameters[name], before[name]) for name in before)


@dataclass(frozen=True)
class Linear:
    """No encoder at all: losses w.x - y."""

    encoder_parameters: frozenset[str] = frozenset()

    def encode(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {}

    def losses(
        self,
        parameters: Mapping[str, Tensor],
        encoded: Mapping[str, Tensor],
        batch: Mapping[str, Tensor],
    ) -> Tensor:
        return batch["x"] @ parameters["w"] - batch["labels"]


def test_without_an_encoder_the_loss_alone_is_differentiated() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    batch = {"x": x, "labels": torch.zeros(3)}
    parameters = {"w": torch.ones(2), "unused": torch.ones(4)}
    ours = per_sample_gradients(Linear(), parameters, batch, trained=("w", "unused"))
    assert torch.equal(ours.gradients["w"], x)
    assert torch.equal(ours.gradients["unused"], torch.zeros(3, 4))
    assert torch.equal(ours.losses, torch.tensor([3.0, 7.0, 11.0]))


@dataclass(frozen=True)
class Decayed(Linear):
    """An encoder parameter that the head reads too, and one that nothing reads."""

    encoder_parameters: frozenset[str] = frozenset({"w", "idle"})

    def encode(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {"t": parameters["w"] ** 3}

    def losses(
        self,
        parameters: Mapping[str, Tensor],
        encoded: Mapping[str, Tensor],
        batch: Mapping[str, Tensor],
    ) -> Tensor:
        return batch["x"] @ encoded["t"] + parameters["w"].square().sum()


def test_a_parameter_may_reach_the_loss_through_both_stages() -> None:
    x = torch.tensor([[1.0, 0.0], [2.0, -1.0]])
    parameters = {"w": torch.tensor([1.0, 2.0]), "idle": torch.ones(3)}
    batch = {"x": x, "labels": torch.zeros(2)}
    ours = per_sample_gradients(Decayed(), parameters, batch, trained=("w", "idle"))
    # d/dw (x w^3 + w^2) = 3 x w^2 + 2 w
    assert torch.equal(ours.gradients["w"], torch.tensor([[5.0, 4.0], [8.0, -8.0]]))
    assert torch.equal(ours.gradients["idle"], torch.zeros(2, 3))


@dataclass(frozen=True)
class Detached(Decayed):
    def encode(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {"t": parameters["w"].detach()}


@dataclass(frozen=True)
class Averaged(Linear):
    def losses(
        self,
        parameters: Mapping[str, Tensor],
        encoded: Mapping[str, Tensor],
        batch: Mapping[str, Tensor],
    ) -> Tensor:
        return super().losses(parameters, encoded, batch).mean()


def test_a_detached_encoding_is_refused() -> None:
    batch = {"x": torch.ones(2, 2), "labels": torch.zeros(2)}
    parameters = {"w": torch.ones(2), "idle": torch.ones(3)}
    with pytest.raises(ValueError, match="depends on them"):
        per_sample_gradients(Detached(), parameters, batch, trained=("w",))


def test_a_loss_that_was_averaged_is_refused() -> None:
    batch = {"x": torch.ones(2, 2), "labels": torch.zeros(2)}
    with pytest.raises(ValueError, match="one loss per example"):
        per_sample_gradients(Averaged(), {"w": torch.ones(2)}, batch, trained=("w",))


def test_a_ragged_batch_is_refused() -> None:
    batch = {"x": torch.ones(2, 2), "labels": torch.zeros(3)}
    with pytest.raises(ValueError, match="one number of rows"):
        per_sample_gradients(Linear(), {"w": torch.ones(2)}, batch, trained=("w",))


def test_reading_an_undeclared_trained_parameter_is_noticed() -> None:
    undeclared = replace(make_gated(), encoder_parameters=frozenset())
    parameters, batch = to_tensors(make_parameters(4)), to_tensors(make_examples(3, 4))
    with pytest.raises(KeyError, match="context"):
        per_sample_gradients(undeclared, parameters, batch, trained=("context",))


def test_modules_carry_no_trace_afterwards() -> None:
    objective: Gated = make_gated()
    parameters, batch = to_tensors(make_parameters(4)), to_tensors(make_examples(3, 4))
    per_sample_gradients(objective, parameters, batch, trained=TRAINED)
    modules: list[nn.Module] = [*objective.tower.modules(), *objective.gate.modules()]
    assert not any(m._forward_hooks or m._backward_hooks or m._buffers for m in modules)
    assert not any(hasattr(p, "grad_sample") for m in modules for p in m.parameters())


@pytest.mark.parametrize(
    ("module", "absent"), [("privacy", "torch"), ("privacy.training", "opacus")]
)
def test_heavy_imports_wait_until_they_are_needed(module: str, absent: str) -> None:
    code = f"import sys, {module}; sys.exit({absent!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
