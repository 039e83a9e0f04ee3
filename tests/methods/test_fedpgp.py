"""FedPGP: its contrast by hand, its adapter, and what is left when parts of it are taken away."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from methods import (
    BackboneError,
    ClientView,
    Examples,
    MethodError,
    Task,
    coop,
    fedpgp,
    promptfl,
    zero_shot,
)
from methods.fedpgp import FULL, LEFT, RIGHT, Adapter, Config, Contrast
from methods.prompts.prompt import CONTEXT, as_tensor
from tests.methods._double import double_backbone, numeric_gradient, to_double
from tests.methods._training import RecordingTrainer, trainer


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def build(task: Task, **options):
    return fedpgp.build(Config(**{"context_tokens": 4, "bottleneck": 2, **options}), task)


def plain(task: Task):
    return promptfl.build(promptfl.Config(context_tokens=4), task)


def decoupled(task: Task, **options):
    return build(dataclasses.replace(task, decoupled=True), **options)


def start_of(method, spread: float = 1.0):
    """A first state, the adapter larger than it is at first so that it matters."""
    state, adapter = method.init_server(rng(1)), method.init_client(rng(2), rng(3))
    return state, {n: (spread * v).astype(np.float32) for n, v in adapter.items()}


# --- the contrast -------------------------------------------------------------------------------

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


def test_the_appendix_s_sign_says_nothing_of_the_whole_contrast():
    values = [
        Contrast(Config(ablation_sign=sign), Z_C).per_class(Z_G, Z_I)
        for sign in ("text", "appendix")
    ]
    assert torch.equal(*values)


@pytest.mark.parametrize(
    # How sim(z_G, z_C) and sim(z_G, z_i) count in what must fall.
    ("options", "clip", "own"),
    [
        ({}, -1, 1),
        ({"contrast": "no_positive"}, 0, 1),
        ({"contrast": "no_negative"}, -1, 0),
        ({"contrast": "no_positive", "ablation_sign": "appendix"}, 0, -1),
        ({"contrast": "no_negative", "ablation_sign": "appendix"}, 1, 0),
    ],
)
def test_what_a_small_step_of_the_contrast_does(task, examples, options, clip, own):
    """Images of zeros tell nothing, so the step is the contrast's alone."""
    method = build(task, **options)
    start, adapter = start_of(method, spread=20.0)
    blind = Examples({**examples.arrays, "features": 0 * examples.arrays["features"]})
    reference = task.backbone.encode_texts([f"a photo of a {name}." for name in task.classes])

    def target(arrays):
        tensors = {name: as_tensor(value, task.backbone) for name, value in arrays.items()}
        shared, personal = (
            method.encoder.text_features(prompt, task.classes)
            for prompt in (tensors[CONTEXT], tensors[CONTEXT] + tensors[LEFT] @ tensors[RIGHT])
        )
        to_clip, to_own = ((shared * z).sum(-1).mean() for z in (reference, personal))
        return float(clip * to_clip + own * to_own)

    learner = trainer(steps=1, learning_rate=1e-3)
    result = method.client_update(ClientView(start, personal=adapter), blind, learner, rng())
    after = {**result.personal, CONTEXT: start[CONTEXT] + result.update[CONTEXT]}
    assert target(after) - target({**start, **adapter}) < -5e-4


# --- the adapter --------------------------------------------------------------------------------


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


def test_it_starts_alike_on_all_clients_with_the_spread_of_the_prompt(task):
    method = build(task, context_tokens=16, bottleneck=8)
    one, other = (method.init_client(rng(4), rng(seed)) for seed in (5, 6))
    assert {name: value.shape for name, value in one.items()} == {LEFT: (16, 8), RIGHT: (8, 32)}
    for name, value in one.items():
        assert np.array_equal(value, other[name])
        assert value.std() == pytest.approx(0.02, rel=0.2)
    # The paper's 16 x 8 + 8 x 512 numbers on ViT-B/16.
    assert sum(v.size for v in Adapter(Config(), (16, 512)).init(rng()).values()) == 4224


