"""FedOTP: its transport against POT and numbers worked by hand, and what is made of it."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from methods import BackboneError, ClientView, Examples, Registry, Task, fedotp
from methods.fedotp import OWN, PATCHES, Config, transport_plans
from methods.prompts.prompt import CONTEXT, as_tensor
from platform.config import MethodConfig
from platform.errors import ConfigError
from platform.experiment.method_building import validate_options
from tests.methods._double import double_backbone, mean_loss, numeric_gradient
from tests.methods._training import RecordingTrainer, trainer

LOG3 = math.log(3.0)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


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


# --- transport ----------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("mass", "factor"), [(1.0, 1.0), (0.5, 0.5)])
def test_two_targets_by_hand(mass, factor):
    """By symmetry T = ((p, q), (q, p)), p/q = e^(0.1 ln3 / 0.1) = 3, p + q = mass/2."""
    similarity = np.array([[0.1 * LOG3, 0.0], [0.0, 0.1 * LOG3]])
    expected = factor * np.array([[0.375, 0.125], [0.125, 0.375]])
    np.testing.assert_allclose(plans(similarity, mass=mass), expected, atol=1e-9)


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


@pytest.mark.parametrize("entropy", [0.03, 0.1])
def test_full_mass_is_pots_sinkhorn(entropy):
    similarity = draw_similarity((2, 12, 3))
    got = plans(similarity, mass=1.0, entropy=entropy, iterations=2000)
    for problem in range(3):
        cost = 1.0 - similarity[:, :, problem].T
        expected = ot.sinkhorn(np.full(12, 1 / 12), np.full(2, 0.5), cost, entropy, stopThr=1e-12)
        np.testing.assert_allclose(got[:, :, problem].T, expected, atol=1e-8)


def test_full_mass_empties_every_source():
    """Without a bound on what a source gives away the usual number of iterations does."""
    got = plans(draw_similarity((2, 64, 5)), mass=1.0)
    np.testing.assert_allclose(got.sum(axis=0), 1 / 64, rtol=1e-6)


def test_the_default_number_of_iterations_suffices():
    """At the default entropy and spreads of cosines as CLIP's, in single precision."""
    similarity = draw_similarity((2, 64, 50)).astype(np.float32)
    few = plans(similarity)
    many = plans(similarity.astype(np.float64), iterations=5000)
    assert np.abs(((few - many) * similarity).sum((0, 1))).max() < 1e-6


@settings(max_examples=40, deadline=None)
@given(
    targets=st.integers(1, 4),
    sources=st.integers(1, 9),
    mass=st.floats(0.05, 1.0),
    entropy=st.floats(1e-3, 2.0),
    seed=st.integers(0, 1000),
)
def test_targets_get_their_share_at_any_entropy(targets, sources, mass, entropy, seed):
    """Finite in single precision even where e^(1/entropy) is not, and never negative."""
    similarity = rng(seed).uniform(-1, 1, (targets, sources, 3)).astype(np.float32)
    got = plans(similarity, mass=mass, entropy=entropy)
    assert np.isfinite(got).all()
    assert (got >= 0).all()
    np.testing.assert_allclose(got.sum(axis=1), mass / targets, rtol=1e-4)


def test_no_source_gives_more_than_it_has():
    got = plans(draw_similarity((2, 12, 9), spread=0.3), iterations=2000)
    assert got.sum(axis=0).max() <= 1 / 12 + 1e-9
    assert got.sum(axis=0).min() < 1 / 12 - 1e-3


def test_a_plan_does_not_depend_on_its_company():
    similarity = torch.as_tensor(draw_similarity((2, 12, 9)))
    options = {"mass": 0.8, "entropy": 0.05, "iterations": 7}
    together = transport_plans(similarity, **options)
    alone = transport_plans(similarity[:, :, 4:5], **options)
    torch.testing.assert_close(together[:, :, 4:5], alone, rtol=1e-12, atol=0)
    each = torch.func.vmap(lambda s: transport_plans(s, **options), in_dims=2, out_dims=2)
    torch.testing.assert_close(each(similarity), together, rtol=1e-12, atol=0)


def test_a_plan_is_a_constant():
    similarity = torch.zeros((2, 3, 4), requires_grad=True)
    assert not transport_plans(similarity, mass=0.8, entropy=0.1, iterations=3).requires_grad


# --- prediction ---------------------------------------------------------------------------------


def text_of(task: Task, prompts: np.ndarray) -> np.ndarray:
    method = build(task)
    with torch.no_grad():
        features = method.encoder.text_features_each(
            as_tensor(prompts, task.backbone), task.classes
        )
    return features.numpy().astype(np.float64)


