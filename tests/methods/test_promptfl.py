"""PromptFL and what is made of it: averaged prompts, or parts of them, and prompts that stay."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from methods import (
    ClientView,
    Task,
    coop,
    prompt_fedper,
    prompt_fedprox,
    promptfl,
    promptfl_ft,
    zero_shot,
)
from methods.prompt_fedper import PERSONAL
from methods.prompts.prompt import CONTEXT, PromptObjective, build_encoder
from tests.methods._double import double_backbone, mean_loss
from tests.methods._training import RecordingTrainer, mean_of, rng, trainer


def build(module, task, **options):
    return module.build(module.Config(**{"context_tokens": 4, **options}), task)


def test_one_step_of_two_halves_is_one_step_of_the_whole(task, examples):
    """FedSGD: the mean of the clients' full-batch steps is the whole batch's step."""
    method = build(promptfl, task)
    state = method.init_server(rng(1))
    halves = []
    for rows in (slice(0, 5), slice(5, 10)):
        part = type(examples)({name: value[rows] for name, value in examples.arrays.items()})
        one = method.client_update(ClientView(state), part, trainer(steps=1), rng())
        halves.append(one.update)
    together = method.server_update(state, mean_of(*halves), (), rng())
    whole = method.client_update(
        ClientView(state), examples, trainer(steps=1, batch_size=10), rng()
    )
    np.testing.assert_allclose(together[CONTEXT], state[CONTEXT] + whole.update[CONTEXT], atol=1e-6)


def test_one_step_follows_the_gradient_by_finite_differences(task, examples):
    """One step of plain SGD at rate 1 is minus the gradient of the mean loss."""
    precise = Task(task.classes, task.domains, 4, double_backbone(task.backbone))
    encoder = build_encoder(promptfl.Config(context_tokens=4), precise)
    objective = PromptObjective(encoder, task.classes)
    state = build(promptfl, task).init_server(rng(1))
    step = build(promptfl, task).client_update(
        ClientView(state), examples, trainer(steps=1, batch_size=10, learning_rate=1.0), rng()
    )
    for place in ((0, 0), (1, 7), (3, 31)):
        ends = []
        for sign in (1, -1):
            there = state[CONTEXT].astype(np.float64)
            there[place] += sign * 1e-5
            with torch.no_grad():
                ends.append(float(mean_loss(objective, {CONTEXT: there}, examples)))
        slope = (ends[0] - ends[1]) / 2e-5
        np.testing.assert_allclose(-step.update[CONTEXT][place], slope, rtol=2e-3, atol=1e-5)


def test_another_broadcast_has_features_of_its_own_however_near_it_is(task, examples):
    method = build(promptfl, task)
    context = method.init_server(rng(1))[CONTEXT]
    moved = context.copy()
    moved[0, 0] += np.float32(1e-2)
    batch, classes = examples.arrays, task.classes
    first, second = (
        method.predict(ClientView({CONTEXT: sent.copy()}, is_common=True), batch, classes)
        for sent in (context, moved)
    )
    assert np.any(first != second)
    # An array that is written to after it was seen is another broadcast too.
    context[...] = moved
    again = method.predict(ClientView({CONTEXT: context}, is_common=True), batch, classes)
    np.testing.assert_array_equal(again, second)


def test_fine_tuning_is_local_training_from_the_last_prompt(task, examples):
    method, local = build(promptfl_ft, task), coop.build(coop.Config(context_tokens=4), task)
    last = method.init_server(rng(1))
    tuned = method.personalise(ClientView(last), examples, trainer(), rng(3))
    alone = local.client_update(ClientView({}, personal=last), examples, trainer(), rng(3))
    assert np.array_equal(tuned[CONTEXT], alone.personal[CONTEXT])
    assert np.abs(tuned[CONTEXT] - last[CONTEXT]).max() > 1e-4


@pytest.mark.parametrize(("steps", "taken"), [(None, 3), (7, 7)])
def test_the_length_of_fine_tuning_is_an_option(task, examples, steps, taken):
    learner = trainer(steps=3)
    method = build(promptfl_ft, task, finetune_steps=steps)
    method.personalise(ClientView(method.init_server(rng(1))), examples, learner, rng())
    assert list(map(len, learner.fitted)) == [taken]


@pytest.mark.parametrize(
    ("tokens", "shared", "base"), [(4, None, 2), (5, None, 3), (1, None, 1), (4, 1, 1), (4, 4, 4)]
)
def test_fedpers_split(task, tokens, shared, base):
    method = build(prompt_fedper, task, context_tokens=tokens, shared_tokens=shared)
    state, personal = method.init_server(rng(1)), method.init_client(rng(2), rng(3))
    assert method.shared_spec()[CONTEXT].shape == state[CONTEXT].shape == (base, 32)
    assert personal[PERSONAL].shape == (tokens - base, 32)


def test_a_split_prompt_predicts_as_the_whole_prompt(task, examples):
    """Base first, personal part next to the class name."""
    method, plain = build(prompt_fedper, task), build(promptfl, task)
    state, personal = method.init_server(rng(1)), method.init_client(rng(2), rng(3))
    whole = {CONTEXT: np.concatenate((state[CONTEXT], personal[PERSONAL]))}
    turned = {CONTEXT: np.concatenate((personal[PERSONAL], state[CONTEXT]))}
    got = method.predict(ClientView(state, personal=personal), examples.arrays, ("circle", "moon"))
    expected, other = (
        plain.predict(ClientView(w), examples.arrays, ("circle", "moon")) for w in (whole, turned)
    )
    np.testing.assert_array_equal(got, expected)
    assert np.abs(got - other).max() > 1e-4


def update(method, start, examples, learner):
    view = ClientView({CONTEXT: start})
    return method.client_update(view, examples, learner, rng(3)).update[CONTEXT]


def test_fedproxs_penalty_by_hand(task, examples):
    """mu = 2 and a difference of 0.5 in each of 4 x 32 places: 2 / 2 x 128 x 0.25 = 32."""
    start = np.full((4, 32), 0.25, np.float32)
    recorder = RecordingTrainer()
    update(build(prompt_fedprox, task, mu=2.0), start, examples, recorder)
    penalty = recorder.penalty
    assert float(penalty({CONTEXT: torch.full((4, 32), 0.75)}, {})) == pytest.approx(32.0)
    assert float(penalty({CONTEXT: torch.full((4, 32), 0.25)}, {})) == 0.0


def test_fedproxs_second_step_by_hand(task, examples):
    """w2 = w1 - eta (g(w1) + mu (w1 - w0)); w1 and w1 - eta g(w1) are steps of PromptFL."""
    rate, mu = 0.5, 0.6
    start = build(prompt_fedprox, task).init_server(rng(1))[CONTEXT]
    one = trainer(steps=1, batch_size=10, learning_rate=rate)
    first = start + update(build(promptfl, task), start, examples, one)
    free = first + update(build(promptfl, task), first, examples, one)
    two = trainer(steps=2, batch_size=10, learning_rate=rate)
    got = start + update(build(prompt_fedprox, task, mu=mu), start, examples, two)
    np.testing.assert_allclose(got, free - rate * mu * (first - start), atol=1e-6)
    assert np.abs(got - free).max() > 1e-3


def test_coops_rounds_carry_on(task, examples):
    """Three rounds of one epoch are one training of three epochs, to the bit."""
    method = build(coop, task)
    start = method.init_client(rng(1), rng(2))
    batches, personal = rng(3), start
    for _ in range(3):
        result = method.client_update(
            ClientView({}, personal=personal), examples, trainer(epochs=1), batches
        )
        personal = result.personal
    at_once = method.client_update(
        ClientView({}, personal=start), examples, trainer(epochs=3), rng(3)
    )
    assert np.array_equal(personal[CONTEXT], at_once.personal[CONTEXT])
    assert np.abs(personal[CONTEXT] - start[CONTEXT]).max() > 1e-4


def test_the_random_context_has_the_spread_of_the_paper(task):
    context = build(coop, task, context_tokens=16).init_client(rng(1), rng(2))[CONTEXT]
    assert context.shape == (16, 32)
    # 512 draws: the sample's deviation is within 15% of 0.02 at any reasonable odds.
    assert context.std() == pytest.approx(0.02, rel=0.15)
    assert abs(context.mean()) < 0.005


def test_a_context_of_words_predicts_as_those_words(task, examples):
    """With the words of a template as context, CoOp before training is zero-shot CLIP."""
    method = build(coop, task, context_init="a photo of a")
    personal = method.init_client(rng(1), rng(2))
    words = zero_shot.build(zero_shot.Config("a photo of a {}."), task)
    np.testing.assert_allclose(
        method.predict(ClientView({}, personal=personal), examples.arrays, task.classes),
        words.predict(ClientView({}), examples.arrays, task.classes),
        atol=1e-4,
    )


def test_a_warm_start_fits_the_prompt_to_class_means_and_then_is_promptfl(task, examples):
    warm, plain = build(promptfl, task, warm_steps=40), build(promptfl, task)
    state = warm.init_server(rng(1))
    np.testing.assert_array_equal(state[CONTEXT], plain.init_server(rng(1))[CONTEXT])
    first = warm.client_update(ClientView(state), examples, trainer(), rng())
    labels, features = examples.arrays["labels"], examples.arrays["features"]
    for label in range(len(task.classes)):
        expected = features[labels == label].sum(axis=0)
        np.testing.assert_allclose(first.update[promptfl.SUMS][label], expected, atol=1e-6)
    assert not first.update[CONTEXT].any()

    # The means themselves are told apart, as the prompt of before did not.
    targets = np.roll(np.eye(features.shape[1], dtype=np.float32)[:4], 1, axis=0)
    means = {**first.update, promptfl.SUMS: 3.0 * targets}
    fitted = warm.server_update(state, mean_of(means), (), rng())
    batch = {"features": targets, "labels": np.arange(4)}
    before = plain.predict(ClientView(state), batch, task.classes)
    after = warm.predict(ClientView(fitted), batch, task.classes)
    gained = [row[label] - row.mean() for label, row in enumerate(after)]
    lost = [row[label] - row.mean() for label, row in enumerate(before)]
    assert np.mean(gained) > np.mean(lost)

    one, other = (
        method.client_update(ClientView(each), examples, trainer(), rng(3))
        for method, each in ((warm, fitted), (plain, {CONTEXT: fitted[CONTEXT]}))
    )
    np.testing.assert_array_equal(one.update[CONTEXT], other.update[CONTEXT])
    assert not one.update[promptfl.SUMS].any()
    ended = warm.server_update(fitted, mean_of(one.update), (), rng())
    np.testing.assert_array_equal(ended[CONTEXT], fitted[CONTEXT] + one.update[CONTEXT])
