"""The file of one or several clients' stores: made whole, opened, migrated, written in stages.

`STEPS` says what each version of the schema changed; a released step is never edited. A store
states its version as `PRAGMA user_version`. The statements are those of their time; today's tables
would produce others.

In a federation a client's file holds its own store and nothing else. In a simulation all clients
share one file, so that one commit makes all writes of a round's stage durable; no client's answer
goes on before that commit. There may be many files, so a connection lives as long as one call or
one block; closing it also empties the write-ahead log.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from threading import RLock, get_ident
from typing import Final

from sqlalchemy.dialects.sqlite import dialect
from sqlalchemy.schema import CreateTable

from storage.client_tables import CLIENT_TABLES, ClientBase, Identity
from storage.engine import (
    BEGIN_READ,
    BEGIN_WRITE,
    Statements,
    open_connection,
    retried,
    translate,
)
from storage.errors import SchemaMismatch
from storage.files import OpenFile, create_whole, read_while_quiet
from storage.records import ClientIdentity
from storage.schema import Schema, SchemaVersion, older, read_schema, require_sound, require_version
from storage.sealing import Rows
from storage.working_rows import WorkingRows

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


def migrate(statements: Statements, version: str) -> None:
    """Bring an open store to the newest schema, in the transaction that is open."""
    versions = (FIRST, *STEPS)
    for later in versions[versions.index(version) + 1 :]:
        for statement in STEPS[later]:
            statements.run(statement)
    state_version(statements)


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
            self._migrate()
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
                with self._apart(self._rows):
                    yield
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

    def _migrate(self) -> None:
        with self.transaction(read_only=True) as rows:
            is_newest = version_of(rows.statements) == NEWEST
        if not is_newest:
            with self.transaction(patience=_STAGE_PATIENCE) as rows:
                # Read again under the lock: another process may have been faster.
                migrate(rows.statements, version_of(rows.statements))

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
                self._connection = _connect(self.path, read_only=self._read_only)
                yield
            finally:
                connection, self._connection = self._connection, None
                if connection is not None:
                    connection.close()

    @contextmanager
    def _apart(self, rows: WorkingRows) -> Iterator[None]:
        """Undo all that the block writes, and nothing else, if it raises."""
        self._is_apart = True
        try:
            with rows.undone_together():
                yield
        finally:
            self._is_apart = False

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
    with read_while_quiet(path), closing(_connect(path, read_only=True)) as connection:
        return version_of(Statements(lambda: connection, str(path)))


def insert_identities(rows: Rows, drawn: Mapping[str, ClientIdentity]) -> None:
    """Add stores to a file."""
    fresh = ({"client": c, "enrolment_serial": 0, **asdict(own)} for c, own in drawn.items())
    rows.insert(Identity, *fresh)


def clients_of(rows: Rows) -> Iterable[str]:
    """Return the clients whose stores are in a file."""
    return rows.column(Identity, "client", {})


def _connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    try:
        return open_connection(path, busy_timeout=_BUSY_TIMEOUT, read_only=read_only)
    except sqlite3.Error as error:
        raise translate(error, str(path)) from error


def _undo(statements: Statements) -> None:
    """Undo the rest of a transaction that did not reach its commit."""
    if statements.connect().in_transaction:
        statements.run("ROLLBACK")


def _build(path: Path, *, drawn: Mapping[str, ClientIdentity]) -> None:
    connection = _connect(path, read_only=False)
    try:
        rows = Rows(Statements(lambda: connection, str(path)))
        rows.statements.run(BEGIN_WRITE)
        _make_tables(rows.statements)
        state_version(rows.statements)
        insert_identities(rows, drawn)
        rows.statements.run("COMMIT")
    finally:
        connection.close()


@cache
def _schema() -> Schema:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        statements = Statements(lambda: connection, ":memory:")
        _make_tables(statements)
        return read_schema(statements)


def _make_tables(statements: Statements) -> None:
    for table in ClientBase.metadata.sorted_tables:
        statements.run(str(CreateTable(table).compile(dialect=dialect())))
