"""The coordinator's database and its unit of work.

One `UnitOfWork` commits everything of a round: afterwards either all of it is in the file, or
nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from sqlalchemy.orm import Session

from storage.audit import AuditRepository
from storage.engine import BEGIN_OPTION, BEGIN_READ, BEGIN_WRITE, Statements
from storage.errors import CheckpointError, StorageError
from storage.homes import Home, file_of, open_home, version_at
from storage.leaves import NewLeaves
from storage.ledger import LedgerRepository
from storage.log import LogRepository, verify_log
from storage.pool import PoolRepository
from storage.records import TreeHead
from storage.runs import AttemptRepository, RoundRepository, RunRepository, StateRepository
from storage.schema import newest_schema, require_sound
from storage.sealing import Rows
from storage.tables import SEALED_TABLES

DEFAULT_BUSY_TIMEOUT = 5.0


class UnitOfWork:
    """One transaction over all repositories.

    Attributes:
        runs: The runs.
        states: Server states.
        rounds: Committed rounds.
        attempts: Attempts at rounds, and the stages of the open one.
        ledger: The privacy ledger.
        pool: The expert pool.
        audit: The audit log.
        log: The tree over all events and charges, as it was before this transaction.
    """

    def __init__(
        self,
        session: Session,
        rows: Rows,
        *,
        now: Callable[[], datetime],
        commit: Callable[[], None],
    ) -> None:
        """Made by ``Database.unit_of_work`` only."""
        self.runs = RunRepository(rows, now)
        self.states = StateRepository(rows)
        self.rounds = RoundRepository(rows)
        self.attempts = AttemptRepository(rows)
        self._leaves = NewLeaves(rows.statements)
        self.ledger = LedgerRepository(rows, self._leaves)
        self.pool = PoolRepository(rows)
        self.audit = AuditRepository(session, rows, now, self._leaves)
        self.log = LogRepository(rows)
        self._commit = commit

    def commit(self) -> TreeHead | None:
        """Make everything so far durable, then erase old pages; may be called again later.

        Returns size and root of the log if it has grown, to be kept elsewhere.

        Raises:
            StorageFull: Nothing was committed.
            DatabaseBusy: Nothing was committed.
            DatabaseReplaced: The file was deleted or replaced; the commit is lost with it.
            CheckpointError: *Committed*, but old pages are not erased yet; the error has the head.
        """
        grown = self._leaves.place()
        head = TreeHead(grown, self.log.tree(grown).root()) if grown else None
        try:
            self._commit()
        except CheckpointError as error:
            error.head = head
            raise
        return head


class Database:
    """An open database of the coordinator; close it when done (it is a context manager)."""

    def __init__(self, home: Home, *, now: Callable[[], datetime], is_read_only: bool) -> None:
        """Made by ``open_database`` only."""
        self.is_read_only = is_read_only
        self._home = home
        self._engine = home.engine
        self._now = now

    @property
    def path(self) -> Path:
        """The database's file."""
        return self._home.path

    @contextmanager
    def unit_of_work(self, *, read_only: bool = False) -> Iterator[UnitOfWork]:
        """Yield a transaction, begun at the first use; leaving without `commit` undoes it.

        A writer holds the database's write lock for the whole block, so keep it short. A read-only
        unit reads a consistent snapshot without the lock, and its `commit` is an error. All units
        of a read-only database are read-only.

        Raises:
            DatabaseBusy: Another writer held the lock for too long, or wrote meanwhile to a
                database that was opened read-only.
            DatabaseReplaced: The file was deleted or replaced since it was opened.
        """
        read_only = read_only or self.is_read_only
        with self._session(BEGIN_READ if read_only else BEGIN_WRITE) as session:

            def commit() -> None:
                if read_only:
                    raise StorageError("a read-only unit of work cannot be committed")
                self._home.require_same()
                session.commit()
                self._home.require_same()
                self.checkpoint()

            yield UnitOfWork(session, self._rows(session), now=self._now, commit=commit)

    def verify_integrity(self) -> None:
        """Check all pages, all indices, the schema with its triggers, and every row's digest.

        Opening does the same without the digests, which are checked as rows are read. Missing or
        additional rows do not show here.

        Raises:
            DatabaseDamaged: Names the first thing that is wrong.
            DatabaseReplaced: The file was deleted or replaced since it was opened.
        """
        self.verify_structure()
        for table in SEALED_TABLES:
            last: tuple[Any, ...] | None = ()
            while last is not None:
                # One transaction each: during a transaction no writer can erase old pages.
                with self._reading() as rows:
                    last = rows.verify_page(table, last)

    def verify_structure(self) -> None:
        """Check all pages, all indices, and the schema with its triggers; errors as above."""
        with self._reading() as rows:
            require_sound(rows.statements, newest_schema())

    def verify_log(
        self, heads: Sequence[TreeHead] = (), progress: Callable[[int], None] = lambda _: None
    ) -> TreeHead:
        """Recompute the log from its rows: all leaves, every run's chain, all tiles, all roots.

        See `storage.log.verify_log` for arguments and errors.
        """
        return verify_log(self._reading, heads, progress)

    @contextmanager
    def _reading(self) -> Iterator[Rows]:
        with self._session(BEGIN_READ) as session:
            yield self._rows(session)

    @contextmanager
    def _session(self, begin: str) -> Iterator[Session]:
        with (
            self._home.reading(),
            self._engine.connect().execution_options(**{BEGIN_OPTION: begin}) as connection,
            Session(connection, autoflush=True, expire_on_commit=True) as session,
        ):
            yield session

    def _rows(self, session: Session) -> Rows:
        # Asked each time: a session begins its next transaction when it is used again.
        def connect() -> sqlite3.Connection:
            return cast("sqlite3.Connection", session.connection().connection.driver_connection)

        return Rows(Statements(connect, str(self.path)))

    def checkpoint(self) -> None:
        """Empty a file's write-ahead log, in which deleted rows would live on.

        Raises:
            CheckpointError: A reader was in the way for longer than the busy timeout.
        """
        self._home.checkpoint()

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        """Return the database itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all connections."""
        self.close()


def open_database(
    url: str,
    *,
    now: Callable[[], datetime] | None = None,
    busy_timeout: float = DEFAULT_BUSY_TIMEOUT,
    read_only: bool = False,
) -> Database:
    """Open the coordinator's database and check it; create or upgrade it where needed.

    The folder of a URL such as `sqlite:///runs/sotto.db` is created. `now` tells the time with a
    zone, and `busy_timeout` is in seconds. With `read_only` an existing database of the newest
    schema is opened, and nothing is written, not even beside the file, so that it may lie on a
    read-only medium.

    Raises:
        InvalidRecordError: The URL names no SQLite file.
        NotFound: It is read-only, and there is no file.
        SchemaMismatch: The file is something else, or of an unknown version.
        DatabaseDamaged: The file is empty, cut or broken, or its schema was changed.
        StorageFull: The disk is full or read-only.
        DatabaseBusy: Another process held it for too long.
    """
    home = open_home(file_of(url), busy_timeout=busy_timeout, read_only=read_only)
    try:
        database = Database(home, now=now or _utc_now, is_read_only=read_only)
        database.verify_structure()
    except BaseException:
        home.engine.dispose()
        raise
    return database


def schema_version(url: str) -> str:
    """Return the version of a database's schema, newest or not; see `open_database` for errors."""
    return version_at(file_of(url))


def _utc_now() -> datetime:
    return datetime.now(UTC)
