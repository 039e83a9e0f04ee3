"""FedCoCoOp: a prompt for each image."""

from __future__ import annotations

import numpy as np
import torch

from methods import ClientView, Task, fedcocoop, promptfl
from methods.fedcocoop import Config, MetaNet
from methods.prompts.prompt import CONTEXT, as_tensor
from tests.methods._training import rng, trainer


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
