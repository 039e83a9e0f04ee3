"""The expert pool: who is served what, by hand, and how little of it says whose it is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from methods import PoolPolicy, TensorSpec
from platform.protection.building import PoolRules, default_minimum
from platform.rounds.pool import ResidentPool
from platform.wire.layout import encode_entry, handle
from storage import PoolEntry

SPEC = {"context": TensorSpec((2,))}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def rules(k: int = 2, minimum: int = 1, **policy) -> PoolRules:
    return PoolRules(PoolPolicy(SPEC, k, **policy), minimum, 1)


def entry(owner: int, *values: float, generation: int = 1) -> PoolEntry:
    payload = encode_entry({"context": np.array(values, np.float32)})
    return PoolEntry(generation, handle_of(owner, generation), payload)


def handle_of(owner: int, generation: int = 1) -> bytes:
    return handle(bytes([owner]) * 32, "run", generation)


def serve_experts(entries, handles, rules, rng):
    """What one client is served."""
    (experts,) = ResidentPool(entries, rules).serve([handles], rng)
    return experts


def values(experts) -> list[tuple[float, ...]]:
    return sorted(tuple(expert["context"].tolist()) for expert in experts)


# On a line from the first: 1, 2, 3 and sqrt(2) away.
LINE = [entry(0, 0, 0), entry(1, 1, 0), entry(2, 0, 2), entry(3, -3, 0), entry(4, 1, 1)]


def test_the_nearest_by_hand():
    assert values(serve_experts(LINE, [handle_of(0)], rules(2), rng())) == [(1, 0), (1, 1)]
    assert values(serve_experts(LINE, [handle_of(0)], rules(3), rng())) == [(0, 2), (1, 0), (1, 1)]
    # From (-3, 0): 3, 4, sqrt(13) = 3.6, sqrt(17) = 4.1.
    assert values(serve_experts(LINE, [handle_of(3)], rules(2), rng())) == [(0, 0), (0, 2)]


def test_all_tensors_count_for_the_distance():
    spec = {"a": TensorSpec((1,)), "b": TensorSpec((1,))}

    def two(owner, a, b):
        payload = {"a": np.array([a], np.float32), "b": np.array([b], np.float32)}
        return PoolEntry(1, handle_of(owner), encode_entry(payload))

    entries = [two(0, 0, 0), two(1, 1, 5), two(2, 3, 3)]
    chosen = PoolRules(PoolPolicy(spec, 1), 1, 1)
    (expert,) = serve_experts(entries, [handle_of(0)], chosen, rng())
    assert (expert["a"].item(), expert["b"].item()) == (3.0, 3.0)


def test_the_order_of_rows_changes_nothing():
    """Ties are broken by the entries' bytes: four entries at distance 1, two are served."""
    ring = [entry(0, 0, 0), entry(1, 1, 0), entry(2, -1, 0), entry(3, 0, 1), entry(4, 0, -1)]
    served = [
        [e["context"].tolist() for e in serve_experts(rows, [handle_of(0)], rules(2), rng())]
        for rows in itertools.permutations(ring)
    ]
    assert all(order == served[0] for order in served)
    expected = sorted(row.entry for row in ring[1:])[:2]
    assert [encode_entry({"context": np.array(v, np.float32)}) for v in served[0]] == expected


def test_experts_come_in_an_order_that_says_nothing_of_distance():
    """By bytes (0, 2) comes first of these three, by distance last."""
    served = serve_experts(LINE, [handle_of(0)], rules(3), rng())
    order = [tuple(expert["context"].tolist()) for expert in served]
    assert order == [(0, 2), (1, 0), (1, 1)]


def test_ones_own_entries_are_never_served():
    entries = [*LINE, entry(0, 0.1, 0, generation=2)]
    mine = [handle_of(0, 2), handle_of(0, 1)]
    assert values(serve_experts(entries, mine, rules(9), rng())) == [
        (-3, 0),
        (0, 2),
        (1, 0),
        (1, 1),
    ]


def test_the_newest_own_entry_is_asked_from():
    entries = [*LINE, entry(0, -3.1, 0, generation=2)]
    newest_first = [handle_of(0, 2), handle_of(0, 1)]
    assert values(serve_experts(entries, newest_first, rules(1), rng())) == [(-3, 0)]
    # A handle without a live entry is passed over.
    assert values(serve_experts(LINE, newest_first, rules(1), rng())) == [(1, 0)]


def test_ones_own_entry_is_served_where_the_method_wants_it():
    served = serve_experts(LINE, [handle_of(0)], rules(5, select="all", exclude_self=False), rng())
    assert len(served) == 5


@pytest.mark.parametrize("handles", [[], [handle_of(9)], [handle_of(0, 7)], [b""], [b"x" * 32]])
def test_first_time_participants_are_served_nothing(handles):
    assert serve_experts(LINE, handles, rules(), rng()) == ()


def test_a_handle_of_another_run_is_nothing():
    assert serve_experts(LINE, [handle(bytes(32), "other", 1)], rules(), rng()) == ()


def test_a_pool_that_is_too_small_serves_nothing():
    assert serve_experts(LINE, [handle_of(0)], rules(2, minimum=6), rng()) == ()
    assert len(serve_experts(LINE, [handle_of(0)], rules(2, minimum=5), rng())) == 2
    assert serve_experts([], [handle_of(0)], rules(), rng()) == ()


def test_fewer_entries_than_asked_for_are_all_served():
    assert len(serve_experts(LINE, [handle_of(0)], rules(100), rng())) == 4


def test_a_random_choice_is_seeded_and_never_ones_own():
    def chosen(seed):
        drawn = serve_experts(LINE, [handle_of(0)], rules(2, select="random"), rng(seed))
        return tuple(values(drawn))

    assert chosen(1) == chosen(1)
    draws = {chosen(seed) for seed in range(60)}
    # All six pairs of the four others.
    assert draws == set(itertools.combinations(sorted([(1, 0), (0, 2), (-3, 0), (1, 1)]), 2))


def test_a_random_choice_does_not_depend_on_the_rows_order():
    for seed in range(5):
        one, other = (
            serve_experts(rows, [handle_of(0)], rules(2, select="random"), rng(seed))
            for rows in (LINE, LINE[::-1])
        )
        assert values(one) == values(other)


def test_handles_differ_by_secret_run_and_round():
    made = {
        handle(secret, run, number)
        for secret in (b"a" * 32, b"b" * 32)
        for run in ("run", "run2", "")
        for number in (1, 2, 12)
    }
    assert len(made) == 18
    assert {len(name) for name in made} == {32}
    assert handle(b"a" * 32, "run", 1) == handle(b"a" * 32, "run", 1)


def test_a_handle_by_another_implementation():
    """HMAC-SHA256 (RFC 2104) written out over the message that names purpose, run and round."""
    import hashlib

    key, text = b"k" * 32, b'["sotto pool handle", "run", 3]'
    inner = bytes(byte ^ 0x36 for byte in key.ljust(64, b"\0"))
    outer = bytes(byte ^ 0x5C for byte in key.ljust(64, b"\0"))
    digest = hashlib.sha256(outer + hashlib.sha256(inner + text).digest()).digest()
    assert handle(key, "run", 3) == digest


@pytest.mark.parametrize(("k", "minimum", "expected"), [(3, None, 8), (9, None, 20), (3, 5, 5)])
def test_the_default_minimum_is_twice_k_plus_one(k, minimum, expected):
    assert default_minimum(PoolPolicy(SPEC, k, minimum=minimum)) == expected
