"""Every averaged method under a server optimiser; every other one refuses it in one sentence."""

from __future__ import annotations

import numpy as np
import pytest

from methods import Aggregate, ClientView, Method, Registry, Task, Visibility, Weighting
from methods.interface.server_optimizers import MEMORY, WithServerOptimizer
from platform.config import parse_config
from platform.errors import ConfigError
from platform.experiment.method_building import build_method
from platform.wire.codec import decode_arrays, encode_arrays
from tests.contract._driving import local_trainer
from tests.contract.conftest import POPULATION, Case, draw_examples, frozen, handed_out

ADAM = {"name": "adam", "learning_rate": 0.1}
PLAIN = {"name": "sgd"}


def under(case: Case, task: Task, optimizer: object) -> Method:
    """The method as a configuration asks for it."""
    tree = {
        "name": "contract",
        "task": {"clients": POPULATION},
        "method": {"name": case.method, "server_optimizer": optimizer, **case.options},
        "training": {"local_steps": 1, "learning_rate": 0.5},
    }
    return build_method(case.registry, parse_config(tree), task)


def play(method: Method, rounds: int = 2) -> list[dict]:
    """The server states of some rounds of two clients, through storage."""
    names = ("client-0", "client-1")
    state = method.init_server(np.random.default_rng(1))
    personal = {
        name: method.init_client(np.random.default_rng(1), np.random.default_rng(2))
        for name in names
    }
    states = [dict(state)]
    for _ in range(rounds):
        state = frozen(decode_arrays(encode_arrays(state)))
        results = {}
        for i, name in enumerate(names):
            sent = method.broadcast(state, name)
            assert not any(n.startswith(MEMORY) for n in sent)
            results[name] = method.client_update(
                ClientView(sent, handed_out(method), personal[name]),
                draw_examples(method, i),
                local_trainer(learning_rate=0.1, steps=1),
                np.random.default_rng(3),
            )
            personal[name] = results[name].personal
        sums = {
            name: sum(result.update[name] for result in results.values())
            / (1 if spec.weighting is Weighting.SUM else 2)
            for name, spec in method.shared_spec().items()
        }
        shown = {name: dict(result.update) for name, result in results.items()}
        individual = shown if method.visibility is Visibility.PER_CLIENT else None
        pool = [r.pool_entry for r in results.values() if r.pool_entry is not None]
        aggregate = Aggregate(frozen(sums), 16.0, 2, POPULATION, individual)
        state = method.server_update(state, aggregate, pool, np.random.default_rng(9))
        states.append(dict(state))
    return states


def test_an_averaged_method_takes_an_optimisers_steps(case: Case, method: Method, task: Task):
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


def test_plain_steps_are_the_methods_own_to_the_bit(case: Case, method: Method, task: Task):
    if not method.averaged:
        return
    for mine, theirs in zip(play(under(case, task, PLAIN)), play(method), strict=True):
        assert set(mine) == set(theirs)
        assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)


def test_a_method_that_averages_nothing_refuses_an_optimiser(
    case: Case, method: Method, task: Task
):
    if method.averaged:
        return
    with pytest.raises(ConfigError, match=rf"^method\.server_optimizer: .*{case.method}.*; valid"):
        under(case, task, ADAM)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "lion"}, r"method\.server_optimizer\.name: 'lion' is unknown; valid: sgd, "),
        ({}, r"method\.server_optimizer\.name: None is unknown; valid: sgd, "),
        ({"name": "adam"}, r"method\.server_optimizer\.learning_rate: is missing"),
        ({"name": "sgd", "momentum": 1.0}, r"method\.server_optimizer\.momentum: 1\.0 is not"),
        (
            {"name": "sgd", "tau": 1.0},
            r"tau: is not a known option of sgd; valid: ",
        ),
        ({**ADAM, "tau": 0.0}, r"method\.server_optimizer\.tau: 0\.0 is not valid"),
        ({**ADAM, "beta_2": "0.9"}, r"method\.server_optimizer\.beta_2: '0\.9' is not valid"),
        ({**ADAM, "learning_rate": float("inf")}, r"server_optimizer\.learning_rate: inf is not"),
        ("adam", r"method\.server_optimizer: 'adam' is not valid"),
    ],
)
def test_an_optimiser_that_is_not_valid_is_refused_by_name(given, said, task: Task):
    case = Case("promptfl", "promptfl", Registry(installed=False), {"context_tokens": 2})
    with pytest.raises(ConfigError, match=said):
        under(case, task, given)
