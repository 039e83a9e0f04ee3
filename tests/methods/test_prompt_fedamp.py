"""PromptFL with FedAMP: the messages by hand, what is left of them alone, and who may see what."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from methods import (
    Aggregate,
    ClientView,
    MethodError,
    Registry,
    Task,
    Visibility,
    coop,
    prompt_fedamp,
    prompt_fedprox,
    promptfl,
)
from methods.prompt_fedamp import attentive_messages
from methods.prompts.prompt import CONTEXT
from platform.config import MethodConfig, RunConfig, TrainingConfig, parse_config
from platform.contract.driving import Setting, play, quick_folder
from platform.errors import ConfigError
from platform.experiment.method_building import build_method
from tests.methods._double import numeric_gradient
from tests.methods._training import RecordingTrainer, trainer

NAMES = ("ada", "ben", "cyd")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def build(task, **options):
    return prompt_fedamp.build(prompt_fedamp.Config(**{"context_tokens": 4, **options}), task)


def shown(**prompts) -> Aggregate:
    individual = {name: {CONTEXT: value} for name, value in prompts.items()}
    mean = np.mean(list(prompts.values()), axis=0)
    return Aggregate({CONTEXT: mean}, 3.0, len(prompts), 4, individual)


# --- messages -----------------------------------------------------------------------------------


def test_messages_by_hand():
    """Squared distances ln 2 and "far": A' = exp(-ln 2) = 1/2, so weights 0.2 x 1/2 = 0.1."""
    near = math.sqrt(math.log(2.0))  # 0.832555
    prompts = np.array([[0.0], [near], [50.0]])
    got = attentive_messages(prompts, sigma=1.0, alpha=0.2)
    np.testing.assert_allclose(got, [[0.1 * near], [0.9 * near], [50.0]], rtol=1e-9)


def test_sigma_scales_the_squared_distance():
    """sigma = 2, squared distance 2 ln 2: A' = exp(-ln 2) / 2 = 1/4, times alpha 0.4 is 0.1."""
    near = math.sqrt(2 * math.log(2.0))
    got = attentive_messages(np.array([[0.0], [near]]), sigma=2.0, alpha=0.4)
    np.testing.assert_allclose(got, [[0.1 * near], [0.9 * near]], rtol=1e-9)


def test_messages_are_a_step_on_the_attention_term():
    """U = W - (alpha / 2) d/dW of the sum over pairs of A: the paper leaves the square's 2 out."""
    drawn = rng(1).normal(0.0, 0.4, (5, 3, 2))
    sigma, alpha = 1.7, 0.3
    leaf = torch.tensor(drawn, requires_grad=True)
    pairs = [(i, j) for i in range(5) for j in range(i)]
    total = sum(1 - torch.exp(-(leaf[i] - leaf[j]).square().sum() / sigma) for i, j in pairs)
    total.backward()
    got = attentive_messages(drawn, sigma=sigma, alpha=alpha)
    np.testing.assert_allclose(got, drawn - alpha / 2 * leaf.grad.numpy(), rtol=1e-10)


@given(st.integers(0, 1000), st.integers(1, 6), st.floats(0.01, 10.0))
def test_messages_are_convex_combinations(seed, count, sigma):
    prompts = rng(seed).normal(size=(count, 4))
    got = attentive_messages(prompts, sigma=sigma, alpha=sigma / max(count - 1, 1))
    slack = 1e-9
    assert (got >= prompts.min(axis=0) - slack).all()
    assert (got <= prompts.max(axis=0) + slack).all()
    # The weights are symmetric, so the mean over clients stays where it was.
    np.testing.assert_allclose(got.mean(axis=0), prompts.mean(axis=0), atol=1e-9)


def test_close_prompts_far_from_zero_are_told_apart():
    """Distances of 1e-3 around 1e4 are not lost in rounding."""
    prompts = 1e4 + np.array([[0.0], [1e-3]])
    got = attentive_messages(prompts, sigma=1e-6 / math.log(2.0), alpha=0.2e-6 / math.log(2.0))
    np.testing.assert_allclose(got - 1e4, [[1e-4], [9e-4]], rtol=1e-4)


def test_by_default_equal_prompts_are_mixed_evenly(task):
    method = build(task, sigma=3.0)
    assert method.alpha == pytest.approx(3.0 / 4)
    prompts = {name: np.full((4, 32), i * 1e-4, np.float32) for i, name in enumerate("abcd")}
    zero = {CONTEXT: np.zeros((4, 32), np.float32)}
    after = method.server_update(zero, shown(**prompts), (), rng())
    for name in "abcd":
        np.testing.assert_allclose(method.broadcast(after, name)[CONTEXT], 1.5e-4, rtol=1e-4)


