"""Engines over SQLite with the same set-up for every connection, and plain errors.

Sources: SQLite's documentation of `PRAGMA secure_delete`, `wal_checkpoint` and transactions;
SQLAlchemy's notes on pysqlite (the driver must not begin transactions by itself).

`Statements` runs SQL on one open connection. This package writes that SQL itself, column by column:
a query builder would take longer than SQLite.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

from sqlalchemy import Connection, Engine, NullPool, create_engine, event
from sqlalchemy.engine import URL, ExceptionContext
from sqlalchemy.pool import ConnectionPoolEntry

from storage.errors import (
    AlreadyExistsError,
    CheckpointError,
    DatabaseBusy,
    DatabaseDamaged,
    ForeignFile,
    NotFound,
    StorageError,
    StorageFull,
)
from storage.files import INDEX, beside, is_quiet

Found = TypeVar("Found")

# An execution option of ours: how a connection opens its transactions.
BEGIN_OPTION = "sotto_begin"
BEGIN_READ = "BEGIN"
BEGIN_WRITE = "BEGIN IMMEDIATE"
BEGIN_NOTHING = ""

# Where SQLAlchemy keeps a connection's own file.
FILE = "sotto_file"

# Settings of every connection that writes, and of every connection that only reads.
WRITING: Final = (
    "journal_mode=WAL",
    "secure_delete=ON",
    "foreign_keys=ON",
    "synchronous=FULL",
    # Sorting must not spill experts into temporary files, which nobody zeroes.
    "temp_store=MEMORY",
)
READING: Final = ("query_only=ON", "temp_store=MEMORY")

_PAUSE = 0.02
_CLOSING = 1.0
"""Seconds that a writer may take between its two deletions when it closes a database."""

# A full disk also shows as one of these, depending on which file could not grow.
_WRITE_FAILURES = (
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_IOERR_SHMSIZE,
    sqlite3.SQLITE_IOERR_SHMOPEN,
    sqlite3.SQLITE_IOERR_SHMMAP,
)


def make_engine(path: Path, *, busy_timeout: float, read_only: bool = False) -> Engine:
    """Return an engine over one file; `configure_connection` sets up its connections.

    `busy_timeout` is in seconds; a read-only engine writes nothing, not even beside the file.
    """
    # Parameters hold experts and personal state: they must not reach a log or a message.
    if read_only:
        engine = create_engine(
            "sqlite+pysqlite://",
            creator=lambda: _open_read_only(path),
            hide_parameters=True,
            poolclass=NullPool,
        )
    else:
        url = URL.create("sqlite+pysqlite", database=str(path))
        engine = create_engine(url, hide_parameters=True)
    pragmas, where = READING if read_only else WRITING, str(path)

    def connect(connection: sqlite3.Connection, record: ConnectionPoolEntry) -> None:
        record.info[FILE] = where
        try:
            configure_connection(connection, busy_timeout=busy_timeout, pragmas=pragmas)
        except BaseException:
            # No pool holds the connection yet, so it must be closed here.
            connection.close()
            raise

    def begin(connection: Connection) -> None:
        statement = connection.get_execution_options().get(BEGIN_OPTION, BEGIN_WRITE)
        if statement:
            connection.exec_driver_sql(statement)

    def fail(context: ExceptionContext) -> None:
        if isinstance(context.original_exception, (sqlite3.Error, UnicodeDecodeError)):
            raise translate(context.original_exception, where)

    event.listen(engine, "connect", connect)
    event.listen(engine, "begin", begin)
    event.listen(engine, "handle_error", fail)
    return engine


def open_connection(path: Path, *, busy_timeout: float, read_only: bool) -> sqlite3.Connection:
    """Return a connection of its own to a file, set up as those of `make_engine`.

    A driver's error becomes a `StorageError`.
    """
    try:
        connection = (
            _open_read_only(path) if read_only else sqlite3.connect(path, check_same_thread=False)
        )
        try:
            pragmas = READING if read_only else WRITING
            configure_connection(connection, busy_timeout=busy_timeout, pragmas=pragmas)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise translate(error, str(path)) from error
    return connection


def _open_read_only(path: Path) -> sqlite3.Connection:
    """Return a connection that writes neither to the file nor beside it, in any folder.

    If the file has no log, SQLite would make one, unless the caller says that nobody writes to the
    file. If it has a log, SQLite reads the log's index, and would make a missing index.

    Source: SQLite's documentation of URI file names and of read-only WAL databases.

    Raises:
        DatabaseBusy: Its last writer closed it meanwhile, and removed log and index.
        StorageError: It cannot be read without being written to.
    """
    if is_quiet(path):
        return _connect_uri(path, "immutable=1")
    _await_index(path)
    connection = _connect_uri(path, "readonly_shm=1")
    try:
        # The first read opens log and index; from then on no writer removes them.
        connection.execute("PRAGMA schema_version")
    except sqlite3.Error as error:
        connection.close()
        if isinstance(error, sqlite3.OperationalError):
            _await_index(path)
        raise
    return connection


def _await_index(path: Path) -> None:
    """Return once a log has its index beside it.

    The last writer that closes a database deletes the index and then, at once, the log.

    Raises:
        DatabaseBusy: A writer deleted both: everything is in the database's own file now.
        StorageError: The log stays without an index.
    """
    deadline = time.monotonic() + _CLOSING
    while True:
        if is_quiet(path):
            raise DatabaseBusy(
                f"database {path} was closed by a writer while it was opened; try again"
            )
        if beside(path, INDEX).exists():
            return
        if time.monotonic() >= deadline:
            raise StorageError(
                f"database {path} cannot be read alone: beside it lies the write-ahead log of a"
                f" process that was killed, without {path.name}{INDEX}; open it for writing once"
            )
        time.sleep(_PAUSE)


def _connect_uri(path: Path, how: str) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.absolute()))}?mode=ro&{how}"
    return sqlite3.connect(uri, uri=True, check_same_thread=False)


def configure_connection(
    connection: sqlite3.Connection, *, busy_timeout: float, pragmas: Sequence[str] = WRITING
) -> None:
    """Set up a connection, since SQLite remembers only WAL in the file."""
    # The driver must never begin a transaction by itself: its deferred transactions fail at once,
    # without the timeout, when they turn from reading to writing.
    connection.isolation_level = None
    for pragma in (f"busy_timeout={round(busy_timeout * 1000)}", *pragmas):
        connection.execute(f"PRAGMA {pragma}")


def retried(
    work: Callable[[], Found],
    *,
    tries: int = 1,
    patience: float = 0.0,
    after: tuple[type[StorageError], ...] = (DatabaseBusy,),
) -> Found:
    """Do some work again while other processes hinder it, and return its result.

    The work is done at least `tries` times, and again until `patience` seconds have passed; then
    the last error is raised. `after` are the errors after which it is done again.
    """
    deadline, done = time.monotonic() + patience, 0
    while True:
        try:
            return work()
        except after:
            done += 1
            if done >= tries and time.monotonic() >= deadline:
                raise


def translate(error: sqlite3.Error | UnicodeDecodeError, where: str) -> StorageError:
    """Return our error for a driver's error; SQLite's own messages never contain values."""
    code = getattr(error, "sqlite_errorcode", None) or 0
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    primary = code & 0xFF
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return DatabaseBusy(f"database {where} is in use by another process; try again later")
    if primary == sqlite3.SQLITE_FULL or code in _WRITE_FAILURES:
        return StorageFull(f"database {where} cannot grow: the disk or the database is full")
    if primary == sqlite3.SQLITE_READONLY:
        return StorageFull(f"database {where} is read-only")
    if primary == sqlite3.SQLITE_CANTOPEN:
        return StorageError(f"database {where} cannot be opened, or its folder is not writable")
    if primary == sqlite3.SQLITE_NOTADB or "unsupported file format" in str(error):
        return ForeignFile(
            f"file {where} is not an SQLite database; valid: one that this program made"
        )
    if primary == sqlite3.SQLITE_CORRUPT:
        return DatabaseDamaged(f"database {where} is damaged: SQLite says {str(error)!r}")
    if isinstance(error, UnicodeDecodeError) or (not code and "UTF-8" in str(error)):
        # The driver's message quotes the text.
        return DatabaseDamaged(f"database {where} is damaged: a text in it is not UTF-8")
    if code in (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE):
        return AlreadyExistsError(f"the row exists already ({error})")
    if code == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
        return NotFound("the run that this row belongs to does not exist")
    return StorageError(f"database {where} failed: {error} ({name})")


def checkpoint(
    engine: Engine,
    *,
    patience: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Move the write-ahead log into the database file and truncate it to nothing.

    `PRAGMA wal_checkpoint` does not fail when a reader is in its way: it answers with a busy flag.
    So this reads the flag, and repeats the checkpoint until the flag is clear, for `patience`
    seconds. `clock` tells monotonic seconds, and `sleep` waits for some. After a `CheckpointError`
    the commit stands.
    """
    deadline = clock() + patience
    while _is_checkpoint_busy(engine):
        if clock() >= deadline:
            raise _not_erased(engine, "another process reads it")
        sleep(_PAUSE)


