"""What leaves a client, and what stays with it."""

from __future__ import annotations

import numpy as np
import pytest

from methods import ClientView, Examples, Method, Source
from platform.contract.driving import IdleTrainer, local_trainer, pool_of_rounds
from platform.contract.examples import draw_examples, draw_experts, frozen, handed_out
from platform.contract.training import rng, same_arrays, same_results, start, train
from platform.wire.codec import decode_arrays, encode_arrays
from platform.wire.layout import require_spec


def test_examples_of_one_class_move_what_is_shared_unless_it_is_announced(
    method: Method,
) -> None:
    """Examples of one class train too, unless `learns_one_class` says that they do not."""
    broadcast, personal = start(method)
    data = dict(draw_examples(method, 0).arrays)
    data["labels"] = np.full_like(data["labels"], 2)
    view = ClientView(broadcast, handed_out(method), personal)
    update = method.client_update(view, Examples(frozen(data)), local_trainer(), rng()).update
    assert all(np.isfinite(array).all() for array in update.values())
    if update and method.learns and method.learns_one_class:
        assert any(np.any(array) for array in update.values())


def test_a_loss_is_of_one_example_unless_it_is_announced(method: Method) -> None:
    """The loss is of one example alone, unless `couples_examples` says that it is not."""
    if method.couples_examples:
        return
    # One step on {a, b} is the mean of one step on {a} and one on {b}: so are their gradients.
    broadcast, personal = start(method)
    data, experts = draw_examples(method, 0, 2), draw_experts(method)
    moves = []
    for rows in (slice(0, 2), slice(0, 1), slice(1, 2)):
        part = Examples(frozen({n: v[rows] for n, v in data.arrays.items()}))
        trainer = local_trainer(learning_rate=0.01, steps=1)
        result = method.client_update(
            ClientView(broadcast, experts, personal), part, trainer, rng()
        )
        moved = {n: v - personal[n] for n, v in result.personal.items() if n in personal}
        trained = {n: v for n, v in result.update.items() if is_mean(method, n)}
        moves.append({**moved, **{f"update.{n}": v for n, v in trained.items()}})
    both, first, second = moves
    for name in both:
        mean = (first[name] + second[name]) / 2
        np.testing.assert_allclose(both[name], mean, rtol=1e-3, atol=1e-6)


def is_mean(method: Method, name: str) -> bool:
    """Whether a tensor of the update is a mean of something of each example."""
    return method.shared_spec()[name].source is not Source.STATISTIC


def test_the_update_is_what_was_announced(method: Method) -> None:
    """An update has exactly the names, shapes and types of `shared_spec`, and is finite."""
    result = train(method)
    require_spec(result.update, method.shared_spec())
    for name, spec in method.shared_spec().items():
        assert result.update[name].dtype == np.dtype(spec.dtype)
        assert np.isfinite(result.update[name]).all()


def test_the_pool_entry_is_what_was_announced(method: Method) -> None:
    """A pool entry has exactly the names, shapes and types of `pool_policy`."""
    result, policy = train(method), method.pool_policy()
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


def test_a_client_without_shared_tensors_or_pool_releases_nothing(method: Method) -> None:
    """What is not announced as shared, or as a pool, does not leave a client."""
    result = train(method)
    assert bool(result.update) == bool(method.shared_spec())
    assert (result.pool_entry is None) == (pool_of_rounds(method) is None)


def test_training_moves_something_or_the_method_says_that_it_does_not(method: Method) -> None:
    """Training changes something, exactly if `learns` says so."""
    result, (_, personal) = train(method), start(method)
    moved = any(value.any() for value in result.update.values())
    learns = moved or not same_arrays(result.personal, personal)
    assert learns == method.learns


def test_the_update_is_a_difference_to_the_broadcast(method: Method) -> None:
    """A client that trains nothing changes nothing: an update is a difference, without noise."""
    broadcast, personal = start(method)
    # Seven, so that no class's share is the equal one that a server may start from.
    data, experts = draw_examples(method, 0, 7), draw_experts(method)
    idle = method.client_update(
        ClientView(broadcast, experts, personal), data, IdleTrainer(), rng()
    )
    for name, value in idle.update.items():
        # What is said to be there without training must be there.
        source = method.shared_spec()[name].source
        is_there = source not in (Source.TRAINING, Source.PERSONAL)
        assert value.any() == is_there, f"update {name!r} of a client that trained nothing"


def test_a_pool_entry_is_absolute(method: Method) -> None:
    """A pool entry of a shared tensor is the broadcast plus the update, bit for bit."""
    result, (broadcast, _) = train(method), start(method)
    for name, value in (result.pool_entry or {}).items():
        if name in result.update:
            np.testing.assert_allclose(value, broadcast[name] + result.update[name], atol=1e-6)
            # Or `pool.noise: same` is refused.
            assert np.array_equal(value - broadcast[name], result.update[name])


@pytest.mark.parametrize("clipping", [None, 0.5])
@pytest.mark.parametrize("experts", [None, 0])
def test_one_seed_gives_one_result(
    method: Method, clipping: float | None, experts: int | None
) -> None:
    """The same inputs and the same generator give the same result, bit for bit."""
    if clipping is not None and method.couples_examples:
        # Refused before a run: there is no gradient of one example alone.
        return
    first = train(method, clipping=clipping, experts=experts)
    second = train(method, clipping=clipping, experts=experts)
    assert same_results(first, second)


def test_a_second_round_goes_on_from_stored_state(method: Method) -> None:
    """A second round from personal state that was stored is that from state in memory."""
    first = train(method, experts=0)
    broadcast, _ = start(method)
    one, other = (
        method.client_update(
            ClientView(broadcast, draw_experts(method), frozen(personal)),
            draw_examples(method, 0),
            local_trainer(),
            rng(),
        )
        for personal in (first.personal, decode_arrays(encode_arrays(first.personal)))
    )
    assert same_results(one, other)