@pytest.mark.parametrize(("rank", "zeroed"), [("low", RIGHT), ("full", FULL)])
def test_a_zero_start_is_the_global_prompt(task, examples, rank, zeroed):
    method = build(task, rank=rank, adapter_init="zero")
    state, adapter = start_of(method)
    assert not adapter[zeroed].any()
    assert rank == "full" or adapter[LEFT].any()
    np.testing.assert_array_equal(
        method.predict(ClientView(state, personal=adapter), examples.arrays, task.classes),
        plain(task).predict(ClientView(state), examples.arrays, task.classes),
    )


def test_it_predicts_with_the_personal_prompt_for_any_classes(task, examples):
    method = build(task)
    state, adapter = start_of(method, spread=30.0)
    prompt = {CONTEXT: state[CONTEXT] + adapter[LEFT] @ adapter[RIGHT]}
    for classes in (task.classes, ("moon", "an old house")):
        got = method.predict(ClientView(state, personal=adapter), examples.arrays, classes)
        expected = plain(task).predict(ClientView(prompt), examples.arrays, classes)
        np.testing.assert_allclose(got, expected, atol=1e-4)
        without = method.predict(ClientView(state), examples.arrays, classes)
        assert np.abs(got - without).max() > 1e-3


def test_what_is_learned_is_of_low_rank(task, examples):
    state, adapter = start_of(build(task))
    learner = trainer(steps=5)
    own = (
        build(task)
        .client_update(ClientView(state, personal=adapter), examples, learner, rng())
        .personal
    )
    assert np.linalg.matrix_rank(own[LEFT] @ own[RIGHT], tol=1e-7) == 2
    full = build(task, rank="full")
    state, adapter = start_of(full)
    own = full.client_update(
        ClientView(state, personal=adapter), examples, trainer(steps=5), rng()
    ).personal
    assert np.linalg.matrix_rank(own[FULL], tol=1e-7) == 4


# --- laws ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("clipping", [None, 0.05])
@pytest.mark.parametrize("rank", ["low", "full"])
def test_without_contrast_and_adapter_it_is_promptfl(task, examples, clipping, rank):
    """mu = 0, U V = 0 and kept there: the same numbers bit for bit, also in the clipped norm."""
    options = {"mu": 0.0, "adapter_init": "zero", "personal_learning_rate": 0.0, "rank": rank}
    method, other = build(task, **options), plain(task)
    state, adapter = start_of(method)
    assert np.array_equal(state[CONTEXT], other.init_server(rng(1))[CONTEXT])
    mine = method.client_update(
        ClientView(state, personal=adapter), examples, trainer(clipping=clipping), rng(3)
    )
    theirs = other.client_update(ClientView(state), examples, trainer(clipping=clipping), rng(3))
    assert mine.update[CONTEXT].any()
    assert np.array_equal(mine.update[CONTEXT], theirs.update[CONTEXT])
    assert all(np.array_equal(mine.personal[name], adapter[name]) for name in adapter)
    np.testing.assert_array_equal(
        method.predict(ClientView(state, personal=mine.personal), examples.arrays, task.classes),
        other.predict(ClientView(state), examples.arrays, task.classes),
    )


def test_at_full_rank_both_parts_move_alike(task, examples):
    """p = p_G + Delta: without contrast the two have one gradient, so p moves twice as far."""
    method = build(task, rank="full", mu=0.0)
    state, adapter = start_of(method)
    learner = trainer(steps=1, batch_size=10)
    result = method.client_update(ClientView(state, personal=adapter), examples, learner, rng())
    np.testing.assert_allclose(
        result.personal[FULL] - adapter[FULL], result.update[CONTEXT], atol=1e-6
    )
    local = coop.build(coop.Config(context_tokens=4), task)
    prompt = {CONTEXT: state[CONTEXT] + adapter[FULL]}
    alone = local.client_update(
        ClientView({}, personal=prompt), examples, trainer(steps=1, batch_size=10), rng()
    )
    step = alone.personal[CONTEXT] - prompt[CONTEXT]
    np.testing.assert_allclose(result.update[CONTEXT], step, atol=1e-6)


