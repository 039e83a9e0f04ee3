"""Copies of databases that others write to: of one moment, with what lies in the log."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

import storage
from storage import copying
from storage.copying import copy_databases


@dataclass
class Pair:
    """Two databases that are written together, one commit after the other."""

    folder: Path
    main: sqlite3.Connection
    other: sqlite3.Connection

    def write(self, number: int) -> None:
        for connection in (self.main, self.other):
            connection.execute("INSERT INTO t VALUES (?)", (number,))

    def copied(self) -> tuple[list[int], list[int]]:
        found = []
        for name in ("main.copy", "other.copy"):
            with closing(sqlite3.connect(self.folder / name)) as connection:
                found.append([n for (n,) in connection.execute("SELECT n FROM t ORDER BY n")])
        return found[0], found[1]

    def copy(
        self, others: copying.Others | None = None, place: copying.Place | None = None
    ) -> None:
        copy_databases(
            *(self.folder / "main.db", self.folder / "main.copy"),
            others or self.others,
            place or self.place,
        )

    def others(self) -> Mapping[str, Path]:
        return {"other": self.folder / "other.db"}

    def place(self, name: str) -> Path:
        return self.folder / f"{name}.copy"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    opened = []
    for name in ("main.db", "other.db"):
        connection = sqlite3.connect(tmp_path / name, isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE t (n INTEGER)")
        opened.append(connection)
    made = Pair(tmp_path, *opened)
    made.write(1)
    yield made
    for connection in opened:
        connection.close()


def test_what_lies_in_the_log_alone_is_copied(pair: Pair) -> None:
    shutil.copyfile(pair.folder / "main.db", pair.folder / "plain")
    with closing(sqlite3.connect(pair.folder / "plain")) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []
    pair.copy()
    assert pair.copied() == ([1], [1])
    assert (pair.folder / "main.copy").stat().st_mode & 0o777 == 0o600
    endings = {path.name for path in pair.folder.iterdir() if "copy" in path.name}
    assert endings == {"main.copy", "other.copy"}


def test_a_commit_between_two_snapshots_begins_anew(pair: Pair) -> None:
    """Else the other would know of what the first does not."""
    calls = []

    def others() -> Mapping[str, Path]:
        calls.append(len(calls))
        if len(calls) <= 2:
            pair.write(10 + len(calls))
        return pair.others()

    pair.copy(others)
    assert len(calls) == 3
    assert pair.copied() == ([1, 11, 12], [1, 11, 12])


def test_commits_while_it_is_copied_are_not_in_it(pair: Pair) -> None:
    def place(name: str) -> Path:
        pair.write(20)
        return pair.place(name)

    pair.copy(place=place)
    assert pair.copied() == ([1], [1])


def test_one_that_is_written_to_all_the_time_is_busy(pair, monkeypatch):
    monkeypatch.setattr(copying, "_TRIES", 3)

    def others() -> Mapping[str, Path]:
        pair.write(40)
        return pair.others()

    with pytest.raises(storage.DatabaseBusy, match="written to"):
        pair.copy(others)
    assert not (pair.folder / "main.copy").exists()


def test_what_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(storage.NotFound):
        copy_databases(tmp_path / "none.db", tmp_path / "copy", dict, tmp_path.joinpath)
    assert list(tmp_path.iterdir()) == []


def test_a_copy_takes_no_files_place(pair: Pair) -> None:
    (pair.folder / "main.copy").write_text("mine")
    with pytest.raises(FileExistsError):
        pair.copy()
    assert (pair.folder / "main.copy").read_text() == "mine"
