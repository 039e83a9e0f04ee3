"""What a database rests on: an SQLite file, or a PostgreSQL server; all else treats them alike."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import Connection, Engine

from storage import schema
from storage.address import Address
from storage.engine import BEGIN_OPTION, BEGIN_READ, checkpoint, make_engine
from storage.errors import NotFound, StorageError
from storage.files import OpenFile, create_whole, read_while_quiet, require_contents, stamp_of
from storage.integrity import require_schema, require_sound
from storage.server import make_server_engine
from storage.server_schema import newest_server_schema, read_server_schema
from storage.server_statements import statements_on
from storage.statements import Statements


class Home(Protocol):
    """Where a database is, open.

    Attributes:
        address: Where.
        engine: Its connections.
    """

    address: Address
    engine: Engine

    def reading(self) -> AbstractContextManager[None]:
        """Return block in which a transaction may be held."""

    def require_whole(self, connect: Callable[[], Connection]) -> None:
        """Require that a transaction can be committed as a whole."""

    def require_kept(self) -> None:
        """Require that what was committed is there."""

    def checkpoint(self) -> None:
        """Erase what was deleted, where that is ours to do."""

    def verify_structure(self, statements: Statements) -> None:
        """Check the schema with its triggers, and all else but rows."""

    def stamp(self) -> str:
        """Return a text that is another one whenever something was written."""


class InFile:
    """A database in an SQLite file.

    Attributes:
        address: Where.
        engine: Its connections.
    """

    def __init__(
        self, address: Address, engine: Engine, *, busy_timeout: float, read_only: bool
    ) -> None:
        """Look for the file.

        Raises:
            NotFound: There is none.
            DatabaseDamaged: It is empty.
        """
        self.address = address
        self.engine = engine
        self._file = OpenFile.at(address.path)
        self._patience = busy_timeout
        self._read_only = read_only

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Return block in which a transaction may be held.

        Raises:
            DatabaseReplaced: The file was deleted or replaced since it was opened.
            DatabaseBusy: It was opened read-only, and was written to meanwhile.
        """
        self._file.require_same()
        with read_while_quiet(self.address.path) if self._read_only else nullcontext():
            yield

    def require_whole(self, connect: Callable[[], Connection]) -> None:
        """Require that the file is where it was.

        Raises:
            DatabaseReplaced: It was deleted or replaced.
        """
        self._file.require_same()

    def require_kept(self) -> None:
        """Require that the file is where it was: else what was committed is gone with it.

        Raises:
            DatabaseReplaced: It was deleted or replaced.
        """
        self._file.require_same()

    def checkpoint(self) -> None:
        """Empty the write-ahead log, in which deleted rows would live on.

        Raises:
            CheckpointError: A reader was in the way for longer than the busy timeout.
        """
        checkpoint(self.engine, patience=self._patience)

    def verify_structure(self, statements: Statements) -> None:
        """Check all pages, all indices, and the schema with its triggers.

        Raises:
            DatabaseDamaged: Naming what is wrong first.
        """
        require_sound(statements, schema.newest_schema())

    def stamp(self) -> str:
        """Return a text that is another one whenever something was written."""
        return stamp_of(self.address.path)


