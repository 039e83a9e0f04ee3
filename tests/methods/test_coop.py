"""CoOp: local prompt learning that carries on from round to round."""

from __future__ import annotations

import numpy as np
import pytest

from methods import BackboneError, ClientView, Task, coop, zero_shot
from methods.prompts.prompt import CONTEXT
from tests.methods._training import trainer


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def build(task, **options):
    return coop.build(coop.Config(**{"context_tokens": 4, **options}), task)


def test_rounds_carry_on(task, examples):
    """Three rounds of one epoch are one training of three epochs, to the bit."""
    method = build(task)
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


def test_nothing_leaves_the_client(task, examples):
    method = build(task)
    result = method.client_update(
        ClientView({}, personal=method.init_client(rng(1), rng(2))), examples, trainer(), rng()
    )
    assert (result.update, result.pool_entry) == ({}, None)
    assert (method.shared_spec(), method.pool_policy(), method.init_server(rng())) == ({}, None, {})


def test_clients_start_apart(task):
    method = build(task)
    one, other = (method.init_client(rng(1), rng(seed)) for seed in (2, 3))
    assert not np.array_equal(one[CONTEXT], other[CONTEXT])


def test_the_random_context_has_the_spread_of_the_paper(task):
    context = build(task, context_tokens=16).init_client(rng(1), rng(2))[CONTEXT]
    assert context.shape == (16, 32)
    # 512 draws: the sample's deviation is within 15% of 0.02 at any reasonable odds.
    assert context.std() == pytest.approx(0.02, rel=0.15)
    assert abs(context.mean()) < 0.005


def test_a_context_of_words_predicts_as_those_words(task, examples):
    """With the words of a template as context, CoOp before training is zero-shot CLIP."""
    method = build(task, context_init="a photo of a")
    personal = method.init_client(rng(1), rng(2))
    words = zero_shot.build(zero_shot.Config("a photo of a {}."), task)
    np.testing.assert_allclose(
        method.predict(ClientView({}, personal=personal), examples.arrays, task.classes),
        words.predict(ClientView({}), examples.arrays, task.classes),
        atol=1e-4,
    )


def test_a_context_of_words_is_their_embeddings(task, small_backbone):
    context = build(task, context_init="a photo of a").init_client(rng(1), rng(2))[CONTEXT]
    ids = small_backbone._tokenizer.encode("a photo of a")
    table = small_backbone._model.token_embedding.weight
    np.testing.assert_array_equal(context, table[ids].numpy())


@pytest.mark.parametrize(
    ("text", "count"), [("a photo of", 3), ("a photo of a red thing", 6), ("", 0)]
)
def test_a_context_of_another_length_is_refused(task, text, count):
    message = rf"method\.context_init: .* has {count} tokens, .*method\.context_tokens is 4"
    with pytest.raises(BackboneError, match=message):
        build(task, context_init=text).init_client(rng(1), rng(2))


@pytest.mark.parametrize("tokens", [21, 24, 64])
def test_a_context_that_leaves_no_room_is_refused(task, tokens):
    with pytest.raises(BackboneError, match=rf"method\.context_tokens: {tokens} .*valid: 1 to 20"):
        build(task, context_tokens=tokens)


def test_the_longest_context_fits(task, examples):
    short = Task(("circle", "ring"), ("ink",), 4, task.backbone)
    method = build(short, context_tokens=20)
    personal = method.init_client(rng(1), rng(2))
    logits = method.predict(ClientView({}, personal=personal), examples.arrays, short.classes)
    assert logits.shape == (10, 2)


def test_class_names_that_do_not_fit_are_refused_when_the_method_is_built(task):
    wordy = Task(("circle", "a very long name of a class indeed"), ("ink",), 4, task.backbone)
    with pytest.raises(BackboneError, match="at most 24"):
        build(wordy, context_tokens=16)


def test_loss_is_the_cross_entropy_of_the_prediction(task, examples):
    """Training lowers the mean of -log softmax(logits)[label], computed here from `predict`."""
    method = build(task)

    def loss(personal):
        logits = method.predict(
            ClientView({}, personal=personal), examples.arrays, task.classes
        ).astype(np.float64)
        shifted = logits - logits.max(1, keepdims=True)
        log_softmax = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
        return -log_softmax[np.arange(10), examples.arrays["labels"]].mean()

    before, learner = method.init_client(rng(1), rng(2)), trainer(steps=1, batch_size=10)
    after = method.client_update(ClientView({}, personal=before), examples, learner, rng()).personal
    assert learner.reports[0].mean_loss == pytest.approx(loss(before), rel=1e-4)
    assert loss(after) < loss(before)