def test_each_client_is_sent_its_own_message(task):
    method = build(task, sigma=1.0, alpha=0.1)
    state = {CONTEXT: np.zeros((4, 32), np.float32)}
    near, far = np.full((4, 32), 0.01, np.float32), np.full((4, 32), 3.0, np.float32)
    after = method.server_update(state, shown(ada=near, ben=2 * near, cyd=far), (), rng())
    sent = {name: method.broadcast(after, name)[CONTEXT] for name in NAMES}
    # ||w_ada - w_ben||^2 = 128 x 0.01^2 = 0.0128: weight 0.1 exp(-0.0128) = 0.0987282.
    np.testing.assert_allclose(sent["ada"], 0.01 + 0.0987282 * 0.01, rtol=1e-5)
    np.testing.assert_allclose(sent["ben"], 0.02 - 0.0987282 * 0.01, rtol=1e-5)
    # The others are 128 x 2.98^2 away: nothing of them reaches it.
    np.testing.assert_array_equal(sent["cyd"], far)
    # Who never took part gets the first prompt.
    np.testing.assert_array_equal(method.broadcast(after, "dee")[CONTEXT], state[CONTEXT])


def test_updates_are_differences_to_each_clients_own_message(task):
    method = build(task, alpha=0.0)
    state = {CONTEXT: np.zeros((4, 32), np.float32)}
    one = np.ones((4, 32), np.float32)
    state = method.server_update(state, shown(ada=one, ben=5 * one), (), rng())
    after = method.server_update(state, shown(ada=one), (), rng())
    np.testing.assert_array_equal(method.broadcast(after, "ada")[CONTEXT], 2 * one)
    # Ben was not in that round: his message stays.
    np.testing.assert_array_equal(method.broadcast(after, "ben")[CONTEXT], 5 * one)


def test_the_order_of_clients_does_not_matter(task):
    method = build(task)
    state = {CONTEXT: np.zeros((4, 32), np.float32)}
    prompts = {n: rng(i).normal(0, 0.1, (4, 32)).astype("f4") for i, n in enumerate(NAMES)}
    turned = {name: prompts[name] for name in reversed(NAMES)}
    one, other = (method.server_update(state, shown(**p), (), rng()) for p in (prompts, turned))
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_a_round_without_anybody_changes_nothing(task):
    method = build(task)
    state = method.init_server(rng(1))
    empty = Aggregate({CONTEXT: np.zeros((4, 32))}, 0.0, 0, 4, {})
    assert method.server_update(state, empty, (), rng()) == state


# --- training -----------------------------------------------------------------------------------


def rounds_alone(method, examples, count=3):
    """One client's own rounds; returns its last state, as the server keeps it."""
    state, personal, batches = method.init_server(rng(1)), {}, rng(3)
    for _ in range(count):
        result = method.client_update(
            ClientView(method.broadcast(state, "ada"), (), personal), examples, trainer(), batches
        )
        seen = {"ada": result.update}
        aggregate = Aggregate(result.update, 10.0, 1, 1, seen)
        state, personal = method.server_update(state, aggregate, (), rng()), result.personal
    return method.broadcast(state, "ada")[CONTEXT]


def test_one_client_without_the_term_is_promptfl(task, examples):
    method = build(task, proximal_weight=0.0)
    plain = promptfl.build(promptfl.Config(context_tokens=4), task)
    assert np.array_equal(rounds_alone(method, examples), rounds_alone(plain, examples))


def test_one_client_is_fedprox(task, examples):
    """Its message is its own prompt, so lambda / alpha_k is FedProx's mu."""
    method = build(task, proximal_weight=0.7)
    prox = prompt_fedprox.build(prompt_fedprox.Config(context_tokens=4, mu=0.7), task)
    free = build(task, proximal_weight=0.0)
    got = rounds_alone(method, examples)
    assert np.array_equal(got, rounds_alone(prox, examples))
    assert np.abs(got - rounds_alone(free, examples)).max() > 1e-4


def test_as_published_it_is_local_training(task, examples):
    """From the own prompt and without a slope to the message, whatever the message is."""
    method = build(task, start="own", proximal_weight=0.0)
    local = coop.build(coop.Config(context_tokens=4), task)
    broadcast, personal = method.init_server(rng(1)), {}
    for number in range(2):
        mine = method.client_update(
            ClientView(broadcast, personal=personal), examples, trainer(), rng(number)
        )
        own = personal or broadcast
        other = local.client_update(ClientView({}, personal=own), examples, trainer(), rng(number))
        assert np.array_equal(mine.personal[CONTEXT], other.personal[CONTEXT])
        expected = mine.personal[CONTEXT] - broadcast[CONTEXT]
        assert np.array_equal(mine.update[CONTEXT], expected)
        broadcast, personal = method.init_server(rng(50 + number)), mine.personal


@pytest.mark.parametrize(("start", "value"), [("message", 0.25), ("own", 1.0)])
def test_where_training_starts(task, examples, start, value):
    method, recorder = build(task, start=start), RecordingTrainer()
    message = {CONTEXT: np.full((4, 32), 0.25, np.float32)}
    own = {CONTEXT: np.ones((4, 32), np.float32)}
    method.client_update(ClientView(message, personal=own), examples, recorder, rng())
    np.testing.assert_array_equal(recorder.parameters[CONTEXT], value)


