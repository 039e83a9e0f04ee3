"""Zero-shot CLIP, and FedCLIP: its adapter and losses by hand, torch's layers and open_clip."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from open_clip.loss import ClipLoss
from torch.nn import functional

from methods import ClientView, MethodError, fedclip, zero_shot
from methods.fedclip import LAYERS, Config, adapt, adapted_objective, symmetric_losses
from methods.networks.method import BatchObjective
from tests.methods._training import rng


def test_logits_are_those_of_open_clip(task, small_backbone, examples):
    """Against open_clip's `encode_text` on whole, uncut token sequences."""
    method = zero_shot.build(zero_shot.Config("a drawing of a {}."), task)
    model, tokenize = small_backbone._model, small_backbone._tokenizer
    with torch.no_grad():
        tokens = tokenize([f"a drawing of a {name}." for name in task.classes])
        text = model.encode_text(tokens, normalize=True).numpy()
    scale = float(model.logit_scale.exp())
    expected = scale * examples.arrays["features"] @ text.T
    got = method.predict(ClientView({}), examples.arrays, task.classes)
    np.testing.assert_allclose(got, expected, atol=1e-4)


@pytest.mark.parametrize("template", ["a photo", "{} and {}", "{0}", "{name}", ""])
def test_a_template_without_exactly_one_place_for_the_class_is_refused(task, template):
    with pytest.raises(MethodError, match=r"method\.template: .*exactly once"):
        zero_shot.build(zero_shot.Config(template), task)


LOG3 = math.log(3.0)


def zeros(size: int) -> dict[str, torch.Tensor]:
    layers = {f"{layer}.weight": torch.zeros(size, size) for layer in LAYERS}
    return layers | {f"{layer}.bias": torch.zeros(size) for layer in LAYERS}


def draw_adapter() -> dict[str, torch.Tensor]:
    draws = rng(4)
    return {name: torch.tensor(draws.normal(size=v.shape)) for name, v in zeros(16).items()}


def test_the_adapter_by_hand():
    """Scores (ln3, 0) weigh the coordinates 3/4 and 1/4: (0.6, 0.8) becomes (0.45, 0.2)."""
    adapter = zeros(2) | {"outer.bias": torch.tensor([LOG3, 0.0])}
    length = math.hypot(0.45, 0.2)
    expected = [[0.45 / length, 0.2 / length]]
    np.testing.assert_allclose(adapt(adapter, torch.tensor([[0.6, 0.8]])), expected, rtol=1e-6)


def test_the_hidden_layer_by_hand():
    """tanh(artanh(0.5)) = 0.5, times 2 ln3 is the score ln3 again."""
    adapter = zeros(2) | {
        "inner.weight": torch.tensor([[math.atanh(0.5) / 0.6, 0.0], [0.0, 0.0]]),
        "outer.weight": torch.tensor([[2 * LOG3, 0.0], [0.0, 0.0]]),
    }
    length = math.hypot(0.45, 0.2)
    expected = [[0.45 / length, 0.2 / length]]
    np.testing.assert_allclose(adapt(adapter, torch.tensor([[0.6, 0.8]])), expected, rtol=1e-6)


def test_an_adapter_of_zeros_is_zero_shot_clip(task, examples):
    """All coordinates weigh the same, and the cosine does not see how much."""
    method = fedclip.build(Config(template="a photo of a {}."), task)
    plain = zero_shot.build(zero_shot.Config(template="a photo of a {}."), task)
    adapter = {name: value.numpy() for name, value in zeros(128).items()}
    for classes in (task.classes, ("house", "old grey flower")):
        got = method.predict(ClientView(adapter), examples.arrays, classes)
        expected = plain.predict(ClientView({}), examples.arrays, classes)
        np.testing.assert_allclose(got, expected, atol=1e-4)


def test_the_symmetric_loss_by_hand():
    """Images by captions ((ln3, 0), (ln3, 0)).

    Rows: -ln(3/4), -ln(1/4); columns: -ln(1/2) twice. Halves: 0.490415 and 1.039721.
    """
    losses = symmetric_losses(torch.tensor([[LOG3, 0.0], [LOG3, 0.0]]))
    np.testing.assert_allclose(losses, [0.490415, 1.039721], atol=1e-6)


TEXT = functional.normalize(torch.tensor(np.random.default_rng(2).normal(size=(4, 16))), dim=1)


def make_objective(loss: str) -> BatchObjective:
    return adapted_objective(TEXT, 7.0, loss)


def draw_batch() -> dict[str, torch.Tensor]:
    image = functional.normalize(torch.tensor(rng(3).normal(size=(6, 16))), dim=1)
    return {"features": image, "labels": torch.tensor(rng(4).integers(0, 4, 6))}


def test_the_symmetric_loss_is_clips():
    """Oracle: `open_clip.loss.ClipLoss` on adapted images and the captions of their labels."""
    objective, batch, adapter = make_objective("symmetric"), draw_batch(), draw_adapter()
    captions = TEXT[batch["labels"]]
    expected = ClipLoss()(adapt(adapter, batch["features"]), captions, 7.0)
    losses = objective.losses(adapter, {}, batch)
    assert losses.shape == (6,)
    np.testing.assert_allclose(losses.mean(), expected, rtol=1e-12)


def test_the_other_loss_is_the_cross_entropy_over_all_classes():
    objective, batch, adapter = make_objective("cross_entropy"), draw_batch(), draw_adapter()
    logits = 7.0 * adapt(adapter, batch["features"]).numpy() @ TEXT.numpy().T
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = -np.log(shares[np.arange(6), batch["labels"]])
    np.testing.assert_allclose(objective.losses(adapter, {}, batch), expected, rtol=1e-10)
