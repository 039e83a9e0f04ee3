"""PromptFL with FedPer: a prompt in two parts is one prompt, of which one part is averaged."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from methods import (
    Aggregate,
    ClientView,
    MethodError,
    Task,
    coop,
    prompt_fedper,
    promptfl,
    zero_shot,
)
from methods.prompt_fedper import PERSONAL
from methods.prompts.prompt import CONTEXT
from tests.methods._double import double_backbone, mean_loss, numeric_gradient
from tests.methods._training import RecordingTrainer, trainer


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def build(task, **options):
    return prompt_fedper.build(prompt_fedper.Config(**{"context_tokens": 4, **options}), task)


def parts(method, seed: int = 1):
    return method.init_server(rng(seed)), method.init_client(rng(seed + 1), rng(seed + 2))


@pytest.mark.parametrize(
    ("tokens", "shared", "base"), [(4, None, 2), (5, None, 3), (1, None, 1), (4, 1, 1), (4, 4, 4)]
)
def test_the_split(task, tokens, shared, base):
    method = build(task, context_tokens=tokens, shared_tokens=shared)
    state, personal = parts(method)
    assert method.shared_spec()[CONTEXT].shape == state[CONTEXT].shape == (base, 32)
    assert personal[PERSONAL].shape == (tokens - base, 32)


def test_it_predicts_as_the_whole_prompt(task, examples):
    """Base first, personal part next to the class name."""
    method, plain = build(task), promptfl.build(promptfl.Config(context_tokens=4), task)
    state, personal = parts(method)
    whole = {CONTEXT: np.concatenate((state[CONTEXT], personal[PERSONAL]))}
    turned = {CONTEXT: np.concatenate((personal[PERSONAL], state[CONTEXT]))}
    got = method.predict(ClientView(state, personal=personal), examples.arrays, ("circle", "moon"))
    expected, other = (
        plain.predict(ClientView(w), examples.arrays, ("circle", "moon")) for w in (whole, turned)
    )
    np.testing.assert_array_equal(got, expected)
    assert np.abs(got - other).max() > 1e-4


@pytest.mark.parametrize("clipping", [None, 0.05])
@pytest.mark.parametrize("shared", [1, 3])
def test_one_client_is_centralised_training_of_the_whole(task, examples, clipping, shared):
    """Also when clipped: the norm is that of both parts together."""
    method = build(task, shared_tokens=shared)
    state, personal = parts(method)
    whole, batches = {CONTEXT: np.concatenate((state[CONTEXT], personal[PERSONAL]))}, rng(3)
    for _ in range(2):
        learner = trainer(epochs=1, clipping=clipping)
        result = method.client_update(
            ClientView(state, personal=personal), examples, learner, batches
        )
        state = method.server_update(state, Aggregate(result.update, 10.0, 1, 4), (), rng())
        personal = result.personal
    central = coop.build(coop.Config(context_tokens=4), task)
    learner = trainer(epochs=2, clipping=clipping)
    alone = central.client_update(
        ClientView({}, personal=whole), examples, learner, rng(3)
    ).personal[CONTEXT]
    got = np.concatenate((state[CONTEXT], personal[PERSONAL]))
    np.testing.assert_allclose(got, alone, atol=1e-6)
    assert np.abs(alone - whole[CONTEXT]).max() > 1e-4


@pytest.mark.parametrize("clipping", [None, 0.5])
def test_with_everything_shared_it_is_promptfl(task, examples, clipping):
    method = build(task, shared_tokens=4)
    plain = promptfl.build(promptfl.Config(context_tokens=4), task)
    state, personal = parts(method)
    assert np.array_equal(state[CONTEXT], plain.init_server(rng(1))[CONTEXT])
    mine = method.client_update(
        ClientView(state, personal=personal), examples, trainer(clipping=clipping), rng(3)
    )
    other = plain.client_update(ClientView(state), examples, trainer(clipping=clipping), rng(3))
    assert np.array_equal(mine.update[CONTEXT], other.update[CONTEXT])
    np.testing.assert_array_equal(
        method.predict(ClientView(state, personal=mine.personal), examples.arrays, task.classes),
        plain.predict(ClientView(state), examples.arrays, task.classes),
    )


def test_the_personal_part_stays_and_goes_on(task, examples):
    method, recorder = build(task), RecordingTrainer()
    state, personal = parts(method)
    result = method.client_update(ClientView(state, personal=personal), examples, trainer(), rng())
    assert set(result.update) == set(method.shared_spec()) == {CONTEXT}
    assert set(result.personal) == {PERSONAL}
    assert np.abs(result.personal[PERSONAL] - personal[PERSONAL]).max() > 1e-5
    method.client_update(ClientView(state, personal=result.personal), examples, recorder, rng())
    np.testing.assert_array_equal(recorder.parameters[PERSONAL], result.personal[PERSONAL])
    # One group, one fit: under dp_sgd one clip and one noise for both.
    assert [group.names for group in recorder.groups] == [(CONTEXT, PERSONAL)]
    assert recorder.fits == 1


def test_clients_draw_their_own_part(task):
    method = build(task)
    one, other = (method.init_client(rng(1), rng(seed))[PERSONAL] for seed in (2, 3))
    assert not np.array_equal(one, other)


def test_words_are_split_as_the_prompt_is(task, examples):
    method = build(task, context_init="a photo of a", shared_tokens=1)
    state, personal = parts(method)
    words = zero_shot.build(zero_shot.Config("a photo of a {}."), task)
    np.testing.assert_allclose(
        method.predict(ClientView(state, personal=personal), examples.arrays, task.classes),
        words.predict(ClientView({}), examples.arrays, task.classes),
        atol=1e-4,
    )


def test_gradients_by_finite_differences(task, examples):
    precise = Task(task.classes, task.domains, 4, double_backbone(task.backbone))
    state, personal = parts(build(task))
    recorder = RecordingTrainer()
    build(precise).client_update(ClientView(state, personal=personal), examples, recorder, rng())
    objective = recorder.objective
    parameters = {**state, **personal}

    def loss(values):
        return mean_loss(objective, values, examples)

    leaves = {
        name: torch.tensor(value, dtype=torch.float64, requires_grad=True)
        for name, value in parameters.items()
    }
    loss(leaves).backward()
    for name in parameters:
        places = [(0, 0), (1, 17)]
        slopes = numeric_gradient(loss, parameters, name, places)
        exact = [float(leaves[name].grad[place]) for place in places]
        np.testing.assert_allclose(exact, slopes, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("shared", [5, 64])
def test_more_shared_vectors_than_there_are_are_refused(task, shared):
    message = rf"method\.shared_tokens: {shared} .*context_tokens = 4; valid: 1 to 4"
    with pytest.raises(MethodError, match=message):
        build(task, shared_tokens=shared)


def test_the_base_alone_predicts_nothing(task, examples):
    method = build(task)
    with pytest.raises(MethodError, match="client: none, but a part of the prompt"):
        method.predict(ClientView(method.init_server(rng(1))), examples.arrays, task.classes)
