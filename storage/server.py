"""Engines over a PostgreSQL server whose every connection is set up alike, and plain errors.

Writers take turns, as they do on an SQLite file: each transaction begins by locking one small
table, before it sees anything, so that a chain or a tree never goes on in two ways. A connection
that may write says where the coordinator's files are by an advisory lock that it holds for as long
as it lasts: two places that both write to one database would each sign heads of its log.

Sources: PostgreSQL's documentation of ``LOCK TABLE`` (a lock that comes before the snapshot),
advisory locks, and error codes (appendix A).
"""

from __future__ import annotations

import hashlib
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

from sqlalchemy import Connection, Engine, NullPool, QueuePool, create_engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.pool import ConnectionPoolEntry

from storage.address import Address
from storage.engine import BEGIN_OPTION, BEGIN_READ, BEGIN_WRITE, FILE
from storage.errors import (
    AlreadyExistsError,
    DatabaseBusy,
    DatabaseDamaged,
    DatabaseReplaced,
    InvalidRecordError,
    NotFound,
    SchemaMismatch,
    StorageError,
    StorageFull,
)

MUTEX: Final = "public.alembic_version"
BEGIN_SCHEMA: Final = "BEGIN SCHEMA"
OLDEST_SERVER: Final = 130000

# A number of ours among advisory locks, and the one under which the schema is made.
LOCK_CLASS: Final = 0x507770
_SCHEMA_LOCK: Final = (LOCK_CLASS << 31) | 1
_CONNECT_SECONDS: Final = 10

# Where the schema is made nothing was read before the lock, and all that is read later is new.
_BEGINNINGS: Final = {
    BEGIN_READ: "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    BEGIN_WRITE: (
        f"BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE; LOCK TABLE {MUTEX} IN EXCLUSIVE MODE"
    ),
    BEGIN_SCHEMA: (
        "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;"
        f" SELECT pg_advisory_xact_lock({_SCHEMA_LOCK});"
        f" DO $$ BEGIN IF to_regclass('{MUTEX}') IS NOT NULL THEN"
        f" LOCK TABLE {MUTEX} IN EXCLUSIVE MODE; END IF; END $$"
    ),
}

# What a server, a role or the environment may have set otherwise.
_SETTINGS: Final = (
    "search_path=public,pg_temp",
    "client_encoding=UTF8",
    "extra_float_digits=3",
    "bytea_output=hex",
    "standard_conforming_strings=on",
    "statement_timeout=0",
    "tcp_keepalives_idle=30",
    "tcp_keepalives_interval=10",
    "tcp_keepalives_count=3",
)
_REQUIRED: Final = {
    "fsync": "on",
    "full_page_writes": "on",
    "session_replication_role": "origin",
    "server_encoding": "UTF8",
}
_ASKED: Final = ", ".join(
    f"current_setting('{name}')" for name in (*_REQUIRED, "synchronous_commit")
)
_STATE: Final = (
    f"SELECT {_ASKED}, current_setting('server_version_num')::int, pg_is_in_recovery(),"  # noqa: S608
    " (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_OTHERS: Final = (
    "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database"
    " WHERE locktype = 'advisory' AND datname = current_database() AND classid = %s"
    " AND objsubid = 2 AND objid <> %s"
)

_BUSY: Final = ("55P03", "40001", "40P01", "57P03", "53300")
_FULL: Final = ("53100", "53200", "53400")
_UNSUITABLE: Final = ("22P05", "22021", "22003", "54000")
_DAMAGED: Final = ("XX001", "XX002")


def make_server_engine(address: Address, *, busy_timeout: float, read_only: bool) -> Engine:
    """Return an engine over a server's database.

    Args:
        address: Of a server.
        busy_timeout: Seconds to wait for a lock.
        read_only: Whether nothing may be written.

    Raises:
        InvalidRecordError: The driver is not installed.
    """
    wait = f"lock_timeout={max(1, round(busy_timeout * 1000))}"
    options = " ".join(f"-c {setting}" for setting in (wait, *_SETTINGS))
    try:
        engine = create_engine(
            address.url,
            # Parameters hold experts and states: they must not reach a log or a message.
            hide_parameters=True,
            use_native_hstore=False,
            # Who only reads, a page for days, keeps no connection for it.
            poolclass=NullPool if read_only else QueuePool,
            # A server may have been restarted since a connection was used.
            pool_pre_ping=True,
            connect_args={
                "options": options,
                "connect_timeout": _CONNECT_SECONDS,
                "application_name": "sotto",
            },
        )
    except ModuleNotFoundError as error:
        raise InvalidRecordError(
            f"storage.url names a PostgreSQL server, which needs {error.name}, which is not"
            " installed; valid after `.venv/bin/pip install -e '.[postgres]'` in the checkout"
        ) from error
    return _set_up(engine, address, read_only=read_only)


def _set_up(engine: Engine, address: Address, *, read_only: bool) -> Engine:
    where, known = address.where, _Known()

    def connect(connection: Any, record: ConnectionPoolEntry) -> None:
        record.info[FILE] = where
        # The driver must not begin transactions by itself.
        connection.autocommit = True
        try:
            known.require(connection, where, read_only=read_only)
            if not read_only:
                _claim(connection, address)
        except Exception as error:
            connection.close()
            if is_drivers(error):
                raise translate(error, where) from error
            raise

    def begin(connection: Connection) -> None:
        text = connection.get_execution_options().get(BEGIN_OPTION, BEGIN_WRITE)
        if text:
            begin_on(connection.connection.driver_connection, text, where)

    def fail(context: ExceptionContext) -> None:
        if not context.is_pre_ping and is_drivers(context.original_exception):
            raise translate(context.original_exception, where)

    event.listen(engine, "connect", connect)
    event.listen(engine, "begin", begin)
    event.listen(engine, "handle_error", fail)
    return engine


