"""The log, read and checked: its leaves, what they say, and the proofs of its tree.

`verify_log` compares the whole log with its rows, its tiles, and heads that were kept elsewhere. It
goes once through the leaves in order, which is the order of each run's events, so it checks every
run's chain on the way. Added leaves never change, so each page of leaves has its own transaction,
and writers need not wait for the whole pass. Only the last page's transaction also reads all the
tables, which must not hold rows without a leaf.

`fill_log` makes leaves for rows that are older than the log.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final, cast

from sqlalchemy import Connection

from storage.engine import Statements
from storage.errors import LogBroken, NotFound
from storage.leaves import (
    LEAF_COLUMNS,
    NewLeaves,
    charge_data,
    event_data,
    read_hashes,
    sealed_data,
    settled_data,
    tree_size,
)
from storage.ledger import ledger_key, read_logged, read_rows
from storage.merkle import (
    EMPTY_ROOT,
    TILE_HEIGHT,
    TILE_WIDTH,
    MerkleTree,
    fold,
    leaf_hash,
    node_hash,
)
from storage.records import GENESIS_HASH, Leaf, LedgerRow, TreeHead
from storage.sealing import Rows
from storage.tables import Ledger

_SELECTION: Final = f"SELECT {LEAF_COLUMNS} FROM leaves"  # noqa: S608
_BETWEEN: Final = f"{_SELECTION} WHERE position >= ? AND position < ? ORDER BY position"
_OF_EVENT: Final = f"{_SELECTION} WHERE run_id = ? AND sequence = ?"
_OF_CLIENT: Final = (
    f"{_SELECTION} WHERE run_id = ? AND pseudonym = ? AND position >= ? ORDER BY position"
)
_PSEUDONYMS: Final = (
    "SELECT DISTINCT pseudonym FROM leaves WHERE pseudonym IS NOT NULL ORDER BY pseudonym"
)
_CHANNELS: Final = "SELECT DISTINCT channel FROM ledger ORDER BY channel"
_EVENT: Final = (
    "SELECT sequence, run_id, actor, action, round_number, channel, time, detail FROM audit"
    " WHERE run_id = ? AND sequence = ?"
)
_HASH: Final = "SELECT hash FROM audit WHERE run_id = ? AND sequence = ?"

# Bytes in place of text, or not a number: SQLite keeps any type in any column.
ODD: Final = "its row holds a value of a type that Sotto never writes"


class LogRepository:
    """Reads the log within one transaction, without the leaves that this transaction adds."""

    def __init__(self, rows: Rows) -> None:
        """Work within one transaction."""
        self._rows = rows
        self._statements = rows.statements

    def size(self) -> int:
        """Return the number of leaves."""
        return tree_size(self._statements)

    def tree(self, size: int | None = None) -> MerkleTree:
        """Return the tree of the first `size` leaves, all by default; `NotFound` if fewer."""
        known = self.size()
        if size is not None and not 0 <= size <= known:
            raise NotFound(f"the log has {known} leaves, not {size}")
        return MerkleTree(partial(read_hashes, self._statements), known if size is None else size)

    def leaves(self, start: int, end: int) -> tuple[Leaf, ...]:
        """Return the leaves from one place, counted from 0, to before another."""
        return tuple(Leaf(*row) for row in self._statements.run(_BETWEEN, (start, end)))

    def leaf(self, position: int) -> Leaf:
        """Return a leaf by its place, from 0; `NotFound` if there is no such leaf."""
        for leaf in self.leaves(position, position + 1):
            return leaf
        raise NotFound(f"the log has no leaf {position}; it has {self.size()}, counted from 0")

    def of_event(self, run_id: str, sequence: int) -> Leaf:
        """Return the leaf of an event; `NotFound` if there is no such event."""
        for row in self._statements.run(_OF_EVENT, (run_id, sequence)):
            return Leaf(*row)
        raise NotFound(f"run {run_id!r} has no event {sequence} in the log")

    def of_client(self, run_id: str, pseudonym: str, since: int = 0) -> tuple[Leaf, ...]:
        """Return the leaves of a client's charges and settlements in a run, from a place on."""
        rows = self._statements.run(_OF_CLIENT, (run_id, pseudonym, since))
        return tuple(Leaf(*row) for row in rows)

    def charges(
        self,
        *,
        run_id: str | None = None,
        pseudonym: str | None = None,
        round_number: int | None = None,
        channel: str | None = None,
        status: str | None = None,
        limit: int | None = None,
    ) -> tuple[Leaf, ...]:
        """Return the leaves of charges and settlements that meet every condition that is not None.

        A charge's own leaf has the status `reserved`.
        """
        equal = (
            ("run_id", run_id),
            ("pseudonym", pseudonym),
            ("round_number", round_number),
            ("channel", channel),
            ("coalesce(status, 'reserved')", status),
        )
        known = [(name, value) for name, value in equal if value is not None]
        where = "".join(f" AND {name} = ?" for name, _ in known)
        query = f"{_SELECTION} WHERE kind <> 'event'{where} ORDER BY position"
        values = tuple(value for _, value in known)
        if limit is not None:
            query, values = f"{query} LIMIT ?", (*values, limit)
        return tuple(Leaf(*row) for row in self._statements.run(query, values))

    def pseudonyms(self) -> tuple[str, ...]:
        """Return all clients that were ever charged, in order."""
        return tuple(name for (name,) in self._statements.run(_PSEUDONYMS))

    def channels(self) -> tuple[str, ...]:
        """Return all channels that were ever charged, in order."""
        return tuple(name for (name,) in self._statements.run(_CHANNELS))

    def data(self, leaf: Leaf) -> bytes:
        """Return a leaf's row in clear; `LogBroken` if it is gone, or no longer fits the leaf."""
        try:
            data = self._event_data(leaf) if leaf.kind == "event" else self._ledger_data(leaf)
            found = leaf_hash(shown(leaf, data))
        except (TypeError, ValueError) as error:
            raise LogBroken(leaf.position, ODD) from error
        if found != leaf.hash:
            raise LogBroken(leaf.position, f"its {leaf.kind} is not what was logged")
        return data

    def _event_data(self, leaf: Leaf) -> bytes:
        sequence = leaf.sequence or 0
        event = self._statements.run(_EVENT, (leaf.run_id, sequence))
        before = self._statements.run(_HASH, (leaf.run_id, sequence - 1))
        if not event:
            raise LogBroken(leaf.position, "its event is gone")
        return event_data(before[0][0] if before else GENESIS_HASH, event[0])

    def _ledger_data(self, leaf: Leaf) -> bytes:
        names = ("run_id", "round_number", "attempt", "pseudonym", "channel")
        found = read_rows(self._rows, Ledger, {name: getattr(leaf, name) for name in names})
        if not found:
            raise LogBroken(leaf.position, "its ledger row is gone")
        return ledger_data(leaf, found[0])


