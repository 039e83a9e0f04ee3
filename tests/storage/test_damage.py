"""What a flipped bit, a careless edit, a cut or an emptied file does: it is named, or harmless."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import storage
from tests.storage._filling import fill_database, fill_store, read_database, read_store

NAMED = (storage.DatabaseDamaged, storage.SchemaMismatch, storage.AuditChainBroken)
Read = Callable[[Path], Any]


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    path = tmp_path / "sotto.db"
    fill_database(path)
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "client.db"
    fill_store(path)
    return path


def flip(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(bit // 8)
        (byte,) = file.read(1)
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def edit(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def flips_are_named_or_harmless(path: Path, read: Read, bits: Iterator[int]) -> int:
    """How many of some flips, each alone, were named; none of the others changed what is read."""
    before, named = read(path), 0
    for bit in bits:
        flip(path, bit)
        try:
            after = read(path)
        except NAMED as error:
            assert str(path) in str(error) or "audit log" in str(error)
            assert "\n" not in str(error)
            named += 1
        else:
            assert after == before, f"bit {bit % 8} of byte {bit // 8} changed what is read"
        flip(path, bit)
    assert read(path) == before
    return named


def some(path: Path, count: int, seed: int) -> Iterator[int]:
    return iter(random.Random(seed).sample(range(8 * path.stat().st_size), count))  # noqa: S311


def used(path: Path, count: int, seed: int) -> Iterator[int]:
    """Bits of bytes that are not zero: most of a small database's pages are empty."""
    places = [place for place, byte in enumerate(path.read_bytes()) if byte]
    chosen = random.Random(seed).choices(places, k=count)  # noqa: S311
    return iter([8 * place + n % 8 for n, place in enumerate(chosen)])


def test_flips_in_a_coordinators_database(filled: Path) -> None:
    assert flips_are_named_or_harmless(filled, read_database, used(filled, 250, 1)) > 150
    flips_are_named_or_harmless(filled, read_database, some(filled, 50, 2))


def test_flips_in_a_clients_store(store: Path) -> None:
    assert flips_are_named_or_harmless(store, read_store, used(store, 250, 3)) > 150
    flips_are_named_or_harmless(store, read_store, some(store, 50, 4))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_many_flips(filled: Path, store: Path, seed: int) -> None:
    """10,000 in all, half of them in bytes that are in use."""
    for path, read in ((filled, read_database), (store, read_store)):
        flips_are_named_or_harmless(path, read, used(path, 250, 10 + seed))
        flips_are_named_or_harmless(path, read, some(path, 250, 20 + seed))
