"""PromptFL: FedAvg over one prompt."""

from __future__ import annotations

import numpy as np

from methods import Aggregate, ClientView, Task, promptfl
from methods.prompts.prompt import CONTEXT, PromptObjective, build_encoder
from tests.methods._double import double_backbone, mean_loss, numeric_gradient
from tests.methods._training import rng, trainer


def build(task, **options):
    return promptfl.build(promptfl.Config(**{"context_tokens": 4, **options}), task)


def average(updates) -> Aggregate:
    values = {CONTEXT: np.mean([update[CONTEXT] for update in updates], axis=0)}
    return Aggregate(values, float(len(updates)), len(updates), 4)


def test_one_step_of_two_halves_is_one_step_of_the_whole(task, examples):
    """FedSGD: the mean of the clients' full-batch steps is the whole batch's step."""
    method = build(task)
    state = method.init_server(rng(1))
    halves = []
    for rows in (slice(0, 5), slice(5, 10)):
        part = type(examples)({name: value[rows] for name, value in examples.arrays.items()})
        one = method.client_update(ClientView(state), part, trainer(steps=1), rng())
        halves.append(one.update)
    together = method.server_update(state, average(halves), (), rng())
    whole = method.client_update(
        ClientView(state), examples, trainer(steps=1, batch_size=10), rng()
    )
    np.testing.assert_allclose(together[CONTEXT], state[CONTEXT] + whole.update[CONTEXT], atol=1e-6)


def test_one_step_follows_the_gradient_by_finite_differences(task, examples):
    """One step of plain SGD at rate 1 is minus the gradient of the mean loss."""
    precise = Task(task.classes, task.domains, 4, double_backbone(task.backbone))
    encoder = build_encoder(promptfl.Config(context_tokens=4), precise)
    objective = PromptObjective(encoder, task.classes)
    state = build(task).init_server(rng(1))
    step = build(task).client_update(
        ClientView(state), examples, trainer(steps=1, batch_size=10, learning_rate=1.0), rng()
    )
    coordinates = [(0, 0), (1, 7), (3, 31)]

    def loss(parameters):
        return mean_loss(objective, parameters, examples)

    slopes = numeric_gradient(loss, {CONTEXT: state[CONTEXT]}, CONTEXT, coordinates)
    moved = [-step.update[CONTEXT][place] for place in coordinates]
    np.testing.assert_allclose(moved, slopes, rtol=2e-3, atol=1e-5)


def sent(context) -> ClientView:
    """As a client reads it: each has arrays of its own."""
    return ClientView({CONTEXT: context.copy()}, is_common=True)


def test_another_broadcast_has_features_of_its_own_however_near_it_is(task, examples):
    method = build(task)
    context = method.init_server(rng(1))[CONTEXT]
    moved = context.copy()
    moved[0, 0] += np.float32(1e-2)
    batch, classes = examples.arrays, task.classes
    first, second = (method.predict(sent(c), batch, classes) for c in (context, moved))
    assert np.any(first != second)
    # An array that is written to after it was seen is another broadcast too.
    context[...] = moved
    again = method.predict(ClientView({CONTEXT: context}, is_common=True), batch, classes)
    np.testing.assert_array_equal(again, second)
