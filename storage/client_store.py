"""One client's own store: who it is, its personal part, its own ledger, tombstones, receipts.

It belongs to the client alone: in a federation it lies on the client's machine, in a simulation in
the client's folder, never in the coordinator's database. There may be hundreds of stores, so a
connection lives only as long as one call, or as one block of `kept_open`; closing it also empties
the write-ahead log. Each call is a transaction of its own either way.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Literal, cast

from sqlalchemy import Connection, Engine, delete, insert, inspect, select, update
from sqlalchemy.orm import Session

from storage._validate import require_bytes, require_count, require_text
from storage.client_tables import (
    ClientBase,
    ClientLedger,
    Failures,
    Identity,
    Personal,
    Receipts,
    Tombstones,
)
from storage.engine import BEGIN_OPTION, BEGIN_READ, BEGIN_WRITE, make_shared_engine, prepare_file
from storage.errors import (
    AlreadyExistsError,
    ClientAheadError,
    InvalidRecordError,
    ReleaseRefusedError,
    SchemaMismatch,
)
from storage.ledger import insert_rows, read_rows, require_ledger_row, settle
from storage.records import ClientIdentity, LedgerRow, LedgerStatus, PersonalState, Receipt

CLIENT_SCHEMA_VERSION = 1
HANDLE_SECRET_BYTES = 32
_PSEUDONYM_BYTES = 16
_BUSY_TIMEOUT = 5.0

Release = Literal["reserved", "resend"]

_CURRENT: ContextVar[Path] = ContextVar("file of the client store in use")


class ClientStore:
    """An open store; no connection outlives a call or a block, so there is nothing to close.

    Attributes:
        identity: Pseudonym and handle secret.
    """

    def __init__(self, path: Path, *, drawn: ClientIdentity) -> None:
        """Made by ``open_client_store`` only; ``drawn`` is used where the store is new."""
        self._path = path
        self._connection: Connection | None = None
        # Two threads may use one store; only one at a time uses its connection.
        self._lock = RLock()
        self.identity = self._read_identity() or self._create(drawn)

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """One connection for all calls of the block, which spares each the set-up of its own."""
        with self._lock:
            if self._connection is not None:
                yield
                return
            token = _CURRENT.set(self._path)
            try:
                with _engine().connect() as connection:
                    self._connection = connection
                    yield
            finally:
                self._connection = None
                _CURRENT.reset(token)

    def put_pending(
        self, run_id: str, round_number: int, attempt: int, *, personal: bytes, experts: bytes
    ) -> None:
        """Keep the personal part of an attempt that the coordinator has not committed yet.

        It takes the place of an earlier pending one.

        Args:
            run_id: The run.
            round_number: The round.
            attempt: The attempt.
            personal: The personal part, opaque.
            experts: The experts that it was trained with, opaque.

        Raises:
            InvalidRecordError: The attempt is not newer than the committed one.
        """
        require_text(run_id=run_id)
        require_count(round_number=round_number, attempt=attempt)
        require_bytes(personal=personal, experts=experts)
        with self._transaction() as session:
            committed = _slot(session, run_id, "committed")
            if committed is not None and (round_number, attempt) <= committed[:2]:
                raise InvalidRecordError(
                    f"round {round_number}, attempt {attempt} is not newer than round"
                    f" {committed.round_number}, attempt {committed.attempt}, which is committed"
                )
            _drop_slot(session, run_id, "pending")
            session.execute(
                insert(Personal).values(
                    run_id=run_id,
                    slot="pending",
                    round_number=round_number,
                    attempt=attempt,
                    personal=personal,
                    experts=experts,
                )
            )

    def roll(self, run_id: str, last_committed: tuple[int, int] | None) -> None:
        """Bring the personal part to where the coordinator is; the pending slot is empty after it.

        The coordinator and a client cannot commit in one transaction. So the client keeps two
        states and learns from the next message which of them counts: the pending one if it is
        of ``last_committed`` (forward), else the committed one (back).

        Args:
            run_id: The run.
            last_committed: The newest (round, attempt) that the coordinator committed *and that
                this client's update is part of*; None if there is none.

        Raises:
            ClientAheadError: The client committed something newer, so the coordinator's database
                must be an old copy; nothing changes.
        """
        require_text(run_id=run_id)
        with self._transaction() as session:
            pending = _slot(session, run_id, "pending")
            committed = _slot(session, run_id, "committed")
            if committed is not None and committed[:2] > (last_committed or (-1, -1)):
                raise ClientAheadError(
                    f"the client committed round {committed.round_number}, attempt"
                    f" {committed.attempt} of run {run_id!r}, which the coordinator does not know:"
                    " its database is older than the client's"
                )
            if pending is not None and pending[:2] == last_committed:
                _drop_slot(session, run_id, "committed")
                session.execute(
                    update(Personal).where(Personal.run_id == run_id).values(slot="committed")
                )
            elif pending is not None:
                _drop_slot(session, run_id, "pending")

    def committed(self, run_id: str) -> PersonalState | None:
        """The last committed personal part, or None before the first."""
        with self._transaction(read_only=True) as session:
            return _slot(session, run_id, "committed")

    def pending(self, run_id: str) -> PersonalState | None:
        """The personal part that waits for the coordinator's commit, if any."""
        with self._transaction(read_only=True) as session:
            return _slot(session, run_id, "pending")

    def reserve_release(self, row: LedgerRow, *, payload: bytes) -> Release:
        """Write a release to the client's own ledger, durably; send only after this returns.

        A (run, round, attempt, channel) is good for one payload, ever: sending another would be a
        second release, whatever the coordinator says. The same payload again is a resend and free.

        Args:
            row: What is released, of status ``reserved``.
            payload: The bytes to be sent; only their SHA-256 is kept.

        Returns:
            ``reserved`` for a new release, ``resend`` for the same bytes as before.

        Raises:
            ReleaseRefusedError: Other bytes, or other facts about them, were reserved before.
            InvalidRecordError: The row has a value out of range.
        """
        require_bytes(payload=payload)
        require_ledger_row(row)
        digest = hashlib.sha256(payload).digest()
        key = {
            "run_id": row.run_id,
            "round_number": row.round_number,
            "attempt": row.attempt,
            "channel": row.channel,
        }
        with self._transaction() as session:
            before = session.scalar(select(Tombstones.payload_digest).filter_by(**key))
            if before is None:
                session.execute(insert(Tombstones).values(**key, payload_digest=digest))
                insert_rows(session, ClientLedger, [row])
                return "reserved"
            where = [getattr(ClientLedger, name) == value for name, value in key.items()]
            ledger = read_rows(session, ClientLedger, where)
            if before != digest or [replace(old, status="reserved") for old in ledger] != [row]:
                raise ReleaseRefusedError(
                    f"channel {row.channel!r} of round {row.round_number}, attempt {row.attempt}"
                    f" of run {row.run_id!r} has released something else already; a second"
                    " release needs a new attempt"
                )
        return "resend"

    def set_status(
        self, run_id: str, round_number: int, attempt: int, status: LedgerStatus
    ) -> None:
        """Settle the client's own rows of an attempt as ``released`` or ``aborted``.

        Raises:
            NotFound: Nothing was reserved under this attempt.
            InvalidTransitionError: A row is settled already.
        """
        where = [
            ClientLedger.run_id == run_id,
            ClientLedger.round_number == round_number,
            ClientLedger.attempt == attempt,
        ]
        with self._transaction() as session:
            settle(session, ClientLedger, where, status=status)

    def rows(self, run_id: str | None = None) -> tuple[LedgerRow, ...]:
        """The client's own ledger, of one run or of its whole life, in the order of the key."""
        where = [] if run_id is None else [ClientLedger.run_id == run_id]
        with self._transaction(read_only=True) as session:
            return read_rows(session, ClientLedger, where)

    def add_receipt(self, run_id: str, round_number: int, attempt: int, *, receipt: bytes) -> None:
        """Keep what the coordinator acknowledged.

        Raises:
            AlreadyExistsError: There is a different receipt of this attempt; the same is fine.
        """
        new = Receipt(run_id, round_number, attempt, receipt)
        require_text(run_id=run_id)
        require_count(round_number=round_number, attempt=attempt)
        require_bytes(receipt=receipt)
        with self._transaction() as session:
            old = [
                known
                for known in _receipts(session, run_id)
                if (known.round_number, known.attempt) == (round_number, attempt)
            ]
            if not old:
                session.execute(insert(Receipts).values(**asdict(new)))
            elif old != [new]:
                raise AlreadyExistsError(
                    f"another receipt of round {round_number}, attempt {attempt} of run"
                    f" {run_id!r} exists already"
                )

    def receipts(self, run_id: str) -> tuple[Receipt, ...]:
        """The run's receipts, by round and attempt."""
        with self._transaction(read_only=True) as session:
            return _receipts(session, run_id)

    def add_failure(self, run_id: str, round_number: int, attempt: int, *, reason: str) -> None:
        """Keep why this attempt gave nothing; the last reason counts. It never leaves the client.

        Raises:
            InvalidRecordError: A value is out of range.
        """
        require_text(run_id=run_id, reason=reason)
        require_count(round_number=round_number, attempt=attempt)
        key = {"run_id": run_id, "round_number": round_number, "attempt": attempt}
        with self._transaction() as session:
            session.execute(delete(Failures).filter_by(**key))
            session.execute(insert(Failures).values(**key, reason=reason))

    def failures(self, run_id: str) -> tuple[tuple[int, int, str], ...]:
        """Round, attempt and reason of what failed in a run, in this order."""
        query = select(Failures.round_number, Failures.attempt, Failures.reason).where(
            Failures.run_id == run_id
        )
        ordered = query.order_by(Failures.round_number, Failures.attempt)
        with self._transaction(read_only=True) as session:
            return tuple((row[0], row[1], row[2]) for row in session.execute(ordered))

    @contextmanager
    def _transaction(self, *, read_only: bool = False) -> Iterator[Session]:
        """A session whose work is durable when the block ends, and undone if it raises."""
        begin = BEGIN_READ if read_only else BEGIN_WRITE
        with self.kept_open():
            connection = cast("Connection", self._connection)
            connection.execution_options(**{BEGIN_OPTION: begin})
            with Session(connection) as session:
                yield session
                session.commit()

    def _read_identity(self) -> ClientIdentity | None:
        """The identity, or None where the file is empty."""
        with self._transaction(read_only=True) as session:
            return _identity(session, self._path)

    def _create(self, drawn: ClientIdentity) -> ClientIdentity:
        with self._transaction() as session:
            # Asked again under the write lock: another process may have been faster.
            known = _identity(session, self._path)
            if known is not None:
                return known
            connection = session.connection()
            ClientBase.metadata.create_all(connection)
            connection.exec_driver_sql(f"PRAGMA user_version={CLIENT_SCHEMA_VERSION}")
            session.execute(insert(Identity).values(slot="own", **asdict(drawn)))
        return drawn


