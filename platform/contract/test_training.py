"""What leaves a client, how a method treats its inputs, and what it predicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from methods import ClientView, Examples, LocalResult, Method, MethodError, Source, Task
from platform.contract.cases import Case
from platform.contract.driving import (
    IdleTrainer,
    first_view,
    local_trainer,
    pool_of_rounds,
    rng,
    same_arrays,
    same_results,
    start,
    train,
)
from platform.contract.examples import CLASSES, draw_batch, draw_examples, frozen, handed_out
from platform.wire.codec import decode_arrays, encode_arrays
from platform.wire.layout import require_spec


def test_examples_of_one_class_move_what_is_shared_unless_it_is_announced(method: Method) -> None:
    """A method also learns from examples of one class, unless `learns_one_class` is false."""
    broadcast, personal = start(method)
    data = dict(draw_examples(method, 0).arrays)
    data["labels"] = np.full_like(data["labels"], 2)
    view = ClientView(broadcast, handed_out(method), personal)
    update = method.client_update(view, Examples(frozen(data)), local_trainer(), rng()).update
    assert all(np.isfinite(array).all() for array in update.values())
    if update and method.learns and method.learns_one_class:
        assert any(np.any(array) for array in update.values())


def test_a_loss_is_of_one_example_unless_it_is_announced(method: Method) -> None:
    """The loss of an example depends on this example alone, unless `couples_examples` is true."""
    if method.couples_examples:
        return
    # Gradients are means, so a step on {a, b} is the mean of a step on {a} and a step on {b}.
    _, personal = start(method)
    data, trainer = draw_examples(method, 0, 2), local_trainer(learning_rate=0.01, steps=1)
    moves, spec = [], method.shared_spec()
    for rows in (slice(0, 2), slice(0, 1), slice(1, 2)):
        part = Examples(frozen({n: v[rows] for n, v in data.arrays.items()}))
        result = train(method, data=part, trainer=trainer)
        moved = {n: v - personal[n] for n, v in result.personal.items() if n in personal}
        means = {n: v for n, v in result.update.items() if spec[n].source is not Source.STATISTIC}
        moves.append({**moved, **{f"update.{n}": v for n, v in means.items()}})
    both, first, second = moves
    for name in both:
        mean = (first[name] + second[name]) / 2
        np.testing.assert_allclose(both[name], mean, rtol=1e-3, atol=1e-6)


def test_the_update_is_what_was_announced(method: Method, result: LocalResult) -> None:
    """An update has exactly the names, shapes and types of `shared_spec`, and is finite."""
    require_spec(result.update, method.shared_spec())
    for name, spec in method.shared_spec().items():
        assert result.update[name].dtype == np.dtype(spec.dtype)
        assert np.isfinite(result.update[name]).all()


def test_the_pool_entry_is_what_was_announced(method: Method, result: LocalResult) -> None:
    """A pool entry has exactly the names, shapes and types of `pool_policy`."""
    policy = method.pool_policy()
    if policy is None:
        assert result.pool_entry is None
        return
    if policy.fixed:
        assert result.pool_entry is None
        view = ClientView(start(method)[0], (), frozen(result.personal))
        result = method.contribute(view, draw_examples(method, 0), local_trainer(), rng())
        assert result.update == {}
    assert result.pool_entry is not None
    require_spec(result.pool_entry, policy.spec)
    for name, spec in policy.spec.items():
        assert result.pool_entry[name].dtype == np.dtype(spec.dtype)


def test_a_client_without_shared_tensors_or_pool_releases_nothing(
    method: Method, result: LocalResult
) -> None:
    """A client sends only the shared tensors and pool entries that the method announces."""
    assert bool(result.update) == bool(method.shared_spec())
    assert (result.pool_entry is None) == (pool_of_rounds(method) is None)


def test_training_moves_something_or_the_method_says_that_it_does_not(
    method: Method, result: LocalResult
) -> None:
    """Training changes the update or personal state exactly if `learns` is true."""
    _, personal = start(method)
    moved = any(value.any() for value in result.update.values())
    learns = moved or not same_arrays(result.personal, personal)
    assert learns == method.learns


def test_the_update_is_a_difference_to_the_broadcast(method: Method) -> None:
    """A client that does not train sends zeros: an update is a difference, without noise."""
    # With seven examples, no class has the equal share that a server may start from.
    idle = train(method, data=draw_examples(method, 0, 7), trainer=IdleTrainer())
    for name, value in idle.update.items():
        # A tensor that does not come from training must be there without training.
        source = method.shared_spec()[name].source
        is_there = source not in (Source.TRAINING, Source.PERSONAL)
        assert value.any() == is_there, f"update {name!r} of a client that trained nothing"


def test_a_pool_entry_is_absolute(method: Method, result: LocalResult) -> None:
    """A pool entry of a shared tensor is the broadcast plus the update, bit for bit."""
    broadcast, _ = start(method)
    for name, value in (result.pool_entry or {}).items():
        if name in result.update:
            np.testing.assert_allclose(value, broadcast[name] + result.update[name], atol=1e-6)
            # Otherwise the platform refuses `pool.noise: same`.
            assert np.array_equal(value - broadcast[name], result.update[name])


@pytest.mark.parametrize("clipping", [None, 0.5])
@pytest.mark.parametrize("experts", [None, 0])
def test_one_seed_gives_one_result(
    method: Method, clipping: float | None, experts: int | None
) -> None:
    """The same inputs and the same generator give the same result, bit for bit."""
    if clipping is not None and method.couples_examples:
        # The platform refuses this before a run: no example has a gradient of its own.
        return
    first, second = (
        train(method, trainer=local_trainer(clipping=clipping), experts=experts) for _ in range(2)
    )
    assert same_results(first, second)


def test_a_second_round_goes_on_from_stored_state(method: Method, result: LocalResult) -> None:
    """A second round gives the same result from stored personal state as from state in memory."""
    one, other = (
        train(method, personal=personal)
        for personal in (result.personal, decode_arrays(encode_arrays(result.personal)))
    )
    assert same_results(one, other)


def test_nothing_that_is_handed_in_is_kept_or_changed(method: Method) -> None:
    """A method does not change its inputs, and what leaves a client shares no memory with them."""
    view, data = first_view(method), draw_examples(method, 0)
    given = {
        "the broadcast": view.broadcast,
        "the personal state": view.personal,
        "the examples": data.arrays,
        **{f"expert {i}": expert for i, expert in enumerate(view.experts)},
    }
    before = {what: {n: v.copy() for n, v in arrays.items()} for what, arrays in given.items()}
    try:
        result = method.client_update(view, data, local_trainer(), rng())
    except ValueError as error:
        if "read-only" in str(error):
            pytest.fail(f"client_update wrote to an array that it was handed: {error}")
        raise
    for what, arrays in given.items():
        assert same_arrays(arrays, before[what]), f"client_update changed {what}"
    for value in (*result.update.values(), *(result.pool_entry or {}).values()):
        assert not any(np.shares_memory(value, one) for one in data.arrays.values())
        assert not any(np.shares_memory(value, one) for one in view.broadcast.values())


def test_a_method_keeps_nothing_between_calls(case: Case, task: Task) -> None:
    """A client's result does not depend on earlier calls of the method."""
    used, fresh = (case.registry.build(case.method, case.config(), task) for _ in range(2))
    train(used, data=1)
    assert same_results(train(used), train(fresh)), "state is kept in the method between calls"


