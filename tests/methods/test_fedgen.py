"""FedGen: its generator and both ensembles by hand, and FedAvg where nothing is generated."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from methods import Aggregate, ClientView, Examples, MethodError, Task, Visibility, fedavg, fedgen
from methods.fedgen import SHARES, Generator, Teachers, distribution, likeness, trust_of
from platform.contract.examples import draw_examples
from privacy.training import LocalTrainer, TrainingPlan
from tests.methods._training import RecordingTrainer

CLASSES = ("ant", "bee", "cow")
TASK = Task(CLASSES, ("one",), 4)
NETWORK = {"network": "fasttext", "buckets": 20, "feature_width": 4}
SMALL = {**NETWORK, "noise_width": 2, "hidden_width": 5, "generator_steps": 2}
HEAD = ("head.weight", "head.bias")


def rng(seed: int = 3) -> np.random.Generator:
    return np.random.default_rng(seed)


def build(**options):
    return fedgen.build(fedgen.Config(**{**SMALL, **options}), TASK)


def learner(steps: int = 1) -> LocalTrainer:
    return LocalTrainer(TrainingPlan(local_steps=steps, batch_size=8, learning_rate=0.5))


def examples(method, labels=(0, 1, 1, 1, 2, 2, 0, 1)) -> Examples:
    data = draw_examples(method, 0, len(labels))
    return Examples({**data.arrays, "labels": np.array(labels)})


def update_of(state, **changes):
    """An update of zeros but for what is given."""
    zero = {n: np.zeros_like(v) for n, v in state.items() if not n.startswith("generator")}
    return {**zero, **{n: np.array(v, np.float32) for n, v in changes.items()}}


def aggregate(*updates, individual: bool = True) -> Aggregate:
    values = {n: np.mean([u[n] for u in updates], axis=0) for n in updates[0]}
    single = {f"client-{i}": u for i, u in enumerate(updates)} if individual else None
    return Aggregate(values, 8.0, len(updates), 4, single)


def tensors(arrays):
    return {n: torch.tensor(np.array(a), dtype=torch.float32) for n, a in arrays.items()}


def test_the_generator_by_hand():
    """Noise (2, -1) and class 1: hidden ReLU((2 + 10, -1 - 20)) = (12, 0), output 12 (1, 3) + 1."""
    generator = Generator(2, 2, 2, 2, "gaussian")
    arrays = tensors(
        {
            "generator.hidden.weight": [[1, 0, 0, 10], [0, 1, 0, -20]],
            "generator.hidden.bias": [0, 0],
            "generator.output.weight": [[1, 7], [3, 7]],
            "generator.output.bias": [1, 1],
        }
    )
    assert {n: layer.shape for n, layer in generator.layers.items()} == {
        n: tuple(a.shape) for n, a in arrays.items()
    }
    features = generator.features(arrays, torch.tensor([[2.0, -1.0]]), torch.tensor([1]))
    assert features.tolist() == [[13.0, 37.0]]


@pytest.mark.parametrize(("noise", "mean", "low"), [("gaussian", 0.0, -2.0), ("uniform", 0.5, 0.0)])
def test_the_noise(noise, mean, low):
    drawn = Generator(2, 3, 2, 2, noise).draw(rng(), 4000)
    assert drawn.shape == (4000, 3)
    assert drawn.dtype == np.float32
    assert abs(drawn.mean() - mean) < 0.05
    assert abs(drawn.std() - (1.0 if noise == "gaussian" else 12**-0.5)) < 0.02
    assert (drawn.min() >= low) == (noise == "uniform")


def test_likeness_by_hand():
    """Two rows apart by 2 in noise (squared: 4) and by (1, 3) in features (mean: 2): exp(-16/4)."""
    noise, features = torch.tensor([[0.0], [2.0]]), torch.tensor([[0.0, 0.0], [1.0, 3.0]])
    torch.testing.assert_close(likeness(noise, features), torch.tensor(math.exp(-4.0)))
    torch.testing.assert_close(likeness(noise, torch.ones(2, 2)), torch.tensor(1.0))


def test_likeness_is_the_mean_over_all_pairs_of_rows():
    noise, features = (torch.from_numpy(rng(s).normal(size=(5, 3))) for s in (1, 2))
    total = 0.0
    for i in range(5):
        for j in range(5):
            apart = float(((noise[i] - noise[j]) ** 2).mean())
            total += apart * float((features[i] - features[j]).abs().mean())
    assert float(likeness(noise, features)) == pytest.approx(math.exp(-total / 25))


def test_the_ensemble_of_single_heads_by_hand():
    """Feature 1 of class 0: head one has logits (0, 0), head two (ln 3, 0)."""
    heads = Teachers(
        weight=torch.tensor([[[0.0], [0.0]], [[math.log(3.0)], [0.0]]]),
        bias=torch.zeros(2, 2),
        trust=torch.tensor([[0.25, 1.0], [0.75, 0.0]]),
    )
    one, two = math.log(2.0), math.log(4.0 / 3.0)
    loss = heads.loss(torch.ones(1, 1), torch.tensor([0]))
    assert float(loss) == pytest.approx(0.25 * one + 0.75 * two)
    # A row of class 1, which head one alone is trusted with; the batch is averaged.
    loss = heads.loss(torch.ones(2, 1), torch.tensor([0, 1]))
    assert float(loss) == pytest.approx((0.25 * one + 0.75 * two + one) / 2)


def test_the_mean_head_is_the_mean_of_the_logits():
    """The paper's other ensemble needs no head by itself, as heads are linear."""
    method = build(ensemble="mean")
    state = method.init_server(rng(1))
    updates = [
        update_of(state, **{n: rng(s).normal(size=state[n].shape) for n in HEAD}) for s in (5, 6)
    ]
    given = aggregate(*updates, individual=False)
    moved = {**state, **{n: state[n] + given.values[n] for n in HEAD}}
    features, labels = torch.tensor(rng(7).normal(size=(6, 4))).float(), torch.arange(6) % 3
    logits = torch.zeros(6, 3)
    for update in updates:
        weight, bias = (torch.from_numpy(state[n] + update[n]) for n in HEAD)
        logits += (features @ weight.T + bias) / 2
    expected = functional.cross_entropy(logits, labels)
    got = method.teachers(state, moved, given).loss(features, labels)
    torch.testing.assert_close(got, expected)