class OnServer:
    """A database on a PostgreSQL server.

    Attributes:
        address: Where.
        engine: Its connections.
    """

    def __init__(self, address: Address, engine: Engine) -> None:
        """Nothing is asked of the server yet."""
        self.address = address
        self.engine = engine

    def reading(self) -> AbstractContextManager[None]:
        """Return block in which a transaction may be held: a server keeps its own order."""
        return nullcontext()

    def require_whole(self, connect: Callable[[], Connection]) -> None:
        """Require that no statement of a transaction failed.

        A server undoes the whole transaction then, and answers a commit as if nothing were wrong.

        Raises:
            StorageError: One did.
        """
        raw: Any = connect().connection.driver_connection
        if raw.info.transaction_status.name not in ("INTRANS", "IDLE"):
            raise StorageError(
                f"database {self.address.where}: a statement failed, so nothing is committed"
            )

    def require_kept(self) -> None:
        """Do nothing: no connection outlives its database."""

    def checkpoint(self) -> None:
        """Do nothing: what becomes of old rows is the server's."""

    def verify_structure(self, statements: Statements) -> None:
        """Check the schema with its triggers; pages and indices are the server's own to check.

        Raises:
            DatabaseDamaged: Naming what is wrong first.
        """
        where, found = self.address.where, read_server_schema(statements)
        require_schema(where, found, newest_server_schema())

    def stamp(self) -> str:
        """Return a text that is another one whenever runs, or the log over all events, changed."""
        with self.engine.connect().execution_options(**{BEGIN_OPTION: BEGIN_READ}) as connection:
            ask = statements_on(connection, self.address.where)
            size = ask.run("SELECT max(position) FROM leaves")
            told = [size, ask.run("SELECT run_id, digest FROM runs ORDER BY run_id")]
        return hashlib.sha256(repr(told).encode()).hexdigest()


def open_home(address: Address, *, busy_timeout: float, read_only: bool) -> Home:
    """Open where a database is, making or upgrading what is there.

    Raises:
        NotFound: It is to be read only, and there is none; or a server has none of its name.
        SchemaMismatch: It is something else, or of an unknown version.
        StorageError: It cannot be opened.
    """
    if address.is_server:
        return _open_server(address, busy_timeout=busy_timeout, read_only=read_only)
    return _open_file(address, busy_timeout=busy_timeout, read_only=read_only)


def exists(address: Address) -> bool:
    """Return whether there is a database, of whatever version.

    Raises:
        SchemaMismatch: A server's database is another program's, or of an unknown version.
        StorageError: The server cannot be reached.
    """
    return version_at(address) is not None if address.is_server else address.path.is_file()


def version_at(address: Address) -> str | None:
    """Return the version of the schema that is there; None on a server where there is none.

    Raises:
        NotFound: There is no such file, or no database of this name on the server.
        SchemaMismatch: It is something else, or of an unknown version.
    """
    if address.is_server:
        engine = make_server_engine(address, busy_timeout=_PATIENCE, read_only=True)
        try:
            return schema.found_version(engine)
        finally:
            engine.dispose()
    require_contents(address.path)
    engine = make_engine(address.url, busy_timeout=_PATIENCE, read_only=True)
    try:
        with read_while_quiet(address.path):
            return schema.version_of(engine)
    finally:
        engine.dispose()


_PATIENCE = 5.0


def _open_file(address: Address, *, busy_timeout: float, read_only: bool) -> InFile:
    path = address.path
    if not read_only:
        create_whole(path, partial(_build, address))
    require_contents(path)
    engine = make_engine(address.url, busy_timeout=busy_timeout, read_only=read_only)
    try:
        home = InFile(address, engine, busy_timeout=busy_timeout, read_only=read_only)
        if read_only:
            with read_while_quiet(path):
                schema.require_newest(engine)
        else:
            schema.upgrade(engine)
            # A killed process may have left pages of its unfinished transaction in the log.
            home.checkpoint()
    except BaseException:
        engine.dispose()
        raise
    return home


def _open_server(address: Address, *, busy_timeout: float, read_only: bool) -> OnServer:
    engine = make_server_engine(address, busy_timeout=busy_timeout, read_only=read_only)
    try:
        if not read_only:
            schema.upgrade_server(engine)
        elif schema.found_version(engine) is None:
            raise NotFound(f"there is no database of Sotto at {address.where}")
        else:
            schema.require_newest(engine)
    except BaseException:
        engine.dispose()
        raise
    return OnServer(address, engine)


def _build(address: Address, path: Path) -> None:
    engine = make_engine(address.url.set(database=str(path)), busy_timeout=_PATIENCE)
    try:
        schema.create(engine)
    finally:
        engine.dispose()
