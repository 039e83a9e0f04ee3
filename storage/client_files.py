"""The file of one or several clients' stores: made whole, opened, migrated, written in stages.

`STEPS` says what each version of the schema changed; a released step is never edited. A store
states its version as `PRAGMA user_version`. The statements are those of their time; today's tables
would produce others.

In a federation a client's file holds its own store and nothing else. In a simulation all clients
share one file, so that one commit makes all writes of a round's stage durable; no client's answer
goes on before that commit. There may be many files, so a connection lives as long as one call or
one block; closing it also empties the write-ahead log.

A transaction holds the file's write lock, so no other process changes a row. A row that was read
once stays true, and writes wait in memory until the transaction's end, where one statement writes
the changes of a hundred clients to a table. Within the transaction every client reads earlier
writes as if they were in the file. One client's writes are undone here, in memory, because SQLite
did not get them yet.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import cache, lru_cache, partial
from itertools import takewhile
from operator import attrgetter
from pathlib import Path
from threading import RLock, get_ident
from typing import Any, Final

from sqlalchemy.dialects.sqlite import dialect
from sqlalchemy.schema import CreateTable

from storage.client_tables import CLIENT_TABLES, ClientBase, Identity
from storage.engine import BEGIN_READ, BEGIN_WRITE, Statements, open_connection, retried
from storage.errors import AlreadyExistsError, SchemaMismatch
from storage.files import OpenFile, create_whole, read_while_quiet
from storage.records import ClientIdentity
from storage.schema import Schema, SchemaVersion, older, read_schema, require_sound, require_version
from storage.sealing import Rows, Shape, Where, shape_of
from storage.tables import Sealed

Key = tuple[Any, ...]
"""Values of a table's key, or of its first columns, in their order."""
MOST_BYTES: Final = 1 << 26
"""Bytes to keep in memory when a stage's next client begins; more are written out before."""
_AT_ONCE: Final = 25
"""Owners whose rows one statement reads."""
_GUESSES: Final = 3
"""Reads of a table that are made for all owners at once: receipts read three rounds."""
_UNKNOWN: Final = object()


@dataclass(slots=True)
class _Part:
    """The known rows of one owner in one table; the owner is the first column of the key.

    Attributes:
        rows: By key, each row that was read or written; None for a key without a row.
        complete: Starts of keys under which all rows are known.
        cleared: Starts of keys under which all rows of the file are to be deleted.
        changed: Keys of rows that differ from the file's, in the order in which they were written.
    """

    rows: dict[Key, Any] = field(default_factory=dict)
    complete: set[Key] = field(default_factory=set)
    cleared: set[Key] = field(default_factory=set)
    changed: dict[Key, None] = field(default_factory=dict)

    def is_known(self, start: Key) -> bool:
        """Return whether all rows under the start of a key are known."""
        return start in self.rows or _is_under(start, self.complete)

    def under(self, start: Key) -> list[Any]:
        """Return the rows under the start of a key that is known."""
        length = len(start)
        return [r for key, r in self.rows.items() if r is not None and key[:length] == start]

    def learn(self, key: Key, row: Any) -> None:
        """Note a row of the file, unless a later write or deletion replaces it."""
        if key not in self.rows and not _is_under(key, self.cleared):
            self.rows[key] = row


