"""pFedPrompt: PromptFL's training, and a memory whose attention is worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from methods import ClientView, Examples, Task, pfedprompt
from methods.pfedprompt import Config, attend
from methods.prompts.prompt import CONTEXT, as_tensor
from tests.methods._training import rng, trainer

OTHERS = ("star", "house", "ring")


def build(task: Task, **options):
    return pfedprompt.build(Config(**{"context_tokens": 4, **options}), task)


@pytest.fixture
def batch() -> dict[str, np.ndarray]:
    features = rng(9).normal(size=(5, 128)).astype(np.float32)
    return {"features": features / np.linalg.norm(features, axis=1, keepdims=True)}


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


def test_a_memory_is_not_handed_on_to_a_further_round(task, examples):
    """Else raw data would be state that a later release follows."""
    method = build(task)
    state, personal = personalise(method, examples)
    result = method.client_update(ClientView(state, personal=personal), examples, trainer(), rng(4))
    bare = method.client_update(ClientView(state), examples, trainer(), rng(4))
    assert result.personal == {}
    assert np.array_equal(result.update[CONTEXT], bare.update[CONTEXT])
