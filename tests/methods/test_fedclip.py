"""FedCLIP: its adapter and losses against numbers worked by hand, torch's layers and open_clip."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from open_clip.loss import ClipLoss
from torch.nn import functional

from methods import (
    Aggregate,
    ClientView,
    MethodError,
    Registry,
    Task,
    Weighting,
    fedclip,
    zero_shot,
)
from methods.fedclip import LAYERS, Config, adapt, adapted_objective, symmetric_losses
from methods.networks.method import BatchObjective
from methods.prompts.prompt import as_tensor
from platform.config import MethodConfig
from platform.errors import ConfigError
from platform.experiment.method_building import validate_options
from tests.methods._double import mean_loss, numeric_gradient
from tests.methods._training import RecordingTrainer, trainer

LOG3 = math.log(3.0)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def build(task: Task, **options):
    return fedclip.build(Config(**options), task)


def zeros(size: int) -> dict[str, torch.Tensor]:
    layers = {f"{layer}.weight": torch.zeros(size, size) for layer in LAYERS}
    return layers | {f"{layer}.bias": torch.zeros(size) for layer in LAYERS}


def draw_adapter(size: int, seed: int = 4, spread: float = 1.0) -> dict[str, np.ndarray]:
    draws = rng(seed)
    return {name: draws.normal(0, spread, value.shape) for name, value in zeros(size).items()}


# --- the adapter --------------------------------------------------------------------------------


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


def test_the_adapter_is_torchs_layers():
    """Oracle: the layers as the published code stacks them."""
    network = torch.nn.Sequential(
        torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16), torch.nn.Softmax(dim=1)
    ).double()
    adapter = {name: torch.tensor(value) for name, value in draw_adapter(16).items()}
    with torch.no_grad():
        for index, layer in zip((0, 2), LAYERS, strict=True):
            network[index].weight.copy_(adapter[f"{layer}.weight"])
            network[index].bias.copy_(adapter[f"{layer}.bias"])
        image = torch.tensor(rng(1).normal(size=(5, 16)))
        weighed = network(image) * image
        expected = weighed / weighed.norm(dim=1, keepdim=True)
        np.testing.assert_allclose(adapt(adapter, image), expected, rtol=1e-10)


def test_an_adapter_of_zeros_is_zero_shot_clip(task, examples):
    """All coordinates weigh the same, and the cosine does not see how much."""
    method = build(task, template="a photo of a {}.")
    plain = zero_shot.build(zero_shot.Config(template="a photo of a {}."), task)
    adapter = {name: value.numpy() for name, value in zeros(128).items()}
    for classes in (task.classes, ("house", "old grey flower")):
        got = method.predict(ClientView(adapter), examples.arrays, classes)
        expected = plain.predict(ClientView({}), examples.arrays, classes)
        np.testing.assert_allclose(got, expected, atol=1e-4)


def test_it_starts_as_linear_layers_do(task):
    state = build(task).init_server(rng(1))
    assert sum(value.size for value in state.values()) == 2 * (128 * 128 + 128)
    for value in state.values():
        assert 0.9 / math.sqrt(128) < np.abs(value).max() <= 1 / math.sqrt(128)


# --- losses -------------------------------------------------------------------------------------


def test_the_symmetric_loss_by_hand():
    """Images by captions ((ln3, 0), (ln3, 0)).

    Rows: -ln(3/4), -ln(1/4); columns: -ln(1/2) twice. Halves: 0.490415 and 1.039721.
    """
    losses = symmetric_losses(torch.tensor([[LOG3, 0.0], [LOG3, 0.0]]))
    np.testing.assert_allclose(losses, [0.490415, 1.039721], atol=1e-6)


TEXT = functional.normalize(torch.tensor(np.random.default_rng(2).normal(size=(4, 16))), dim=1)


def make_objective(loss: str) -> BatchObjective:
    return adapted_objective(TEXT, 7.0, loss)


def draw_batch(count: int = 6, size: int = 16) -> dict[str, torch.Tensor]:
    image = functional.normalize(torch.tensor(rng(3).normal(size=(count, size))), dim=1)
    return {"features": image, "labels": torch.tensor(rng(4).integers(0, 4, count))}


def test_the_symmetric_loss_is_clips():
    """Oracle: `open_clip.loss.ClipLoss` on adapted images and the captions of their labels."""
    objective, batch = make_objective("symmetric"), draw_batch()
    adapter = {name: torch.tensor(value) for name, value in draw_adapter(16).items()}
    captions = TEXT[batch["labels"]]
    expected = ClipLoss()(adapt(adapter, batch["features"]), captions, 7.0)
    losses = objective.losses(adapter, {}, batch)
    assert losses.shape == (6,)
    np.testing.assert_allclose(losses.mean(), expected, rtol=1e-12)


def test_the_other_loss_is_the_cross_entropy_over_all_classes():
    objective, batch = make_objective("cross_entropy"), draw_batch()
    adapter = {name: torch.tensor(value) for name, value in draw_adapter(16).items()}
    logits = 7.0 * adapt(adapter, batch["features"]).numpy() @ TEXT.numpy().T
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = -np.log(shares[np.arange(6), batch["labels"]])
    np.testing.assert_allclose(objective.losses(adapter, {}, batch), expected, rtol=1e-10)


def test_an_example_alone_has_nothing_to_contrast_with():
    batch = {name: value[:1] for name, value in draw_batch().items()}
    adapter = {name: torch.tensor(value) for name, value in draw_adapter(16).items()}
    assert make_objective("symmetric").losses(adapter, {}, batch).abs().max() < 1e-12
    assert make_objective("cross_entropy").losses(adapter, {}, batch).abs().max() > 1e-3


@pytest.mark.parametrize("loss", ["symmetric", "cross_entropy"])
def test_gradients_by_finite_differences(task, examples, loss):
    text = build(task).captions.features(task.classes).double()
    objective = adapted_objective(text, task.backbone.logit_scale, loss)
    parameters = draw_adapter(128, spread=0.3)
    leaves = {n: torch.tensor(value, requires_grad=True) for n, value in parameters.items()}
    mean_loss(objective, leaves, examples).backward()
    places = {
        "inner.weight": [(0, 0), (90, 17)],
        "inner.bias": [(5,)],
        "outer.weight": [(3, 100), (127, 127)],
        "outer.bias": [(64,)],
    }
    for name, coordinates in places.items():
        slopes = numeric_gradient(
            lambda values: mean_loss(objective, values, examples), parameters, name, coordinates
        )
        exact = [float(leaves[name].grad[place]) for place in coordinates]
        np.testing.assert_allclose(exact, slopes, rtol=1e-4, atol=1e-7)
        assert leaves[name].grad.abs().max() > 1e-4


# --- federation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["symmetric", "cross_entropy"])
def test_one_client_is_its_own_centralised_training(task, examples, loss):
    method, batches = build(task, loss=loss), rng(3)
    state = start = method.init_server(rng(1))
    for _ in range(3):
        learner = trainer(epochs=1, learning_rate=0.1)
        result = method.client_update(ClientView(state), examples, learner, batches)
        aggregate = Aggregate(result.update, 10.0, 1, 4)
        state = method.server_update(state, aggregate, (), rng())
    objective = adapted_objective(
        method.captions.features(task.classes), task.backbone.logit_scale, loss
    )
    recorder = RecordingTrainer()
    method.client_update(ClientView(start), examples, recorder, rng())
    alone = trainer(epochs=3, learning_rate=0.1).fit(
        objective, start, examples.arrays, groups=recorder.groups, rng=rng(3)
    )
    for name, value in state.items():
        np.testing.assert_allclose(value, alone[name], atol=1e-6)
        assert np.abs(value - start[name]).max() > 1e-5


def test_everything_is_shared_and_nothing_kept(task, examples):
    method = build(task)
    state = method.init_server(rng(1))
    result = method.client_update(ClientView(state), examples, trainer(), rng())
    assert set(result.update) == set(state) == set(method.shared_spec())
    assert result.personal == {}
    assert result.pool_entry is None
    assert not method.has_personal_state


def test_texts_are_encoded_once(task, examples, monkeypatch):
    method, calls = build(task), []
    encode = type(task.backbone).encode_texts
    monkeypatch.setattr(
        type(task.backbone), "encode_texts", lambda *a: calls.append(1) or encode(*a)
    )
    state = method.init_server(rng(1))
    for _ in range(3):
        method.client_update(ClientView(state), examples, trainer(steps=4), rng())
        method.predict(ClientView(state), examples.arrays, task.classes)
    assert len(calls) == 1


def test_the_caption_is_the_template(task):
    features = build(task, template="some {} there").captions.features(("ring", "star"))
    expected = task.backbone.encode_texts(["some ring there", "some star there"])
    np.testing.assert_array_equal(features, expected)
    assert as_tensor(features.numpy(), task.backbone).shape == (2, 128)


# --- options ------------------------------------------------------------------------------------


def test_a_loss_that_couples_records_is_not_private_by_record(task):
    assert build(task).units == {"client"}
    assert build(task, loss="cross_entropy").units == {"client", "record"}


@pytest.mark.parametrize(
    ("option", "expected"), [("examples", Weighting.EXAMPLES), ("uniform", Weighting.UNIFORM)]
)
def test_the_weighting_of_clients(task, option, expected):
    specs = build(task, weighting=option).shared_spec()
    assert {spec.weighting for spec in specs.values()} == {expected}


def test_the_paper_is_the_default():
    assert Config() == Config("a picture of a {}", "symmetric", "examples")


@pytest.mark.parametrize("template", ["a ring", "{} and {}", ""])
def test_a_template_without_its_place_is_refused(task, template):
    with pytest.raises(MethodError, match=r"^method\.template: .*exactly once$"):
        build(task, template=template)


def test_an_unknown_loss_is_refused():
    with pytest.raises(ConfigError, match=r"^method\.loss: "):
        validate_options(Registry(), MethodConfig(name="fedclip", loss="contrastive"))


@pytest.mark.parametrize("cosine", [0.0, 50.0])
def test_one_class_alone_teaches_the_symmetric_loss_nothing(task, cosine):
    """All captions are one: however near the images are to it, the loss is log 3."""
    losses = symmetric_losses(torch.full((3, 3), cosine))
    assert losses.tolist() == pytest.approx([math.log(3.0)] * 3, abs=1e-5)
    assert not build(task).learns_one_class
    assert build(task, loss="cross_entropy").learns_one_class
