"""Private experts: who picks what, what leaves, what the server makes of sums, and who is split."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from methods import (
    Aggregate,
    ClientView,
    Examples,
    Groups,
    MethodError,
    fedpgp,
    pfedmoap,
    prompt_fedamp,
    promptfl,
    zero_shot,
)
from methods.interface.groups import CHOICE, InGroups, in_groups, splits
from methods.interface.server_optimizers import MEMORY, ServerSGD, WithServerOptimizer
from methods.interface.subspace import BASIS, COORDINATES, in_subspace, subspace_of
from methods.prompts.prompt import CONTEXT
from tests.methods._training import RecordingTrainer, mean_of, rng, trainer

TOKENS, WIDTH, K = 2, 32, 3


def base(task):
    return promptfl.build(promptfl.Config(context_tokens=TOKENS), task)


def grouped(task, method=None) -> InGroups:
    return in_groups(method or base(task), K, task.classes)


def spread(state):
    """The same experts, apart enough that losses differ."""
    return {name: (20.0 * array).astype(array.dtype) for name, array in state.items()}


def summed(updates, counts, floor=1.0) -> Aggregate:
    """What the server learns of these updates: their mean, and counts."""
    return replace(mean_of(*updates), groups=Groups(np.asarray(counts, float), floor))


def cross_entropies(task, state, examples) -> list[float]:
    """From the text features and torch's own loss."""
    method = base(task)
    found = []
    for context in state[CONTEXT]:
        logits = method.prompt_logits(context, examples.arrays, task.classes)
        labels = torch.tensor(examples.arrays["labels"])
        found.append(float(functional.cross_entropy(torch.tensor(logits), labels)))
    return found


def test_a_client_trains_the_expert_with_the_lowest_cross_entropy_and_no_other(task, examples):
    method = grouped(task)
    for seed in range(6):
        state = spread(method.init_server(rng(seed)))
        losses = cross_entropies(task, state, examples)
        best = int(np.argmin(losses))
        result = method.client_update(
            ClientView(method.broadcast(state)), examples, trainer(), rng(3)
        )
        assert result.group == best == int(result.personal[CHOICE])
        alone = base(task).client_update(
            ClientView({CONTEXT: state[CONTEXT][best]}), examples, trainer(), rng(3)
        )
        np.testing.assert_array_equal(result.update[CONTEXT][best], alone.update[CONTEXT])
        assert alone.update[CONTEXT].any()
        others = np.delete(result.update[CONTEXT], best, axis=0)
        assert others.shape == (K - 1, TOKENS, WIDTH) and not others.any()


def test_experts_start_apart_and_ties_go_to_the_first(task, examples):
    method = grouped(task)
    state = method.init_server(rng(1))
    contexts = state[CONTEXT]
    assert contexts.shape == (K, TOKENS, WIDTH)
    assert len({context.tobytes() for context in contexts}) == K
    alike = {CONTEXT: np.stack([contexts[1]] * K)}
    assert method.best_for(ClientView(alike), examples) == 0
    last = {CONTEXT: np.stack([contexts[0], contexts[1], contexts[1]])}
    assert method.best_for(ClientView(last), examples) in (0, 1)


@pytest.mark.parametrize("mixes", [False, True])
def test_clients_compare_experts_by_what_is_encoded_once_for_all(
    task, examples, monkeypatch, mixes
):
    """Of each expert the text features depend on the broadcast alone, which all were sent."""
    pool = pfedmoap.Config(context_tokens=TOKENS, experts=2, gate_dim=WIDTH)
    method = grouped(task, pfedmoap.build(pool, task) if mixes else None)
    encoder, passes = method.base.encoder, []
    encode = encoder.text_features_each
    monkeypatch.setattr(
        encoder, "text_features_each", lambda c, names: passes.append(len(c)) or encode(c, names)
    )
    broadcast = method.broadcast(spread(method.init_server(rng(2))))
    alone = method.best_for(ClientView(broadcast), examples)
    assert passes == [1] * K
    mine = {CHOICE: np.array(1), CONTEXT: np.ones((TOKENS, WIDTH), np.float32)}
    for personal in ({}, mine, {}):
        view = ClientView(broadcast, personal=personal, is_common=True)
        assert method.best_for(view, examples) == alone
    assert passes == [1] * K * 2