def begin_on(connection: Any, kind: str, where: str) -> None:
    """Begin a transaction on the driver's own connection.

    Raises:
        DatabaseBusy: Another writer held the lock for too long.
        StorageError: What the driver says, in our words.
    """
    try:
        # Several statements at once cannot be prepared.
        connection.execute(_BEGINNINGS[kind], prepare=False)
    except Exception as error:
        if is_drivers(error):
            raise translate(error, where) from error
        raise


class _Known:
    """What must be the same on every connection of an engine."""

    def __init__(self) -> None:
        self._database: int | None = None

    def require(self, connection: Any, where: str, *, read_only: bool) -> None:
        """Require a server that keeps what it has committed, and the database that it was.

        Raises:
            StorageError: It is set up otherwise.
            StorageFull: It is a standby, and is to be written to.
        """
        *settings, commit, version, is_standby, database = connection.execute(_STATE).fetchone()
        if version < OLDEST_SERVER:
            raise StorageError(
                f"database {where} is on a server of version {version // 10000}; valid:"
                f" {OLDEST_SERVER // 10000} or later"
            )
        for (name, valid), found in zip(_REQUIRED.items(), settings, strict=True):
            if found != valid:
                raise StorageError(
                    f"database {where} is on a server with {name}={found}; valid: {valid}"
                )
        if commit == "off":
            raise StorageError(
                f"database {where} is on a server with synchronous_commit=off, which may lose what"
                " it has committed; valid: on"
            )
        if is_standby and not read_only:
            raise StorageFull(f"database {where} is read-only: its server is a standby")
        if self._database not in (None, database):
            raise DatabaseReplaced(
                f"database {where} was replaced by another while it was open; nothing more is"
                " written"
            )
        self._database = int(database)


def _claim(connection: Any, address: Address) -> None:
    """Hold, as long as the connection lasts, that the coordinator's files are where they are.

    Raises:
        DatabaseBusy: Somebody else's are elsewhere.
    """
    place = _place(address.path.parent)
    # First, as of two that come at once each must find the other.
    connection.execute("SELECT pg_advisory_lock_shared(%s, %s)", (LOCK_CLASS, place))
    ((others,),) = connection.execute(_OTHERS, (LOCK_CLASS, place % (1 << 32))).fetchall()
    if others:
        raise DatabaseBusy(
            f"database {address.where} is being written to from another machine or folder; only"
            " one coordinator's may at a time"
        )


def _place(folder: Path) -> int:
    """Return a number for a folder on this machine, other than those of its copies."""
    facts: list[object] = [socket.gethostname()]
    with suppress(OSError):
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
    with suppress(OSError):
        found = os.stat(folder)
        facts += [found.st_dev, found.st_ino]
    digest = hashlib.sha256(repr(facts).encode()).digest()
    return int.from_bytes(digest[:4], "big", signed=True)


def is_drivers(error: BaseException | None) -> bool:
    """Return whether an error is the driver's, which may not be installed."""
    return any(
        kind.__name__ == "Error" and kind.__module__.partition(".")[0] == "psycopg"
        for kind in type(error).__mro__
    ) or isinstance(error, UnicodeEncodeError)


def translate(error: BaseException, where: str) -> StorageError:
    """Return our error for one of the driver's, whose own messages may contain values."""
    code = getattr(error, "sqlstate", None) or ""
    kind = type(error).__name__
    if code in _BUSY:
        return DatabaseBusy(f"database {where} is in use by another process; try again later")
    if code in _FULL:
        return StorageFull(f"database {where} cannot grow: its server's disk is full")
    if code == "25006":
        return StorageFull(f"database {where} is read-only")
    if code == "23505":
        return AlreadyExistsError(f"the row exists already ({_constraint(error)})")
    if code == "23503":
        return NotFound("the run that this row belongs to does not exist")
    if code in _UNSUITABLE or kind in ("DataError", "UnicodeEncodeError"):
        return InvalidRecordError(f"database {where} cannot hold a value: {kind}")
    if code in _DAMAGED:
        return DatabaseDamaged(f"database {where} is damaged: its server says {code} ({kind})")
    if code == "3D000":
        return NotFound(f"there is no database {where}; its server's administrator makes it")
    if code in ("42P01", "42703"):
        return SchemaMismatch(f"database {where} lacks a table or column of Sotto's")
    if code in ("P0001", "23514"):
        # Of our own triggers and constraints, whose texts hold no value.
        said = _constraint(error) or cast("Any", error).diag.message_primary
        return StorageError(f"database {where} failed: {said} ({code})")
    if code.startswith("28") or code == "42501":
        return StorageError(f"database {where} may not be used so by this user ({kind})")
    if not code and kind == "OperationalError":
        # Of a connection, so it holds no value; the first of its lines says what is wrong.
        said = (str(error).splitlines() or [kind])[0]
        return StorageError(f"the server of database {where} cannot be reached: {said!a}")
    return StorageError(f"database {where} failed: {kind} ({code or 'no code'})")


def _constraint(error: BaseException) -> str | None:
    return cast("str | None", cast("Any", error).diag.constraint_name)
