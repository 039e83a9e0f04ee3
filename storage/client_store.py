"""One client's own store: who it is, its personal part, session, own ledger, tombstones, receipts.

It belongs to the client alone: in a federation it lies on the client's machine, in a simulation in
the client's folder, never in the coordinator's database. There may be hundreds of stores, so a
connection lives only as long as one call, or as one block of `kept_open`; closing it also empties
the write-ahead log. Each call is a transaction of its own, but for those within `atomically`.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from threading import RLock
from typing import Literal, cast

from sqlalchemy import Connection, delete
from sqlalchemy.orm import Session

from storage._validate import require_bytes, require_count, require_text
from storage.client_files import connected, create_store, require_sound_store
from storage.client_rows import (
    drop_slot,
    equal_to,
    fill_slot,
    identity_row,
    receipts_of,
    slot_of,
)
from storage.client_sessions import ClientSessions
from storage.client_tables import (
    CLIENT_TABLES,
    ClientLedger,
    Failures,
    Identity,
    Receipts,
    Tombstones,
)
from storage.engine import BEGIN_OPTION, BEGIN_READ, BEGIN_WRITE
from storage.errors import (
    AlreadyExistsError,
    ClientAheadError,
    InvalidRecordError,
    ReleaseRefusedError,
)
from storage.files import OpenFile
from storage.ledger import insert_rows, read_rows, require_ledger_row, settle
from storage.records import (
    ClientIdentity,
    Failure,
    LedgerRow,
    LedgerStatus,
    PersonalState,
    Receipt,
)
from storage.sealing import insert_sealed, read_sealed, update_sealed, verify_rows

HANDLE_SECRET_BYTES = 32
_PSEUDONYM_BYTES = 16

Release = Literal["reserved", "resend"]


class ClientStore:
    """An open store; no connection outlives a call or a block, so there is nothing to close.

    Attributes:
        identity: Pseudonym and handle secret.
        sessions: How far the client has come in each run.
    """

    def __init__(self, path: Path, *, read_only: bool) -> None:
        """Made by ``open_client_store`` only."""
        self._file = OpenFile.at(path)
        self._read_only = read_only
        self._connection: Connection | None = None
        self._joint: Session | None = None
        self.sessions = ClientSessions(self._transaction)
        # Two threads may use one store; only one at a time uses its connection.
        self._lock = RLock()
        with self.kept_open():
            self.verify_structure()
            with self._transaction(read_only=True) as session:
                row = identity_row(session)
            self.identity = ClientIdentity(row.pseudonym, row.handle_secret)

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Return one connection for all calls of the block.

        Which spares each the set-up of its own.
        """
        with self._lock:
            if self._connection is not None:
                yield
                return
            try:
                with connected(self._file.path, read_only=self._read_only) as connection:
                    self._connection = connection
                    yield
            finally:
                self._connection = None

    @contextmanager
    def atomically(self) -> Iterator[None]:
        """Return one transaction for all calls of the block.

        All of it is durable afterwards, or none.
        """
        with self._transaction() as session:
            outer, self._joint = self._joint, session
            try:
                yield
            finally:
                self._joint = outer

    def verify_integrity(self) -> None:
        """Check all pages, all indices, the schema, and every row's digest.

        Opening does the same but for the digests, which are checked as rows are read.

        Raises:
            DatabaseDamaged: Naming what is wrong first.
            DatabaseReplaced: The file was deleted or replaced since it was opened.
        """
        with self.kept_open():
            self.verify_structure()
            with self._transaction(read_only=True) as session:
                verify_rows(session, CLIENT_TABLES)

    def verify_structure(self) -> None:
        """Check all pages, all indices, and the schema.

        Raises:
            DatabaseDamaged: Naming what is wrong first.
            DatabaseReplaced: The file was deleted or replaced since it was opened.
        """
        self._file.require_same()
        with self.kept_open():
            require_sound_store(cast("Connection", self._connection), self._file.path)

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
            committed = slot_of(session, run_id, "committed")
            if committed is not None and (round_number, attempt) <= committed[:2]:
                raise InvalidRecordError(
                    f"round {round_number}, attempt {attempt} is not newer than round"
                    f" {committed.round_number}, attempt {committed.attempt}, which is committed"
                )
            state = PersonalState(round_number, attempt, personal, experts)
            fill_slot(session, run_id, "pending", state)

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
            pending = slot_of(session, run_id, "pending")
            committed = slot_of(session, run_id, "committed")
            if committed is not None and committed[:2] > (last_committed or (-1, -1)):
                raise ClientAheadError(
                    f"the client committed round {committed.round_number}, attempt"
                    f" {committed.attempt} of run {run_id!r}, which the coordinator does not know:"
                    " its database is older than the client's"
                )
            if pending is not None and pending[:2] == last_committed:
                fill_slot(session, run_id, "committed", pending)
            drop_slot(session, run_id, "pending")

    def committed(self, run_id: str) -> PersonalState | None:
        """Return the last committed personal part, or None before the first."""
        with self._transaction(read_only=True) as session:
            return slot_of(session, run_id, "committed")

    def pending(self, run_id: str) -> PersonalState | None:
        """Return the personal part that waits for the coordinator's commit, if any."""
        with self._transaction(read_only=True) as session:
            return slot_of(session, run_id, "pending")

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
            tombstones = read_sealed(session, Tombstones, *equal_to(Tombstones, key))
            if not tombstones:
                insert_sealed(session, Tombstones, {**key, "payload_digest": digest})
                insert_rows(session, ClientLedger, [row])
                return "reserved"
            (before,) = tombstones
            ledger = read_rows(session, ClientLedger, equal_to(ClientLedger, key))
            known = [replace(old, status="reserved") for old in ledger]
            if before.payload_digest != digest or known != [row]:
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
        """Return client's own ledger, of one run or of its whole life, in the order of the key."""
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
                for known in receipts_of(session, run_id)
                if (known.round_number, known.attempt) == (round_number, attempt)
            ]
            if not old:
                insert_sealed(session, Receipts, asdict(new))
            elif old != [new]:
                raise AlreadyExistsError(
                    f"another receipt of round {round_number}, attempt {attempt} of run"
                    f" {run_id!r} exists already"
                )

    def receipts(self, run_id: str) -> tuple[Receipt, ...]:
        """Return the run's receipts, by round and attempt."""
        with self._transaction(read_only=True) as session:
            return receipts_of(session, run_id)

    def add_failure(self, run_id: str, round_number: int, attempt: int, *, reason: str) -> None:
        """Remember what went wrong inside the client; of an attempt the last is kept.

        Args:
            run_id: The run.
            round_number: The round.
            attempt: The attempt.
            reason: What kind of failure and where, without data.
        """
        require_text(run_id=run_id, reason=reason)
        require_count(round_number=round_number, attempt=attempt)
        key = {"run_id": run_id, "round_number": round_number, "attempt": attempt}
        with self._transaction() as session:
            session.execute(delete(Failures).filter_by(**key))
            insert_sealed(session, Failures, {**key, "reason": reason})

    def failures(self, run_id: str) -> tuple[Failure, ...]:
        """Return what went wrong inside the client in a run, by round and attempt."""
        order = (Failures.round_number, Failures.attempt)
        with self._transaction(read_only=True) as session:
            rows = read_sealed(session, Failures, Failures.run_id == run_id, order=order)
            return tuple(Failure(run_id, r.round_number, r.attempt, r.reason) for r in rows)

    def remember_serial(self, serial: int) -> None:
        """Remember the newest enrolment file that the client has used.

        Args:
            serial: Of the file that it is about to use.

        Raises:
            InvalidRecordError: If a newer file was used before.
        """
        require_count(serial=serial)
        with self._transaction() as session:
            newest = identity_row(session).enrolment_serial
            if serial < newest:
                raise InvalidRecordError(
                    f"the enrolment file has serial {serial}, but this client has used {newest}"
                    " before; it must be at least that"
                )
            if serial > newest:
                update_sealed(session, Identity, enrolment_serial=serial)

    @contextmanager
    def _transaction(self, *, read_only: bool = False) -> Iterator[Session]:
        """Return a session whose work is durable when the block ends, and undone if it raises."""
        with self._lock:
            if self._joint is not None:
                yield self._joint
                return
            # Before it is opened, as that would make an empty file in place of a lost one.
            self._file.require_same()
            with self.kept_open():
                connection = cast("Connection", self._connection)
                begin = BEGIN_READ if read_only else BEGIN_WRITE
                connection.execution_options(**{BEGIN_OPTION: begin})
                with Session(connection) as session:
                    yield session
                    self._file.require_same()
                    session.commit()
                    # Replaced in between, what was committed is gone, so nobody may count on it.
                    self._file.require_same()


