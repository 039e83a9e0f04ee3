"""PromptFL with fine-tuning: PromptFL's rounds, then each client for itself."""

from __future__ import annotations

import numpy as np
import pytest

from methods import Aggregate, ClientView, coop, promptfl, promptfl_ft
from methods.prompts.prompt import CONTEXT
from tests.methods._training import RecordingTrainer, trainer


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def build(task, **options):
    return promptfl_ft.build(promptfl_ft.Config(**{"context_tokens": 4, **options}), task)


@pytest.mark.parametrize("clipping", [None, 0.5])
def test_the_rounds_are_promptfls(task, examples, clipping):
    method, plain = build(task), promptfl.build(promptfl.Config(context_tokens=4), task)
    state = method.init_server(rng(1))
    mine, other = (
        m.client_update(ClientView(state), examples, trainer(clipping=clipping), rng(3))
        for m in (method, plain)
    )
    assert np.array_equal(mine.update[CONTEXT], other.update[CONTEXT])
    assert mine.personal == {}
    np.testing.assert_array_equal(
        method.predict(ClientView(state), examples.arrays, task.classes),
        plain.predict(ClientView(state), examples.arrays, task.classes),
    )


def test_fine_tuning_is_local_training_from_the_last_prompt(task, examples):
    method, local = build(task), coop.build(coop.Config(context_tokens=4), task)
    last = method.init_server(rng(1))
    tuned = method.personalise(ClientView(last), examples, trainer(), rng(3))
    alone = local.client_update(ClientView({}, personal=last), examples, trainer(), rng(3))
    assert np.array_equal(tuned[CONTEXT], alone.personal[CONTEXT])
    assert np.abs(tuned[CONTEXT] - last[CONTEXT]).max() > 1e-4


def test_one_client_is_its_own_centralised_training(task, examples):
    """Two rounds of an epoch and one epoch of fine-tuning are three epochs."""
    method, batches = build(task), rng(3)
    state = start = method.init_server(rng(1))
    for _ in range(2):
        result = method.client_update(ClientView(state), examples, trainer(epochs=1), batches)
        state = method.server_update(state, Aggregate(result.update, 10.0, 1, 4), (), rng())
    tuned = method.personalise(ClientView(state), examples, trainer(epochs=1), batches)
    central = coop.build(coop.Config(context_tokens=4), task)
    alone = central.client_update(
        ClientView({}, personal=start), examples, trainer(epochs=3), rng(3)
    )
    np.testing.assert_allclose(tuned[CONTEXT], alone.personal[CONTEXT], atol=1e-6)


def test_the_own_prompt_predicts_once_it_exists(task, examples):
    method = build(task)
    state, own = method.init_server(rng(1)), method.init_server(rng(2))
    with_own = method.predict(ClientView(state, personal=own), examples.arrays, ("circle", "moon"))
    as_global = method.predict(ClientView(own), examples.arrays, ("circle", "moon"))
    without = method.predict(ClientView(state), examples.arrays, ("circle", "moon"))
    np.testing.assert_array_equal(with_own, as_global)
    assert np.abs(with_own - without).max() > 1e-3


def test_it_starts_again_from_the_last_prompt(task, examples):
    """A repeated finish gives the same: nothing of an earlier fine-tuning is used."""
    method, recorder = build(task), RecordingTrainer()
    state = method.init_server(rng(1))
    method.personalise(
        ClientView(state, personal=method.init_server(rng(2))), examples, recorder, rng()
    )
    np.testing.assert_array_equal(recorder.parameters[CONTEXT], state[CONTEXT])


@pytest.mark.parametrize(("steps", "taken"), [(None, 3), (7, 7)])
def test_its_length_is_an_option(task, examples, steps, taken):
    learner = trainer(steps=3)
    method = build(task, finetune_steps=steps)
    method.personalise(ClientView(method.init_server(rng(1))), examples, learner, rng())
    assert [report.steps for report in learner.reports] == [taken]


@pytest.mark.parametrize("rate", [None, 0.0, 0.3])
def test_its_learning_rate_is_an_option(task, examples, rate):
    method, recorder = build(task, finetune_learning_rate=rate), RecordingTrainer()
    state = method.init_server(rng(1))
    method.personalise(ClientView(state), examples, recorder, rng())
    assert [(group.names, group.learning_rate) for group in recorder.groups] == [((CONTEXT,), rate)]
    if rate == 0.0:
        tuned = method.personalise(ClientView(state), examples, trainer(), rng())
        assert np.array_equal(tuned[CONTEXT], state[CONTEXT])