def test_equal_heads_make_both_ensembles_one():
    """Whatever the clients' classes are, as what is trusted with a class adds up to one."""
    single, mean = build(), build(ensemble="mean")
    state = single.init_server(rng(1))
    same = {n: rng(4).normal(size=state[n].shape) for n in HEAD}
    shifts = ([0.5, -0.2, -0.3], [-0.3, 0.6, -0.3])
    given = aggregate(*(update_of(state, **same, **{SHARES: s}) for s in shifts))
    after = [method.server_update(state, given, (), rng(9)) for method in (single, mean)]
    for name in single.generator.layers:
        np.testing.assert_allclose(after[0][name], after[1][name], atol=1e-5)
        assert np.abs(after[0][name] - state[name]).max() > 1e-5


def test_each_head_is_trusted_with_the_classes_that_are_its_own():
    got = trust_of(np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]))
    np.testing.assert_allclose(got, [[1 / 3, 1.0, 0.5], [2 / 3, 0.0, 0.5]])
    method = build()
    state = method.init_server(rng(1))
    shares = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    updates = [
        update_of(state, **{SHARES: own - 1 / 3, "head.bias": [k, 0, 0]})
        for k, own in enumerate(shares)
    ]
    teachers = method.teachers(state, state, aggregate(*updates))
    np.testing.assert_allclose(teachers.trust, got, atol=1e-6)
    np.testing.assert_allclose(
        teachers.bias, state["head.bias"] + np.array([[0, 0, 0], [1, 0, 0]]), atol=1e-6
    )
    np.testing.assert_allclose(teachers.weight, np.stack([state["head.weight"]] * 2))


def test_shares_that_noise_has_made_negative():
    np.testing.assert_allclose(distribution(np.array([-0.5, 0.3, 0.1])), [0.0, 0.75, 0.25])
    np.testing.assert_allclose(distribution(np.array([-0.5, -0.1])), [0.5, 0.5])


