"""The file of a client's own store: made whole, opened, and checked when it is opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Engine, StaticPool, create_engine
from sqlalchemy.orm import Session

from storage.client_tables import ClientBase, Identity
from storage.engine import BEGIN_OPTION, BEGIN_READ, BEGIN_WRITE, make_shared_engine
from storage.errors import SchemaMismatch
from storage.files import create_whole, read_while_quiet
from storage.integrity import Schema, read_schema, require_sound
from storage.records import ClientIdentity
from storage.sealing import insert_sealed

CLIENT_SCHEMA_VERSION: Final = 4
_BUSY_TIMEOUT: Final = 5.0
_CURRENT: ContextVar[Path] = ContextVar("file of the client store in use")


@contextmanager
def connected(path: Path, *, read_only: bool) -> Iterator[Connection]:
    """Return one connection to a store; closing it empties the write-ahead log."""
    token = _CURRENT.set(path)
    try:
        quiet = read_while_quiet(path) if read_only else nullcontext()
        with quiet, _engine(read_only).connect() as connection:
            yield connection
    finally:
        _CURRENT.reset(token)


def create_store(path: Path, drawn: ClientIdentity) -> None:
    """Make a new store that holds an identity, unless there is a file already.

    Raises:
        StorageFull: The disk is full or may not be written to.
    """
    create_whole(path, partial(_build, drawn=drawn))


def require_sound_store(connection: Connection, path: Path) -> None:
    """Require a store of this version, its pages, indices and schema as written.

    Raises:
        SchemaMismatch: It is something else, or of another version.
        DatabaseDamaged: Naming what is wrong first.
    """
    connection.execution_options(**{BEGIN_OPTION: BEGIN_READ})
    with Session(connection) as session:
        inner = session.connection()
        version = inner.exec_driver_sql("PRAGMA user_version").scalar_one()
        if version != CLIENT_SCHEMA_VERSION:
            raise SchemaMismatch(
                f"file {path} is not a client store of version {CLIENT_SCHEMA_VERSION} (it says"
                f" {version})"
            )
        require_sound(inner, _schema(), path)


def _build(path: Path, *, drawn: ClientIdentity) -> None:
    with connected(path, read_only=False) as connection:
        connection.execution_options(**{BEGIN_OPTION: BEGIN_WRITE})
        with Session(connection) as session:
            inner = session.connection()
            ClientBase.metadata.create_all(inner)
            inner.exec_driver_sql(f"PRAGMA user_version={CLIENT_SCHEMA_VERSION}")
            row = {"slot": "own", "enrolment_serial": 0, **asdict(drawn)}
            insert_sealed(session, Identity, row)
            session.commit()


@cache
def _engine(read_only: bool) -> Engine:
    """Return one engine for all stores of the process.

    There may be thousands, all of one schema.
    """
    return make_shared_engine(_CURRENT.get, busy_timeout=_BUSY_TIMEOUT, read_only=read_only)


@cache
def _schema() -> Schema:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    try:
        with engine.begin() as connection:
            ClientBase.metadata.create_all(connection)
            return read_schema(connection)
    finally:
        engine.dispose()
