"""The expert pool: who is served what, by hand, and how little of it says whose it is."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import sqlite3
import weakref
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from methods import PoolPolicy, TensorSpec
from platform.experiment.finishing import execute
from platform.protection.building import PoolRules, default_minimum
from platform.rounds import attempts
from platform.rounds.observing import SilentObserver
from platform.rounds.pool import Neighbours, ResidentPool
from platform.wire.codec import encode_arrays
from platform.wire.layout import handle
from platform.wire.transport import Transport
from storage import DatabaseDamaged, PoolEntry
from tests._linking import SIGNIFICANCE, Watcher, chance
from tests.trunk._runs import FIXED, OS, opened, over

SPEC = {"context": TensorSpec((2,))}
NO_MASKS = "secure_aggregation.enabled=false"


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def rules(k: int = 2, minimum: int = 1, **policy) -> PoolRules:
    return PoolRules(PoolPolicy(SPEC, k, **policy), minimum, 1)


def entry(owner: int, *values: float, generation: int = 1) -> PoolEntry:
    payload = encode_arrays({"context": np.array(values, np.float32)})
    return PoolEntry(generation, handle_of(owner, generation), payload)


def handle_of(owner: int, generation: int = 1) -> bytes:
    return handle(bytes([owner]) * 32, "run", generation)


def serve_experts(entries, handles, rules, rng):
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
    # All tensors count for the distance.
    spec = {"a": TensorSpec((1,)), "b": TensorSpec((1,))}

    def two(owner, a, b):
        payload = {"a": np.array([a], np.float32), "b": np.array([b], np.float32)}
        return PoolEntry(1, handle_of(owner), encode_arrays(payload))

    entries = [two(0, 0, 0), two(1, 1, 5), two(2, 3, 3)]
    chosen = PoolRules(PoolPolicy(spec, 1), 1, 1)
    (expert,) = serve_experts(entries, [handle_of(0)], chosen, rng())
    assert (expert["a"].item(), expert["b"].item()) == (3.0, 3.0)


def test_ones_own_entries_are_never_served_and_the_newest_is_asked_from():
    entries = [*LINE, entry(0, -3.1, 0, generation=2)]
    mine = [handle_of(0, 2), handle_of(0, 1)]
    others = [(-3, 0), (0, 2), (1, 0), (1, 1)]
    assert values(serve_experts(entries, mine, rules(9), rng())) == others
    assert values(serve_experts(entries, mine, rules(1), rng())) == [(-3, 0)]
    assert values(serve_experts(LINE, mine, rules(1), rng())) == [(1, 0)]
    everything = rules(5, select="all", exclude_self=False)
    assert len(serve_experts(LINE, [handle_of(0)], everything, rng())) == 5


def test_first_time_participants_are_served_nothing_and_so_is_everybody_by_a_small_pool():
    for handles in ([], [handle_of(9)], [handle_of(0, 7)]):
        assert serve_experts(LINE, handles, rules(), rng()) == ()
    assert serve_experts(LINE, [handle_of(0)], rules(2, minimum=6), rng()) == ()
    assert len(serve_experts(LINE, [handle_of(0)], rules(2, minimum=5), rng())) == 2
    assert serve_experts([], [handle_of(0)], rules(), rng()) == ()
    # The default is twice k + 1.
    for k, minimum, expected in ((3, None, 8), (9, None, 20), (3, 5, 5)):
        assert default_minimum(PoolPolicy(SPEC, k, minimum=minimum)) == expected


def test_a_random_choice_is_seeded_and_never_ones_own():
    def chosen(seed, rows=LINE):
        drawn = serve_experts(rows, [handle_of(0)], rules(2, select="random"), rng(seed))
        return tuple(values(drawn))

    assert chosen(1) == chosen(1) == chosen(1, LINE[::-1])
    draws = {chosen(seed) for seed in range(60)}
    # All six pairs of the four others.
    assert draws == set(itertools.combinations(sorted([(1, 0), (0, 2), (-3, 0), (1, 1)]), 2))


def test_a_handle_by_another_implementation():
    """HMAC-SHA256 (RFC 2104) written out over the message that names purpose, run and round."""
    key, text = b"k" * 32, b'["sotto pool handle", "run", 3]'
    inner = bytes(byte ^ 0x36 for byte in key.ljust(64, b"\0"))
    outer = bytes(byte ^ 0x5C for byte in key.ljust(64, b"\0"))
    digest = hashlib.sha256(outer + hashlib.sha256(inner + text).digest()).digest()
    assert handle(key, "run", 3) == digest


K = 3


def pool_of(vectors, minimum=1, k=K) -> tuple[list[PoolEntry], ResidentPool]:
    entries = [
        PoolEntry(1 + place % 2, b"%032d" % place, encode_arrays({"context": vector}))
        for place, vector in enumerate(np.asarray(vectors, np.float32))
    ]
    policy = PoolPolicy({"context": TensorSpec(np.shape(vectors)[1:])}, k)
    return entries, ResidentPool(entries, PoolRules(policy, minimum, 2))


def served(pool: ResidentPool, asked) -> list[list[bytes]]:
    answers = pool.serve(asked, np.random.default_rng(0))
    return [[encode_arrays(expert) for expert in experts] for experts in answers]


def compared(vectors, entries, mine: list[int], k=K) -> list[bytes]:
    """By comparing each with the newest in float64: the bytes of the k nearest, in their order."""
    vectors = np.asarray(vectors, np.float32).astype(np.float64)
    others = [place for place in range(len(entries)) if place not in mine]
    far = np.linalg.norm(vectors - vectors[mine[0]], axis=1)
    nearest = sorted(others, key=lambda place: (float(far[place]), entries[place].entry))
    return sorted(entries[place].entry for place in nearest[:k])


# Steps so small that float32 cannot tell them at that offset squared, and many ties.
GRIDS = st.tuples(
    st.sampled_from([0.0, 1.0, 1000.0, 1e30]),
    st.sampled_from([1e-30, 2.0**-10, 1.0, 1e29]),
    st.lists(st.lists(st.integers(-3, 3), min_size=3, max_size=3), min_size=7, max_size=24),
)


@given(GRIDS, st.integers(0, 6))
def test_what_is_served_is_what_comparing_each_serves(grid, far):
    offset, step, drawn = grid
    vectors = np.asarray(offset + step * np.asarray(drawn, float), np.float32)
    # Some are of quite another size.
    vectors[:far] *= np.float32(1e-3)
    entries, pool = pool_of(vectors)
    asked = [[entry.handle] for entry in entries]
    expected = [compared(vectors, entries, [place]) for place in range(len(entries))]
    assert served(pool, asked) == expected
    assert [served(pool, [one])[0] for one in asked] == expected


@pytest.mark.parametrize("length", [5, 2048, 5000])
def test_rows_that_float32_cannot_tell_apart(length):
    """Far from zero, at distances from the query that differ by 1e-7 of themselves."""
    rng = np.random.default_rng(length)
    towards = rng.standard_normal((400, length))
    towards /= np.linalg.norm(towards, axis=1, keepdims=True)
    away = 1 + 1e-7 * rng.permutation(400)
    vectors = (100 + np.vstack([np.zeros(length), away[:, None] * towards])).astype(np.float32)
    entries, pool = pool_of(vectors, k=9)
    (found,) = served(pool, [[entries[0].handle]])
    assert found == compared(vectors, entries, [0], k=9)
    rows, query = vectors[1:], vectors[0]
    coarse = (rows**2).sum(1, dtype=np.float32) - 2 * rows @ query
    by_float32 = [entries[1 + place].entry for place in np.argsort(coarse, kind="stable")[:9]]
    assert sorted(by_float32) != found


def test_huge_entries_do_not_make_the_search_slow():
    """One client's entry of 1e30 takes no digits from the others, which lie far from zero."""
    rng = np.random.default_rng(1)
    vectors = 1000 + rng.standard_normal((600, 512))
    vectors[7], vectors[8] = 1e30, -1e30
    seen: list[int] = []

    def vector(place):
        seen.append(place)
        return vectors[place]

    near = Neighbours(vector, len(vectors))
    seen.clear()
    (found,) = near.nearest([(0, np.arange(1, 600))], 9)
    distances = np.linalg.norm(vectors - vectors[0], axis=1)
    assert found.tolist() == np.argsort(distances, kind="stable")[1:10].tolist()
    assert len(seen) < 40


