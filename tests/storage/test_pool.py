"""The expert pool's anonymity against whoever gets the file."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable

import pytest

import storage
from storage.pool import KEY_BYTES, local_payload_limit
from tests.storage._raw import on_disk

# Two-sided 1e-6 of the standard normal.
CRITICAL = 4.8917
TRIALS = 60
ENTRIES = 8


def make_entries(count: int, size: int = 3000) -> list[tuple[bytes, bytes]]:
    return [(secrets.token_bytes(32), secrets.token_bytes(size)) for _ in range(count)]


def traces(entries: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Pieces of 12 bytes of every handle and entry: finding one by chance is hopeless."""
    return [
        whole[start : start + 12]
        for pair in entries
        for whole in pair
        for start in range(0, max(1, len(whole) - 12), 1 + len(whole) // 5)
    ]


def rank_correlation(positions: list[int]) -> float:
    """Spearman's correlation of 0, 1, 2, ... with the ranks of some positions."""
    order = sorted(range(len(positions)), key=positions.__getitem__)
    rank = {index: place for place, index in enumerate(order)}
    n = len(positions)
    distance = sum((index - rank[index]) ** 2 for index in range(n))
    return 1 - 6 * distance / (n * (n * n - 1))


def test_entries_are_read_back_in_an_order_of_their_own(database: storage.Database) -> None:
    entries = make_entries(10)
    with database.unit_of_work() as unit:
        unit.pool.add_generation("r", 4, entries)
        unit.pool.add_generation("s", 4, entries[::-1])
        unit.commit()
        found = unit.pool.entries("r")
        assert found == unit.pool.entries("s")
    assert {(row.handle, row.entry) for row in found} == set(entries)
    assert [row.entry for row in found] == sorted(entry for _, entry in entries)


@pytest.mark.parametrize(
    ("delete", "trials"),
    [
        pytest.param(False, TRIALS, id="fresh pages"),
        pytest.param(False, 200, id="more of them", marks=pytest.mark.slow),
        pytest.param(True, 200, id="reused pages", marks=pytest.mark.slow),
    ],
)
def test_order_in_the_file_says_nothing_about_order_of_insertion(
    path, database, raw, delete, trials
):
    """Under the null a trial's rank correlation has mean 0 and variance 1/(n-1).

    Pages that are freed come back in an order of their own, so only fresh ones show the order in
    which rows were written.
    """
    totals = {"bytes in the file": 0.0, "table scan": 0.0, "keys": 0.0}
    for trial in range(trials):
        entries = make_entries(ENTRIES)
        start = 0 if delete else path.stat().st_size
        with database.unit_of_work() as unit:
            unit.pool.add_generation("r", trial, entries)
            if delete:
                unit.pool.keep_generations("r", 1)
            unit.commit()
        query = "SELECT handle, key FROM pool NOT INDEXED WHERE generation = ?"
        with raw() as connection:
            keys = dict(connection.execute(query, [trial]).fetchall())
        scan, by_key = list(keys), sorted(keys, key=keys.__getitem__)
        contents = path.read_bytes()
        places = {
            "bytes in the file": [contents.index(entry[-64:], start) for _, entry in entries],
            "table scan": [scan.index(handle) for handle, _ in entries],
            "keys": [by_key.index(handle) for handle, _ in entries],
        }
        for name, positions in places.items():
            totals[name] += rank_correlation(positions)
    scale = math.sqrt(trials / (ENTRIES - 1))
    for name, total in totals.items():
        assert abs(total / scale) < CRITICAL, name


def test_the_statistic_sees_an_order() -> None:
    assert rank_correlation([10, 20, 30, 40]) == 1.0
    assert rank_correlation([40, 30, 20, 10]) == -1.0
    # Far less than perfect order in each trial is enough to be seen.
    assert 0.25 * TRIALS / math.sqrt(TRIALS / (ENTRIES - 1)) > CRITICAL


@pytest.mark.parametrize(
    ("size", "count", "kept"),
    [
        (8192, 10, 1),
        pytest.param(3000, 10, 2, marks=pytest.mark.slow),
        (16, 60, 3),
        pytest.param(100, 60, 2, marks=pytest.mark.slow),
    ],
)
def test_deleted_generations_are_nowhere_in_the_file(path, database, size, count, kept):
    """Without the cover, page splits leave copies that deleting does not reach (16 bytes, 60)."""
    generations = [make_entries(count, size) for _ in range(6)]
    for number, entries in enumerate(generations):
        with database.unit_of_work() as unit:
            unit.pool.add_generation("r", number, entries)
            unit.pool.keep_generations("r", kept)
            unit.commit()
        if number % 4 != 1:
            continue
        contents = on_disk(path)
        assert all(handle in contents for handle, _ in entries)
        dead = [pair for old in generations[: max(0, number + 1 - kept)] for pair in old]
        assert not [trace for trace in traces(dead) if trace in contents]


def test_a_generation_that_is_rolled_back_is_nowhere_after_the_next_commit(path, database):
    entries = make_entries(40, 100_000)
    with database.unit_of_work() as unit:
        unit.pool.add_generation("r", 0, entries)
        # Larger than the page cache: without this the test would show nothing.
        assert any(trace in on_disk(path) for trace in traces(entries))
    with database.unit_of_work() as unit:
        unit.states.save("r", 0, b"x")
        unit.commit()
    contents = on_disk(path)
    assert not [trace for trace in traces(entries) if trace in contents]


def test_a_row_holds_nothing_but_what_it_must(path, database, raw):
    with database.unit_of_work() as unit:
        unit.pool.add_generation("r", 0, make_entries(5))
        unit.commit()
    with raw() as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(pool)")]
        assert columns == ["key", "run_id", "generation", "cover", "handle", "entry", "digest"]
        keys = [row[0] for row in connection.execute("SELECT key FROM pool")]
        assert {len(key) for key in keys} == {KEY_BYTES}
        assert len(set(keys)) == 5
        covers = connection.execute("SELECT DISTINCT cover FROM pool").fetchall()
        page_size = connection.execute("PRAGMA page_size").fetchone()[0]
    assert covers == [(bytes(local_payload_limit(page_size)),)]


@pytest.mark.parametrize(("page_size", "limit"), [(512, 102), (4096, 1002), (65536, 16422)])
def test_the_limit_of_the_file_format(page_size: int, limit: int) -> None:
    assert local_payload_limit(page_size) == limit


def test_generations_are_deleted_whole_and_per_run(database: storage.Database) -> None:
    with database.unit_of_work() as unit:
        for generation in (1, 2, 5):
            unit.pool.add_generation("r", generation, make_entries(2, 10))
        unit.pool.add_generation("s", 1, make_entries(2, 10))
        live = lambda run: [row.generation for row in unit.pool.entries(run)]  # noqa: E731
        unit.pool.keep_generations("r", 3)
        assert live("r") == [1, 1, 2, 2, 5, 5]
        assert unit.pool.generations("r") == (1, 2, 5)
        unit.pool.keep_generations("r", 2)
        assert live("r") == [2, 2, 5, 5]
        unit.pool.keep_generations("r", 0)
        assert live("r") == []
        assert unit.pool.generations("r") == ()
        assert live("s") == [1, 1]
        unit.pool.keep_generations("r", 0)


def test_bad_generations_are_refused(database):
    for entries, message in (
        ([], "0 entries"),
        ([(b"h", b"e")], "1 entries"),  # it would name its owner
        ([(b"h", b"e"), (b"h", b"f")], "handle twice"),
        ([(b"", b"e"), (b"h", b"f")], "be empty"),
        ([("h", b"e"), (b"h", b"f")], "handle must be"),
        ([(b"g", None), (b"h", b"f")], "entry must be"),
    ):
        with (
            pytest.raises(storage.InvalidRecordError, match=message),
            database.unit_of_work() as unit,
        ):
            unit.pool.add_generation("r", 3, entries)


def test_a_generation_is_never_overwritten(database: storage.Database) -> None:
    with database.unit_of_work() as unit:
        unit.pool.add_generation("r", 3, make_entries(2))
        with pytest.raises(storage.AlreadyExistsError, match="generation 3"):
            unit.pool.add_generation("r", 3, make_entries(2))