class WorkingRows(Rows):
    """The rows of one transaction that holds the write lock; `flush` before it is committed."""

    def __init__(self, statements: Statements, owners: Sequence[Any] = ()) -> None:
        """Run on this connection.

        Statements run on `statements`. `owners` will likely read the same keys, apart from the
        first column, which is the owner: a read for one of them reads for all.
        """
        super().__init__(statements)
        self._owners = dict.fromkeys(owners)
        self._guessed: Counter[tuple[type[Sealed], int]] = Counter()
        self._parts: dict[type[Sealed], dict[Any, _Part]] = {}
        self._undo: list[Callable[[], None]] | None = None
        self._bytes = 0

    @contextmanager
    def undone_together(self) -> Iterator[None]:
        """Undo the block's writes if it raises; blocks must not be nested."""
        if self._bytes > MOST_BYTES:
            self.flush()
        undoing = self._undo = []
        try:
            yield
        except BaseException:
            for undo in reversed(undoing):
                undo()
            raise
        finally:
            self._undo = None

    def flush(self) -> None:
        """Write all waiting changes, and forget all known rows; commit nothing after an error."""
        if self._undo is not None:
            raise RuntimeError("flush was called while writes may still have to be undone")
        parts, self._parts, self._bytes = self._parts, {}, 0
        for table, of_owners in parts.items():
            self._write(shape_of(table), of_owners.values())

    def insert(self, table: type[Sealed], *rows: Mapping[str, Any]) -> None:
        """Add rows with their digests; the rows before one that exists were added."""
        shape = shape_of(table)
        for row in rows:
            sealed = shape.made(*shape.sealed(row))
            key = shape.key(sealed)
            if self._find(table, key) is not None:
                raise AlreadyExistsError(f"the row of table {shape.name} exists already")
            self._set(table, key, sealed)

    def put(self, table: type[Sealed], row: Mapping[str, Any]) -> None:
        """Add a row, in place of a row with the same key if there is one."""
        shape = shape_of(table)
        sealed = shape.made(*shape.sealed(row))
        key = shape.key(sealed)
        self._find(table, key)
        self._set(table, key, sealed)

    def swap(self, table: type[Sealed], before: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
        """Replace the row of the same key if it is unchanged; return whether it was."""
        shape = shape_of(table)
        sealed = shape.made(*shape.sealed(row))
        key = shape.key(sealed)
        found = self._find(table, key)
        if found is None or found[:-1] != tuple([before[name] for name in shape.columns[:-1]]):
            return False
        self._set(table, key, sealed)
        return True

    def read(
        self,
        table: type[Sealed],
        where: Where,
        *,
        order: Sequence[str] = (),
        newest_first: bool = False,
        limit: int | None = None,
    ) -> list[Any]:
        """Return the rows that meet all conditions, each checked at its first read."""
        start, others = _start(shape_of(table), where)
        if not start or newest_first or limit is not None:
            self.flush()
            return super().read(table, where, order=order, newest_first=newest_first, limit=limit)
        found = self._load(table, start).under(start)
        for name in others:
            found = [row for row in found if getattr(row, name) == where[name]]
        return sorted(found, key=attrgetter(*order)) if order and len(found) > 1 else found

    def column(
        self, table: type[Sealed], name: str, where: Where, *, newest_first: bool = False
    ) -> tuple[Any, ...]:
        """Return the different values of one column, sorted, without a check of digests."""
        self.flush()
        return super().column(table, name, where, newest_first=newest_first)

    def reseal(self, table: type[Sealed], rows: Sequence[Any], **changes: object) -> None:
        """Change columns outside the key in rows that `read` returned, and seal them anew."""
        shape = shape_of(table)
        for row in rows:
            changed = row._replace(**changes)
            sealed = changed._replace(digest=shape.digest(changed[:-1]))
            self._set(table, shape.key(sealed), sealed)

    def delete(self, table: type[Sealed], where: Where) -> None:
        """Delete the rows that meet all conditions."""
        shape = shape_of(table)
        start, others = _start(shape, where)
        if not start or others:
            self.flush()
            super().delete(table, where)
        elif len(start) == len(shape.keys):
            self._find(table, start)
            self._set(table, start, None)
        else:
            self._clear(table, start)

    def verify(self, tables: Sequence[type[Sealed]]) -> None:
        """Read every row of some tables and check it."""
        self.flush()
        super().verify(tables)

    def _part(self, table: type[Sealed], owner: Any) -> _Part:
        parts = self._parts.setdefault(table, {})
        found = parts.get(owner)
        if found is None:
            found = parts[owner] = _Part()
        return found

    def _find(self, table: type[Sealed], key: Key) -> Any:
        return self._load(table, key).rows.get(key)

    def _load(self, table: type[Sealed], start: Key) -> _Part:
        """Return an owner's known rows: at least all rows under the start of a key."""
        part = self._part(table, start[0])
        if not part.is_known(start):
            asking = self._asking(table, start)
            for first in range(0, len(asking), _AT_ONCE):
                # If memory runs short, the remaining owners read for themselves later.
                if not first or self._bytes <= MOST_BYTES:
                    self._fetch(table, asking[first : first + _AT_ONCE], start[1:])
        return part

    def _asking(self, table: type[Sealed], start: Key) -> Sequence[Any]:
        """Return whose rows to read: only this owner's, or those of all owners.

        The first few reads of a table are made for all owners. If the owners then read other keys,
        each reads alone, so only those first reads can be in vain.
        """
        guess = (table, len(start))
        if start[0] not in self._owners or self._guessed[guess] == _GUESSES:
            return [start[0]]
        self._guessed[guess] += 1
        rest = start[1:]
        others = (o for o in self._owners if o != start[0])
        unknown = [o for o in others if not self._part(table, o).is_known((o, *rest))]
        return [start[0], *unknown]

    def _fetch(self, table: type[Sealed], owners: Sequence[Any], rest: Key) -> None:
        shape = shape_of(table)
        marks = ", ".join("?" * len(owners))
        others = "".join(f" AND {name} = ?" for name in shape.keys[1 : len(rest) + 1])
        text = f"{shape.selection} WHERE {shape.keys[0]} IN ({marks}){others}"
        for values in self.statements.run(text, (*owners, *rest)):
            row = self._checked(shape, values)
            self._bytes += sum([len(row[place]) for place in shape.blobs])
            self._part(table, row[0]).learn(shape.key(row), row)
        for owner in owners:
            self._part(table, owner).complete.add((owner, *rest))

    def _set(self, table: type[Sealed], key: Key, row: Any) -> None:
        part = self._part(table, key[0])
        rows, changed = part.rows, part.changed
        if self._undo is not None:
            self._undo.append(_undo_of(part, key))
        rows[key] = row
        changed[key] = None
        if row is not None:
            self._bytes += sum([len(row[place]) for place in shape_of(table).blobs])

    def _clear(self, table: type[Sealed], start: Key) -> None:
        """Delete all rows under the start of a key, without reading them."""
        part = self._part(table, start[0])
        gone = {key: row for key, row in part.rows.items() if key[: len(start)] == start}
        if self._undo is not None:
            complete, cleared = part.complete.copy(), part.cleared.copy()

            def undo() -> None:
                part.rows.update(gone)
                # Later reads lack the rows that the undo brings back.
                part.complete, part.cleared = complete, cleared

            self._undo.append(undo)
        part.rows.update(dict.fromkeys(gone))
        part.complete.add(start)
        part.cleared.add(start)

    def _write(self, shape: Shape, parts: Iterable[_Part]) -> None:
        parts, run = list(parts), self.statements.run_many
        cleared = [start for part in parts for start in part.cleared]
        for length in sorted({len(start) for start in cleared}):
            starts = [start for start in cleared if len(start) == length]
            run(f"DELETE FROM {shape.name}{shape.condition(length)}", starts)  # noqa: S608
        changed = [(key, part.rows[key]) for part in parts for key in part.changed]
        kept = [row for _, row in changed if row is not None]
        if kept:
            run(f"INSERT OR REPLACE{shape.insertion}", kept)
        gone = [key for key, row in changed if row is None]
        if gone:
            run(f"DELETE FROM {shape.name}{shape.condition(len(shape.keys))}", gone)  # noqa: S608


def _undo_of(part: _Part, key: Key) -> Callable[[], None]:
    """Return a function that restores the present knowledge of a row."""
    rows, changed = part.rows, part.changed
    before, is_first = rows.get(key, _UNKNOWN), key not in changed

    def undo() -> None:
        rows[key] = before
        if before is _UNKNOWN:
            # After the deletion of a key's start, the file's row was never read.
            del rows[key]
        if is_first:
            del changed[key]

    return undo


def _is_under(start: Key, starts: set[Key]) -> bool:
    """Return whether `starts` holds a start of a key, or a shorter start of it."""
    if not starts or start in starts:
        return bool(starts)
    return any(start[:length] in starts for length in range(1, len(start)))


def _start(shape: Shape, where: Where) -> tuple[Key, Sequence[str]]:
    """Return the first values of a key that conditions give, and the names of the others.

    Both are empty if a condition allows several values.
    """
    values = tuple(where.values())
    if list in map(type, values) or tuple in map(type, values):
        return (), ()
    names, others = _split(shape.keys, tuple(where))
    return tuple([where[name] for name in names]), others


@lru_cache(maxsize=256)
def _split(keys: Key, names: tuple[str, ...]) -> tuple[Sequence[str], Sequence[str]]:
    start = tuple(takewhile(names.__contains__, keys))
    return start, tuple(name for name in names if name not in start)


FIRST: Final = "0.1.0"
STEPS: Final[Mapping[str, Sequence[str]]] = {
    # A store that came back from a backup says so.
    "0.2.0": (
        "CREATE TABLE restored ( client TEXT NOT NULL, restored TEXT NOT NULL,"
        " caught_up TEXT NOT NULL, digest BLOB NOT NULL,"
        " CONSTRAINT pk_restored PRIMARY KEY (client) )",
    ),
    # A client keeps receipts of its charges, and the last head that it saw of each log.
    "0.3.0": (
        "CREATE TABLE receipts ( client TEXT NOT NULL, run_id TEXT NOT NULL,"
        " size INTEGER NOT NULL, receipt BLOB NOT NULL,"
        " digest BLOB NOT NULL, CONSTRAINT pk_receipts PRIMARY KEY (client, run_id, size) )",
        "CREATE TABLE logs ( client TEXT NOT NULL, origin TEXT NOT NULL,"
        " signer TEXT NOT NULL, size INTEGER NOT NULL, root BLOB NOT NULL,"
        " digest BLOB NOT NULL, CONSTRAINT pk_logs PRIMARY KEY (client, origin) )",
        "CREATE TABLE receipted ( client TEXT NOT NULL, run_id TEXT NOT NULL,"
        " origin TEXT NOT NULL, size INTEGER NOT NULL, round_number INTEGER NOT NULL,"
        " attempt INTEGER NOT NULL, ahead TEXT NOT NULL, cosignature TEXT NOT NULL,"
        " digest BLOB NOT NULL, CONSTRAINT pk_receipted PRIMARY KEY (client, run_id) )",
    ),
    # Noise that is correlated over rounds goes on from the last attempt.
    "0.4.0": (
        "CREATE TABLE noise ( client TEXT NOT NULL, run_id TEXT NOT NULL, state BLOB NOT NULL,"
        " digest BLOB NOT NULL, CONSTRAINT pk_noise PRIMARY KEY (client, run_id) )",
    ),
}
"""The statements that make each version from the one before, in order."""
NEWEST: Final = (FIRST, *STEPS)[-1]


def version_of(statements: Statements) -> str:
    """Return the version of an open store's schema, or `SchemaMismatch`."""
    ((number,),) = statements.run("PRAGMA user_version")
    if not number:
        raise SchemaMismatch(f"file {statements.where} is not a client's store of Sotto")
    version = str(SchemaVersion.of_number(number))
    require_version(statements.where, version, (FIRST, *STEPS))
    return version


def state_version(statements: Statements) -> None:
    """Write the newest schema's version into an open store."""
    found = SchemaVersion.parse(NEWEST)
    if found is not None:
        statements.run(f"PRAGMA user_version={found.number}")


_BUSY_TIMEOUT: Final = 5.0
_STAGE_PATIENCE: Final = 600.0
"""Seconds to wait while another run's stage writes to the same clients' file."""


class ClientFile:
    """An open file; no connection outlives a call or a block, so it needs no `close`."""

    def __init__(self, path: Path, *, read_only: bool) -> None:
        """Find the file and check it; see `open_client_store` for the errors."""
        self._file = OpenFile.at(path)
        self._read_only = read_only
        self._connection: sqlite3.Connection | None = None
        self._rows: WorkingRows | None = None
        self._is_apart = False
        self._owner: int | None = None
        # Several threads may use one file; only one at a time uses its connection.
        self._lock = RLock()
        if not read_only:
            with self.transaction(read_only=True) as rows:
                is_newest = version_of(rows.statements) == NEWEST
            if not is_newest:
                with self.transaction(patience=_STAGE_PATIENCE) as rows:
                    # Read again under the lock: another process may have been faster.
                    version = version_of(rows.statements)
                    versions = (FIRST, *STEPS)
                    for later in versions[versions.index(version) + 1 :]:
                        for statement in STEPS[later]:
                            rows.statements.run(statement)
                    state_version(rows.statements)
        self.verify_structure()

    @property
    def path(self) -> Path:
        """The file's path."""
        return self._file.path

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Keep one connection for all calls of the block.

        Within a stage, the whole block is one client's part: if it raises, only that client's
        writes are undone.
        """
        with self._lock:
            if self._rows is not None and not self._is_apart:
                self._is_apart = True
                try:
                    with self._rows.undone_together():
                        yield
                finally:
                    self._is_apart = False
            elif self._connection is not None:
                yield
            else:
                with self._connected():
                    yield

    @contextmanager
    def stage(self, clients: Sequence[str] = ()) -> Iterator[None]:
        """Make all calls of the block durable together when it ends; undo all if it raises.

        `clients` will make the same reads in the block, so one statement reads for all of them.

        Raises:
            DatabaseBusy: Another process wrote to the file all the time.
            DatabaseReplaced: The file was deleted or replaced; nothing that was written counts.
            StorageFull: Nothing was written.
        """
        with self.transaction(patience=_STAGE_PATIENCE, clients=clients):
            self._is_apart = False
            try:
                yield
            finally:
                self._is_apart = True

    def joined(self, *, read_only: bool) -> Rows | None:
        """Return the rows of this thread's own open transaction, if a call may join it."""
        if self._owner != get_ident() or not (self._is_apart or read_only):
            return None
        return self._rows

    @contextmanager
    def transaction(
        self, *, read_only: bool = False, patience: float = 0.0, clients: Sequence[str] = ()
    ) -> Iterator[Rows]:
        """Return rows whose changes are durable when the block ends, and undone if it raises.

        `read_only` takes no lock. `patience` is how many seconds to wait for another process,
        beyond the usual ones. For `clients` see `stage`.
        """
        with self._lock:
            if self._rows is not None:
                # A stage undoes each client's part as a whole.
                with nullcontext() if self._is_apart or read_only else self.kept_open():
                    yield self._rows
                return
            # Checked before opening: SQLite would create an empty file in place of a lost one.
            self._file.require_same()
            with self.kept_open():
                statements = self._statements()
                begin = partial(statements.run, BEGIN_READ if read_only else BEGIN_WRITE)
                retried(begin, patience=patience)
                rows = WorkingRows(statements, clients)
                self._rows, self._is_apart, self._owner = rows, True, get_ident()
                try:
                    yield rows
                    rows.flush()
                    self._file.require_same()
                    statements.run("COMMIT")
                finally:
                    self._rows, self._is_apart, self._owner = None, False, None
                    _undo(statements)
                # If the file was replaced in between, the commit is lost, and the caller must know.
                self._file.require_same()

    def compact(self) -> None:
        """Write the file anew without unused pages; `DatabaseBusy` if another process uses it."""
        with self.kept_open():
            self._statements().run("VACUUM")

    def verify_structure(self) -> None:
        """Check all pages, all indices, and the schema; see `__init__` for the errors."""
        self._file.require_same()
        with self.transaction(read_only=True) as rows:
            version = version_of(rows.statements)
            if version != NEWEST:
                raise older(self.path, version, NEWEST)
            require_sound(rows.statements, _schema())

    def verify_integrity(self) -> None:
        """Check all pages, all indices, the schema, and every row's digest.

        Opening does the same without the digests, which are checked as rows are read.

        Raises:
            DatabaseDamaged: Names the first thing that is wrong.
            DatabaseReplaced: The file was deleted or replaced since it was opened.
        """
        with self.kept_open():
            self.verify_structure()
            with self.transaction(read_only=True) as rows:
                rows.verify(CLIENT_TABLES)

    @contextmanager
    def _connected(self) -> Iterator[None]:
        quiet = read_while_quiet(self.path) if self._read_only else nullcontext()
        with quiet:
            try:
                self._connection = open_connection(
                    self.path, busy_timeout=_BUSY_TIMEOUT, read_only=self._read_only
                )
                yield
            finally:
                connection, self._connection = self._connection, None
                if connection is not None:
                    connection.close()

    def _statements(self) -> Statements:
        connection = self._connection
        if connection is None:
            raise RuntimeError("the file is not open")
        return Statements(lambda: connection, str(self.path))


def create_file(path: Path, drawn: Mapping[str, ClientIdentity]) -> None:
    """Make a new file of stores that hold an identity each, unless there is a file already."""
    create_whole(path, partial(_build, drawn=drawn))


def stored_version(path: Path) -> str:
    """Return the version of a file's schema, newest or not; `NotFound` without a file."""
    OpenFile.at(path)
    with read_while_quiet(path):
        opened = open_connection(path, busy_timeout=_BUSY_TIMEOUT, read_only=True)
        with closing(opened) as connection:
            return version_of(Statements(lambda: connection, str(path)))


def insert_identities(rows: Rows, drawn: Mapping[str, ClientIdentity]) -> None:
    """Add stores to a file."""
    fresh = ({"client": c, "enrolment_serial": 0, **asdict(own)} for c, own in drawn.items())
    rows.insert(Identity, *fresh)


def clients_of(rows: Rows) -> Iterable[str]:
    """Return the clients whose stores are in a file."""
    return rows.column(Identity, "client", {})


def _undo(statements: Statements) -> None:
    """Undo the rest of a transaction that did not reach its commit."""
    if statements.connect().in_transaction:
        statements.run("ROLLBACK")


def _build(path: Path, *, drawn: Mapping[str, ClientIdentity]) -> None:
    opened = open_connection(path, busy_timeout=_BUSY_TIMEOUT, read_only=False)
    with closing(opened) as connection:
        rows = Rows(Statements(lambda: connection, str(path)))
        rows.statements.run(BEGIN_WRITE)
        _make_tables(rows.statements)
        state_version(rows.statements)
        insert_identities(rows, drawn)
        rows.statements.run("COMMIT")


@cache
def _schema() -> Schema:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        statements = Statements(lambda: connection, ":memory:")
        _make_tables(statements)
        return read_schema(statements)


def _make_tables(statements: Statements) -> None:
    for table in ClientBase.metadata.sorted_tables:
        statements.run(str(CreateTable(table).compile(dialect=dialect())))