def test_a_method_draws_no_noise(method: Method) -> None:
    """A method draws no noise: a client that does not train sends the same each time."""
    # Two generators, so that noise from the method's own `rng` argument shows as well.
    one, other = (train(method, trainer=IdleTrainer(), seed=seed) for seed in (3, 4))
    for what, name, value, again in released(one, other):
        assert np.array_equal(value, again), f"{what} {name!r} has noise in it"


def test_personal_state_does_not_leave_in_what_is_trained(
    method: Method, result: LocalResult
) -> None:
    """Personal state stays: what a client sends without training does not depend on it."""
    # Except for announced sources: personal state may enter a statistic or a gradient.
    one, other = (
        train(method, personal=personal, trainer=IdleTrainer())
        for personal in (None, result.personal)
    )
    for what, name, value, again in released(one, other):
        spec = method.shared_spec().get(name)
        # Tensors of only a pool come from training alone.
        if spec is None or spec.source is Source.TRAINING:
            # Up to rounding: a method may add c_i and subtract it again.
            same = np.allclose(value, again, rtol=0, atol=1e-6)
            assert same, f"{what} {name!r} has personal state in it"


def released(
    one: LocalResult, other: LocalResult
) -> Iterator[tuple[str, str, NDArray[Any], NDArray[Any]]]:
    """Yield the arrays that leave a client: kind, name, and the value in each of two results."""
    for name, value in one.update.items():
        yield "update", name, value, other.update[name]
    for name, value in (one.pool_entry or {}).items():
        yield "pool entry", name, value, (other.pool_entry or {})[name]


