"""FedOTP: its transport against POT and numbers worked by hand, and what is made of it."""

from __future__ import annotations

import math

import numpy as np
import ot
import pytest
import torch

from methods import ClientView, Examples, Task, fedotp
from methods.fedotp import OWN, PATCHES, Config, transport_plans
from methods.prompts.prompt import CONTEXT, as_tensor
from tests.methods._training import rng, trainer

LOG3 = math.log(3.0)


def build(task: Task, **options):
    return fedotp.build(Config(**{"context_tokens": 4, **options}), task)


def plans(similarity, **options) -> np.ndarray:
    chosen = {"mass": 0.8, "entropy": 0.1, "iterations": 100, **options}
    return transport_plans(torch.as_tensor(similarity), **chosen).numpy()


def draw_similarity(shape, seed: int = 2, spread: float = 0.1) -> np.ndarray:
    return rng(seed).normal(0, spread, shape)


@pytest.fixture
def patched() -> Examples:
    patches = rng(5).normal(size=(10, 6, 128)).astype(np.float32)
    patches /= np.linalg.norm(patches, axis=-1, keepdims=True)
    return Examples({PATCHES: patches, "labels": rng(6).integers(0, 4, 10)})


def draw_prompts(count: int, seed: int = 8, spread: float = 1.0) -> np.ndarray:
    return rng(seed).normal(0, spread, (count, 4, 32)).astype(np.float32)


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
    similarity = np.array([[0.1 * LOG3, 0.0]])
    np.testing.assert_allclose(plans(similarity, mass=mass), [expected], atol=1e-6)


@pytest.mark.pairs
@pytest.mark.parametrize("mass", [0.3, 0.8, 0.95])
@pytest.mark.parametrize("entropy", [0.05, 0.1, 1.0])
@pytest.mark.parametrize(("targets", "sources"), [(1, 5), (2, 12), (3, 7)])
def test_partial_transport_is_pots(mass, entropy, targets, sources):
    """Oracle: `ot.partial.entropic_partial_wasserstein`, whose bounds on targets are met exactly

    because they add up to the mass that it is asked to move.
    """
    similarity = draw_similarity((targets, sources, 4))
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
    prompts = draw_prompts(2)
    method = build(task, mass=mass, entropy=0.1)
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
    method, alone = build(apart, decoupled_steps=2), build(task, prompts=1)
    state = method.init_server(rng(1))
    assert method.init_client(rng(1), rng(2)) == {}
    result = method.client_update(ClientView(state), patched, trainer(), rng(3))
    expected = alone.client_update(ClientView(state), patched, trainer(), rng(3))
    assert np.array_equal(result.update[CONTEXT], expected.update[CONTEXT])
    assert set(method.personalise(ClientView(state), patched, trainer(), rng(4))) == {OWN}
