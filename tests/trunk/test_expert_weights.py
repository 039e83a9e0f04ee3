"""What experts count: images, clients and ranks by hand, and in the summary of a run."""

from __future__ import annotations

import math

import numpy as np
import pytest

from methods import ClientView, Examples, PoolPolicy, TensorSpec
from platform.experiment.evaluation import mean_over_clients
from platform.parties.scoring import EvaluationSet, mean_weights, ranked_means
from tests.trunk._runs import Finished

CLASSES = ("a", "b")


class Told:
    """Weighs experts as the images say; none where a client has no experts."""

    def __init__(self, policy: PoolPolicy | None) -> None:
        self.policy = policy
        self.seen: list[int] = []

    def pool_policy(self) -> PoolPolicy | None:
        return self.policy

    def expert_weights(self, view, batch, classes):
        assert set(batch) == {"features"}
        assert classes == CLASSES
        self.seen.append(len(batch["features"]))
        return None if view.personal else batch["features"] * view.broadcast["scale"]


PICKED = PoolPolicy({"x": TensorSpec((1,))}, 2)
FIXED = PoolPolicy({"x": TensorSpec((1,))}, 2, "all", exclude_self=False, fixed=True)


def measured(policy, *clients, without=()):
    own = {
        name: Examples({"features": np.array(rows, np.float32), "labels": np.zeros(len(rows))})
        for name, rows in enumerate(clients)
    }
    method = Told(policy)
    found = [
        mean_weights(
            method,
            ClientView({"scale": np.float32(1)}, (), {"no": 1} if name in without else {}),
            EvaluationSet(examples, CLASSES),
        )
        for name, examples in own.items()
    ]
    return mean_over_clients([means for means in found if means is not None]), method


ONE = [[0.2, 0.1, 0.7], [0.4, 0.5, 0.1]]
OTHER = [[0.6, 0.1, 0.3]]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        # Ranked: (.2, .7, .1) and (.4, .5, .1) give (.3, .6, .1); the other client (.6, .3, .1).
        (PICKED, [0.45, 0.45, 0.1]),
        # In their order: (.3, .3, .4) and (.6, .1, .3).
        (None, [0.45, 0.2, 0.35]),
        (FIXED, [0.45, 0.2, 0.35]),
    ],
)
def test_the_mean_by_hand(policy, expected):
    """Every client counts the same, however many images it has."""
    found, _ = measured(policy, ONE, OTHER)
    np.testing.assert_allclose(found, expected, atol=1e-7)


def test_clients_without_experts_do_not_count():
    found, _ = measured(PICKED, ONE, OTHER, without={0})
    np.testing.assert_allclose(found, [0.6, 0.3, 0.1], atol=1e-7)
    assert measured(PICKED, ONE, OTHER, without={0, 1})[0] is None
    assert measured(None)[0] is None


def test_a_large_test_set_is_read_in_blocks():
    """Of 512 images; the mean is of images, not of blocks."""
    rows = [[1.0, 0.0]] * 512 + [[0.0, 1.0]] * 128
    found, method = measured(None, rows)
    assert method.seen == [512, 128]
    np.testing.assert_allclose(found, [0.8, 0.2])


def test_the_own_expert_is_not_ranked():
    means = ranked_means(np.array([[0.1, 0.2, 0.3, 0.4]], np.float32), is_ranked=True)
    np.testing.assert_allclose(means, [0.1, 0.4, 0.3, 0.2], atol=1e-7)
    alone = ranked_means(np.ones((3, 1), np.float32), is_ranked=True)
    np.testing.assert_array_equal(alone, [1.0])


def test_a_run_with_a_pool_says_what_experts_count(plain_run: Finished):
    weights = plain_run.summary["final"]["expert_weights"]
    assert len(weights) == 2
    assert math.isclose(sum(weights), 1.0, abs_tol=1e-6)
    assert min(weights) > 0
