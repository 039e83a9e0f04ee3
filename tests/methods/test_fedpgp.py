"""FedPGP: its contrast by hand, its adapter, and what is left when parts of it are taken away."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from methods import ClientView, Task, fedpgp, promptfl, zero_shot
from methods.fedpgp import FULL, LEFT, RIGHT, Adapter, Config, Contrast
from methods.prompts.prompt import CONTEXT
from tests.methods._double import double_backbone, to_double
from tests.methods._training import RecordingTrainer, rng, trainer


def build(task: Task, **options):
    return fedpgp.build(Config(**{"context_tokens": 4, "bottleneck": 2, **options}), task)


def start_of(method, spread: float = 1.0):
    """A first state, the adapter larger than it is at first so that it matters."""
    state, adapter = method.init_server(rng(1)), method.init_client(rng(2), rng(3))
    return state, {n: (spread * v).astype(np.float32) for n, v in adapter.items()}


Z_C = torch.tensor([[0.8, 0.6], [1.0, 0.0]])
Z_G = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
Z_I = torch.tensor([[0.6, 0.8], [0.8, 0.6]])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # Cosines to z_C: 0.8 and 0; to z_i: 0.6 and 0.6. Over tau = 0.5: 1.6, 0; 1.2, 1.2.
        # -ln(e^1.6 / (e^1.6 + e^1.2)) = ln(1 + e^-0.4) = 0.513015; ln(1 + e^1.2) = 1.463282.
        ({}, [0.513015, 1.463282]),
        # tau = 1: ln(1 + e^-0.2) = 0.598139, ln(1 + e^0.6) = 1.037488.
        ({"temperature": 1.0}, [0.598139, 1.037488]),
        ({"contrast": "no_positive"}, [0.6, 0.6]),
        ({"contrast": "no_positive", "ablation_sign": "appendix"}, [0.4, 0.4]),
        ({"contrast": "no_negative"}, [0.2, 1.0]),
        ({"contrast": "no_negative", "ablation_sign": "appendix"}, [0.8, 0.0]),
    ],
)
def test_the_contrast_by_hand(options, expected):
    contrast = Contrast(Config(**options, mu=3.0), Z_C)
    np.testing.assert_allclose(contrast.per_class(Z_G, Z_I), expected, atol=1e-5)
    penalty = contrast({}, {"global": Z_G, "text": Z_I})
    assert penalty.shape == ()
    assert float(penalty) == pytest.approx(3.0 * sum(expected) / 2, abs=1e-5)


def test_the_personal_prompt_by_hand():
    """Eq. 10 with U = (1, 2)^T and V = (3, 4, 5) on a prompt of ones."""
    adapter = Adapter(Config(bottleneck=1), (2, 3))
    parameters = {
        CONTEXT: torch.ones(2, 3),
        LEFT: torch.tensor([[1.0], [2.0]]),
        RIGHT: torch.tensor([[3.0, 4.0, 5.0]]),
    }
    expected = [[4.0, 5.0, 6.0], [7.0, 9.0, 11.0]]
    np.testing.assert_array_equal(adapter.personal_prompt(parameters), expected)
    whole = Adapter(Config(rank="full"), (2, 3))
    full = {CONTEXT: torch.ones(2, 3), FULL: torch.full((2, 3), 0.5)}
    np.testing.assert_array_equal(whole.personal_prompt(full), np.full((2, 3), 1.5))


def test_decoupled_the_adapter_is_trained_at_the_end_alone(task, examples):
    method = build(dataclasses.replace(task, decoupled=True), decoupled_steps=7)
    learner = trainer(learning_rate=0.1)
    state = method.init_server(rng(1))
    own = method.personalise(ClientView(state), examples, learner, rng(5))
    assert set(own) == {LEFT, RIGHT}
    assert [report.steps for report in learner.reports] == [7]
    recorder = RecordingTrainer()
    method.personalise(ClientView(state), examples, recorder, rng(5))
    assert [group.names for group in recorder.groups] == [(LEFT, RIGHT)]
    np.testing.assert_array_equal(recorder.parameters[CONTEXT], state[CONTEXT])
    assert recorder.penalty is not None


def whole_loss(task, config, parameters, examples):
    """Eq. 13 written out: two passes, softmax by hand, nothing of the method's own code."""
    precise = dataclasses.replace(task, backbone=double_backbone(task.backbone))
    method = promptfl.build(promptfl.Config(context_tokens=4), precise)
    tensors = {n: torch.as_tensor(value, dtype=torch.float64) for n, value in parameters.items()}
    prompt = tensors[CONTEXT] + tensors[LEFT] @ tensors[RIGHT]
    own = method.encoder.text_features(prompt, task.classes)
    shared = method.encoder.text_features(tensors[CONTEXT], task.classes)
    clip = method.encoder.backbone.encode_texts([f"a photo of a {c}." for c in task.classes])
    arrays = to_double(examples.arrays)
    logits = method.encoder.backbone.logit_scale * arrays["features"] @ own.T
    rows = torch.arange(len(logits))
    entropy = -(logits - logits.logsumexp(1, keepdim=True))[rows, arrays["labels"]].mean()
    near, far = (shared * clip).sum(1), (shared * own).sum(1)
    scores = torch.stack((near, far), 1) / config.temperature
    return entropy - config.mu * scores.log_softmax(1)[:, 0].mean()


def test_one_step_follows_eq_13(task, examples):
    method = build(task, mu=0.8)
    state, adapter = start_of(method, spread=20.0)
    learner = trainer(steps=1, batch_size=10, learning_rate=0.5)
    result = method.client_update(ClientView(state, personal=adapter), examples, learner, rng())
    leaves = {
        name: torch.tensor(value, dtype=torch.float64, requires_grad=True)
        for name, value in {**state, **adapter}.items()
    }
    whole_loss(task, method.config, leaves, examples).backward()
    got = {**result.personal, CONTEXT: state[CONTEXT] + result.update[CONTEXT]}
    for name, leaf in leaves.items():
        np.testing.assert_allclose(got[name], leaf.detach() - 0.5 * leaf.grad, atol=2e-5)


@pytest.mark.parametrize(
    ("options", "caption"),
    [
        ({}, "a photo of a {}."),
        ({"template": "the {} itself"}, "the {} itself"),
        ({"clip_reference": "placeholder"}, "X X X X {}."),
    ],
)
def test_the_reference_is_zero_shot_clip(task, examples, options, caption):
    reference = build(task, **options)._contrast.reference
    words = zero_shot.build(zero_shot.Config(caption), task)
    features = examples.arrays["features"]
    expected = words.predict(ClientView({}), examples.arrays, task.classes)
    scale = task.backbone.logit_scale
    np.testing.assert_allclose(scale * features @ reference.numpy().T, expected, atol=1e-4)
