"""A large pool is searched in float32: what is served is what comparing all in float64 serves."""

from __future__ import annotations

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
from platform.protection.building import PoolRules
from platform.rounds import attempts
from platform.rounds.observing import SilentObserver
from platform.rounds.pool import Neighbours, ResidentPool, Search
from platform.wire.layout import encode_entry
from storage import DatabaseDamaged, PoolEntry
from tests.trunk._runs import opened, over

K = 3


def pool_of(vectors, minimum=1, k=K) -> tuple[list[PoolEntry], ResidentPool]:
    entries = [
        PoolEntry(1 + place % 2, b"%032d" % place, encode_entry({"context": vector}))
        for place, vector in enumerate(np.asarray(vectors, np.float32))
    ]
    policy = PoolPolicy({"context": TensorSpec(np.shape(vectors)[1:])}, k)
    return entries, ResidentPool(entries, PoolRules(policy, minimum, 2))


def served(pool: ResidentPool, asked) -> list[list[bytes]]:
    answers = pool.serve(asked, np.random.default_rng(0))
    return [[encode_entry(expert) for expert in experts] for experts in answers]


def compared(vectors, entries, mine: list[int], k=K) -> list[bytes]:
    """By comparing each with the newest in float64: the bytes of the k nearest, in their order."""
    vectors = np.asarray(vectors, np.float32).astype(np.float64)
    others = [place for place in range(len(entries)) if place not in mine]
    nearest = sorted(
        others,
        key=lambda place: (
            float(np.linalg.norm(vectors[place] - vectors[mine[0]])),
            entries[place].entry,
        ),
    )
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


def test_distances_by_whole_numbers():
    """From 0 on a line of 200: the nearest are the next ones, whatever the size of the steps."""
    for step in (1e-20, 1.0, 3.0, 1e25):
        entries, pool = pool_of([[step * place, step] for place in range(200)])
        (found,) = served(pool, [[entries[50].handle]])
        assert found == sorted(entries[place].entry for place in (48, 49, 51)) or found == sorted(
            entries[place].entry for place in (49, 51, 52)
        )
        # 48 and 52 are equally far: the smaller bytes win.
        assert min(entries[48].entry, entries[52].entry) in found


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
    (found,) = near.nearest([Search(0, np.arange(1, 600))], 9)
    distances = np.linalg.norm(vectors - vectors[0], axis=1)
    assert found.tolist() == np.argsort(distances, kind="stable")[1:10].tolist()
    assert len(seen) < 40


def test_many_clients_share_one_pass(monkeypatch):
    """Their searches are one product, and answered as one by one, each without its own."""
    rng = np.random.default_rng(2)
    vectors = rng.standard_normal((120, 40))
    entries, pool = pool_of(vectors)
    passes = []
    products = Neighbours._products
    monkeypatch.setattr(
        Neighbours, "_products", lambda self, q: passes.append(len(q)) or products(self, q)
    )
    asked = [[entries[n].handle, entries[n + 1].handle] for n in range(0, 100)]
    asked[3:5] = [[], [b"unknown"]]
    found = served(pool, asked)
    assert passes == [98]
    for n, experts in enumerate(found):
        if n in (3, 4):
            assert experts == []
        else:
            assert experts == compared(vectors, entries, [n, n + 1])


def test_of_a_repeated_handle_the_newest_entry_is_asked_from_in_any_order():
    spec = PoolPolicy({"context": TensorSpec((1,))}, 1)
    values = {1: 0.0, 2: 10.0}
    own = [
        PoolEntry(g, b"h" * 32, encode_entry({"context": np.array([v], np.float32)}))
        for g, v in values.items()
    ]
    _, others = None, pool_of([[1.0], [9.0], [5.0]])[0]
    for order in itertools.permutations([*own, *others]):
        pool = ResidentPool(order, PoolRules(spec, 1, 2))
        assert served(pool, [[b"h" * 32]]) == [[others[1].entry]]


def test_no_entry_is_held_once_messages_leave(storage, monkeypatch):
    """The matrix lives for one pass: not while clients train, nor when a generation is added."""
    made: list[weakref.ref[ResidentPool]] = []
    alive: list[int] = []

    class Watched(ResidentPool):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(weakref.ref(self))

    class Watching:
        def __init__(self, transport):
            self.transport = transport

        def __getattr__(self, name):
            return getattr(self.transport, name)

        def exchange(self, *args):
            alive.append(sum(one() is not None for one in made))
            return self.transport.exchange(*args)

    monkeypatch.setattr(attempts, "ResidentPool", Watched)
    with opened(storage.create("privacy.mechanism=none")) as simulation:
        execute(over(simulation, Watching(simulation.run.transport)), SilentObserver())
    # None in the first round, in which nobody has an entry yet.
    assert len(made) == 2
    assert alive and not any(alive)


def test_a_damaged_entry_is_served_to_nobody(storage):
    """Each attempt reads the pool anew, and each entry against its digest."""

    class Spoiling(SilentObserver):
        def round_finished(self, document):
            if document["round"] == 2:
                edit(storage, "UPDATE pool SET entry = zeroblob(length(entry))")

    with opened(storage.create("privacy.mechanism=none")) as simulation:
        with pytest.raises(DatabaseDamaged, match="table pool"):
            execute(simulation, Spoiling())


def edit(storage, statement):
    with closing(sqlite3.connect(storage.file)) as connection:
        connection.execute(statement)
        connection.commit()
