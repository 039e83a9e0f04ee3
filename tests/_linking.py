"""Whoever gets the coordinator's files, and is trained to say whose each entry of the pool is.

It is told the answers of half of all generations, and must do better than chance on the rest. Of
the files it uses where each row's parts lie in the database and in its write-ahead log, the parts
themselves and their hashes, and of each client where the ledger, the audit log and the log of both
name it, in which order and when. What it learns is how likely an entry is a client's, by the ranks
of both in every such view; each generation's entries are then matched to its clients as a whole.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

import storage

SIGNIFICANCE = 1e-6
VIEWS = 4
"""Pairs of views that are used of all that are tried."""
Values = Sequence[Any]


@dataclass(frozen=True)
class Generation:
    """What the files show of one generation."""

    # A value of each entry, and of each client, by view; and which client each entry is of.
    rows: Mapping[str, Values]
    clients: Mapping[str, Values]
    owners: tuple[int, ...]


@dataclass(frozen=True)
class Files:
    """The files as they were right after a commit, before the log was emptied."""

    database: bytes
    log: bytes
    generation: int
    # Key, handle, entry and digest; then pseudonym, digest of the ledger's row, hash of its leaf.
    rows: list[tuple[bytes, bytes, bytes, bytes]]
    charges: list[tuple[str, bytes, bytes]]
    clock: int

    @classmethod
    def read(cls, path: Path) -> Files | None:
        """Take both files and look up the newest generation; None without any."""
        log = path.with_name(path.name + "-wal")
        with closing(sqlite3.connect(path)) as connection:
            ask: Callable[..., list[Any]] = lambda *a: connection.execute(*a).fetchall()  # noqa: E731
            ((newest,),) = ask("SELECT max(generation) FROM pool")
            if newest is None:
                return None
            query = "SELECT key, handle, entry, digest FROM pool WHERE generation = ?"
            rows = ask(f"{query} ORDER BY handle", [newest])
            query = (
                "SELECT l.pseudonym, l.digest, v.hash FROM ledger l JOIN leaves v ON"
                " v.pseudonym = l.pseudonym AND v.round_number = l.round_number"
                " WHERE l.round_number = ? GROUP BY l.pseudonym"
            )
            charges = ask(query, [newest])
            ((time,),) = ask("SELECT max(time) FROM audit")
            both = path.read_bytes(), log.read_bytes() if log.exists() else b""
        return cls(*both, newest, rows, charges, int(re.findall(r"\d+", time)[-1]))

    def shown(self, clients: Sequence[str], owners: Mapping[bytes, str]) -> Generation:
        """What there is to see."""
        rows: dict[str, list[Any]] = {}
        for (key, handle, entry, digest), whole in itertools.product(
            self.rows, (("database", self.database), ("log", self.log))
        ):
            name, data = whole
            parts = {"key": key, "handle": handle, "entry": entry[-48:], "digest": digest}
            for part, value in parts.items():
                rows.setdefault(f"{part} first in {name}", []).append(data.find(value))
                rows.setdefault(f"{part} last in {name}", []).append(data.rfind(value))
                if name == "log":
                    rows.setdefault(part, []).append(value)
                    hashed = hashlib.sha256(value).digest()
                    rows.setdefault(f"hash of {part}", []).append(hashed)
        return Generation(
            rows, self._clients(clients), tuple(clients.index(owners[row[1]]) for row in self.rows)
        )

    def _clients(self, clients: Sequence[str]) -> dict[str, Values]:
        charges = {name: (digest, leaf) for name, digest, leaf in self.charges}
        texts = [name.encode() for name in clients]
        return {
            "place": range(len(clients)),
            "place by the clock": [(i + self.clock) % len(clients) for i in range(len(clients))],
            "name": clients,
            "last in database": [self.database.rfind(text) for text in texts],
            "first in log": [self.log.find(text) for text in texts],
            "last in log": [self.log.rfind(text) for text in texts],
            "charge": [charges[name][0] for name in clients],
            "leaf": [charges[name][1] for name in clients],
        }


@dataclass
class Watcher:
    """Takes the files whenever a generation has come into them; set as `Database.checkpoint`."""

    path: Path
    seen: list[Files]

    def on(self, monkeypatch: Any) -> Watcher:
        """Look at the files at each commit from now on."""
        original = storage.Database.checkpoint

        def checkpoint(database: storage.Database) -> None:
            self.look()
            original(database)

        monkeypatch.setattr(storage.Database, "checkpoint", checkpoint)
        return self

    def look(self) -> None:
        """Take them, if there is a generation in them that was not seen before."""
        found = Files.read(self.path)
        if found is not None and all(found.generation != old.generation for old in self.seen):
            self.seen.append(found)


def chance(generations: Sequence[Generation]) -> float:
    """How likely chance alone is right as often as who was trained on the first half.

    Under the null each entry's owner is uniform given all else, so the number of right matches of a
    generation is that of fixed points of a uniform permutation, whatever is guessed.
    """
    half = len(generations) // 2
    model = _learned(generations[:half])
    right, tail = 0, np.ones(1)
    for one in generations[half:]:
        right += sum(map(int.__eq__, _matched(one, model), one.owners))
        tail = np.convolve(tail, fixed_points(len(one.owners)))
    return float(tail[right:].sum())


def _ranks(values: Values) -> list[int]:
    order = sorted(range(len(values)), key=lambda place: (values[place], place))
    return [order.index(place) for place in range(len(values))]


def _cells(one: Generation) -> dict[tuple[str, str], list[list[tuple[int, int, int]]]]:
    number = len(one.owners)
    rows = {view: _ranks(values) for view, values in one.rows.items()}
    clients = {view: _ranks(values) for view, values in one.clients.items()}
    return {
        (mine, theirs): [[(number, a, b) for b in clients[theirs]] for a in rows[mine]]
        for mine in rows
        for theirs in clients
    }


def _learned(generations: Sequence[Generation]) -> Mapping[Any, float]:
    """Log odds, by pair of views and ranks, that an entry is a client's.

    Of the pairs of views that tell most, by how far owners are from spread evenly over the ranks.
    """
    owned: dict[Any, Counter[Any]] = defaultdict(Counter)
    met: dict[Any, Counter[Any]] = defaultdict(Counter)
    for one in generations:
        for views, table in _cells(one).items():
            for row, owner in zip(table, one.owners, strict=True):
                met[views].update(row)
                owned[views][row[owner]] += 1
    told = {views: _excess(owned[views], met[views]) for views in met}
    best = sorted(told, key=told.__getitem__)[-VIEWS:]
    return {
        (views, cell): float(np.log((owned[views][cell] + 0.5) / (count / cell[0] + 0.5)))
        for views in best
        for cell, count in met[views].items()
    }


def _excess(owned: Mapping[Any, int], met: Mapping[Any, int]) -> float:
    """Pearson's statistic of the counts by ranks, in standard deviations above its mean."""
    parts = []
    for cell, count in met.items():
        even = count / cell[0]
        parts.append((owned[cell] - even) ** 2 / max(even * (1 - 1 / cell[0]), 1e-9))
    return (sum(parts) - len(parts)) / np.sqrt(2 * len(parts))


def _matched(one: Generation, model: Mapping[Any, float]) -> list[int]:
    scores = np.zeros((len(one.owners), len(one.owners)))
    for views, table in _cells(one).items():
        scores += [[model.get((views, cell), 0.0) for cell in row] for row in table]
    return [int(client) for client in linear_sum_assignment(scores, maximize=True)[1]]


def fixed_points(number: int) -> np.ndarray:
    """Probabilities of 0, 1, ... fixed points of a uniform permutation of so many."""
    derangements = [1.0, 0.0]
    for n in range(2, number + 1):
        derangements.append((n - 1) * (derangements[-1] + derangements[-2]))
    choose = [float(np.prod([(number - i) / (i + 1) for i in range(k)])) for k in range(number + 1)]
    ways = np.array([c * derangements[number - k] for k, c in enumerate(choose)])
    return ways / ways.sum()