def ledger_data(leaf: Leaf, row: LedgerRow) -> bytes:
    """Return the contents of a leaf of a ledger row."""
    if leaf.kind == "charge":
        return charge_data(row)
    # The leaf states the status that it settled, which may differ from the row's.
    return settled_data(row, leaf.status)


def shown(leaf: Leaf, data: bytes) -> bytes:
    """Return the bytes that a leaf hashes: its contents, or a commitment to them."""
    return data if leaf.salt is None else sealed_data(leaf.run_id, data, leaf.salt)


Key = tuple[Any, ...]
"""Run, round, attempt, pseudonym and channel of a ledger row."""

_LEAVES: Final = ", ".join(f"leaves.{name}" for name in LEAF_COLUMNS.replace(" ", "").split(","))
_PAGE: Final = 10_000
_PAGE_OF_LEAVES: Final = (
    f"SELECT {_LEAVES}, audit.sequence, audit.run_id, actor, action, audit.round_number,"  # noqa: S608
    " audit.channel, time, detail, audit.hash FROM leaves LEFT JOIN audit"
    " ON audit.run_id = leaves.run_id AND audit.sequence = leaves.sequence"
    f" WHERE leaves.position >= ? ORDER BY leaves.position LIMIT {_PAGE}"
)
_LEAVES_IN_ALL: Final = "SELECT count(*) FROM leaves"
_EVENTS_IN_ALL: Final = "SELECT run_id, count(*) FROM audit GROUP BY run_id"
_UNLOGGED: Final = (
    "SELECT run_id, sequence FROM audit WHERE NOT EXISTS (SELECT 1 FROM leaves WHERE"
    " leaves.run_id = audit.run_id AND leaves.sequence = audit.sequence) LIMIT 1"
)
_STATUSES: Final = "SELECT run_id, round_number, attempt, pseudonym, channel, status FROM ledger"
_TILES: Final = "SELECT level, position, hash FROM tiles ORDER BY level, position"
_LEAF_WIDTH: Final = LEAF_COLUMNS.count(",") + 1