def test_shares_of_labels_are_averaged():
    """A client sends how its shares differ from those that it was sent."""
    method = build(ensemble="mean")
    state = dict(method.init_server(rng(1)))
    np.testing.assert_allclose(state[SHARES], [1 / 3] * 3)
    state[SHARES] = np.array([0.5, 0.25, 0.25], np.float32)
    updates = [
        method.client_update(ClientView(state), examples(method, labels), learner(), rng()).update
        for labels in ((0, 0, 1, 0), (2, 2, 2, 2))
    ]
    np.testing.assert_allclose(updates[0][SHARES], [0.25, 0.0, -0.25], atol=1e-6)
    after = method.server_update(state, aggregate(*updates, individual=False), (), rng())
    np.testing.assert_allclose(after[SHARES], [0.375, 0.125, 0.5], atol=1e-6)


def test_without_weight_it_is_fedavg():
    """From the same start, by the same batches."""
    method, plain = build(weight=0.0), fedavg.build(fedavg.Config(**NETWORK), TASK)
    state, bare = method.init_server(rng(1)), plain.init_server(rng(1))
    assert all(np.array_equal(state[name], value) for name, value in bare.items())
    data = examples(method)
    got = method.client_update(ClientView(state), data, learner(3), rng()).update
    expected = plain.client_update(ClientView(bare), data, learner(3), rng()).update
    assert set(got) == {*expected, SHARES}
    assert all(np.array_equal(got[name], value) for name, value in expected.items())


def deaf(state):
    """A generator that hears its class alone: feature c is 1 for class c, else 0."""
    hidden = np.zeros((5, 5), np.float32)
    hidden[:3, 2:] = np.eye(3)
    output = np.zeros((4, 5), np.float32)
    output[:3, :3] = np.eye(3)
    return {
        **state,
        "generator.hidden.weight": hidden,
        "generator.hidden.bias": np.zeros(5, np.float32),
        "generator.output.weight": output,
        "generator.output.bias": np.zeros(4, np.float32),
    }


def test_the_clients_term_by_hand():
    """All labels are of class 1, whose feature is (0, 1, 0, 0): logits are the head's column 1."""
    method = build(weight=3.0)
    state = {**deaf(method.init_server(rng(1))), SHARES: np.array([0, 1, 0], np.float32)}
    recorder = RecordingTrainer()
    method.client_update(ClientView(state), examples(method), recorder, rng())
    head = {"head.weight": np.zeros((3, 4)), "head.bias": np.zeros(3)}
    head["head.weight"][:, 1] = np.log([1.0, 5.0, 2.0])
    value = recorder.penalty(tensors(head), {})
    assert float(value) == pytest.approx(3.0 * math.log(8.0 / 5.0), rel=1e-5)


def test_the_clients_term_trains_the_head_alone():
    """One step: the extractor's is FedAvg's; the head has a step on the generated pairs besides."""
    method, plain = build(weight=2.0), fedavg.build(fedavg.Config(**NETWORK), TASK)
    state = {**deaf(method.init_server(rng(1))), SHARES: np.array([0, 1, 0], np.float32)}
    data = examples(method)
    got = method.client_update(ClientView(state), data, learner(), rng()).update
    bare = plain.client_update(ClientView(state), data, learner(), rng()).update
    for name in method.extractor.layers:
        np.testing.assert_allclose(got[name], bare[name], atol=1e-6)
    logits = state["head.weight"][:, 1] + state["head.bias"]
    odds = np.exp(logits) / np.exp(logits).sum() - [0, 1, 0]
    np.testing.assert_allclose(got["head.bias"] - bare["head.bias"], -0.5 * 2 * odds, atol=1e-6)
    step = np.zeros((3, 4))
    step[:, 1] = -0.5 * 2 * odds
    np.testing.assert_allclose(got["head.weight"] - bare["head.weight"], step, atol=1e-6)


@pytest.mark.parametrize(
    ("labels", "expected"), [("counted", [0.8, 0.2, 0]), ("uniform", [1 / 3] * 3)]
)
def test_classes_of_generated_pairs(labels, expected):
    method = build(labels=labels)
    state = {**method.init_server(rng(1)), SHARES: np.array([0.8, 0.2, -0.1], np.float32)}
    noise, drawn = method.draw(state, 3000, rng())
    assert noise.shape == (3000, 2)
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 3000, expected, atol=0.04)