def test_of_a_repeated_handle_the_newest_entry_is_asked_from_in_any_order():
    own = [entry(0, value, generation=g) for g, value in ((1, 0.0), (2, 10.0))]
    own = [dataclasses.replace(each, handle=b"h" * 32) for each in own]
    others = [entry(1, 1.0), entry(2, 9.0), entry(3, 5.0)]
    one = PoolRules(PoolPolicy({"context": TensorSpec((1,))}, 1), 1, 2)
    for order in itertools.permutations([*own, *others]):
        assert served(ResidentPool(order, one), [[b"h" * 32]]) == [[others[1].entry]]


def test_no_entry_is_held_once_messages_leave(storage, monkeypatch):
    """The matrix lives for one pass: not while clients train, nor when a generation is added."""
    made: list[weakref.ref[ResidentPool]] = []
    alive: list[int] = []

    class Watched(ResidentPool):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(weakref.ref(self))

    monkeypatch.setattr(attempts, "ResidentPool", Watched)
    alone = ("rounds=2", NO_MASKS)
    with opened(storage.create("privacy.mechanism=none", *alone)) as simulation:
        through = simulation.run.transport.exchange

        class Watching(Transport):
            def exchange(self, *args):
                alive.append(sum(one() is not None for one in made))
                return through(*args)

        execute(over(simulation, Watching()), SilentObserver())
    # None in the first round, in which nobody has an entry yet.
    assert len(made) == 1
    assert alive and not any(alive)


def test_a_damaged_entry_is_served_to_nobody(storage):
    """Each attempt reads the pool anew, and each entry against its digest."""

    class Spoiling(SilentObserver):
        def round_finished(self, document):
            if document["round"] == 1:
                with closing(sqlite3.connect(storage.file)) as file, file:
                    file.execute("UPDATE pool SET entry = zeroblob(length(entry))")

    with opened(storage.create("privacy.mechanism=none", NO_MASKS)) as simulation:
        with pytest.raises(DatabaseDamaged, match="table pool"):
            execute(simulation, Spoiling())


ROUNDS = 300


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_a_trained_linker_does_no_better_than_chance_over_a_whole_run(storage, monkeypatch):
    """Ledger, audit log, log, states, open attempts and who was lost are in the files."""
    watcher = Watcher(storage.file, [])
    length = (f"rounds={ROUNDS}", "pool.generations=2")
    simulation = storage.create(OS, *FIXED, *length, NO_MASKS)
    with monkeypatch.context() as patch:
        watcher.on(patch)
        run = storage.finish(simulation)
    identities, survivors = run.identities(), run.survivors()
    assert [files.generation for files in watcher.seen] == list(range(1, ROUNDS + 1))
    assert all(files.log and len(files.rows) == 4 for files in watcher.seen)
    seen = []
    for files in watcher.seen:
        there = [identities[name] for name in survivors[files.generation]]
        owners = {handle(own, run.run_id, files.generation): name for name, own in there}
        seen.append(files.shown([name for name, _ in there], owners))
    assert chance(seen) > SIGNIFICANCE