@dataclass
class _Pass:
    """The state of one pass over the leaves."""

    tree: _Growing = field(default_factory=lambda: _Growing())
    ends: dict[str, tuple[int, str]] = field(default_factory=dict)
    charged: dict[Key, str] = field(default_factory=dict)

    def read_page(self, rows: Rows, wanted: deque[TreeHead]) -> bool:
        """Check the next leaves, and return whether they were the last."""
        start = self.tree.size
        found = rows.statements.run(_PAGE_OF_LEAVES, (start,))
        # A gap lets later leaves onto the page; it raises before the pass uses their rows.
        ledger = {ledger_key(row): row for row in read_logged(rows, start, start + _PAGE)}
        for row in found:
            self._add(Leaf(*row[:_LEAF_WIDTH]), row[_LEAF_WIDTH:], ledger)
            _require_root(self.tree, wanted)
        return len(found) < _PAGE

    def _add(self, leaf: Leaf, event: Sequence[Any], ledger: Mapping[Key, LedgerRow]) -> None:
        if leaf.position != self.tree.size:
            raise LogBroken(self.tree.size, "it is missing")
        found = self._hash_of(leaf, event, ledger)
        if found != leaf.hash:
            raise LogBroken(leaf.position, f"its {leaf.kind} does not fit its hash")
        self.tree.add(found)

    def _hash_of(self, leaf: Leaf, event: Sequence[Any], ledger: Mapping[Key, LedgerRow]) -> bytes:
        """Return the hash that a leaf must have."""
        is_event, is_settled = leaf.kind == "event", leaf.kind == "settled"
        # The hash does not cover columns that the leaf's kind lacks.
        if (leaf.sequence is None) == is_event or (leaf.status is None) == is_settled:
            raise LogBroken(leaf.position, f"it is not a leaf of kind {leaf.kind!r}")
        if is_event and any(value is not None for value in leaf[4:-1]):
            raise LogBroken(leaf.position, "it is an event with parts of a charge")
        try:
            return self._event_hash(leaf, event) if is_event else self._row_hash(leaf, ledger)
        # Bytes in place of text: SQLite keeps any type in any column.
        except (TypeError, ValueError) as error:
            raise LogBroken(leaf.position, ODD) from error

    def _event_hash(self, leaf: Leaf, event: Sequence[Any]) -> bytes:
        count, previous = self.ends.get(leaf.run_id, (0, GENESIS_HASH))
        if leaf.sequence != count + 1:
            raise LogBroken(leaf.position, f"it is of event {leaf.sequence}, not {count + 1}")
        *facts, found = event
        if found is None:
            raise LogBroken(leaf.position, f"event {leaf.sequence} of {leaf.run_id!r} is gone")
        data = event_data(previous, facts)
        if hashlib.sha256(data).hexdigest() != found:
            raise LogBroken(
                leaf.position, f"event {leaf.sequence} of {leaf.run_id!r} does not fit its hash"
            )
        self.ends[leaf.run_id] = (leaf.sequence, found)
        return leaf_hash(data)

    def _row_hash(self, leaf: Leaf, ledger: Mapping[Key, LedgerRow]) -> bytes:
        key = (leaf.run_id, leaf.round_number, leaf.attempt, leaf.pseudonym, leaf.channel)
        row = ledger.get(key)
        if row is None:
            raise LogBroken(leaf.position, f"the ledger row {key!r} is gone")
        before, after = ((None, "reserved"), ("reserved", leaf.status))[leaf.kind == "settled"]
        if self.charged.get(key) != before:
            raise LogBroken(leaf.position, f"it is not the next step of the ledger row {key!r}")
        self.charged[key] = str(after)
        return leaf_hash(shown(leaf, ledger_data(leaf, row)))


def verify_log(
    reading: Callable[[], AbstractContextManager[Rows]],
    heads: Sequence[TreeHead] = (),
    progress: Callable[[int], None] = lambda _: None,
) -> TreeHead:
    """Recompute all leaves, tiles and roots; return size and root as of the last page.

    `reading` begins a transaction that sees the database as it is then. `heads` are earlier sizes
    and roots of the tree, kept outside the database: without them a log that was cut off, or
    rewritten as a whole, is not noticed. `progress` gets the number of checked leaves after each
    page and at the end.

    Raises:
        LogBroken: Names the first leaf that is wrong or missing.
        DatabaseDamaged: A row of the ledger does not fit its digest.
    """
    wanted = deque(sorted(set(heads)))
    seen, is_last = _Pass(), False
    _require_root(seen.tree, wanted)
    while not is_last:
        with reading() as rows:
            is_last = seen.read_page(rows, wanted)
            if is_last:
                if wanted:
                    raise LogBroken(
                        seen.tree.size, f"a kept head says that there are {wanted[0].size} leaves"
                    )
                _require_all(rows.statements, seen)
        progress(seen.tree.size)
    return TreeHead(seen.tree.size, seen.tree.root())


