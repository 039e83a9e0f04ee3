"""The public subspace: its directions, what goes through it, and that nothing private gets in."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from methods import (
    Aggregate,
    ClientView,
    MethodError,
    ParameterGroup,
    Task,
    fedotp,
    pfedmoap,
    promptfl,
    zero_shot,
)
from methods.interface.server_optimizers import ServerSGD, WithServerOptimizer
from methods.interface.subspace import (
    BASIS,
    COORDINATES,
    InCoordinates,
    InSubspace,
    origin_of,
    random_directions,
    top_directions,
)
from methods.interface.subspace import in_subspace as subspace_of
from methods.prompts.prompt import CONTEXT, build_encoder
from privacy.training.per_sample import per_sample_gradients
from tests.methods._double import double_backbone, to_double
from tests.methods._training import mean_of, rng, trainer

TOKENS, WIDTH = 2, 32
WHOLE = TOKENS * WIDTH


ORIGIN_OF_ALL = origin_of("a model", ("one", "two"))


def in_subspace(method, kind, rank, public=None):
    return subspace_of(method, kind, rank, origin=ORIGIN_OF_ALL, public=public)


def base(task: Task):
    return promptfl.build(promptfl.Config(context_tokens=TOKENS), task)


def update_of(method, state, examples, **plan):
    view = ClientView(method.broadcast(state))
    return method.client_update(view, examples, trainer(**{"steps": 3, **plan}), rng(3)).update


def test_the_jacobian_agrees_with_central_differences_in_double_precision(task):
    exact = dataclasses.replace(task, backbone=double_backbone(task.backbone))
    encoder = build_encoder(promptfl.Config(context_tokens=TOKENS), exact)
    context, step = rng(1).normal(0.0, 0.1, (TOKENS, WIDTH)), 1e-6
    found = encoder.text_jacobian(context, task.classes)
    assert found.shape == (len(task.classes) * task.backbone.embed_dim, WHOLE)
    for column in (0, 17, WHOLE - 1):
        moved = np.zeros(WHOLE)
        moved[column] = step
        ends = []
        for sign in (1, -1):
            there = torch.tensor(context + sign * moved.reshape(TOKENS, WIDTH))
            with torch.no_grad():
                ends.append(encoder.text_features(there, task.classes).numpy())
        slope = (ends[0] - ends[1]) / (2 * step)
        centred = (slope - slope.mean(axis=0)).ravel()
        np.testing.assert_allclose(found[:, column], centred, atol=1e-7)


def test_directions_are_the_singular_vectors():
    matrix = rng(2).normal(size=(40, 12)) @ np.diag(np.geomspace(1.0, 100.0, 12))
    found = top_directions(matrix, 5)
    _, _, expected = np.linalg.svd(matrix)
    # Up to signs, which differ between libraries.
    np.testing.assert_allclose(np.abs(found @ expected[:5].T), np.eye(5), atol=1e-9)


def test_too_few_rows_are_completed_to_a_basis():
    found = top_directions(np.array([[3.0, 4.0, 0.0]]), 2)
    np.testing.assert_allclose(found @ found.T, np.eye(2), atol=1e-12)
    np.testing.assert_allclose(np.abs(found[0]), [0.6, 0.8, 0.0], atol=1e-12)


def test_random_directions_are_orthonormal_and_of_no_preference():
    drawn = [random_directions(2, 3, rng(seed)) for seed in range(4000)]
    for basis in drawn[:20]:
        np.testing.assert_allclose(basis @ basis.T, np.eye(2), atol=1e-12)
    first = np.array([basis[0] for basis in drawn])
    # Uniform on the sphere: mean 0 and covariance I / 3, within five standard errors.
    assert np.abs(first.mean(axis=0)).max() < 5 * np.sqrt(1 / 3 / 4000)
    assert np.abs(first.T @ first / 4000 - np.eye(3) / 3).max() < 5 * 0.3 / np.sqrt(4000)


def test_an_upload_is_the_updates_coordinates_and_the_server_moves_by_what_they_stand_for(
    task, examples
):
    plain, method = base(task), in_subspace(base(task), "random", 5)
    state = method.init_server(rng(1))
    basis = state[BASIS]
    assert basis.shape == (5, WHOLE) and basis.dtype == np.float32
    whole = update_of(plain, plain.init_server(rng(1)), examples)[CONTEXT].ravel()
    sent = update_of(method, state, examples)
    assert set(sent) == {COORDINATES} == set(method.shared_spec())
    np.testing.assert_allclose(sent[COORDINATES], basis @ whole, rtol=1e-5, atol=1e-9)
    after = method.server_update(state, mean_of(sent), (), rng(2))
    moved = (after[CONTEXT] - state[CONTEXT]).ravel()
    np.testing.assert_allclose(moved, basis.T @ (basis @ whole), atol=1e-7)
    assert 0.0 < np.linalg.norm(moved) < np.linalg.norm(whole)
    assert not np.allclose(after[BASIS], basis)


def test_with_all_directions_nothing_changes(task, examples):
    """The law that it must reduce to: with B the identity it is the method itself."""
    plain, method = base(task), InSubspace(base(task), "random", WHOLE, ORIGIN_OF_ALL)
    state = {**method.init_server(rng(1)), BASIS: np.eye(WHOLE, dtype=np.float32)}
    expected = plain.init_server(rng(1))
    for _ in range(3):
        expected = plain.server_update(
            expected, mean_of(update_of(plain, expected, examples)), (), rng()
        )
        state = method.server_update(state, mean_of(update_of(method, state, examples)), (), rng())
        state = {**state, BASIS: np.eye(WHOLE, dtype=np.float32)}
        np.testing.assert_array_equal(state[CONTEXT], expected[CONTEXT])


def test_directions_do_not_depend_on_what_clients_sent_but_through_the_broadcast(task):
    method = in_subspace(base(task), "text_jacobian", 4)
    state = method.init_server(rng(1))
    still = Aggregate({COORDINATES: np.zeros(4, np.float32)}, 99.0, 7, 7)
    np.testing.assert_array_equal(
        method.server_update(state, still, (), rng())[BASIS], state[BASIS]
    )


def test_a_server_optimiser_remembers_whole_updates(task):
    """Momentum of coordinates would add up numbers along other directions in each round."""
    optimised = WithServerOptimizer(base(task), ServerSGD("sgd", 1.0, momentum=0.5))
    method = in_subspace(optimised, "random", 3)
    first = method.init_server(rng(1))
    one = np.array([1.0, 0.0, 0.0], np.float32)
    second = method.server_update(first, mean_of({COORDINATES: one}), (), rng(2))
    third = method.server_update(second, mean_of({COORDINATES: one}), (), rng(3))
    moved = (third[CONTEXT] - second[CONTEXT]).ravel()
    expected = 0.5 * first[BASIS][0] + second[BASIS][0]
    np.testing.assert_allclose(moved, expected, atol=1e-6)


def test_under_noised_steps_each_examples_gradient_is_projected_before_its_clip(task, examples):
    """What is clipped is B g_i: found from whole gradients, without coordinates."""
    method = in_subspace(base(task), "text_jacobian", 6)
    state = method.init_server(rng(1))
    basis, seen = state[BASIS].astype(np.float64), {}

    class Watching:
        """Keeps the loss that it is to fit."""

        learning_rate, charged_steps = 0.1, 3

        def fit(self, objective, parameters, arrays, *, groups, rng, **options):
            seen.update(objective=objective, parameters=parameters, groups=groups)
            found = dict(parameters)
            found[COORDINATES] = np.arange(6, dtype=np.float32)
            return found

    view = ClientView(method.broadcast(state))
    result = method.client_update(view, examples, Watching(), rng())
    np.testing.assert_allclose(result.update[COORDINATES], np.arange(6), atol=1e-5)
    assert [group.names for group in seen["groups"]] == [(COORDINATES,)]
    batch = {n: torch.tensor(a) for n, a in examples.arrays.items()}
    told = {n: torch.tensor(a) for n, a in seen["parameters"].items()}
    mine = per_sample_gradients(seen["objective"], told, batch, trained={COORDINATES})
    plain = base(task)
    at = {CONTEXT: torch.tensor(state[CONTEXT])}
    whole = per_sample_gradients(plain.training_objective(), at, batch, trained={CONTEXT})
    expected = whole.gradients[CONTEXT].flatten(1).numpy() @ basis.T
    np.testing.assert_allclose(mine.gradients[COORDINATES], expected, atol=1e-5)


@pytest.mark.parametrize("reads", [True, False])
def test_after_a_noised_step_a_method_may_do_what_moves_no_tensor(task, examples, reads):
    inside = InCoordinates(Noised(), np.eye(3, WHOLE), base(task).shared_spec())
    steps = []

    def after_step(trained):
        steps.append(len(trained))
        if reads:
            trained[CONTEXT].mul_(2.0)

    def fit():
        start, groups = base(task).init_server(rng(1)), (ParameterGroup((CONTEXT,)),)
        options = {"groups": groups, "rng": rng(), "after_step": after_step}
        inside.fit(base(task).training_objective(), start, examples.arrays, **options)

    if reads:
        with pytest.raises(MethodError, match="without corrections"):
            fit()
    else:
        fit()
    assert steps == [1]


class Noised:
    """Takes one step, to ones."""

    learning_rate, charged_steps = 0.1, 1

    def fit(self, objective, parameters, arrays, *, after_step, **options):
        found = {**parameters, COORDINATES: np.ones_like(parameters[COORDINATES])}
        after_step({COORDINATES: torch.tensor(found[COORDINATES])})
        return found


def test_a_direction_that_is_no_number_is_not_trained_with(task, examples):
    method = in_subspace(base(task), "random", 3)
    state = dict(method.init_server(rng(1)))
    state[BASIS] = np.full_like(state[BASIS], np.nan)
    with pytest.raises(MethodError, match="not a finite number"):
        update_of(method, state, examples)


def test_the_method_never_sees_the_directions(task, examples):
    method = in_subspace(base(task), "random", 3)
    state = method.init_server(rng(1))
    view = ClientView(method.broadcast(state))
    mine = method.predict(view, examples.arrays, task.classes)
    theirs = base(task).predict(
        ClientView({CONTEXT: state[CONTEXT]}), examples.arrays, task.classes
    )
    np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("build", "rank", "said"),
    [
        (lambda task: zero_shot.build(zero_shot.Config(), task), 3, "shares something else, or"),
        (lambda task: fedotp.build(fedotp.Config(), task), 3, "personal state"),
        (lambda task: pfedmoap.build(pfedmoap.Config(experts=1), task), 3, "experts of their own"),
        (base, WHOLE, f"privacy.rank: {WHOLE} is not valid .* valid: 1 to {WHOLE - 1}"),
    ],
)
def test_what_has_no_one_public_subspace_is_refused(task, build, rank, said):
    with pytest.raises(MethodError, match=said):
        in_subspace(build(task), "text_jacobian", rank)


def test_public_gradients_are_those_of_each_image_by_itself(task, examples):
    """Against one backward pass an image through the whole tower, in double precision."""
    exact = dataclasses.replace(task, backbone=double_backbone(task.backbone))
    method = base(exact)
    context = rng(4).normal(0.0, 0.1, (TOKENS, WIDTH))
    found = method.public_gradients({CONTEXT: context}, examples)
    objective, tensors = method.training_objective(), to_double(examples.arrays)
    for row in range(examples.num_examples):
        at = torch.tensor(context, requires_grad=True)
        one = {name: value[row : row + 1] for name, value in tensors.items()}
        encoded = objective.encode({CONTEXT: at})
        objective.losses({CONTEXT: at}, encoded, one).sum().backward()
        np.testing.assert_allclose(found[row], at.grad.ravel().numpy(), atol=1e-8)
    assert np.linalg.norm(found, axis=1).min() > 1e-3


def test_directions_from_public_images_hold_most_of_their_gradients(task, examples):
    method = in_subspace(base(task), "public_images", 3, lambda: examples)
    state = method.init_server(rng(1))
    gradients = base(task).public_gradients({CONTEXT: state[CONTEXT]}, examples)
    held = np.linalg.norm(gradients @ state[BASIS].T) / np.linalg.norm(gradients)
    best = np.linalg.svd(gradients, compute_uv=False)
    assert held == pytest.approx(np.linalg.norm(best[:3]) / np.linalg.norm(best), abs=1e-5)
    other = in_subspace(base(task), "text_jacobian", 3).init_server(rng(1))
    assert np.linalg.norm(gradients @ other[BASIS].T) < np.linalg.norm(gradients @ state[BASIS].T)


def test_public_images_are_read_only_where_they_are_needed_and_nothing_else_is_wrong(task):
    def reading():
        raise AssertionError("read")

    in_subspace(base(task), "random", 3, reading)
    with pytest.raises(MethodError, match="personal state"):
        in_subspace(fedotp.build(fedotp.Config(), task), "public_images", 3, reading)


def test_model_and_class_list_are_told_apart():
    told = {
        origin_of(*of).tobytes() for of in (("a", "xy"), ("b", "xy"), (None, "xy"), ("a", "yx"))
    }
    assert len(told) == 4 and all(len(one) == 32 for one in told)