def _is_checkpoint_busy(engine: Engine) -> bool:
    with engine.connect().execution_options(**{BEGIN_OPTION: BEGIN_NOTHING}) as connection:
        try:
            row = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()
        except DatabaseBusy:
            return True
        except StorageFull as error:
            raise _not_erased(engine, "the disk is full") from error
    return bool(row[0])


def _not_erased(engine: Engine, reason: str) -> CheckpointError:
    return CheckpointError(
        f"database {engine.url.database} is committed, but {reason}, so deleted rows stay in its"
        " write-ahead log until the next checkpoint"
    )


@dataclass(frozen=True)
class Statements:
    """Runs statements on an open connection; a driver's error becomes a `StorageError`."""

    connect: Callable[[], sqlite3.Connection]
    where: str

    @property
    def page_size(self) -> int:
        """Bytes of a page of the file; nothing may be left in old pages."""
        ((size,),) = self.run("PRAGMA page_size")
        return int(size)

    def run(self, text: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows."""
        try:
            return self.connect().execute(text, values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise translate(error, self.where) from error

    def count(self, text: str, values: Sequence[Any] = ()) -> int:
        """Run a statement, and return the number of changed rows."""
        try:
            return self.connect().execute(text, values).rowcount
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise translate(error, self.where) from error

    def run_many(self, text: str, values: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each list of values."""
        try:
            self.connect().executemany(text, values)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise translate(error, self.where) from error

    def stream(self, text: str, values: Sequence[Any] = ()) -> Generator[tuple[Any, ...]]:
        """Run a statement, and yield its rows one at a time."""
        try:
            yield from self.connect().execute(text, values)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise translate(error, self.where) from error