def test_the_server_moves_each_expert_by_its_own_groups_mean(task):
    """Four clients whose groups are known, by hand."""
    method, state = grouped(task), grouped(task).init_server(rng(1))
    updates = []
    for group, size in ((0, 0.3), (2, 0.1), (0, 0.5), (2, -0.2)):
        block = np.zeros((K, TOKENS, WIDTH), np.float32)
        block[group] = size
        updates.append({CONTEXT: block})
    after = method.server_update(state, summed(updates, [2, 0, 2]), (), rng())
    np.testing.assert_allclose(after[CONTEXT][0], state[CONTEXT][0] + 0.4, atol=1e-6)
    np.testing.assert_allclose(after[CONTEXT][2], state[CONTEXT][2] - 0.05, atol=1e-6)
    np.testing.assert_array_equal(after[CONTEXT][1], state[CONTEXT][1])


def test_a_sum_is_divided_by_its_noised_count_and_never_by_less_than_the_floor(task):
    method, state = grouped(task), grouped(task).init_server(rng(1))
    block = np.full((K, TOKENS, WIDTH), 0.6, np.float32)
    told = summed([{CONTEXT: block}], [4.8, 2.0, 1.9999], floor=2.0)
    after = method.server_update(state, told, (), rng())
    moved = (after[CONTEXT] - state[CONTEXT])[:, 0, 0]
    np.testing.assert_allclose(moved, [0.6 / 4.8, 0.6 / 2.0, 0.0], atol=1e-6)


@pytest.mark.parametrize("count", [0.0, -3.2, 1.99])
def test_a_small_group_keeps_its_expert_and_its_memory_bit_for_bit(task, count):
    method = grouped(task, WithServerOptimizer(base(task), ServerSGD("sgd", 1.0, momentum=0.5)))
    first = method.init_server(rng(1))
    noise = {CONTEXT: rng(2).normal(size=(K, TOKENS, WIDTH)).astype(np.float32)}
    moved = method.server_update(first, summed([noise], [5, 5, 5], floor=2.0), (), rng())
    kept = method.server_update(moved, summed([noise], [5, count, 5], floor=2.0), (), rng())
    memory = f"{MEMORY}{CONTEXT}/momentum"
    assert moved[memory].any()
    for name in (CONTEXT, memory):
        np.testing.assert_array_equal(kept[name][1], moved[name][1])
        assert not np.array_equal(kept[name][0], moved[name][0])
    # Momentum of each expert is its own: 0.5 of the first step comes on top of the second.
    again = noise[CONTEXT][0] / 5
    np.testing.assert_allclose(
        (kept[CONTEXT] - moved[CONTEXT])[0], again + 0.5 * again, rtol=1e-3, atol=1e-6
    )


def test_where_all_pick_one_expert_it_is_the_method_itself(task, examples):
    """The law that it must reduce to."""
    plain, method = base(task), grouped(task)
    state = spread(method.init_server(rng(1)))
    best = method.best_for(ClientView(state), examples)
    expected = {CONTEXT: state[CONTEXT][best]}
    shares = [Examples({n: a[i : i + 5] for n, a in examples.arrays.items()}) for i in (0, 5)]
    for _ in range(3):
        # The others are so bad that nobody picks them.
        state = {CONTEXT: np.array(state[CONTEXT])}
        updates, theirs = [], []
        for share in shares:
            view = ClientView({CONTEXT: np.stack([state[CONTEXT][best]] * K)})
            result = method.client_update(view, share, trainer(), rng(3))
            block = np.zeros_like(result.update[CONTEXT])
            block[best] = result.update[CONTEXT][result.group]
            updates.append({CONTEXT: block})
            theirs.append(plain.client_update(ClientView(expected), share, trainer(), rng(3)))
        counts = np.zeros(K)
        counts[best] = len(shares)
        state = method.server_update(state, summed(updates, counts), (), rng())
        mean = {CONTEXT: sum(r.update[CONTEXT] for r in theirs) / len(shares)}
        expected = plain.server_update(expected, Aggregate(mean, 2.0, 2, 2), (), rng())
        np.testing.assert_allclose(state[CONTEXT][best], expected[CONTEXT], atol=1e-6)