def test_one_prompt_and_full_mass_is_the_mean_cosine(task, patched):
    """Then every patch gives its 1/M to the one prompt."""
    method, prompts = build(task, prompts=1, mass=1.0), draw_prompts(1)
    got = method.predict(ClientView({CONTEXT: prompts[0]}), patched.arrays, task.classes)
    patches = patched.arrays[PATCHES].astype(np.float64)
    expected = np.einsum("bmd,cd->bmc", patches, text_of(task, prompts)[0]).mean(axis=1)
    np.testing.assert_allclose(got, task.backbone.logit_scale * expected, atol=2e-4)


@pytest.mark.parametrize("mass", [0.5, 0.8])
def test_prediction_against_one_transport_after_the_other(task, patched, mass):
    """Oracle: POT, for each image and class by itself."""
    prompts = draw_prompts(2)
    method = build(task, mass=mass, entropy=0.1)
    state, own = {CONTEXT: prompts[0]}, {OWN: prompts[1:]}
    got = method.predict(ClientView(state, personal=own), patched.arrays, task.classes)
    text = text_of(task, prompts)
    for image, label in np.ndindex(4, 4):
        cosines = patched.arrays[PATCHES][image].astype(np.float64) @ text[:, label].T
        plan = ot.partial.entropic_partial_wasserstein(
            np.full(6, 1 / 6), np.full(2, mass / 2), 1 - cosines, 0.1, m=mass, stopThr=1e-12
        )
        expected = task.backbone.logit_scale * (plan * cosines).sum()
        np.testing.assert_allclose(got[image, label], expected, atol=1e-3)


def test_only_what_is_transported_counts(task, patched):
    """All patches alike: the logit is the mass times their cosine."""
    same = np.repeat(patched.arrays[PATCHES][:, :1], 6, axis=1)
    prompts = draw_prompts(1)
    for mass in (0.4, 0.8, 1.0):
        method = build(task, prompts=1, mass=mass)
        got = method.predict(ClientView({CONTEXT: prompts[0]}), {PATCHES: same}, task.classes)
        expected = same[:, 0].astype(np.float64) @ text_of(task, prompts)[0].T
        np.testing.assert_allclose(got, mass * task.backbone.logit_scale * expected, atol=3e-4)


def test_patches_are_made_of_tokens(task):
    method = build(task)
    images = rng(4).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
    kept = method.prepare({"tokens": task.backbone.encode_tokens(images)})
    assert set(kept) == {PATCHES}
    assert kept[PATCHES].shape == (3, 4, 128)
    np.testing.assert_allclose(np.linalg.norm(kept[PATCHES], axis=-1), 1.0, atol=1e-5)
    assert method.needs == {"tokens"}


# --- training -----------------------------------------------------------------------------------


def test_gradients_by_finite_differences_at_a_fixed_plan(task, patched):
    """The plan is a constant of the step: the loss that is differentiated keeps it as it was."""
    precise = Task(task.classes, task.domains, 4, double_backbone(task.backbone))
    method, prompts = build(precise), draw_prompts(2, spread=0.5).astype(np.float64)
    parameters = {CONTEXT: prompts[0], OWN: prompts[1:]}
    objective = method._objective(parameters, task.classes)
    patches = torch.tensor(patched.arrays[PATCHES], dtype=torch.float64)

    def similarity(values):
        contexts = torch.cat([torch.as_tensor(values[CONTEXT])[None], torch.as_tensor(values[OWN])])
        text = method.encoder.text_features_each(contexts, task.classes)
        return torch.einsum("bmd,ncd->nmbc", patches, text)

    with torch.no_grad():
        plan = torch.tensor(plans(similarity(parameters)))

    def loss(values):
        logits = precise.backbone.logit_scale * torch.einsum(
            "nmbc,nmbc->bc", plan, similarity(values)
        )
        return functional.cross_entropy(logits, torch.tensor(patched.arrays["labels"]))

    leaves = {n: torch.tensor(value, requires_grad=True) for n, value in parameters.items()}
    mean_loss(objective, leaves, patched).backward()
    places = {CONTEXT: [(0, 0), (2, 17)], OWN: [(0, 1, 3), (0, 3, 31)]}
    for name, coordinates in places.items():
        slopes = numeric_gradient(loss, parameters, name, coordinates)
        exact = [float(leaves[name].grad[place]) for place in coordinates]
        np.testing.assert_allclose(exact, slopes, rtol=1e-4, atol=1e-8)
        assert leaves[name].grad.abs().max() > 1e-4


def test_training_goes_on_from_the_broadcast_and_the_own_prompts(task, patched):
    method, recorder, prompts = build(task, prompts=3), RecordingTrainer(), draw_prompts(3)
    state, own = {CONTEXT: prompts[0]}, {OWN: prompts[1:]}
    result = method.client_update(ClientView(state, personal=own), patched, recorder, rng())
    np.testing.assert_array_equal(recorder.parameters[CONTEXT], prompts[0])
    np.testing.assert_array_equal(recorder.parameters[OWN], prompts[1:])
    assert not result.update[CONTEXT].any()


