"""pFedPG and PromptFL with FedAMP: what the server makes for each client, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from methods import (
    Aggregate,
    ClientView,
    MethodError,
    fedmaple,
    pfedpg,
    prompt_fedamp,
    prompt_fedprox,
)
from methods.pfedpg import BASE, DESCRIPTOR, MATRICES, PATCHES, PROMPTS, SEED, generated
from methods.prompt_fedamp import attentive_messages
from methods.prompts.prompt import CONTEXT
from tests.methods._training import RecordingTrainer, rng, trainer

WIDTH = 32


def pg(task, **options):
    return pfedpg.build(pfedpg.Config(**{"context_tokens": 3, **options}), task)


def aggregate_of(individual) -> Aggregate:
    return Aggregate({}, float(len(individual)), len(individual), 4, individual)


def doubles(**arrays) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in arrays.items()}


def test_attention_by_hand():
    """l = 2, identity matrices; d = (1, 0) and P_base rows (0, 0), (sqrt(2) ln 3, 4).

    Logits are 0 and ln 3, so weights 1/4 and 3/4: P = (0.75 sqrt(2) ln 3, 3).
    """
    eye = np.eye(2)
    phi = {
        **doubles(base=[[0.0, 0.0], [math.sqrt(2.0) * math.log(3.0), 4.0]]),
        **doubles(query=eye, key=eye, value=eye, out=eye),
        DESCRIPTOR: torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64),
    }
    expected = [0.75 * math.sqrt(2.0) * math.log(3.0), 3.0]
    np.testing.assert_allclose(generated(phi), [expected, expected])
    # W_V doubles, W_O swaps.
    phi["value"], phi["out"] = 2.0 * phi["value"], phi["out"].flip(0)
    np.testing.assert_allclose(generated(phi)[0], [6.0, 2.0 * expected[0]])
    row = {**phi, DESCRIPTOR: phi[DESCRIPTOR][:1]}
    shifted = phi[BASE] + torch.tensor([[6.0, 2.0 * expected[0]]], dtype=torch.float64)
    np.testing.assert_allclose(generated(row, residual=True), shifted)


def test_it_is_torchs_multi_head_attention():
    draws = rng(2)
    phi = doubles(
        **{n: draws.normal(size=(8, 8)) for n in MATRICES}, base=draws.normal(size=(5, 8))
    )
    phi[DESCRIPTOR] = torch.tensor(draws.normal(size=(5, 8)))
    layer = torch.nn.MultiheadAttention(8, 4, bias=False).double()
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.cat([phi[n].T for n in MATRICES[:3]]))
        layer.out_proj.weight.copy_(phi["out"].T)
        expected, _ = layer(phi[DESCRIPTOR], phi[BASE], phi[BASE])
    np.testing.assert_allclose(generated(phi, 4), expected, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"descriptor": "row", "heads": 2}])
def test_the_step_is_the_chain_rule_by_differences(task, options):
    """Every array moves by alpha times the slope of sum <dP, P(phi)>, and up it."""
    method = pg(task, server_rate=1.0, **options)
    state, changes = method.init_server(rng(1)), {}
    # Prompts as they start are so small that attention is even, and a slope in it unseen.
    state = {n: v if n == SEED else v * (30.0 if n == BASE else 1.0) for n, v in state.items()}
    rows = 3 if method.config.descriptor == "tokens" else 1
    for index, name in enumerate("ab"):
        state[f"{DESCRIPTOR}{name}"] = rng(index).normal(size=(rows, WIDTH)).astype(np.float32)
        changes[name] = {PROMPTS: rng(7 + index).normal(size=(3, WIDTH)).astype(np.float32)}
    after = method.server_update(state, aggregate_of(changes), (), rng())

    def wanted(arrays) -> float:
        sent = {c: method.broadcast(arrays, c)[PROMPTS].astype(np.float64) for c in changes}
        return sum(float((changes[c][PROMPTS] * sent[c]).sum()) for c in changes)

    for name in (BASE, *MATRICES, f"{DESCRIPTOR}a", f"{DESCRIPTOR}b"):
        direction = rng(11).normal(size=state[name].shape)
        up, down = (
            {**state, name: (state[name] + sign * 1e-2 * direction).astype(np.float32)}
            for sign in (1.0, -1.0)
        )
        slope = (wanted(up) - wanted(down)) / 2e-2
        moved = after[name].astype(np.float64) - state[name]
        assert (moved * direction).sum() == pytest.approx(slope, rel=2e-2, abs=2e-2), name
    assert after[SEED] == state[SEED]


def test_descriptors_start_from_names_and_are_kept(task):
    method = pg(task, descriptor="row")
    state = method.init_server(rng(1))
    first, again, other = (method.broadcast(state, name)[PROMPTS] for name in "aab")
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.0
    resown = {**state, SEED: np.array(int(state[SEED]) + 1)}
    assert np.abs(first - method.broadcast(resown, "a")[PROMPTS]).max() > 0.0
    assert method.broadcast(state)[PROMPTS].shape == (3, WIDTH)
    assert method.server_update(state, aggregate_of({}), (), rng()).keys() == state.keys()


def test_prompts_stand_beside_the_patches(task):
    """Oracle: the image tower of FedMaPLe with one layer of prompts, whose features are unit."""
    method = pg(task)
    side, state = task.backbone.image_size, method.init_server(rng(1))
    pixels = rng(5).integers(0, 256, (8, side, side, 3), dtype=np.uint8)
    batch = method.prepare({"pixels": pixels})
    maple = fedmaple.build(fedmaple.Config(depth=1), task)
    np.testing.assert_array_equal(batch[PATCHES], maple.prepare({"pixels": pixels})[PATCHES])
    head = method.init_client(rng(2), rng(3))
    prompts = torch.tensor(20.0 * method.broadcast(state, "a")[PROMPTS])
    view = ClientView({PROMPTS: prompts.numpy()}, personal=head)
    got = method.predict(view, batch, task.classes)
    with torch.no_grad():
        patches = torch.tensor(batch[PATCHES])
        unit = maple.image.image_features(patches, prompts[None])
        features = method.image.pooled_features(patches, prompts[None])
    np.testing.assert_allclose(functional.normalize(features, dim=-1), unit, atol=1e-6)
    expected = features.numpy() @ head["head.weight"].T + head["head.bias"]
    np.testing.assert_allclose(got, expected, atol=1e-5)
    np.testing.assert_array_equal(method.predict(view, batch, task.classes[1:3]), got[:, 1:3])


def amp(task, **options):
    return prompt_fedamp.build(prompt_fedamp.Config(**{"context_tokens": 4, **options}), task)


def shown(**prompts) -> Aggregate:
    individual = {name: {CONTEXT: value} for name, value in prompts.items()}
    mean = np.mean(list(prompts.values()), axis=0)
    return Aggregate({CONTEXT: mean}, 3.0, len(prompts), 4, individual)


def test_messages_by_hand():
    """Squared distances ln 2 and "far": A' = exp(-ln 2) = 1/2, so weights 0.2 x 1/2 = 0.1."""
    near = math.sqrt(math.log(2.0))  # 0.832555
    prompts = np.array([[0.0], [near], [50.0]])
    got = attentive_messages(prompts, sigma=1.0, alpha=0.2)
    np.testing.assert_allclose(got, [[0.1 * near], [0.9 * near], [50.0]], rtol=1e-9)
    # sigma = 2, squared distance 2 ln 2: A' = exp(-ln 2) / 2 = 1/4, times alpha 0.4 is 0.1.
    near = math.sqrt(2 * math.log(2.0))
    got = attentive_messages(np.array([[0.0], [near]]), sigma=2.0, alpha=0.4)
    np.testing.assert_allclose(got, [[0.1 * near], [0.9 * near]], rtol=1e-9)


