"""What the server does with a sum, with and without a server optimiser."""

from __future__ import annotations

import numpy as np
import pytest

from methods import Aggregate, Arrays, ClientView, LocalResult, Method, Task, Visibility, Weighting
from methods.interface.server_optimizers import MEMORY, WithServerOptimizer
from platform.config import parse_config
from platform.contract.cases import Case
from platform.contract.driving import epochs, local_trainer, rng, same_arrays, server_update, train
from platform.contract.examples import POPULATION, draw_examples, frozen, handed_out
from platform.errors import ConfigError
from platform.experiment.method_building import build_method
from platform.wire.codec import decode_arrays, encode_arrays


def test_what_is_averaged_moves_by_its_combined_change(method: Method, result: LocalResult) -> None:
    """Each tensor in `averaged` moves by exactly its combined change."""
    # A server optimiser only changes the combined change, so it works only if this holds.
    assert method.averaged <= set(method.shared_spec())
    state = method.init_server(rng(1))
    results = {"one": result, "two": train(method, experts=0)}
    # Two rounds: memory of earlier rounds shows only in the second.
    for _ in range(2):
        after = server_update(method, state, results)
        for name in method.averaged:
            total = results["one"].update[name] + results["two"].update[name]
            is_sum = method.shared_spec()[name].weighting is Weighting.SUM
            change = total if is_sum else total / 2
            assert np.array_equal(after[name], (state[name] + change).astype(state[name].dtype))
        state = after


def test_a_federation_of_one_that_shares_everything_trains_centrally(method: Method) -> None:
    """With one client, an averaged method trains as without a federation, unless `anchored`."""
    # Three rounds of one epoch equal one training of three epochs, for the same batches. A method
    # that holds a client near the broadcast must differ.
    shared = set(method.shared_spec())
    if method.has_personal_state or not shared or method.averaged != shared:
        return
    state, data = method.init_server(rng(1)), draw_examples(method, 0)
    rate = 0.5 if method.anchored else 0.05
    whole = method.client_update(
        ClientView(frozen(method.broadcast(state))), data, epochs(3, rate), rng(5)
    ).update
    batches, now = rng(5), state
    for _ in range(3):
        view = ClientView(frozen(method.broadcast(now)))
        update = method.client_update(view, data, epochs(1, rate), batches).update
        now = method.server_update(now, Aggregate(update, 8.0, 1, 1), (), rng(9))
    off = max(np.abs(now[n] - state[n] - whole[n]).max() for n in shared)
    assert (off > 1e-5) == method.anchored, off
    for name in shared:
        assert np.abs(whole[name]).max() > 0


def test_the_server_state_keeps_its_shape(method: Method, result: LocalResult) -> None:
    """The server's state keeps its names, shapes and types, and depends on its inputs alone."""
    state = method.init_server(rng(1))
    results = {"one": result, "two": train(method, experts=0)}
    after = server_update(method, state, results)
    assert set(state) <= set(after)
    if method.visibility is Visibility.AGGREGATE_ONLY:
        assert set(state) == set(after)
    for name, value in state.items():
        assert after[name].shape == value.shape
        assert after[name].dtype == value.dtype
    assert same_arrays(after, server_update(method, state, results))
    assert same_arrays(after, decode_arrays(encode_arrays(after)))


ADAM = {"name": "adam", "learning_rate": 0.1}
PLAIN = {"name": "sgd"}
NAMES = ("client-0", "client-1")


def under(case: Case, task: Task, optimizer: object) -> Method:
    """Return the method with an optimiser; `ConfigError` if the method does not take it."""
    tree = {
        "name": "contract",
        "task": {"clients": POPULATION},
        "method": {"name": case.method, "server_optimizer": optimizer, **case.options},
        "training": {"local_steps": 1, "learning_rate": 0.5},
    }
    return build_method(case.registry, parse_config(tree), task)


def play(method: Method, rounds: int = 2) -> list[Arrays]:
    """Return the server states of some rounds with two clients; each state is stored and read.

    No client gets anything from the optimiser's memory.
    """
    state, trainer = method.init_server(rng(1)), local_trainer(learning_rate=0.1, steps=1)
    personal = {name: method.init_client(rng(1), rng(2)) for name in NAMES}
    states: list[Arrays] = [dict(state)]
    for _ in range(rounds):
        state, results = frozen(decode_arrays(encode_arrays(state))), {}
        for number, name in enumerate(NAMES):
            sent = method.broadcast(state, name)
            assert not any(array.startswith(MEMORY) for array in sent)
            view = ClientView(sent, handed_out(method), personal[name])
            results[name] = method.client_update(
                view, draw_examples(method, number), trainer, rng()
            )
            personal[name] = results[name].personal
        state = server_update(method, state, results)
        states.append(dict(state))
    return states


def test_an_averaged_method_takes_an_optimisers_steps(
    case: Case, method: Method, task: Task
) -> None:
    """Each tensor in `averaged` moves by the configured server optimiser's step."""
    if not method.averaged:
        return
    other = under(case, task, ADAM)
    assert isinstance(other, WithServerOptimizer)
    plain, adaptive = play(method), play(other)
    memory = {f"{MEMORY}{n}/{slot}" for n in method.averaged for slot in ("mean", "square")}
    for before, after in zip(plain, adaptive, strict=True):
        assert set(after) == set(before) | memory
        assert all(after[n].dtype == v.dtype for n, v in before.items())
    spec = method.shared_spec()
    for name in method.averaged:
        moved = plain[1][name].astype(np.float64) - plain[0][name]
        # The first step of Adam by the formula, from v = tau^2 and m = 0.
        square = 0.99 * 1e-6 + 0.01 * moved**2
        expected = 0.1 * 0.1 * moved / (np.sqrt(square) + 1e-3)
        step = adaptive[1][name].astype(np.float64) - adaptive[0][name]
        assert adaptive[0][name].shape == spec[name].shape
        np.testing.assert_allclose(step, expected, atol=1e-5)


def test_plain_steps_are_the_methods_own_to_the_bit(case: Case, method: Method, task: Task) -> None:
    """A server optimiser that takes plain steps does not change an averaged method."""
    if not method.averaged:
        return
    for mine, theirs in zip(play(under(case, task, PLAIN)), play(method), strict=True):
        assert set(mine) == set(theirs)
        assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)


def test_a_method_that_averages_nothing_refuses_an_optimiser(
    case: Case, method: Method, task: Task
) -> None:
    """A method that averages nothing refuses a server optimiser."""
    if method.averaged:
        return
    with pytest.raises(ConfigError, match=rf"^method\.server_optimizer: .*{case.method}.*; valid"):
        under(case, task, ADAM)