def test_each_expert_has_directions_of_its_own(task, examples):
    method = grouped(task, in_subspace(base(task), "text_jacobian", 5, origin="the text tower"))
    state = method.init_server(rng(1))
    assert state[BASIS].shape == (K, 5, TOKENS * WIDTH)
    assert not np.allclose(np.abs(state[BASIS][0]), np.abs(state[BASIS][1]), atol=1e-2)
    view = ClientView(method.broadcast(state))
    result = method.client_update(view, examples, trainer(), rng(3))
    chosen = result.group
    whole = base(task).client_update(
        ClientView({CONTEXT: state[CONTEXT][chosen]}), examples, trainer(), rng(3)
    )
    basis = state[BASIS][chosen].astype(float)
    np.testing.assert_allclose(
        result.update[COORDINATES][chosen], basis @ whole.update[CONTEXT].ravel(), atol=1e-6
    )
    counts = np.zeros(K)
    counts[chosen] = 2.0
    after = method.server_update(state, summed([result.update], counts), (), rng(2))
    moved = (after[CONTEXT] - state[CONTEXT])[chosen].ravel()
    by_hand = basis.T @ (basis @ whole.update[CONTEXT].ravel()) / 2.0
    np.testing.assert_allclose(moved, by_hand, atol=1e-6)
    others = [k for k in range(K) if k != chosen]
    for name in (CONTEXT, BASIS):
        np.testing.assert_array_equal(after[name][others], state[name][others])
    assert not np.allclose(after[BASIS][chosen], state[BASIS][chosen])
    assert subspace_of(method) is method.base


def mixing(task, experts=1, **options):
    config = pfedmoap.Config(
        context_tokens=TOKENS, experts=experts, gate_dim=8, gate_heads=2, **options
    )
    return pfedmoap.build(config, task)


def test_a_mixing_method_has_the_nearest_other_experts_in_place_of_a_pools(task, examples):
    method = grouped(task, mixing(task, experts=1))
    assert method.pool_policy() is None
    near, far = np.full((TOKENS, WIDTH), 0.1), np.full((TOKENS, WIDTH), 5.0)
    here = np.zeros((TOKENS, WIDTH))
    broadcast = {CONTEXT: np.stack([far, here, near]).astype(np.float32)}
    view = method._view(ClientView(broadcast, personal={CHOICE: np.array(1)}), 1)
    np.testing.assert_array_equal(view.broadcast[CONTEXT], here)
    assert [entry[CONTEXT][0, 0] for entry in view.experts] == [pytest.approx(0.1)]
    both = grouped(task, mixing(task, experts=2))._view(ClientView(broadcast), 0)
    assert [e[CONTEXT][0, 0] for e in both.experts] == [pytest.approx(0.1), 0.0]


def test_a_mixing_methods_gate_stays_with_the_client_beside_its_choice(task, examples):
    method = grouped(task, mixing(task, experts=2))
    state = spread(method.init_server(rng(1)))
    personal = method.init_client(rng(2), rng(3))
    view = ClientView(method.broadcast(state), personal=personal)
    result = method.client_update(view, examples, trainer(), rng(3))
    assert set(result.personal) == {*personal, CONTEXT, CHOICE}
    assert result.pool_entry is None and set(result.update) == {CONTEXT}
    kept = ClientView(view.broadcast, personal=result.personal)
    weights = method.expert_weights(kept, examples.arrays, task.classes)
    assert weights is not None and weights.shape == (10, K)
    # A gate that was trained beside one expert stays with it, whatever fits better now.
    other = (result.group + 1) % K
    stale = ClientView(
        view.broadcast, personal={**result.personal, CHOICE: np.array(other, np.int64)}
    )
    assert int(method.personalise(stale, examples, trainer(), rng())[CHOICE]) == other


def test_who_never_took_part_picks_at_the_end_and_predicts_with_that_expert(task, examples):
    method = grouped(task)
    state = spread(method.init_server(rng(2)))
    losses = cross_entropies(task, state, examples)
    best, worst = int(np.argmin(losses)), int(np.argmax(losses))
    view = ClientView(method.broadcast(state))
    for personal in ({}, {CHOICE: np.array(worst, np.int64)}):
        told = replace(view, personal=personal)
        picked = method.personalise(told, examples, trainer(), rng())
        assert int(picked[CHOICE]) == best
        after = replace(view, personal=picked)
        np.testing.assert_array_equal(
            method.predict(after, examples.arrays, task.classes),
            base(task).prompt_logits(state[CONTEXT][best], examples.arrays, task.classes),
        )


