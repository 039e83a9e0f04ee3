"""FedGen, FedGH and FedRoD: generators, ensembles and heads, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from methods import Aggregate, ClientView, Examples, Task, fedavg, fedgen, fedgh, fedrod
from methods.fedgen import SHARES, Generator, Teachers, distribution, likeness, trust_of
from methods.fedgh import known_prototypes
from methods.fedrod import balanced
from methods.networks.class_tables import PRESENCE, PROTOTYPES
from platform.contract.examples import draw_examples
from tests.methods._training import RecordingTrainer, mean_of, newcomer, rng, tensors, trainer

CLASSES = ("ant", "bee", "cow")
TASK = Task(CLASSES, ("one",), 4)
NETWORK = {"network": "fasttext", "buckets": 20, "feature_width": 4}
GENERATOR = {**NETWORK, "noise_width": 2, "hidden_width": 5, "generator_steps": 2}


def gen(**options):
    return fedgen.build(fedgen.Config(**{**GENERATOR, **options}), TASK)


def examples(method, labels=(0, 1, 1, 1, 2, 2, 0, 1)) -> Examples:
    data = draw_examples(method, 0, len(labels))
    return Examples({**data.arrays, "labels": np.array(labels)})


def floats(arrays):
    return {n: torch.tensor(np.array(a), dtype=torch.float32) for n, a in arrays.items()}


def test_the_generator_by_hand():
    """Noise (2, -1) and class 1: hidden ReLU((2 + 10, -1 - 20)) = (12, 0), output 12 (1, 3) + 1."""
    generator = Generator(2, 2, 2, 2, "gaussian")
    arrays = floats(
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
    method = gen()
    state = method.init_server(rng(1))
    shares = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    zero = {n: np.zeros_like(v) for n, v in state.items() if not n.startswith("generator")}
    updates = [
        {**zero, SHARES: own - np.float32(1 / 3), "head.bias": np.array([k, 0, 0], np.float32)}
        for k, own in enumerate(shares.astype(np.float32))
    ]
    teachers = method.teachers(state, state, mean_of(*updates, individual=True))
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
    method = gen(ensemble="mean")
    state = dict(method.init_server(rng(1)))
    np.testing.assert_allclose(state[SHARES], [1 / 3] * 3)
    state[SHARES] = np.array([0.5, 0.25, 0.25], np.float32)
    updates = [
        method.client_update(
            ClientView(state), examples(method, labels), trainer(steps=1, batch_size=8), rng(3)
        ).update
        for labels in ((0, 0, 1, 0), (2, 2, 2, 2))
    ]
    np.testing.assert_allclose(updates[0][SHARES], [0.25, 0.0, -0.25], atol=1e-6)
    after = method.server_update(state, mean_of(*updates), (), rng(3))
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
    method = gen(weight=3.0)
    state = {**deaf(method.init_server(rng(1))), SHARES: np.array([0, 1, 0], np.float32)}
    recorder = RecordingTrainer()
    method.client_update(ClientView(state), examples(method), recorder, rng(3))
    head = {"head.weight": np.zeros((3, 4)), "head.bias": np.zeros(3)}
    head["head.weight"][:, 1] = np.log([1.0, 5.0, 2.0])
    value = recorder.penalty(floats(head), {})
    assert float(value) == pytest.approx(3.0 * math.log(8.0 / 5.0), rel=1e-5)


def gh(**options):
    return fedgh.build(fedgh.Config(**{**NETWORK, **options}), TASK)


def sent(rows, flags):
    """What a client with these prototypes (C, 4) sends: over the root of four."""
    return {PROTOTYPES: np.array(rows, np.float32) / 2.0, PRESENCE: np.array(flags, np.float32)}


ONE = sent([[1, 2, 0, 0], [0, 0, 0, 0], [0, 0, 3, 1]], [1, 0, 1])
TWO = sent([[3, 0, 0, 4], [2, 2, 2, 2], [0, 0, 0, 0]], [1, 1, 0])


def test_a_client_sends_the_means_of_what_its_trained_extractor_makes():
    method = gh()
    labels = np.array([0, 1, 1, 0, 1, 0])
    data = Examples({**draw_examples(method, 0, 6).arrays, "labels": labels})
    result = method.client_update(newcomer(method), data, trainer(), rng(3))
    words = torch.tensor(data.arrays["words"])
    made = method.extractor.features(tensors(result.personal), words).numpy()
    expected = [made[labels == label].mean(0) / math.sqrt(4) for label in (0, 1)]
    np.testing.assert_allclose(result.update[PROTOTYPES], [*expected, np.zeros(4)], atol=1e-6)
    assert result.update[PRESENCE].tolist() == [1, 1, 0]


def softmax_regression(pairs, steps, rate):
    """Steps of gradient descent from zero on all pairs, by numpy."""
    weight, bias = np.zeros((3, 4)), np.zeros(3)
    rows, labels = np.array([row for row, _ in pairs], float), [label for _, label in pairs]
    for _ in range(steps):
        logits = rows @ weight.T + bias
        odds = np.exp(logits) / np.exp(logits).sum(1, keepdims=True) - np.eye(3)[labels]
        weight = weight - rate * odds.T @ rows / len(rows)
        bias = bias - rate * odds.mean(0)
    return weight, bias


PAIRS = [([1, 2, 0, 0], 0), ([0, 0, 3, 1], 2), ([3, 0, 0, 4], 0), ([2, 2, 2, 2], 1)]


def test_every_clients_pair_is_one_of_the_batch():
    method = gh(server_batch=None, server_rate=0.5, server_epochs=3)
    head = {"head.weight": np.zeros((3, 4), np.float32), "head.bias": np.zeros(3, np.float32)}
    after = method.server_update(head, mean_of(ONE, TWO, individual=True), (), rng(3))
    weight, bias = softmax_regression(PAIRS, 3, 0.5)
    np.testing.assert_allclose(after["head.weight"], weight, atol=1e-5)
    np.testing.assert_allclose(after["head.bias"], bias, atol=1e-5)


def test_the_aggregate_has_one_mean_for_each_class():
    """Over the clients that have it: class 0 is both clients', the others are one's."""
    method = gh(prototypes="mean")
    rows, classes = method.pairs(mean_of(ONE, TWO))
    assert classes.tolist() == [0, 1, 2]
    np.testing.assert_allclose(rows, [[2, 1, 0, 2], [2, 2, 2, 2], [0, 0, 3, 1]], atol=1e-6)


def test_a_class_below_the_floor_is_left_out():
    """Half of the largest flag of one client; two of the least flags among twenty."""
    noised = sent([[2, 0, 0, 0], [1, 1, 1, 1], [4, 4, 0, 0]], [2.0, 0.9, 1.0])
    rows, classes = known_prototypes(noised, 0.5)
    assert classes.tolist() == [0, 2]
    np.testing.assert_allclose(rows, [[1, 0, 0, 0], [4, 4, 0, 0]], atol=1e-6)
    strict = gh(prototypes="mean", presence_floor=2.0)
    values = sent(np.ones((3, 4)), [1.0, 1.5 / 20, 2.5 / 20])
    assert strict.pairs(Aggregate(values, 20.0, 20, 50))[1].tolist() == [0, 2]


FOUR = ("ant", "bee", "cow", "dog")
TASK_OF_FOUR = Task(FOUR, ("one",), 4)
NARROW = {"network": "fasttext", "buckets": 20, "feature_width": 3}


def rod(**options):
    return fedrod.build(fedrod.Config(**{**NARROW, **options}), TASK_OF_FOUR)


def losses(logits, counts, labels):
    shifted = balanced(torch.tensor(logits), torch.tensor(counts))
    return torch.nn.functional.cross_entropy(shifted, torch.tensor(labels), reduction="none")


def test_the_balanced_softmax_by_hand():
    """3 e^0 : 1 e^(ln 3) is 3 : 3, so each class has a half; plain softmax has 1 : 3."""
    row = [0.0, math.log(3.0)]
    got = losses([row, row], [3, 1], [0, 1])
    torch.testing.assert_close(got, torch.full((2,), math.log(2.0)))


def test_a_class_without_examples_drops_out():
    """1 e^0 : 0 e^5 : 2 e^0; the absent class is neither in the sum nor moved."""
    logits = torch.tensor([[0.0, 5.0, 0.0], [0.0, 5.0, 0.0]], requires_grad=True)
    shifted = balanced(logits, torch.tensor([1, 0, 2]))
    got = torch.nn.functional.cross_entropy(shifted, torch.tensor([0, 2]), reduction="none")
    torch.testing.assert_close(got, torch.tensor([math.log(3.0), math.log(1.5)]))
    (gradient,) = torch.autograd.grad(got.sum(), [logits])
    expected = [[1 / 3 - 1, 0.0, 2 / 3], [1 / 3, 0.0, 2 / 3 - 1]]
    torch.testing.assert_close(gradient, torch.tensor(expected))


def test_one_step_by_hand():
    """Extractor and generic head descend the balanced loss alone, the personal head the other."""
    method, data = rod(), draw_examples(rod(), 3)
    view = newcomer(method)
    counts = np.bincount(data.arrays["labels"], minlength=4)
    assert len(set(counts.tolist())) > 1, "the two losses would be alike"
    result = method.client_update(view, data, trainer(steps=1, batch_size=8), rng(3))
    leaves = {n: t.requires_grad_() for n, t in tensors(view.broadcast).items()}
    batch = tensors(data.arrays)
    words = leaves["extractor.embedding"][batch["words"]]
    known = (batch["words"] > 0).float()[..., None]
    mean = (words * known).sum(1) / known.sum(1)
    hidden = mean @ leaves["extractor.fc.weight"].T + leaves["extractor.fc.bias"]
    generic = hidden @ leaves["generic.weight"].T + leaves["generic.bias"]
    weighted = generic.exp() * torch.from_numpy(counts)
    chosen = weighted.gather(1, batch["labels"][:, None])[:, 0]
    loss = -(chosen / weighted.sum(1)).log().mean()
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    for name, gradient in zip(leaves, gradients, strict=True):
        np.testing.assert_allclose(result.update[name], -0.5 * gradient.numpy(), atol=1e-6)

    # Softmax regression on constants: the gradient is (p - e_y) times the features.
    still, base = hidden.detach().numpy(), generic.detach().numpy()
    both = base + still @ view.personal["head.weight"].T + view.personal["head.bias"]
    odds = np.exp(both) / np.exp(both).sum(1, keepdims=True) - np.eye(4)[data.arrays["labels"]]
    weight = view.personal["head.weight"] - 0.5 * odds.T @ still / len(still)
    bias = view.personal["head.bias"] - 0.5 * odds.mean(0)
    np.testing.assert_allclose(result.personal["head.weight"], weight, atol=1e-6)
    np.testing.assert_allclose(result.personal["head.bias"], bias, atol=1e-6)


def test_a_personal_head_of_zero_is_the_generic_model():
    method, plain = rod(), fedavg.build(fedavg.Config(**NARROW), TASK_OF_FOUR)
    view, data = newcomer(method), draw_examples(method, 1)
    batch = {"words": data.arrays["words"]}
    zero = {name: np.zeros_like(value) for name, value in view.personal.items()}
    got = method.predict(ClientView(view.broadcast, (), zero), batch, FOUR)
    named = {name.replace("generic", "head"): value for name, value in view.broadcast.items()}
    generic = plain.predict(ClientView(named), batch, FOUR)
    np.testing.assert_array_equal(got, generic)
    # A head of its own adds its logits.
    own = {**zero, "head.bias": np.array([1.0, 2.0, 3.0, 4.0], np.float32)}
    moved = method.predict(ClientView(view.broadcast, (), own), batch, FOUR)
    np.testing.assert_allclose(moved, generic + own["head.bias"], atol=1e-6)