def test_each_client_is_sent_its_own_message(task):
    method = amp(task, sigma=1.0, alpha=0.1)
    state = {CONTEXT: np.zeros((4, 32), np.float32)}
    near, far = np.full((4, 32), 0.01, np.float32), np.full((4, 32), 3.0, np.float32)
    after = method.server_update(state, shown(ada=near, ben=2 * near, cyd=far), (), rng())
    sent = {name: method.broadcast(after, name)[CONTEXT] for name in ("ada", "ben", "cyd")}
    # ||w_ada - w_ben||^2 = 128 x 0.01^2 = 0.0128: weight 0.1 exp(-0.0128) = 0.0987282.
    np.testing.assert_allclose(sent["ada"], 0.01 + 0.0987282 * 0.01, rtol=1e-5)
    np.testing.assert_allclose(sent["ben"], 0.02 - 0.0987282 * 0.01, rtol=1e-5)
    # The others are 128 x 2.98^2 away: nothing of them reaches it.
    np.testing.assert_array_equal(sent["cyd"], far)
    # Who never took part gets the first prompt.
    np.testing.assert_array_equal(method.broadcast(after, "dee")[CONTEXT], state[CONTEXT])


def test_updates_are_differences_to_each_clients_own_message(task):
    method = amp(task, alpha=0.0)
    state = {CONTEXT: np.zeros((4, 32), np.float32)}
    one = np.ones((4, 32), np.float32)
    state = method.server_update(state, shown(ada=one, ben=5 * one), (), rng())
    after = method.server_update(state, shown(ada=one), (), rng())
    np.testing.assert_array_equal(method.broadcast(after, "ada")[CONTEXT], 2 * one)
    # Ben was not in that round: his message stays.
    np.testing.assert_array_equal(method.broadcast(after, "ben")[CONTEXT], 5 * one)