OTHER_CLASSES = ("house", "lightning", "drop", "old grey flower", "cross")


@pytest.mark.parametrize("experts", [None, 0])
def test_prediction_for_any_classes(method: Method, experts: int | None) -> None:
    """`predict` gives finite logits, (n, C) in single precision, for any classes in any order."""
    batch = draw_batch(method, 4)
    states = (None, train(method, experts=experts).personal)
    lists = (CLASSES, CLASSES[2:0:-1], OTHER_CLASSES, ("house",))
    for state, classes in product(states, lists):
        view = first_view(method, experts, state)
        if method.closed_classes and not set(classes) <= set(CLASSES):
            with pytest.raises(MethodError, match=r"classes: .*valid: "):
                method.predict(view, batch, classes)
            continue
        logits = method.predict(view, batch, classes)
        assert logits.shape == (5, len(classes))
        assert logits.dtype == np.float32
        assert np.isfinite(logits).all()


def test_a_closed_method_names_its_outputs_by_class(method: Method) -> None:
    """With closed classes, the logits of some classes are the matching columns of all logits."""
    if not method.closed_classes:
        return
    view, batch = first_view(method), draw_batch(method, 4)
    whole, some = (method.predict(view, batch, c) for c in (CLASSES, CLASSES[2:0:-1]))
    np.testing.assert_allclose(some, whole[:, [2, 1]], rtol=1e-5, atol=1e-6)


def test_a_prediction_depends_on_its_own_image_only(method: Method) -> None:
    """A prediction depends only on its own image, not on the rest of the batch."""
    view, batch = first_view(method), draw_batch(method, 4)
    alone = {name: value[2:3] for name, value in batch.items()}
    together, single = (method.predict(view, images, CLASSES) for images in (batch, alone))
    np.testing.assert_allclose(together[2:3], single, atol=1e-4)


@pytest.mark.parametrize("experts", [None, 0])
def test_weights_of_experts_are_shares_of_one_image(method: Method, experts: int | None) -> None:
    """Experts' weights are at least 0, add up to 1, and depend only on their own image."""
    view = first_view(method, experts, train(method, experts=experts).personal)
    batch = draw_batch(method, 4)
    weights = method.expert_weights(view, batch, CLASSES)
    if weights is None:
        return
    assert view.experts or method.pool_policy() is None
    assert len(weights) == 5
    assert weights.dtype == np.float32
    assert weights.min() >= 0
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-5)
    alone = {name: value[2:3] for name, value in batch.items()}
    single = method.expert_weights(view, alone, CLASSES)
    assert single is not None
    np.testing.assert_allclose(weights[2:3], single, atol=1e-5)


def test_personalising_gives_arrays_that_predict(method: Method, result: LocalResult) -> None:
    """`personalise` returns arrays that can be stored and that `predict` accepts."""
    view, data = first_view(method, personal=result.personal), draw_examples(method, 0)
    personal = method.personalise(view, data, local_trainer(), rng())
    restored = decode_arrays(encode_arrays(personal))
    batch = draw_batch(method, 0, 8)
    logits = method.predict(replace(view, personal=restored), batch, CLASSES)
    assert np.isfinite(logits).all()
