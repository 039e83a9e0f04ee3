"""How a method treats what it is handed: it keeps none of it, and lets none of it out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from methods import Arrays, ClientView, LocalResult, Method, Source, Task
from platform.contract.cases import Case
from platform.contract.driving import IdleTrainer, local_trainer
from platform.contract.examples import draw_examples, draw_experts, frozen
from platform.contract.training import rng, same_arrays, same_results, start, train


def test_nothing_that_is_handed_in_is_kept_or_changed(method: Method) -> None:
    """A method changes nothing that it is handed, and nothing that leaves shares its memory."""
    broadcast, personal = start(method)
    data, experts = draw_examples(method, 0), draw_experts(method)
    given = {
        "the broadcast": broadcast,
        "the personal state": personal,
        "the examples": data.arrays,
        **{f"expert {i}": expert for i, expert in enumerate(experts)},
    }
    before = {what: {n: v.copy() for n, v in arrays.items()} for what, arrays in given.items()}
    try:
        result = method.client_update(
            ClientView(broadcast, experts, personal), data, local_trainer(), rng()
        )
    except ValueError as error:
        if "read-only" in str(error):
            pytest.fail(f"client_update wrote to an array that it was handed: {error}")
        raise
    for what, arrays in given.items():
        assert same_arrays(arrays, before[what]), f"client_update changed {what}"
    for value in (*result.update.values(), *(result.pool_entry or {}).values()):
        assert not any(np.shares_memory(value, one) for one in data.arrays.values())
        assert not any(np.shares_memory(value, one) for one in broadcast.values())


def test_a_method_keeps_nothing_between_calls(case: Case, task: Task) -> None:
    """What a client returns does not depend on what the method was called with before."""
    used, fresh = (case.registry.build(case.method, case.config(), task) for _ in range(2))
    train(used, data=1)
    assert same_results(train(used), train(fresh)), "state is kept in the method between calls"


def test_a_method_draws_no_noise(method: Method) -> None:
    """A method draws no noise: what leaves a client that trains nothing is the same each time."""
    # From two generators, so that noise from the one that is handed in shows as well.
    one, other = (idle(method, start(method)[1], seed) for seed in (3, 4))
    for what, name, value, again in released(one, other):
        assert np.array_equal(value, again), f"{what} {name!r} has noise in it"


def test_personal_state_does_not_leave_in_what_is_trained(method: Method) -> None:
    """Personal state stays: what leaves a client that trains nothing does not depend on it."""
    # Unless its source is announced: a statistic or gradient may be taken through a personal part.
    first = start(method)[1]
    trained = frozen(train(method).personal)
    one, other = idle(method, first), idle(method, trained)
    for what, name, value, again in released(one, other):
        if is_trained(method, name):
            # But for rounding: c_i may have been added and taken away again.
            same = np.allclose(value, again, rtol=0, atol=1e-6)
            assert same, f"{what} {name!r} has personal state in it"


def idle(method: Method, personal: Arrays, seed: int = 3) -> LocalResult:
    """Return what a client returns that trains nothing."""
    view = ClientView(start(method)[0], draw_experts(method), personal)
    return method.client_update(view, draw_examples(method, 0), IdleTrainer(), rng(seed))


def released(
    one: LocalResult, other: LocalResult
) -> Iterator[tuple[str, str, NDArray[Any], NDArray[Any]]]:
    """Yield what leaves a client, by its name, in two results."""
    for name, value in one.update.items():
        yield "update", name, value, other.update[name]
    for name, value in (one.pool_entry or {}).items():
        yield "pool entry", name, value, (other.pool_entry or {})[name]


def is_trained(method: Method, name: str) -> bool:
    """Whether a tensor that leaves is said to be of training alone, as those of a pool are."""
    spec = method.shared_spec().get(name)
    return spec is None or spec.source is Source.TRAINING