def open_client_store(
    path: Path | str, *, pseudonym: str | None = None, read_only: bool = False
) -> ClientStore:
    """Open a client's store and check it, creating it with a fresh identity where there is none.

    Args:
        path: The file; its folder is created.
        pseudonym: The name that the client must have; default is whatever it has, and 16 random
            bytes in hex for a new one.
        read_only: Open one that exists, and write nothing whatever, not even beside the file.

    Raises:
        InvalidRecordError: The store belongs to another pseudonym.
        NotFound: It is to be read only, and there is none.
        SchemaMismatch: The file is something else, or of an unknown version.
        DatabaseDamaged: The file is empty, cut or broken, or its schema was changed.
        StorageFull: The disk is full or read-only.
    """
    if pseudonym is not None:
        require_text(pseudonym=pseudonym)
    if not read_only:
        name = pseudonym or secrets.token_hex(_PSEUDONYM_BYTES)
        drawn = ClientIdentity(name, secrets.token_bytes(HANDLE_SECRET_BYTES))
        create_store(Path(path), drawn)
    store = ClientStore(Path(path), read_only=read_only)
    if pseudonym not in (None, store.identity.pseudonym):
        raise InvalidRecordError(
            f"pseudonym is {pseudonym!r}, but the store {path} belongs to"
            f" {store.identity.pseudonym!r}"
        )
    return store
