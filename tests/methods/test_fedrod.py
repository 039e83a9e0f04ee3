"""FedRoD: the balanced softmax by hand, two heads without a common gradient, and what they are."""

from __future__ import annotations

import math

import numpy as np
import torch

from methods import ClientView, Task, fedavg, fedrod
from methods.fedrod import balanced
from platform.contract.examples import draw_examples
from privacy.training import LocalTrainer, TrainingPlan
from tests.methods._training import rng, tensors

CLASSES = ("ant", "bee", "cow", "dog")
TASK = Task(CLASSES, ("one",), 4)
SMALL = {"network": "fasttext", "buckets": 20, "feature_width": 3}


def build(**options):
    return fedrod.build(fedrod.Config(**{**SMALL, **options}), TASK)


def learner(steps: int = 1, rate: float = 0.5) -> LocalTrainer:
    return LocalTrainer(TrainingPlan(local_steps=steps, batch_size=8, learning_rate=rate))


def view_of(method) -> ClientView:
    return ClientView(method.init_server(rng(1)), (), method.init_client(rng(2), rng(4)))


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
    method, data = build(), draw_examples(build(), 3)
    view = view_of(method)
    counts = np.bincount(data.arrays["labels"], minlength=4)
    assert len(set(counts.tolist())) > 1, "the two losses would be alike"
    result = method.client_update(view, data, learner(), rng(3))
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


def as_fedavg(shared):
    return {name.replace("generic", "head"): value for name, value in shared.items()}


def test_a_personal_head_of_zero_is_the_generic_model():
    method, plain = build(), fedavg.build(fedavg.Config(**SMALL), TASK)
    view, data = view_of(method), draw_examples(method, 1)
    batch = {"words": data.arrays["words"]}
    zero = {name: np.zeros_like(value) for name, value in view.personal.items()}
    got = method.predict(ClientView(view.broadcast, (), zero), batch, CLASSES)
    generic = plain.predict(ClientView(as_fedavg(view.broadcast)), batch, CLASSES)
    np.testing.assert_array_equal(got, generic)
    # A head of its own adds its logits.
    own = {**zero, "head.bias": np.array([1.0, 2.0, 3.0, 4.0], np.float32)}
    moved = method.predict(ClientView(view.broadcast, (), own), batch, CLASSES)
    np.testing.assert_allclose(moved, generic + own["head.bias"], atol=1e-6)