@pytest.mark.parametrize("clipping", [None, 0.5])
def test_decoupled_rounds_are_promptfls(task, examples, clipping):
    method, other = decoupled(task), plain(task)
    state = method.init_server(rng(1))
    personal = method.init_client(rng(2), rng(3))
    mine = method.client_update(
        ClientView(state, personal=personal), examples, trainer(clipping=clipping), rng(4)
    )
    theirs = other.client_update(ClientView(state), examples, trainer(clipping=clipping), rng(4))
    assert (personal, mine.personal) == ({}, {})
    assert np.array_equal(mine.update[CONTEXT], theirs.update[CONTEXT])
    np.testing.assert_array_equal(
        method.predict(ClientView(state), examples.arrays, task.classes),
        other.predict(ClientView(state), examples.arrays, task.classes),
    )


def test_decoupled_the_adapter_is_trained_at_the_end_alone(task, examples):
    method, learner = decoupled(task, decoupled_steps=7), trainer(learning_rate=0.1)
    state = method.init_server(rng(1))
    own = method.personalise(ClientView(state), examples, learner, rng(5))
    assert set(own) == {LEFT, RIGHT}
    assert [report.steps for report in learner.reports] == [7]
    start = method.adapter.init(rng(5))
    assert all(np.abs(own[name] - start[name]).max() > 1e-6 for name in own)
    recorder = RecordingTrainer()
    method.personalise(ClientView(state), examples, recorder, rng(5))
    assert [group.names for group in recorder.groups] == [(LEFT, RIGHT)]
    np.testing.assert_array_equal(recorder.parameters[CONTEXT], state[CONTEXT])
    assert recorder.penalty is not None


def test_coupled_nothing_is_trained_at_the_end(task, examples):
    method, recorder = build(task), RecordingTrainer()
    state, adapter = start_of(method)
    assert (
        method.personalise(ClientView(state, personal=adapter), examples, recorder, rng())
        is adapter
    )
    still = decoupled(task, personal_learning_rate=0.0)
    assert still.personalise(ClientView(state), examples, recorder, rng()) == {}
    assert recorder.fits == 0


# --- gradients ----------------------------------------------------------------------------------


def whole_loss(task, config, parameters, examples):
    """Eq. 13 written out: two passes, softmax by hand, nothing of the method's own code."""
    method = plain(Task(task.classes, task.domains, 4, double_backbone(task.backbone)))
    tensors = {n: torch.as_tensor(value, dtype=torch.float64) for n, value in parameters.items()}
    delta = tensors[FULL] if FULL in tensors else tensors[LEFT] @ tensors[RIGHT]
    own = method.encoder.text_features(tensors[CONTEXT] + delta, task.classes)
    shared = method.encoder.text_features(tensors[CONTEXT], task.classes)
    clip = method.encoder.backbone.encode_texts([f"a photo of a {c}." for c in task.classes])
    arrays = to_double(examples.arrays)
    logits = method.encoder.backbone.logit_scale * arrays["features"] @ own.T
    rows = torch.arange(len(logits))
    entropy = -(logits - logits.logsumexp(1, keepdim=True))[rows, arrays["labels"]].mean()
    near, far = (shared * clip).sum(1), (shared * own).sum(1)
    scores = torch.stack((near, far), 1) / config.temperature
    terms = {
        "both": -scores.log_softmax(1)[:, 0],
        "no_positive": far,
        "no_negative": 1 - near,
    }
    return entropy + config.mu * terms[config.contrast].mean()


@pytest.mark.parametrize("rank", ["low", "full"])
@pytest.mark.parametrize("contrast", ["both", "no_positive", "no_negative"])
def test_gradients_by_finite_differences(task, examples, rank, contrast):
    """Of loss plus penalty, as the trainer adds them, against differences of Eq. 13 itself."""
    precise = Task(task.classes, task.domains, 4, double_backbone(task.backbone))
    method = build(precise, rank=rank, contrast=contrast, mu=0.8)
    state, adapter = start_of(build(task, rank=rank), spread=20.0)
    parameters, recorder = {**state, **adapter}, RecordingTrainer()
    method.client_update(ClientView(state, personal=adapter), examples, recorder, rng())
    leaves = {
        name: torch.tensor(value, dtype=torch.float64, requires_grad=True)
        for name, value in parameters.items()
    }
    encoded = recorder.objective.encode(leaves)
    losses = recorder.objective.losses(leaves, encoded, to_double(examples.arrays))
    (losses.mean() + recorder.penalty(leaves, encoded)).backward()

    def loss(values):
        return whole_loss(task, method.config, values, examples)

    for name in parameters:
        places = [(0, 0), (1, 1)]
        slopes = numeric_gradient(loss, parameters, name, places)
        exact = [float(leaves[name].grad[place]) for place in places]
        np.testing.assert_allclose(exact, slopes, rtol=1e-4, atol=1e-7)


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


