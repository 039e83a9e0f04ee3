"""The coordinator's database and its unit of work.

Everything that a round commits goes through one ``UnitOfWork``: either all of it is in the file
afterwards, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from storage import schema
from storage.attempts import AttemptRepository
from storage.audit import AuditRepository
from storage.engine import (
    BEGIN_OPTION,
    BEGIN_READ,
    BEGIN_WRITE,
    checkpoint,
    make_engine,
    prepare_file,
    sqlite_url,
)
from storage.errors import StorageError
from storage.ledger import LedgerRepository
from storage.pool import PoolRepository
from storage.runs import RoundRepository, RunRepository, StateRepository

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
    """

    def __init__(
        self, session: Session, *, now: Callable[[], datetime], commit: Callable[[], None]
    ) -> None:
        """Made by ``Database.unit_of_work`` only."""
        self.runs = RunRepository(session, now)
        self.states = StateRepository(session)
        self.rounds = RoundRepository(session)
        self.attempts = AttemptRepository(session)
        self.ledger = LedgerRepository(session)
        self.pool = PoolRepository(session)
        self.audit = AuditRepository(session, now)
        self._commit = commit

    def commit(self) -> None:
        """Make everything so far durable, then erase old pages; may be called again later.

        Raises:
            StorageFull: Nothing was committed.
            DatabaseBusy: Nothing was committed.
            CheckpointError: *Committed*, but old pages could not be erased yet.
        """
        self._commit()


class Database:
    """An open database of the coordinator; close it when done (it is a context manager)."""

    def __init__(self, engine: Engine, *, now: Callable[[], datetime], busy_timeout: float) -> None:
        """Made by ``open_database`` only."""
        self._engine = engine
        self._now = now
        self._patience = busy_timeout

    @property
    def path(self) -> Path:
        """The database's file."""
        return Path(str(self._engine.url.database))

    @contextmanager
    def unit_of_work(self, *, read_only: bool = False) -> Iterator[UnitOfWork]:
        """A transaction, begun at the first use; leaving without ``commit`` undoes it.

        A writer takes the database's write lock for its whole length, so keep it short.

        Args:
            read_only: Read a consistent snapshot without the lock; ``commit`` is an error.

        Raises:
            DatabaseBusy: Another writer held the lock for too long.
        """
        begin = BEGIN_READ if read_only else BEGIN_WRITE
        with (
            self._engine.connect().execution_options(**{BEGIN_OPTION: begin}) as connection,
            Session(connection, autoflush=True, expire_on_commit=True) as session,
        ):

            def commit() -> None:
                if read_only:
                    raise StorageError("a read-only unit of work cannot be committed")
                session.commit()
                self.checkpoint()

            yield UnitOfWork(session, now=self._now, commit=commit)

    def checkpoint(self) -> None:
        """Empty the write-ahead log, in which deleted rows would live on.

        Raises:
            CheckpointError: A reader was in the way for longer than the busy timeout.
        """
        checkpoint(self._engine, patience=self._patience)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        """The database itself."""
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
) -> Database:
    """Open the coordinator's database, creating or upgrading it where needed.

    Args:
        url: Such as ``sqlite:///runs/sotto.db``; the folder is created.
        now: Tells the time, with a time zone; default is the system's clock.
        busy_timeout: Seconds to wait for other processes.

    Raises:
        InvalidRecordError: The URL does not name an SQLite file.
        SchemaMismatch: The file is something else, or of an unknown (newer) version.
        StorageFull: The disk is full or read-only.
        DatabaseBusy: Another process held it for too long.
    """
    parsed = sqlite_url(url)
    prepare_file(Path(str(parsed.database)))
    engine = make_engine(parsed, busy_timeout=busy_timeout)
    try:
        schema.upgrade(engine)
        # A killed process may have left pages of its unfinished transaction in the log.
        checkpoint(engine, patience=busy_timeout)
    except BaseException:
        engine.dispose()
        raise
    return Database(engine, now=now or _utc_now, busy_timeout=busy_timeout)


def _utc_now() -> datetime:
    return datetime.now(UTC)