def open_client_store(path: Path | str, *, pseudonym: str | None = None) -> ClientStore:
    """Open a client's store, creating it with a fresh identity where it does not exist.

    Args:
        path: The file; its folder is created.
        pseudonym: The name that the client must have; default is whatever it has, and 16 random
            bytes in hex for a new one.

    Raises:
        InvalidRecordError: The store belongs to another pseudonym.
        SchemaMismatch: The file is something else, or of an unknown (newer) version.
        StorageFull: The disk is full or read-only.
    """
    if pseudonym is not None:
        require_text(pseudonym=pseudonym)
    drawn = ClientIdentity(
        pseudonym or secrets.token_hex(_PSEUDONYM_BYTES), secrets.token_bytes(HANDLE_SECRET_BYTES)
    )
    prepare_file(Path(path))
    store = ClientStore(Path(path), drawn=drawn)
    if pseudonym not in (None, store.identity.pseudonym):
        raise InvalidRecordError(
            f"pseudonym is {pseudonym!r}, but the store {path} belongs to"
            f" {store.identity.pseudonym!r}"
        )
    return store


@lru_cache(maxsize=1)
def _engine() -> Engine:
    """One engine for all stores of the process: there may be thousands, all of one schema."""
    return make_shared_engine(_CURRENT.get, busy_timeout=_BUSY_TIMEOUT)