def _require_root(tree: _Growing, wanted: deque[TreeHead]) -> None:
    while wanted and wanted[0].size == tree.size:
        if wanted.popleft().root != tree.root():
            raise LogBroken(
                max(tree.size - 1, 0), f"a kept head of {tree.size} leaves has another root"
            )


def _require_all(statements: Statements, seen: _Pass) -> None:
    """Require a leaf for every event and ledger row, and the tiles of these leaves."""
    size = seen.tree.size
    ((leaves,),) = statements.run(_LEAVES_IN_ALL)
    if leaves != size:
        raise LogBroken(0, f"there are {leaves} leaves, of which {size} have a place in the tree")
    events = {run_id: count for run_id, (count, _) in seen.ends.items()}
    if dict(statements.run(_EVENTS_IN_ALL)) != events:
        for run_id, sequence in statements.run(_UNLOGGED):
            raise LogBroken(size, f"event {sequence} of {run_id!r} has no leaf")
    for *key, status in statements.run(_STATUSES):
        if seen.charged.get(tuple(key)) != status:
            raise LogBroken(size, f"the ledger row {tuple(key)!r} is {status} without a leaf")
    _require_tiles(statements, seen.tree)


def _require_tiles(statements: Statements, tree: _Growing) -> None:
    expected: Iterator[tuple[int, int, bytes]] = iter(sorted(tree.tiles))
    for level, position, found in statements.run(_TILES):
        if (level, position, found) != next(expected, None):
            raise LogBroken(_first_leaf(level, position), f"a tile of level {level} differs")
    for level, position, _ in islice(expected, 1):
        raise LogBroken(_first_leaf(level, position), f"a tile of level {level} is missing")


def _first_leaf(level: Any, position: Any) -> int:
    """Return the first leaf of a tile; 0 for a tile that cannot exist."""
    if type(level) is not int or type(position) is not int or not 0 < level < TILE_HEIGHT:
        return 0
    return position << (TILE_HEIGHT * level)


class _Growing:
    """A tree that grows leaf by leaf, with the tiles that become full."""

    def __init__(self) -> None:
        self.size = 0
        self.tiles: list[tuple[int, int, bytes]] = []
        self._open: list[list[bytes]] = [[]]

    def add(self, found: bytes) -> None:
        """Add a leaf's hash."""
        self.size += 1
        level = 0
        self._open[0].append(found)
        while len(self._open[level]) == TILE_WIDTH:
            root = fold(self._open[level])
            self._open[level] = []
            level += 1
            if level == len(self._open):
                self._open.append([])
            self.tiles.append((level, (self.size >> (8 * level)) - 1, root))
            self._open[level].append(root)

    def root(self) -> bytes:
        """Return the root over all leaves so far."""
        found: bytes | None = None
        for hashes in self._open:
            for part in _halves(hashes):
                found = part if found is None else node_hash(part, found)
        return EMPTY_ROOT if found is None else found


def _halves(hashes: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the complete subtrees of an open tile, the last one first."""
    end = len(hashes)
    while end:
        width = end & -end
        yield fold(hashes[end - width : end])
        end -= width


_RUNS: Final = "SELECT run_id FROM runs ORDER BY created, run_id"
_EVENTS: Final = (
    "SELECT sequence, run_id, actor, action, round_number, channel, time, detail, hash FROM audit"
    " WHERE run_id = ? ORDER BY sequence"
)


def fill_log(connection: Connection) -> None:
    """Make the leaves of all events and charges of a database that has no leaves yet.

    The connection's transaction made the empty tables of the log.
    """
    raw = cast("sqlite3.Connection", connection.connection.driver_connection)
    statements = Statements(lambda: raw, "to be migrated")
    leaves, rows = NewLeaves(statements), Rows(statements)
    for (run_id,) in statements.run(_RUNS):
        previous = GENESIS_HASH
        for *facts, found in statements.run(_EVENTS, (run_id,)):
            leaves.add_event(run_id, facts[0], event_data(previous, facts))
            previous = found
        charged = read_rows(rows, Ledger, {"run_id": run_id})
        leaves.add_charges(charged)
        leaves.add_settled(row for row in charged if row.status != "reserved")
    leaves.place()