def test_own_prompts_learn_and_never_leave(task, patched):
    method = build(task, prompts=3)
    own = method.init_client(rng(1), rng(2))
    result = method.client_update(
        ClientView(method.init_server(rng(1)), (), own), patched, trainer(), rng()
    )
    assert own[OWN].shape == (2, 4, 32)
    assert set(result.update) == set(method.shared_spec()) == {CONTEXT}
    assert result.pool_entry is None
    assert np.abs(result.personal[OWN] - own[OWN]).max() > 1e-6
    assert np.abs(result.update[CONTEXT]).max() > 1e-6
    # Equal prompts would stay equal for ever.
    assert np.abs(own[OWN][0] - own[OWN][1]).max() > 1e-3


def test_with_one_prompt_nothing_is_personal(task, patched):
    method = build(task, prompts=1)
    assert not method.has_personal_state
    assert build(task).has_personal_state
    assert method.init_client(rng(1), rng(2)) == {}
    result = method.client_update(ClientView(method.init_server(rng(1))), patched, trainer(), rng())
    assert result.personal == {}
    decoupled = fedotp.build(
        Config(context_tokens=4, prompts=1),
        Task(task.classes, task.domains, 4, task.backbone, decoupled=True),
    )
    state = method.init_server(rng(1))
    assert decoupled.personalise(ClientView(state), patched, trainer(), rng()) == {}


def test_decoupled_own_prompts_begin_after_the_last_release(task, patched):
    apart = Task(task.classes, task.domains, 4, task.backbone, decoupled=True)
    method, alone = build(apart, decoupled_steps=2), build(task, prompts=1)
    state = method.init_server(rng(1))
    assert method.init_client(rng(1), rng(2)) == {}
    result = method.client_update(ClientView(state), patched, trainer(), rng(3))
    expected = alone.client_update(ClientView(state), patched, trainer(), rng(3))
    assert np.array_equal(result.update[CONTEXT], expected.update[CONTEXT])
    recorder = RecordingTrainer()
    method.personalise(ClientView(state), patched, recorder, rng(4))
    assert [group.names for group in recorder.groups] == [(OWN,)]
    personal = method.personalise(ClientView(state), patched, trainer(), rng(4))
    assert set(personal) == {OWN}
    assert np.abs(personal[OWN] - recorder.parameters[OWN]).max() > 1e-6


def test_coupled_personalising_changes_nothing(task, patched):
    method = build(task)
    own = method.init_client(rng(1), rng(2))
    state = method.init_server(rng(1))
    assert method.personalise(ClientView(state, personal=own), patched, trainer(), rng()) is own


# --- options ------------------------------------------------------------------------------------


def test_each_option_of_the_transport_counts(task, patched):
    prompts = draw_prompts(2)
    logits = [
        build(task, **options).predict(
            ClientView({CONTEXT: prompts[0]}, personal={OWN: prompts[1:]}),
            patched.arrays,
            task.classes,
        )
        for options in ({}, {"mass": 0.5}, {"entropy": 0.02}, {"iterations": 1})
    ]
    for other in logits[1:]:
        assert np.abs(other - logits[0]).max() > 1e-3


@pytest.mark.parametrize(("kind", "cosine"), [(np.float32, -0.05), (np.float16, 0.7)])
def test_at_the_few_shot_scripts_entropy_the_published_kernel_is_zero(kind, cosine):
    """Then 1 / (K u) is infinite, and times K no number; e^-10.5 and e^-3 at 0.1 are numbers."""
    with np.errstate(divide="ignore", invalid="ignore", under="ignore"):
        kernel = np.exp(kind(cosine - 1.0) / kind(0.01))
        assert kernel == 0.0
        assert np.isnan(kernel * (kind(1.0) / kernel))
    assert np.exp(kind(cosine - 1.0) / kind(0.1)) > 0.0
    alike = plans(np.full((2, 5, 1), cosine), entropy=0.01)
    # Equal cosines: 0.4 for each prompt, the same of each of five patches.
    np.testing.assert_allclose(alike, np.full((2, 5, 1), 0.08), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "value"), [("mass", 0.0), ("mass", 1.1), ("entropy", 0.0), ("prompts", 0)]
)
def test_numbers_out_of_range_are_refused(name, value):
    config = MethodConfig(name="fedotp", **{name: value})
    with pytest.raises(ConfigError, match=rf"^method\.{name}: "):
        validate_options(Registry(), config)


def test_a_tower_without_tokens_is_refused_at_once(task):
    model = torch.nn.Module()
    model.visual = torch.nn.Identity()
    backbone = dataclasses.replace(task.backbone, _model=model)
    with pytest.raises(BackboneError, match="no tokens"):
        build(dataclasses.replace(task, backbone=backbone))
