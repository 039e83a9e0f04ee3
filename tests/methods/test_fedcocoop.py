"""FedCoCoOp: a prompt for each image."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from methods import Aggregate, ClientView, MethodError, Task, fedcocoop, promptfl
from methods.fedcocoop import Config, MetaNet
from methods.prompts.prompt import CONTEXT, as_tensor
from privacy.training.per_sample import per_sample_gradients
from tests.methods._double import double_backbone, mean_loss, numeric_gradient, to_double
from tests.methods._training import RecordingTrainer, trainer

META = ("meta_hidden_weight", "meta_hidden_bias", "meta_output_weight", "meta_output_bias")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def build(task: Task, **options):
    return fedcocoop.build(Config(**{"context_init": None, **options}), task)


def silent(state):
    """The state with a Meta-Net whose output layer is zero."""
    return {n: np.zeros_like(v) if n.startswith("meta_output") else v for n, v in state.items()}


def test_the_meta_net_by_hand():
    """W1 x + b1 = (2 - 1, -1 + 0) = (1, -1), relu (1, 0), W2 gives (3, 5, 7), b2 adds 0.5."""
    parameters = {
        "meta_hidden_weight": torch.tensor([[2.0, 0.0], [-1.0, 4.0]]),
        "meta_hidden_bias": torch.tensor([-1.0, 0.0]),
        "meta_output_weight": torch.tensor([[3.0, 9.0], [5.0, 9.0], [7.0, 9.0]]),
        "meta_output_bias": torch.full((3,), 0.5),
    }
    shifts = MetaNet(2, 2, 3).shifts(parameters, torch.tensor([[1.0, 0.0]]))
    np.testing.assert_array_equal(shifts, [[3.5, 5.5, 7.5]])


def test_the_meta_net_starts_as_linear_layers_do():
    arrays = MetaNet(64, 16, 256).init(rng())
    assert {n: v.shape for n, v in arrays.items()} == {
        "meta_hidden_weight": (16, 64),
        "meta_hidden_bias": (16,),
        "meta_output_weight": (256, 16),
        "meta_output_bias": (256,),
    }
    for name, bound in zip(META, (1 / 8, 1 / 8, 1 / 4, 1 / 4), strict=True):
        assert 0.7 * bound < np.abs(arrays[name]).max() <= bound


def test_each_image_is_told_apart_by_prompts_of_its_own(task, examples):
    """Oracle: image by image and class by class, each text in a pass of its own."""
    method, backbone = build(task), task.backbone
    state = method.init_server(rng(1))
    logits = method.predict(ClientView(state), examples.arrays, task.classes)
    expected = np.zeros_like(logits)
    for row, image in enumerate(examples.arrays["features"]):
        hidden = state["meta_hidden_weight"] @ image + state["meta_hidden_bias"]
        pi = state["meta_output_weight"] @ np.maximum(hidden, 0) + state["meta_output_bias"]
        for column, name in enumerate(task.classes):
            tokens = backbone.embed_tokens([f"x x x x {name}."])
            tokens.embeddings[0, 1:5] = as_tensor(state[CONTEXT] + pi, backbone)
            text = backbone.encode_embeddings(tokens.embeddings, tokens.end_of_text)[0]
            expected[row, column] = backbone.logit_scale * float(text @ torch.tensor(image))
    np.testing.assert_allclose(logits, expected, atol=2e-5)
    alone = promptfl.build(promptfl.Config(4), task)
    plain = alone.predict(ClientView(state), examples.arrays, task.classes)
    assert np.abs(plain - logits).max() > 1e-3


def test_a_meta_net_that_says_nothing_is_promptfl(task, examples):
    method, plain = build(task), promptfl.build(promptfl.Config(4), task)
    state = silent(method.init_server(rng(1)))
    ours, theirs = (
        m.predict(ClientView(state), examples.arrays, task.classes) for m in (method, plain)
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    options = {"steps": 1, "batch_size": 10}
    moved = method.client_update(ClientView(state), examples, trainer(**options), rng(2)).update
    only = plain.client_update(
        ClientView({CONTEXT: state[CONTEXT]}), examples, trainer(**options), rng(2)
    ).update
    np.testing.assert_allclose(moved[CONTEXT], only[CONTEXT], atol=1e-6)
    # Behind a zero output layer the hidden one cannot learn yet; the output layer can.
    assert not moved["meta_hidden_weight"].any()
    assert np.abs(moved["meta_output_weight"]).max() > 1e-6


def test_one_client_is_its_own_centralised_training(task, examples):
    method, batches = build(task), rng(3)
    start = method.init_server(rng(1))
    state = start
    for _ in range(3):
        update = method.client_update(
            ClientView(state), examples, trainer(epochs=1), batches
        ).update
        state = method.server_update(state, Aggregate(update, 10.0, 1, 1), (), rng())
    alone = trainer(epochs=3)
    method.client_update(ClientView(start), examples, alone, rng(3))
    (report,) = alone.reports
    assert report.steps == 6
    whole = method.client_update(ClientView(start), examples, trainer(epochs=3), rng(3)).update
    for name, value in start.items():
        np.testing.assert_allclose(state[name], value + whole[name], atol=2e-6)
        assert np.abs(whole[name]).max() > 1e-6


def test_the_server_adds_the_mean(task):
    method = build(task)
    state = {n: np.full(s.shape, 1.5, np.float32) for n, s in method.shared_spec().items()}
    mean = {name: np.full(value.shape, -0.25) for name, value in state.items()}
    after = method.server_update(state, Aggregate(mean, 10.0, 2, 4), (), rng())
    assert set(after) == {CONTEXT, *META}
    for value in after.values():
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, np.full(value.shape, 1.25))


def test_gradients_follow_finite_differences(task, examples):
    precise = Task(task.classes, task.domains, 4, double_backbone(task.backbone))
    method = build(precise)
    state = {n: v.astype(np.float64) for n, v in method.init_server(rng(1)).items()}
    objective = method.training_objective()
    few = type(examples)({n: v[:4] for n, v in examples.arrays.items()})

    def loss(parameters):
        return mean_loss(objective, parameters, few)

    leaves = {n: torch.tensor(v, requires_grad=True) for n, v in state.items()}
    found = dict(zip(leaves, torch.autograd.grad(loss(leaves), list(leaves.values())), strict=True))
    places = {
        CONTEXT: [(0, 0), (3, 31)],
        "meta_hidden_weight": [(0, 5), (7, 100)],
        "meta_hidden_bias": [(1,), (6,)],
        "meta_output_weight": [(0, 0), (31, 7)],
        "meta_output_bias": [(4,), (30,)],
    }
    for name, coordinates in places.items():
        slopes = numeric_gradient(loss, state, name, coordinates)
        ours = [float(found[name][place]) for place in coordinates]
        np.testing.assert_allclose(ours, slopes, rtol=1e-5, atol=1e-9)


def test_each_examples_gradient_is_that_of_the_example_alone(task, examples):
    """What `vmap` makes of a batch against one backward pass an example."""
    precise = Task(task.classes, task.domains, 4, double_backbone(task.backbone))
    method = build(precise)
    objective = method.training_objective()
    parameters = to_double(method.init_server(rng(1)))
    batch = to_double({name: value[:3] for name, value in examples.arrays.items()})
    together = per_sample_gradients(objective, parameters, batch, trained=parameters.keys())
    leaves = {n: v.clone().requires_grad_() for n, v in parameters.items()}
    for row in range(3):
        one = {name: value[row : row + 1] for name, value in batch.items()}
        loss = objective.losses(leaves, {}, one)[0]
        alone = torch.autograd.grad(loss, list(leaves.values()))
        for name, gradient in zip(leaves, alone, strict=True):
            torch.testing.assert_close(
                together.gradients[name][row], gradient, atol=1e-11, rtol=1e-9
            )


def test_all_is_shared_and_trained_at_the_run_s_rate(task, examples):
    method, taken = build(task, context_tokens=3, meta_reduction=32), RecordingTrainer()
    state = method.init_server(rng(1))
    method.client_update(ClientView(state), examples, taken, rng())
    (group,) = taken.groups
    assert set(group.names) == set(state) == set(method.shared_spec()) == {CONTEXT, *META}
    assert group.learning_rate is None
    assert state[CONTEXT].shape == (3, 32)
    assert state["meta_hidden_weight"].shape == (4, 128)


def test_large_batches_are_predicted_in_parts(task, examples, monkeypatch):
    method = build(task)
    state = method.init_server(rng(1))
    whole = method.predict(ClientView(state), examples.arrays, task.classes)
    seen = []
    encode = method.encoder.text_features_each
    monkeypatch.setattr(
        method.encoder, "text_features_each", lambda c, n: seen.append(len(c)) or encode(c, n)
    )
    monkeypatch.setattr(fedcocoop, "TEXTS_AT_ONCE", 15)
    parts = method.predict(ClientView(state), examples.arrays, task.classes)
    assert seen == [3, 3, 3, 1]
    np.testing.assert_allclose(parts, whole, atol=1e-5)


def test_a_prompt_from_words_starts_there(task):
    state = build(task, context_init="a photo of a").init_server(rng(1))
    words = task.backbone.embed_tokens(["a photo of a"]).embeddings[0, 1:5]
    np.testing.assert_array_equal(state[CONTEXT], words)
    assert Config() == Config(4, "a photo of a", 16)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"meta_reduction": 129}, r"method\.meta_reduction: 129 .*valid: 1 to 128"),
        ({"context_tokens": 3, "context_init": "a photo of a"}, r"method\.context_init: .*agree"),
        ({"context_tokens": 60}, r"method\.context_tokens: 60 .*valid: 1 to 20"),
    ],
)
def test_options_that_do_not_fit_are_one_sentence(task, options, words):
    with pytest.raises(MethodError, match=words) as caught:
        build(task, **options).init_server(rng())
    assert "\n" not in str(caught.value)


def test_logits_are_cosines_over_the_temperature(task, examples):
    method = build(task)
    logits = method.predict(ClientView(method.init_server(rng(1))), examples.arrays, ("house",))
    assert np.abs(logits).max() <= task.backbone.logit_scale * (1 + 1e-6)
    assert not math.isclose(float(logits[0, 0]), float(logits[1, 0]))