@pytest.mark.parametrize(
    # 128 differences of 0.5: the square is 32, the norm sqrt(32) = 5.656854; weight 2, half of it.
    ("proximal", "value"),
    [("squared", 32.0), ("norm", 5.656854)],
)
def test_the_penalty_by_hand_and_by_finite_differences(task, examples, proximal, value):
    method, recorder = build(task, proximal=proximal, proximal_weight=2.0), RecordingTrainer()
    message = {CONTEXT: np.full((4, 32), 0.25, np.float32)}
    method.client_update(ClientView(message), examples, recorder, rng())
    there = {CONTEXT: np.full((4, 32), 0.75)}

    def loss(values):
        return recorder.penalty({CONTEXT: torch.as_tensor(values[CONTEXT])}, {})

    assert float(loss(there)) == pytest.approx(value, rel=1e-6)
    leaf = torch.tensor(there[CONTEXT], requires_grad=True)
    loss({CONTEXT: leaf}).backward()
    places = [(0, 0), (3, 31)]
    slopes = numeric_gradient(loss, there, CONTEXT, places)
    np.testing.assert_allclose([float(leaf.grad[p]) for p in places], slopes, rtol=1e-6)


@pytest.mark.parametrize("proximal", ["squared", "norm"])
def test_at_the_message_the_penalty_has_no_slope(task, examples, proximal):
    method = build(task, proximal=proximal, proximal_weight=3.0)
    plain = promptfl.build(promptfl.Config(context_tokens=4), task)
    state = method.init_server(rng(1))
    mine, other = (
        m.client_update(ClientView(state), examples, trainer(steps=1), rng(3))
        for m in (method, plain)
    )
    assert np.array_equal(mine.update[CONTEXT], other.update[CONTEXT])


def test_a_client_predicts_with_its_own_prompt(task, examples):
    method = build(task)
    message, own = method.init_server(rng(1)), method.init_server(rng(2))
    np.testing.assert_array_equal(
        method.predict(ClientView(message, personal=own), examples.arrays, task.classes),
        method.predict(ClientView(own), examples.arrays, task.classes),
    )


# --- who may see what ---------------------------------------------------------------------------


def test_it_is_keyed_alike_on_both_sides(task, examples):
    with quick_folder() as folder:
        outcome = play(build(task), dict.fromkeys(NAMES, examples), folder, Setting())
    assert outcome.individual is not None
    assert set(outcome.individual) == set(NAMES)


def test_a_server_that_sees_no_single_update_is_refused(task):
    method = build(task)
    hidden = Aggregate({CONTEXT: np.zeros((4, 32))}, 3.0, 3, 4)
    with pytest.raises(MethodError, match=r"aggregate\.individual is None"):
        method.server_update(method.init_server(rng(1)), hidden, (), rng())


def build_configured(task, **sections):
    config = RunConfig(
        name="amp",
        method=MethodConfig(name="prompt_fedamp"),
        training=TrainingConfig(local_steps=1),
        **sections,
    )
    return build_method(Registry(), config, task)


def test_secure_sums_are_refused_with_the_reason(task):
    assert build_configured(task).visibility is Visibility.PER_CLIENT
    with pytest.raises(ConfigError) as refused:
        build_configured(task, secure_aggregation={"enabled": True})
    assert str(refused.value) == (
        "secure_aggregation.enabled: true hides each client's update, which prompt_fedamp needs; "
        "valid: false"
    )


@pytest.mark.parametrize("mechanism", ["distributed_noise", "central_noise"])
def test_noise_on_sums_is_refused(task, mechanism):
    tree = {
        "name": "amp",
        "method": {"name": "prompt_fedamp"},
        "training": {"local_steps": 1},
        "privacy": {
            "mechanism": mechanism,
            "clipping_norm": 1.0,
            "noise_multiplier": 1.0,
            "noise_source": "seeded",
        },
        "secure_aggregation": {"enabled": True},
    }
    with pytest.raises(ConfigError, match=rf"{mechanism}.*prompt_fedamp.*valid: "):
        build_method(Registry(), parse_config(tree), task)


@pytest.mark.parametrize(("population", "alpha"), [(4, 0.34), (11, 0.2)])
def test_a_step_that_is_too_large_is_refused(task, population, alpha):
    crowd = Task(task.classes, task.domains, population, task.backbone)
    most = f"{1 / (population - 1):g}"
    message = rf"method\.alpha: {alpha} .*task\.clients = {population}: 0 to {most}"
    with pytest.raises(MethodError, match=message):
        build(crowd, alpha=alpha)
    assert build(crowd, alpha=0.1).alpha == 0.1
    alone = Task(task.classes, task.domains, 1, task.backbone)
    assert build(alone, alpha=alpha).alpha == alpha