@pytest.mark.parametrize(("bad", "where"), [(np.nan, 0), (np.inf, 1), (-np.inf, 2)])
def test_an_expert_with_a_number_that_is_none_is_not_trained_with(task, examples, bad, where):
    """Else what a client picks would tell the others apart by its data, past all noise."""
    method = grouped(task)
    broadcast = {CONTEXT: np.array(method.init_server(rng(1))[CONTEXT])}
    broadcast[CONTEXT][where, 0, 0] = bad
    with pytest.raises(MethodError, match="not finite"):
        method.client_update(ClientView(broadcast), examples, trainer(), rng())


def test_an_expert_that_overflows_is_no_fit(task, examples):
    method = grouped(task)
    broadcast = {CONTEXT: np.array(method.init_server(rng(1))[CONTEXT])}
    broadcast[CONTEXT][0] = 3e38
    assert method.best_for(ClientView(broadcast), examples) != 0
    broadcast[CONTEXT][:] = 3e38
    assert method.best_for(ClientView(broadcast), examples) == 0


def test_noised_steps_and_sums_without_counts_are_refused(task, examples):
    method, state = grouped(task), grouped(task).init_server(rng(1))
    watching = RecordingTrainer()
    watching.charged_steps = 3
    with pytest.raises(MethodError, match="does not cover"):
        method.client_update(ClientView(state), examples, watching, rng())
    zero = {CONTEXT: np.zeros((K, TOKENS, WIDTH), np.float32)}
    with pytest.raises(MethodError, match="without counts"):
        method.server_update(state, Aggregate(zero, 1.0, 1, 1), (), rng())


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda task: zero_shot.build(zero_shot.Config(), task), "shares nothing"),
        (lambda task: prompt_fedamp.build(prompt_fedamp.Config(), task), "needs each"),
        (lambda task: fedpgp.build(fedpgp.Config(), task), "keeps what was trained"),
        (lambda task: mixing(task, select="random"), "drawn from at random"),
        (
            lambda task: promptfl.build(
                promptfl.Config(context_tokens=4, context_init="a photo of a"), task
            ),
            "start alike",
        ),
    ],
)
def test_what_has_no_place_for_experts_is_refused(task, build, said):
    with pytest.raises(MethodError, match=said):
        in_groups(build(task), K, task.classes)


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


def told(counts, sizes, name=CONTEXT, shape=(TOKENS, WIDTH)) -> Aggregate:
    """Blocks whose entries are all alike, as the mean of a hundred clients."""
    blocks = np.stack([np.full(shape, size, np.float32) for size in sizes])
    groups = Groups(np.asarray(counts, float), 3.0)
    return Aggregate({name: blocks}, 100.0, 100, 100, groups=groups)


def test_the_copy_is_as_far_from_the_crowded_expert_as_that_has_just_moved(task):
    method = in_groups(base(task), 4, task.classes, split=True)
    kept = in_groups(base(task), 4, task.classes)
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
    method = in_groups(base(task), 4, task.classes, split=True)
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
    method = in_groups(within, 4, task.classes, split=True)
    first = method.init_server(rng(1))
    moved = method.server_update(first, told([25] * 4, [0.1, 0.2, 0.3, 0.4]), (), rng(2))
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
    within = in_subspace(base(task), "text_jacobian", 5, origin="the text tower")
    method = in_groups(within, 4, task.classes, split=True)
    state = method.init_server(rng(1))
    (name,) = method.shared_spec()
    aggregate = told([100, 0, 0, 0], [0.01, 0, 0, 0], name, (5,))
    after = method.server_update(state, aggregate, (), rng(2))
    apart = (after[CONTEXT][1] - after[CONTEXT][0]).ravel().astype(float)
    basis = after[BASIS][0].astype(float)
    assert np.linalg.norm(apart) == pytest.approx(0.01 * np.sqrt(5), rel=1e-4)
    np.testing.assert_allclose(basis.T @ (basis @ apart), apart, atol=1e-6)