def test_how_many_pairs_are_drawn_and_of_which_classes(monkeypatch):
    """A client's by the shares that it was sent, the server's by those after the round."""
    method, asked = build(generated=7), []
    draw = fedgen.FedGen.draw

    def noted(self, state, count, source):
        asked.append((count, state[SHARES].tolist()))
        return draw(self, state, count, source)

    monkeypatch.setattr(fedgen.FedGen, "draw", noted)
    state = {**method.init_server(rng(1)), SHARES: np.array([1, 0, 0], np.float32)}
    method.client_update(ClientView(state), examples(method), learner(), rng())
    method.server_update(state, aggregate(update_of(state, **{SHARES: [-1, 1, 0]})), (), rng())
    assert asked == [(7, [1, 0, 0]), (32, [0, 1, 0]), (32, [0, 1, 0])]


def test_the_generators_loss_has_both_terms():
    method = build(diversity=2.5)
    state = method.init_server(rng(1))
    noise, labels = method.draw(state, 6, rng())
    generator = tensors({n: state[n] for n in method.generator.layers})
    teachers = method.teachers(state, state, aggregate(update_of(state)))
    features = method.generator.features(generator, noise, labels)
    logits = features @ torch.from_numpy(state["head.weight"]).T + torch.from_numpy(
        state["head.bias"]
    )
    expected = functional.cross_entropy(logits, labels) + 2.5 * likeness(noise, features)
    torch.testing.assert_close(method.generator_loss(teachers, noise, labels, generator), expected)
    plain = dataclasses.replace(method, config=dataclasses.replace(method.config, diversity=0.0))
    torch.testing.assert_close(
        plain.generator_loss(teachers, noise, labels, generator),
        functional.cross_entropy(logits, labels),
    )


def test_the_generators_first_step_is_adams():
    """Adam's first step is its learning rate along the gradient's sign, wherever there is one."""
    method = build(generator_steps=1, generator_rate=0.01)
    state = method.init_server(rng(1))
    after = method.server_update(state, aggregate(update_of(state)), (), rng())
    for name in method.generator.layers:
        moved = np.abs(after[name] - state[name])
        assert np.all((moved < 1e-6) | (np.abs(moved - 0.01) < 1e-4))
        assert moved.max() > 0.009


@pytest.mark.parametrize("ensemble", ["individual", "mean"])
def test_a_trained_generator_makes_what_the_heads_take_for_the_class(ensemble):
    """Of the heads after the round: what is broadcast is a head of zero, which knows nothing."""
    method = build(ensemble=ensemble, generator_steps=150, generator_rate=0.02)
    state = dict(method.init_server(rng(1)))
    state.update({n: np.zeros_like(state[n]) for n in HEAD})
    told = update_of(state, **{"head.weight": 3.0 * np.eye(3, 4)})
    after = method.server_update(state, aggregate(told, told), (), rng())
    labels = torch.arange(30) % 3
    noise = torch.from_numpy(method.generator.draw(rng(4), 30))
    features = method.generator.features(tensors(after), noise, labels)
    guesses = (features @ torch.from_numpy(after["head.weight"]).T).argmax(1)
    assert (guesses == labels).all()


def test_only_what_is_asked_for_is_sent():
    """Without shares, the label distribution is public; then records can be protected."""
    single, mean = build(labels="uniform"), build(ensemble="mean")
    bare = build(ensemble="mean", labels="uniform")
    assert SHARES in single.shared_spec()
    assert SHARES in mean.shared_spec()
    assert SHARES not in {**bare.shared_spec(), **bare.init_server(rng())}
    assert single.visibility is Visibility.PER_CLIENT
    assert mean.visibility is bare.visibility is Visibility.AGGREGATE_ONLY
    assert single.units == {"client"}
    assert mean.units == {"client"}
    assert bare.units == {"client", "record"}
    state = single.init_server(rng())
    with pytest.raises(MethodError, match=r"aggregate\.individual is None; valid"):
        single.server_update(state, aggregate(update_of(state), individual=False), (), rng())
