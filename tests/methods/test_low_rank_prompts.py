"""FedPGP, DP-FPL and FedPR: prompts with factors or projections, by hand and by plain steps."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from methods import Aggregate, ClientView, Task, dp_fpl, fedpgp, fedpr, promptfl, zero_shot
from methods.dp_fpl import LOCAL, local_gradient
from methods.fedpgp import FULL, LEFT, RIGHT, Adapter, Contrast
from methods.fedpr import LEARNED, projection
from methods.prompts.prompt import CONTEXT
from privacy.accounting.gaussian import epsilon_at
from tests.methods._double import double_backbone, to_double
from tests.methods._training import RecordingTrainer, newcomer, rng, trainer


def pgp(task: Task, **options):
    return fedpgp.build(fedpgp.Config(**{"context_tokens": 4, "bottleneck": 2, **options}), task)


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
    contrast = Contrast(fedpgp.Config(**options, mu=3.0), Z_C)
    np.testing.assert_allclose(contrast.per_class(Z_G, Z_I), expected, atol=1e-5)
    penalty = contrast({}, {"global": Z_G, "text": Z_I})
    assert penalty.shape == ()
    assert float(penalty) == pytest.approx(3.0 * sum(expected) / 2, abs=1e-5)


def test_the_personal_prompt_by_hand():
    """Eq. 10 with U = (1, 2)^T and V = (3, 4, 5) on a prompt of ones."""
    adapter = Adapter(fedpgp.Config(bottleneck=1), (2, 3))
    parameters = {
        CONTEXT: torch.ones(2, 3),
        LEFT: torch.tensor([[1.0], [2.0]]),
        RIGHT: torch.tensor([[3.0, 4.0, 5.0]]),
    }
    expected = [[4.0, 5.0, 6.0], [7.0, 9.0, 11.0]]
    np.testing.assert_array_equal(adapter.personal_prompt(parameters), expected)
    whole = Adapter(fedpgp.Config(rank="full"), (2, 3))
    full = {CONTEXT: torch.ones(2, 3), FULL: torch.full((2, 3), 0.5)}
    np.testing.assert_array_equal(whole.personal_prompt(full), np.full((2, 3), 1.5))


def test_decoupled_the_adapter_is_trained_at_the_end_alone(task, examples):
    method = pgp(dataclasses.replace(task, decoupled=True), decoupled_steps=7)
    learner = trainer(learning_rate=0.1)
    state = method.init_server(rng(1))
    own = method.personalise(ClientView(state), examples, learner, rng(5))
    assert set(own) == {LEFT, RIGHT}
    assert list(map(len, learner.fitted)) == [7]
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
    method = pgp(task, mu=0.8)
    state, adapter = method.init_server(rng(1)), method.init_client(rng(2), rng(3))
    # Larger than it is at first, so that it matters.
    adapter = {n: (20.0 * v).astype(np.float32) for n, v in adapter.items()}
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
    reference = pgp(task, **options)._contrast.reference
    words = zero_shot.build(zero_shot.Config(caption), task)
    features = examples.arrays["features"]
    expected = words.predict(ClientView({}), examples.arrays, task.classes)
    scale = task.backbone.logit_scale
    np.testing.assert_allclose(scale * features @ reference.numpy().T, expected, atol=1e-4)


DELTA = 1e-5


def fpl(task, **options):
    return dp_fpl.build(dp_fpl.Config(**{"context_tokens": 4, "rank": 2, **options}), task)


def gradients():
    """u = (1, 0)^T, v = (0, 1) and G = ((3, 4), (5, 6)): G v^T and u^T G."""
    left, right = torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0, 1.0]])
    whole = torch.tensor([[3.0, 4.0], [5.0, 6.0]])
    return left, right, (whole @ right.T, left.T @ whole)


def test_equation_4_by_hand():
    left, right, (by_left, by_right) = gradients()
    np.testing.assert_array_equal(by_left, [[4.0], [6.0]])
    np.testing.assert_array_equal(by_right, [[3.0, 4.0]])
    got = local_gradient(left, right, (by_left, by_right), "paper")
    np.testing.assert_array_equal(got, [[3.0, 4.0], [0.0, 6.0]])


def test_the_published_code_by_hand():
    """((3, 12), (0, 6)) before it is divided by ten."""
    left, right, by = gradients()
    got = local_gradient(left, right, by, "published")
    np.testing.assert_allclose(got, [[0.3, 1.2], [0.0, 0.6]], rtol=1e-6)


def test_the_shared_prompt_sees_the_sum_of_both(task, examples):
    """Whatever the factors, its step is PromptFL's from p_G + p_L."""
    method = fpl(task)
    view = newcomer(method)
    learner = trainer(steps=1, batch_size=10)
    got = method.client_update(view, examples, learner, rng()).update[CONTEXT]
    other = promptfl.build(promptfl.Config(context_tokens=4), task)
    both = ClientView({CONTEXT: view.broadcast[CONTEXT] + view.personal[LOCAL]})
    expected = other.client_update(both, examples, learner, rng()).update[CONTEXT]
    np.testing.assert_allclose(got, expected, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("sign", ["paper", "published"])
def test_with_all_factors_the_personal_prompt_takes_the_whole_step(task, examples, sign):
    """k = l = 4: u u^T is one, so Eq. 4 is u nabla_v = G, and as published (2 G v^T v + G) / 10."""
    method = fpl(task, rank=4, sign=sign)
    view = newcomer(method)
    result = method.client_update(view, examples, trainer(steps=1, batch_size=10), rng())
    change = result.personal[LOCAL] - view.personal[LOCAL]
    step = result.update[CONTEXT]
    if sign == "paper":
        np.testing.assert_allclose(change, step, rtol=2e-3, atol=1e-5)
        return
    right = np.linalg.svd(view.personal[LOCAL], full_matrices=False)[2]
    np.testing.assert_allclose(change, 0.1 * (step + 2 * step @ right.T @ right), atol=1e-4)


@pytest.mark.parametrize(
    ("stated", "rounds", "sensitivity", "worth"),
    [
        # One tensor, and three clipped together, by the paper's own sensitivity.
        (0.4, 1, 1.0, 0.408),
        (0.4, 1, math.sqrt(3), 0.742),
        # A batch of 32, of which one example may change the whole clipped gradient: 2C = 20.
        (0.4, 1, 64.0, 59.8),
        # Ten batches in each of 100 rounds.
        (0.4, 10, 64.0, 385.0),
    ],
)
def test_what_the_stated_noise_is_worth(stated, rounds, sensitivity, worth):
    """By the exact profile of Gaussian noise, which knows nothing of the formula."""
    deviation = (10.0 / 32) * math.sqrt(100 * math.log(1.0 / DELTA)) / stated
    mu = sensitivity * (10.0 / 32) * math.sqrt(100 * rounds) / deviation
    assert epsilon_at(mu, DELTA) == pytest.approx(worth, rel=0.005)


def pr(task, **options):
    return fedpr.build(fedpr.Config(**{"context_tokens": 4, **options}), task)


def update_of(method, sent, examples, steps):
    result = method.client_update(ClientView(sent), examples, trainer(steps=steps), rng(3))
    return result.update[CONTEXT]


def test_one_direction_by_hand():
    """d = 6 and rho = 0.8: int(1.2) = 1 direction goes, T = diag(0, 1, 1, 1, 1, 1) / sqrt 5."""
    matrix = projection(np.array([[1.0, 0, 0, 0, 0, 0]]), 0.8)
    step = np.array([1.0, 2, 2, 2, 2, 2]) @ matrix
    np.testing.assert_allclose(step, [0.0] + [0.894427] * 5, atol=1e-6)


def test_it_is_the_eigenvectors_of_the_square():
    """Oracle: eigenvectors of p^T p, the largest left out, as the published code has it."""
    prompt = rng().normal(size=(6, 12))
    _, vectors = np.linalg.eigh(prompt.T @ prompt)
    kept = vectors[:, : 12 - 3]
    expected = kept @ kept.T / np.linalg.norm(kept @ kept.T)
    np.testing.assert_allclose(projection(prompt, 0.75), expected, atol=1e-10)
    assert np.linalg.norm(projection(prompt, 0.75)) == pytest.approx(1.0)


def test_one_step_is_the_plain_one_projected(task, examples):
    method, plain = pr(task, share=0.9), promptfl.build(promptfl.Config(context_tokens=4), task)
    start = {CONTEXT: method.init_server(rng(1))[CONTEXT]}
    expected = update_of(plain, start, examples, 1) @ projection(start[CONTEXT], 0.9)
    got = update_of(method, {**start, LEARNED: np.ones(1, np.float32)}, examples, 1)
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-7)


def test_many_steps_leave_what_is_spanned(task, examples):
    """4 tokens of width 32 span 4 directions; 0.8 lets 6 go, so the change is off all of them."""
    method = pr(task, normalise=False)
    sent = {**method.init_server(rng(1)), LEARNED: np.ones(1, np.float32)}
    change = update_of(method, sent, examples, 5)
    assert np.abs(change).max() > 1e-3
    np.testing.assert_allclose(sent[CONTEXT] @ change.T, 0.0, atol=1e-6)


def test_the_server_says_that_something_is_learned(task):
    method = pr(task)
    state = method.init_server(rng(1))
    assert not state[LEARNED].any()
    change = {CONTEXT: np.ones((4, 32), np.float32)}
    after = method.server_update(state, Aggregate(change, 1.0, 1, 1), (), rng())
    np.testing.assert_array_equal(after[CONTEXT], state[CONTEXT] + 1.0)
    assert after[LEARNED].all()
