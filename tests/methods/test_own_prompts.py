"""FedOTP and pFedPrompt: transport to a prompt of one's own, and a memory, by hand and by POT."""

from __future__ import annotations

import math

import numpy as np
import ot
import pytest
import torch

from methods import ClientView, Examples, Task, fedotp, pfedprompt
from methods.fedotp import OWN, PATCHES, transport_plans
from methods.pfedprompt import attend
from methods.prompts.prompt import CONTEXT, as_tensor
from tests.methods._training import rng, trainer


def otp(task: Task, **options):
    return fedotp.build(fedotp.Config(**{"context_tokens": 4, **options}), task)


def plans(similarity, **options) -> np.ndarray:
    chosen = {"mass": 0.8, "entropy": 0.1, "iterations": 100, **options}
    return transport_plans(torch.as_tensor(similarity), **chosen).numpy()


@pytest.fixture
def patched() -> Examples:
    patches = rng(5).normal(size=(10, 6, 128)).astype(np.float32)
    patches /= np.linalg.norm(patches, axis=-1, keepdims=True)
    return Examples({PATCHES: patches, "labels": rng(6).integers(0, 4, 10)})


@pytest.mark.parametrize(
    ("mass", "expected"),
    [
        # K = (3, 1): mass is split 3 to 1 as long as no source gives more than its half.
        (0.5, [0.375, 0.125]),
        # 0.8 would be 0.6 and 0.2; the first source has 0.5, the second gives the rest.
        (0.8, [0.5, 0.3]),
        # Balanced: both sources are emptied.
        (1.0, [0.5, 0.5]),
    ],
)
def test_one_target_by_hand(mass, expected):
    similarity = np.array([[0.1 * math.log(3.0), 0.0]])
    np.testing.assert_allclose(plans(similarity, mass=mass), [expected], atol=1e-6)


@pytest.mark.pairs
@pytest.mark.parametrize("mass", [0.3, 0.8, 0.95])
@pytest.mark.parametrize("entropy", [0.05, 0.1, 1.0])
@pytest.mark.parametrize(("targets", "sources"), [(1, 5), (2, 12), (3, 7)])
def test_partial_transport_is_pots(mass, entropy, targets, sources):
    """Oracle: `ot.partial.entropic_partial_wasserstein`, whose bounds on targets are met exactly

    because they add up to the mass that it is asked to move.
    """
    similarity = rng(2).normal(0, 0.1, (targets, sources, 4))
    got = plans(similarity, mass=mass, entropy=entropy, iterations=3000)
    for problem in range(4):
        expected = ot.partial.entropic_partial_wasserstein(
            np.full(sources, 1 / sources),
            np.full(targets, mass / targets),
            1.0 - similarity[:, :, problem].T,
            entropy,
            m=mass,
            numItermax=20000,
            stopThr=1e-12,
        )
        np.testing.assert_allclose(got[:, :, problem].T, expected, atol=1e-6)


def test_a_plan_is_a_constant():
    similarity = torch.zeros((2, 3, 4), requires_grad=True)
    assert not transport_plans(similarity, mass=0.8, entropy=0.1, iterations=3).requires_grad


@pytest.mark.parametrize("mass", [0.5, 0.8])
def test_prediction_against_one_transport_after_the_other(task, patched, mass):
    """Oracle: POT, for each image and class by itself."""
    prompts = rng(8).normal(0, 1.0, (2, 4, 32)).astype(np.float32)
    method = otp(task, mass=mass, entropy=0.1)
    state, own = {CONTEXT: prompts[0]}, {OWN: prompts[1:]}
    got = method.predict(ClientView(state, personal=own), patched.arrays, task.classes)
    with torch.no_grad():
        contexts = as_tensor(prompts, task.backbone)
        text = method.encoder.text_features_each(contexts, task.classes).double().numpy()
    for image, label in np.ndindex(4, 4):
        cosines = patched.arrays[PATCHES][image].astype(np.float64) @ text[:, label].T
        plan = ot.partial.entropic_partial_wasserstein(
            np.full(6, 1 / 6), np.full(2, mass / 2), 1 - cosines, 0.1, m=mass, stopThr=1e-12
        )
        expected = task.backbone.logit_scale * (plan * cosines).sum()
        np.testing.assert_allclose(got[image, label], expected, atol=1e-3)


def test_decoupled_own_prompts_begin_after_the_last_release(task, patched):
    apart = Task(task.classes, task.domains, 4, task.backbone, decoupled=True)
    method, alone = otp(apart, decoupled_steps=2), otp(task, prompts=1)
    state = method.init_server(rng(1))
    assert method.init_client(rng(1), rng(2)) == {}
    result = method.client_update(ClientView(state), patched, trainer(), rng(3))
    expected = alone.client_update(ClientView(state), patched, trainer(), rng(3))
    assert np.array_equal(result.update[CONTEXT], expected.update[CONTEXT])
    assert set(method.personalise(ClientView(state), patched, trainer(), rng(4))) == {OWN}


OTHERS = ("star", "house", "ring")


def pprompt(task: Task, **options):
    return pfedprompt.build(pfedprompt.Config(**{"context_tokens": 4, **options}), task)


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
def test_prediction_against_numpy(task, examples, recall, classes):
    """Image by image and memory by memory; a class that is not remembered gets no vote."""
    features = rng(9).normal(size=(5, 128)).astype(np.float32)
    batch = {"features": features / np.linalg.norm(features, axis=1, keepdims=True)}
    method = pprompt(task, blend=0.3, sharpness=20.0, recall=recall)
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
    method = pprompt(task)
    state, personal = personalise(method, examples)
    result = method.client_update(ClientView(state, personal=personal), examples, trainer(), rng(4))
    bare = method.client_update(ClientView(state), examples, trainer(), rng(4))
    assert result.personal == {}
    assert np.array_equal(result.update[CONTEXT], bare.update[CONTEXT])
