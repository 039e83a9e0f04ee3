"""FedGen: its generator and both ensembles by hand, and FedAvg where nothing is generated."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from methods import Aggregate, ClientView, Examples, Task, fedgen
from methods.fedgen import SHARES, Generator, Teachers, distribution, likeness, trust_of
from platform.contract.examples import draw_examples
from privacy.training import LocalTrainer, TrainingPlan
from tests.methods._training import RecordingTrainer, rng

CLASSES = ("ant", "bee", "cow")
TASK = Task(CLASSES, ("one",), 4)
NETWORK = {"network": "fasttext", "buckets": 20, "feature_width": 4}
SMALL = {**NETWORK, "noise_width": 2, "hidden_width": 5, "generator_steps": 2}
HEAD = ("head.weight", "head.bias")


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
    features = generator.features(arrays, torch.tensor([[2.0, -1.0]]), torch.tensor([1]))
    assert features.tolist() == [[13.0, 37.0]]


def test_likeness_by_hand():
    """Two rows apart by 2 in noise (squared: 4) and by (1, 3) in features (mean: 2): exp(-16/4)."""
    noise, features = torch.tensor([[0.0], [2.0]]), torch.tensor([[0.0, 0.0], [1.0, 3.0]])
    torch.testing.assert_close(likeness(noise, features), torch.tensor(math.exp(-4.0)))
    torch.testing.assert_close(likeness(noise, torch.ones(2, 2)), torch.tensor(1.0))


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
        method.client_update(ClientView(state), examples(method, labels), learner(), rng(3)).update
        for labels in ((0, 0, 1, 0), (2, 2, 2, 2))
    ]
    np.testing.assert_allclose(updates[0][SHARES], [0.25, 0.0, -0.25], atol=1e-6)
    after = method.server_update(state, aggregate(*updates, individual=False), (), rng(3))
    np.testing.assert_allclose(after[SHARES], [0.375, 0.125, 0.5], atol=1e-6)


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
    method.client_update(ClientView(state), examples(method), recorder, rng(3))
    head = {"head.weight": np.zeros((3, 4)), "head.bias": np.zeros(3)}
    head["head.weight"][:, 1] = np.log([1.0, 5.0, 2.0])
    value = recorder.penalty(tensors(head), {})
    assert float(value) == pytest.approx(3.0 * math.log(8.0 / 5.0), rel=1e-5)
