"""An expert that nobody picks becomes a copy of a crowded one."""

from __future__ import annotations

import numpy as np
import pytest

from methods import Aggregate, Groups, promptfl
from methods.interface.groups import in_groups, splits
from methods.interface.server_optimizers import MEMORY, ServerSGD, WithServerOptimizer
from methods.interface.subspace import BASIS, in_subspace
from methods.prompts.prompt import CONTEXT
from tests.methods._training import rng

TOKENS, WIDTH, K = 2, 32, 4


@pytest.mark.parametrize(
    ("counts", "floor", "expected"),
    [
        # An even share is 200 / 4 = 50: 100 are not more than twice that.
        ([100, 100, 0, 0], 3.0, []),
        ([101, 99, 0, 0], 3.0, [(2, 0)]),
        # The first copy leaves it 75, which is below 100.
        ([150, 50, 0, 0], 3.0, [(2, 0)]),
        # An even share of 40: 120 are left, of which the second copy takes half.
        ([240, 0, 0, 0, 0, 0], 3.0, [(1, 0), (2, 0)]),
        # Nobody else is empty.
        ([191, 3, 3, 3], 3.0, []),
        # Noise below zero counts as nobody: an even share is 40 / 4.
        ([10, -50, 30, -2], 3.0, [(1, 2)]),
        # The largest one did not move itself.
        ([90, 1, 1, 1], 100.0, []),
        ([0, 0, 0, 0], 1.0, []),
        ([-1, -2, -3, -4], 1.0, []),
    ],
)
def test_who_is_split_is_worked_out_by_hand(counts, floor, expected):
    assert list(splits(Groups(np.asarray(counts, float), floor))) == expected


def base(task):
    return promptfl.build(promptfl.Config(context_tokens=TOKENS), task)


def told(counts, sizes, floor=3.0) -> Aggregate:
    """Blocks whose entries are all alike, as the mean of a hundred clients."""
    blocks = np.stack([np.full((TOKENS, WIDTH), size, np.float32) for size in sizes])
    return Aggregate(
        {CONTEXT: blocks}, 100.0, 100, 100, groups=Groups(np.asarray(counts, float), floor)
    )


def test_the_copy_is_as_far_from_the_crowded_expert_as_that_has_just_moved(task):
    method = in_groups(base(task), K, task.classes, split=True)
    kept = in_groups(base(task), K, task.classes)
    state = method.init_server(rng(1))
    aggregate = told([80, 0, 20, 0], [0.4, 9.0, 0.1, 9.0])
    after = method.server_update(state, aggregate, (), rng(2))[CONTEXT]
    plain = kept.server_update(state, aggregate, (), rng(2))[CONTEXT]
    # 100 x 0.4 / 80 in each entry, of which there are 64.
    np.testing.assert_allclose(after[0] - state[CONTEXT][0], 0.5, atol=1e-6)
    assert np.linalg.norm(after[1] - after[0]) == pytest.approx(0.5 * 8.0, rel=1e-5)
    assert not np.allclose(after[1] - after[0], 0.5, atol=0.1)
    # Only one is needed: 40 are not more than twice 25.
    np.testing.assert_array_equal(after[3], state[CONTEXT][3])
    for group in (0, 2, 3):
        np.testing.assert_array_equal(after[group], plain[group])
    np.testing.assert_array_equal(plain[1], state[CONTEXT][1])


def test_copies_are_drawn_from_the_servers_own_draws(task):
    method = in_groups(base(task), K, task.classes, split=True)
    state = method.init_server(rng(1))
    aggregate = told([100, 0, 0, 0], [0.4, 0.0, 0.0, 0.0])
    one, again, other = (
        method.server_update(state, aggregate, (), rng(seed))[CONTEXT] for seed in (2, 2, 3)
    )
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one[1], other[1])
    # Two copies, as 50 are twice 25 and no more: each its own way.
    assert not np.array_equal(one[1], state[CONTEXT][1])
    np.testing.assert_array_equal(one[2:], state[CONTEXT][2:])


def test_a_memory_is_copied_with_the_expert(task):
    within = WithServerOptimizer(base(task), ServerSGD("sgd", 1.0, momentum=0.5))
    method = in_groups(within, K, task.classes, split=True)
    first = method.init_server(rng(1))
    moved = method.server_update(first, told([25] * K, [0.1, 0.2, 0.3, 0.4]), (), rng(2))
    after = method.server_update(moved, told([94, 0, 3, 3], [0.47, 0.0, 0.0, 0.0]), (), rng(3))
    memory = f"{MEMORY}{CONTEXT}/momentum"
    # Expert 0: 0.4, then 0.5 + 0.5 x 0.4 = 0.7. Its copy takes a step of its own after that.
    np.testing.assert_allclose(after[memory][0], 0.7, atol=1e-5)
    drawn = after[memory][1] - 0.5 * after[memory][0]
    assert np.linalg.norm(drawn) == pytest.approx(0.5 * 8.0, rel=1e-4)
    np.testing.assert_allclose(
        after[CONTEXT][1], after[CONTEXT][0] + after[memory][1], rtol=1e-4, atol=1e-5
    )


def test_in_a_subspace_a_copy_moves_within_the_experts_directions(task):
    rank = 5
    within = in_subspace(base(task), "text_jacobian", rank, origin="the text tower")
    method = in_groups(within, K, task.classes, split=True)
    state = method.init_server(rng(1))
    (name,) = method.shared_spec()
    blocks = np.zeros((K, rank), np.float32)
    blocks[0] = 0.01
    aggregate = Aggregate(
        {name: blocks}, 100.0, 100, 100, groups=Groups(np.array([100.0, 0, 0, 0]), 3.0)
    )
    after = method.server_update(state, aggregate, (), rng(2))
    apart = (after[CONTEXT][1] - after[CONTEXT][0]).ravel().astype(float)
    basis = after[BASIS][0].astype(float)
    assert np.linalg.norm(apart) == pytest.approx(0.01 * np.sqrt(rank), rel=1e-4)
    np.testing.assert_allclose(basis.T @ (basis @ apart), apart, atol=1e-6)
