"""Server optimisers: three steps worked by hand, torch's optimisers, and what they reduce to."""

from __future__ import annotations

import numpy as np
import pytest

from methods import BUILT_IN_METHODS, Task
from methods.interface.server_optimizers import ServerAdagrad, ServerAdam, ServerSGD, ServerYogi
from platform.contract.cases import Case
from platform.contract.test_server import ADAM, under
from platform.errors import ConfigError

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


@pytest.mark.parametrize(
    ("momentum", "expected"),
    [
        (0.0, [0.1, -0.1, -0.05]),
        # m: 1, 0.5 - 2 = -1.5, -0.75 + 0.5 = -0.25; eta m: 0.1, -0.15, -0.025.
        (0.5, [0.1, -0.05, -0.075]),
    ],
)
def test_sgd_by_hand(momentum, expected):
    optimizer = ServerSGD("sgd", learning_rate=0.1, momentum=momentum)
    np.testing.assert_allclose(trajectory(optimizer, CHANGES), expected, atol=1e-7)


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


@pytest.mark.parametrize("kind", [ServerAdagrad, ServerAdam, ServerYogi])
def test_memory_starts_where_the_paper_lets_it(kind):
    slots = kind(learning_rate=1.0, tau=0.25).start((2,))
    assert {name: value.tolist() for name, value in slots.items()} == {
        "mean": [0.0, 0.0],
        "square": [0.0625, 0.0625],
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "lion"}, r"method\.server_optimizer\.name: 'lion' is unknown; valid: sgd, "),
        ({"name": "adam"}, r"method\.server_optimizer\.learning_rate: is missing"),
        ({"name": "sgd", "tau": 1.0}, r"tau: is not a known option of sgd; valid: "),
        ({**ADAM, "tau": 0.0}, r"method\.server_optimizer\.tau: 0\.0 is not valid"),
        ({**ADAM, "learning_rate": float("inf")}, r"server_optimizer\.learning_rate: inf is not"),
        ("adam", r"method\.server_optimizer: 'adam' is not valid"),
    ],
)
def test_an_optimiser_that_is_not_valid_is_refused_by_name(given, said, task: Task):
    case = Case("promptfl", "promptfl", BUILT_IN_METHODS, {"context_tokens": 2})
    with pytest.raises(ConfigError, match=said):
        under(case, task, given)
