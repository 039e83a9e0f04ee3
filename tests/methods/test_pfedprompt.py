"""pFedPrompt: PromptFL's training, and a memory whose attention is worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from methods import ClientView, Examples, Registry, Task, Visibility, pfedprompt, promptfl
from methods.pfedprompt import FEATURES, LABELS, Config, attend
from methods.prompts.prompt import CONTEXT, as_tensor
from platform.config import MethodConfig
from platform.errors import ConfigError
from platform.experiment.method_building import validate_options
from tests.methods._training import trainer

OTHERS = ("star", "house", "ring")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def build(task: Task, **options):
    return pfedprompt.build(Config(**{"context_tokens": 4, **options}), task)


@pytest.fixture
def batch() -> dict[str, np.ndarray]:
    features = rng(9).normal(size=(5, 128)).astype(np.float32)
    return {"features": features / np.linalg.norm(features, axis=1, keepdims=True)}


def plain_logits(task: Task, state, batch, classes) -> np.ndarray:
    method = promptfl.build(promptfl.Config(context_tokens=4), task)
    return method.predict(ClientView(state), batch, classes)


def personalise(method, examples: Examples):
    state = method.init_server(rng(1))
    return state, method.personalise(ClientView(state), examples, trainer(), rng())


def test_attention_by_hand():
    """Cosines 1 and 0, sharpness ln3: shares 3/4 and 1/4; sharpness 0: halves."""
    image, remembered = torch.tensor([[1.0, 0.0]]), torch.eye(2)
    np.testing.assert_allclose(attend(image, remembered, math.log(3.0)), [[0.75, 0.25]], rtol=1e-6)
    np.testing.assert_allclose(attend(image, remembered, 0.0), [[0.5, 0.5]], rtol=1e-6)


@pytest.mark.parametrize("recall", ["features", "labels"])
@pytest.mark.parametrize("classes", [("circle", "ring", "red square", "star"), OTHERS])
def test_prediction_against_numpy(task, examples, batch, recall, classes):
    """Image by image and memory by memory; a class that is not remembered gets no vote."""
    method = build(task, blend=0.3, sharpness=20.0, recall=recall)
    state, personal = personalise(method, examples)
    got = method.predict(ClientView(state, personal=personal), batch, classes)
    with torch.no_grad():
        text = method.encoder.text_features(as_tensor(state[CONTEXT], task.backbone), classes)
    text = text.numpy().astype(np.float64)
    kept, labels = examples.arrays["features"].astype(np.float64), examples.arrays["labels"]
    for row, image in enumerate(batch["features"].astype(np.float64)):
        scores = np.array([math.exp(20.0 * image @ feature) for feature in kept])
        shares = scores / scores.sum()
        if recall == "features":
            mixed = sum(share * feature for share, feature in zip(shares, kept, strict=True))
            recalled = text @ mixed / np.linalg.norm(mixed)
        else:
            recalled = np.zeros(len(classes))
            for share, label in zip(shares, labels, strict=True):
                if task.classes[label] in classes:
                    recalled[classes.index(task.classes[label])] += share
        expected = task.backbone.logit_scale * (0.7 * text @ image + 0.3 * recalled)
        np.testing.assert_allclose(got[row], expected, atol=2e-4)


@pytest.mark.parametrize("clipping", [None, 0.5])
def test_training_is_promptfls(task, examples, clipping):
    """The very same numbers: nothing of the memory reaches a release."""
    method, plain = build(task), promptfl.build(promptfl.Config(context_tokens=4), task)
    state = method.init_server(rng(1))
    mine = method.client_update(ClientView(state), examples, trainer(clipping=clipping), rng(4))
    other = plain.client_update(ClientView(state), examples, trainer(clipping=clipping), rng(4))
    assert np.array_equal(mine.update[CONTEXT], other.update[CONTEXT])
    assert set(mine.update) == set(method.shared_spec()) == {CONTEXT}
    assert mine.pool_entry is None
    assert mine.personal == {}


def test_a_memory_is_not_handed_on_to_a_further_round(task, examples):
    """Else raw data would be state that a later release follows."""
    method = build(task)
    state, personal = personalise(method, examples)
    result = method.client_update(ClientView(state, personal=personal), examples, trainer(), rng(4))
    bare = method.client_update(ClientView(state), examples, trainer(), rng(4))
    assert result.personal == {}
    assert np.array_equal(result.update[CONTEXT], bare.update[CONTEXT])


def test_without_a_memory_prediction_is_promptfls(task, examples, batch):
    method = build(task)
    state, personal = personalise(method, examples)
    expected = plain_logits(task, state, batch, task.classes)
    empty = {name: value[:0] for name, value in personal.items()}
    for nothing in (method.init_client(rng(1), rng(2)), empty):
        got = method.predict(ClientView(state, personal=nothing), batch, task.classes)
        assert np.array_equal(got, expected)
    with_it = method.predict(ClientView(state, personal=personal), batch, task.classes)
    assert np.abs(with_it - expected).max() > 1e-2


@pytest.mark.parametrize("recall", ["features", "labels"])
def test_without_a_blend_prediction_is_promptfls(task, examples, batch, recall):
    method = build(task, blend=0.0, recall=recall)
    state, personal = personalise(method, examples)
    got = method.predict(ClientView(state, personal=personal), batch, task.classes)
    assert np.array_equal(got, plain_logits(task, state, batch, task.classes))


def test_the_sharpest_attention_recalls_the_image_itself(task, examples):
    """Of its own feature the prompt says what it says without a memory; of its label, the label."""
    own = {"features": examples.arrays["features"]}
    whole = {"blend": 1.0, "sharpness": 1e4}
    method = build(task, **whole)
    state, personal = personalise(method, examples)
    got = method.predict(ClientView(state, personal=personal), own, task.classes)
    expected = plain_logits(task, state, own, task.classes)
    np.testing.assert_allclose(got, expected, atol=2e-4)
    votes = build(task, **whole, recall="labels").predict(
        ClientView(state, personal=personal), own, task.classes
    )
    one_hot = np.eye(4)[examples.arrays["labels"]]
    np.testing.assert_allclose(votes, task.backbone.logit_scale * one_hot, atol=1e-4)


def test_without_sharpness_all_examples_count_alike(task, examples, batch):
    """Then what is recalled is the same for every image."""
    method = build(task, blend=1.0, sharpness=0.0, recall="labels")
    state, personal = personalise(method, examples)
    got = method.predict(ClientView(state, personal=personal), batch, task.classes)
    shares = np.bincount(examples.arrays["labels"], minlength=4) / 10
    np.testing.assert_allclose(got, task.backbone.logit_scale * np.tile(shares, (5, 1)), atol=1e-4)


@pytest.mark.parametrize("recall", ["features", "labels"])
def test_the_order_of_the_memory_does_not_matter(task, examples, batch, recall):
    method = build(task, recall=recall)
    state, personal = personalise(method, examples)
    turned = {name: value[::-1].copy() for name, value in personal.items()}
    one, other = (
        method.predict(ClientView(state, personal=memory), batch, task.classes)
        for memory in (personal, turned)
    )
    np.testing.assert_allclose(one, other, atol=1e-4)


def test_the_memory_is_a_copy_of_the_clients_own_examples(task, examples):
    _, personal = personalise(build(task), examples)
    assert set(personal) == {FEATURES, LABELS}
    for name, key in ((FEATURES, "features"), (LABELS, "labels")):
        assert np.array_equal(personal[name], examples.arrays[key])
        assert not np.shares_memory(personal[name], examples.arrays[key])


def test_every_mechanism_is_admitted(task):
    assert build(task).units == {"client", "record"}
    assert build(task).visibility is Visibility.AGGREGATE_ONLY


@pytest.mark.parametrize(
    ("name", "value"), [("blend", 1.5), ("blend", -0.1), ("sharpness", -1.0), ("recall", "both")]
)
def test_options_out_of_range_are_refused(name, value):
    with pytest.raises(ConfigError, match=rf"^method\.{name}: "):
        validate_options(Registry(), MethodConfig(name="pfedprompt", **{name: value}))