def test_a_fixed_global_prompt_gives_the_same_encoding(task, examples):
    """Decoupled, z_G is computed once; loss and penalty are those of the joint objective."""
    method, (state, adapter) = build(task), start_of(build(task), spread=20.0)
    recorder = RecordingTrainer()
    decoupled(task).personalise(ClientView(state), examples, recorder, rng())
    joint = method._objective({CONTEXT, LEFT, RIGHT})
    tensors = {n: as_tensor(v, task.backbone) for n, v in {**state, **adapter}.items()}
    with torch.no_grad():
        one, other = joint.encode(tensors), recorder.objective.encode(tensors)
        penalties = [float(recorder.penalty(tensors, encoded)) for encoded in (one, other)]
    for name in ("text", "global"):
        np.testing.assert_allclose(one[name], other[name], atol=1e-5)
    assert penalties[0] == pytest.approx(penalties[1], rel=1e-4)


# --- options ------------------------------------------------------------------------------------


def test_the_adapter_never_leaves_the_client(task, examples):
    method = build(task)
    state, adapter = start_of(method)
    result = method.client_update(ClientView(state, personal=adapter), examples, trainer(), rng())
    assert set(result.update) == set(method.shared_spec()) == {CONTEXT}
    assert set(result.personal) == {LEFT, RIGHT}


@pytest.mark.parametrize(("rate", "rates"), [(None, None), (0.3, 0.3)])
def test_the_adapter_s_learning_rate(task, examples, rate, rates):
    method, recorder = build(task, personal_learning_rate=rate), RecordingTrainer()
    state, adapter = start_of(method)
    method.client_update(ClientView(state, personal=adapter), examples, recorder, rng())
    got = {name: group.learning_rate for group in recorder.groups for name in group.names}
    assert got == {CONTEXT: None, LEFT: rates, RIGHT: rates}


def test_mu_decides_on_the_second_prompt(task, examples):
    """Without contrast z_G is not computed at all."""
    for mu, names in ((0.0, {"text"}), (0.5, {"text", "global"})):
        method, recorder = build(task, mu=mu), RecordingTrainer()
        state, adapter = start_of(method)
        method.client_update(ClientView(state, personal=adapter), examples, recorder, rng())
        tensors = {n: as_tensor(v, task.backbone) for n, v in {**state, **adapter}.items()}
        assert set(recorder.objective.encode(tensors)) == names
        assert (recorder.penalty is None) == (mu == 0.0)


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


@pytest.mark.parametrize("template", ["a photo", "{} or {}", ""])
def test_a_template_without_a_place_for_the_class_is_refused(task, template):
    with pytest.raises(MethodError, match=r"method\.template: .*exactly once"):
        build(task, template=template)


def test_a_template_that_is_too_long_is_refused_when_the_method_is_built(task):
    with pytest.raises(BackboneError, match="at most 24"):
        build(task, template="a very long way to say that this is a photo of " * 2 + "a {}.")


def test_the_paper_is_the_default():
    config = Config()
    assert (config.bottleneck, config.mu, config.temperature) == (8, 1.0, 0.5)
    assert (config.contrast, config.rank, config.clip_reference) == ("both", "low", "template")


def test_cross_entropy_is_of_the_personal_prompt(task, examples):
    method = build(task)
    state, adapter = start_of(method, spread=20.0)
    objective = method._objective({CONTEXT, LEFT, RIGHT})
    parameters = {
        n: torch.as_tensor(v, dtype=torch.float32) for n, v in {**state, **adapter}.items()
    }
    logits = method.predict(
        ClientView(state, personal=adapter), examples.arrays, task.classes
    ).astype(np.float64)
    log_sum = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
    expected = (log_sum - logits[np.arange(10), examples.arrays["labels"]]).mean()
    tensors = {n: torch.as_tensor(v) for n, v in examples.arrays.items()}
    with torch.no_grad():
        losses = objective.losses(parameters, objective.encode(parameters), tensors)
    assert float(losses.mean()) == pytest.approx(expected, rel=1e-4)
    assert math.isfinite(expected)
