"""Server optimisers: three steps worked by hand, torch's optimisers, and what they reduce to."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from methods.interface.server_optimizers import (
    ServerAdagrad,
    ServerAdam,
    ServerSGD,
    ServerYogi,
)

CHANGES = (1.0, -2.0, 0.5)
"""Delta_t of one coordinate in three rounds."""


def trajectory(optimizer, changes, shape=()):
    """Where each round leaves a tensor that starts at zero."""
    at, slots, seen = np.zeros(shape), optimizer.start(shape), []
    for change in changes:
        step, slots = optimizer.step(np.asarray(change, np.float32).reshape(shape), slots)
        assert step.dtype == np.float32
        assert all(value.dtype == np.float32 for value in slots.values())
        at = at + step
        seen.append(at)
    return np.array(seen)


def test_momentum_by_hand():
    # m: 1, 0.5 - 2 = -1.5, -0.75 + 0.5 = -0.25; eta m: 0.1, -0.15, -0.025.
    optimizer = ServerSGD("sgd", learning_rate=0.1, momentum=0.5)
    np.testing.assert_allclose(trajectory(optimizer, CHANGES), [0.1, -0.05, -0.075], atol=1e-7)


def test_adagrad_by_hand():
    # v: 0.25 + 1 = 1.25, 5.25, 5.5; step: Delta / (sqrt(v) + 0.5).
    #   1 / 1.618033989 =  0.618033989
    #  -2 / 2.791287847 = -0.716515139
    # 0.5 / 2.845207880 =  0.175734083
    optimizer = ServerAdagrad(learning_rate=1.0, tau=0.5)
    expected = np.cumsum([0.618033989, -0.716515139, 0.175734083])
    np.testing.assert_allclose(trajectory(optimizer, CHANGES), expected, rtol=1e-6)


def test_adam_by_hand():
    # m: 0.5, 0.25 - 1 = -0.75, -0.375 + 0.25 = -0.125.
    # v: 0.75 * 0.25 + 0.25 = 0.4375, 0.328125 + 1 = 1.328125, 0.99609375 + 0.0625 = 1.05859375.
    # step: 0.1 m / (sqrt(v) + 0.5), no correction of the first rounds:
    #   0.05   / 1.161437828 =  0.043050087
    #  -0.075  / 1.652443057 = -0.045387343
    #  -0.0125 / 1.528879852 = -0.008175920
    optimizer = ServerAdam(learning_rate=0.1, beta_1=0.5, tau=0.5, beta_2=0.75)
    expected = np.cumsum([0.043050087, -0.045387343, -0.008175920])
    np.testing.assert_allclose(trajectory(optimizer, CHANGES), expected, rtol=1e-6)


def test_yogi_by_hand():
    # m as for Adam. v: 0.25 + 0.25 * 1 = 0.5, 0.5 + 0.25 * 4 = 1.5, 1.5 - 0.25 * 0.25 = 1.4375.
    #   0.05   / 1.207106781 =  0.041421356
    #  -0.075  / 1.724744871 = -0.043484692
    #  -0.0125 / 1.698957881 = -0.007357451
    optimizer = ServerYogi(learning_rate=0.1, beta_1=0.5, tau=0.5, beta_2=0.75)
    expected = np.cumsum([0.041421356, -0.043484692, -0.007357451])
    np.testing.assert_allclose(trajectory(optimizer, CHANGES), expected, rtol=1e-6)


def random_changes(rounds: int = 30) -> np.ndarray:
    return np.random.default_rng(4).normal(0.0, 0.3, (rounds, 7)).astype(np.float32)


def torch_trajectory(make, changes, prepare=None):
    """The same by torch, whose gradient is the negative change."""
    at = torch.zeros(changes.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = make([at])
    if prepare is not None:
        optimizer.state[at] = prepare(at)
    seen = []
    for number, change in enumerate(changes, 1):
        for group in optimizer.param_groups:
            group.update(group.get("at", lambda _: {})(number))
        at.grad = -torch.from_numpy(change.astype(np.float64))
        optimizer.step()
        seen.append(at.detach().clone().numpy())
    return np.array(seen)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_is_torchs(momentum):
    changes = random_changes()
    mine = trajectory(ServerSGD("sgd", 0.3, momentum), changes, (7,))
    theirs = torch_trajectory(lambda p: torch.optim.SGD(p, lr=0.3, momentum=momentum), changes)
    np.testing.assert_allclose(mine, theirs, atol=1e-5)


def test_adagrad_is_torchs():
    changes, tau = random_changes(), 0.02
    mine = trajectory(ServerAdagrad(learning_rate=0.3, tau=tau), changes, (7,))

    def make(parameters):
        return torch.optim.Adagrad(parameters, lr=0.3, eps=tau, initial_accumulator_value=tau**2)

    np.testing.assert_allclose(mine, torch_trajectory(make, changes), atol=1e-5)


def test_adam_without_a_mean_is_torchs_rmsprop():
    changes, tau = random_changes(), 0.02
    mine = trajectory(ServerAdam(learning_rate=0.3, beta_1=0.0, tau=tau, beta_2=0.9), changes, (7,))
    theirs = torch_trajectory(
        lambda p: torch.optim.RMSprop(p, lr=0.3, alpha=0.9, eps=tau),
        changes,
        lambda at: {"step": torch.tensor(0.0), "square_avg": torch.full_like(at, tau**2)},
    )
    np.testing.assert_allclose(mine, theirs, atol=1e-5)


def test_adam_is_torchs_once_its_correction_of_first_rounds_is_undone():
    """Torch divides m by 1 - b1^t, v by 1 - b2^t: rate and eps of round t take that back."""
    changes, tau, b1, b2 = random_changes(), 0.02, 0.8, 0.9
    optimizer = ServerAdam(learning_rate=0.3, beta_1=b1, tau=tau, beta_2=b2)

    def at_round(number):
        root = (1 - b2**number) ** 0.5
        return {"lr": 0.3 * (1 - b1**number) / root, "eps": tau / root}

    def make(parameters):
        return torch.optim.Adam([{"params": parameters, "at": at_round}], betas=(b1, b2))

    theirs = torch_trajectory(
        make,
        changes,
        lambda at: {
            "step": torch.tensor(0.0),
            "exp_avg": torch.zeros_like(at),
            "exp_avg_sq": torch.full_like(at, tau**2),
        },
    )
    np.testing.assert_allclose(trajectory(optimizer, changes, (7,)), theirs, atol=1e-5)


def test_sgd_without_momentum_at_rate_one_changes_no_bit():
    change = np.random.default_rng(0).normal(size=50).astype(np.float32)
    step, slots = ServerSGD("sgd").step(change, {})
    assert slots == ServerSGD("sgd").start((50,)) == {}
    assert np.array_equal(step, change)


@pytest.mark.parametrize("kind", [ServerAdagrad, ServerAdam, ServerYogi])
def test_a_large_tau_makes_plain_steps(kind):
    """Every step is eta Delta_t over 2 tau then, as v_{-1} = tau^2 outweighs all that follows."""
    optimizer = kind(learning_rate=2e4, beta_1=0.0, tau=1e4)
    np.testing.assert_allclose(trajectory(optimizer, CHANGES), np.cumsum(CHANGES), rtol=1e-2)


@pytest.mark.parametrize("kind", [ServerAdagrad, ServerAdam, ServerYogi])
def test_memory_starts_where_the_paper_lets_it(kind):
    slots = kind(learning_rate=1.0, tau=0.25).start((2,))
    assert {name: value.tolist() for name, value in slots.items()} == {
        "mean": [0.0, 0.0],
        "square": [0.0625, 0.0625],
    }