def rounds_alone(method, examples):
    """One client's own rounds; returns its last state, as the server keeps it."""
    state, personal, batches = method.init_server(rng(1)), {}, rng(3)
    for _ in range(3):
        view = ClientView(method.broadcast(state, "ada"), (), personal)
        result = method.client_update(view, examples, trainer(), batches)
        aggregate = Aggregate(result.update, 10.0, 1, 1, {"ada": result.update})
        state, personal = method.server_update(state, aggregate, (), rng()), result.personal
    return method.broadcast(state, "ada")[CONTEXT]


def test_one_client_is_fedprox(task, examples):
    """Its message is its own prompt, so lambda / alpha_k is FedProx's mu."""
    method = amp(task, proximal_weight=0.7)
    prox = prompt_fedprox.build(prompt_fedprox.Config(context_tokens=4, mu=0.7), task)
    free = amp(task, proximal_weight=0.0)
    got = rounds_alone(method, examples)
    assert np.array_equal(got, rounds_alone(prox, examples))
    assert np.abs(got - rounds_alone(free, examples)).max() > 1e-4


@pytest.mark.parametrize(
    # 128 differences of 0.5: the square is 32, the norm sqrt(32) = 5.656854; weight 2, half of it.
    ("proximal", "value"),
    [("squared", 32.0), ("norm", 5.656854)],
)
def test_the_penalty_by_hand(task, examples, proximal, value):
    method, recorder = amp(task, proximal=proximal, proximal_weight=2.0), RecordingTrainer()
    message = {CONTEXT: np.full((4, 32), 0.25, np.float32)}
    method.client_update(ClientView(message), examples, recorder, rng())
    there = {CONTEXT: torch.full((4, 32), 0.75)}
    assert float(recorder.penalty(there, {})) == pytest.approx(value, rel=1e-6)


def test_a_step_that_is_too_large_is_refused(task):
    with pytest.raises(MethodError, match=r"method\.alpha: 0\.34 .*clients = 4: 0 to 0\.333333"):
        amp(task, alpha=0.34)