def _identity(session: Session, path: Path) -> ClientIdentity | None:
    """The identity, or None where the file is empty.

    Raises:
        SchemaMismatch: There is something in the file that is not ours.
    """
    connection = session.connection()
    version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    if version == 0 and not inspect(connection).get_table_names():
        return None
    if version != CLIENT_SCHEMA_VERSION:
        raise SchemaMismatch(
            f"file {path} is not a client store of version"
            f" {CLIENT_SCHEMA_VERSION} (it says {version})"
        )
    row = session.execute(select(Identity.pseudonym, Identity.handle_secret)).one()
    return ClientIdentity(row[0], row[1])


def _slot(session: Session, run_id: str, slot: str) -> PersonalState | None:
    query = select(
        Personal.round_number, Personal.attempt, Personal.personal, Personal.experts
    ).where(Personal.run_id == run_id, Personal.slot == slot)
    row = session.execute(query).one_or_none()
    return None if row is None else PersonalState(*row)


def _drop_slot(session: Session, run_id: str, slot: str) -> None:
    session.execute(delete(Personal).where(Personal.run_id == run_id, Personal.slot == slot))


def _receipts(session: Session, run_id: str) -> tuple[Receipt, ...]:
    query = select(
        Receipts.run_id, Receipts.round_number, Receipts.attempt, Receipts.receipt
    ).where(Receipts.run_id == run_id)
    ordered = query.order_by(Receipts.round_number, Receipts.attempt)
    return tuple(Receipt(*row) for row in session.execute(ordered))
