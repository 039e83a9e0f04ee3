"""One client's own store: its identity, personal part, sessions, own ledger and tombstones.

The store belongs to the client alone: in a federation it lies on the client's machine, in a
simulation in a file of all clients, never in the coordinator's database. Each call is a transaction
of its own, except within `atomically` and within a stage (`storage.client_files`).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

from storage._validate import require_bytes, require_count, require_text
from storage.client_files import ClientFile, clients_of, create_file, insert_identities
from storage.client_rows import (
    ClientReceipts,
    ClientRestoring,
    ClientSessions,
    OwnRows,
    fill_slot,
    identity_row,
    release_key,
    slots_of,
)
from storage.client_tables import (
    ClientLedger,
    Failures,
    Identity,
    Noise,
    Personal,
    Replies,
    Sessions,
    Tombstones,
)
from storage.errors import (
    AlreadyExistsError,
    ClientAheadError,
    InvalidRecordError,
    ReleaseRefusedError,
)
from storage.ledger import add_rows, read_rows, require_ledger_row, settle, settle_open
from storage.records import ClientIdentity, Failure, LedgerRow, LedgerStatus, PersonalState

Release = Literal["reserved", "resend"]


class ClientStore:
    """One client's part of an open file, without access to other clients' parts.

    Attributes:
        identity: Pseudonym and handle secret.
        sessions: The client's progress in each run.
        restoring: Whether the store came back from a backup.
        receipts: The coordinator's log about the client.
    """

    def __init__(self, file: ClientFile, client: str) -> None:
        """Made by ``open_client_store`` and ``open_client_stores`` only."""
        self._file = file
        self._client = client
        self.sessions = ClientSessions(self._transaction)
        self.restoring = ClientRestoring(self._transaction)
        self.receipts = ClientReceipts(self._transaction)
        with self._transaction(read_only=True) as rows:
            row = identity_row(rows)
        self.identity = ClientIdentity(row.pseudonym, row.handle_secret)

    def kept_open(self) -> AbstractContextManager[None]:
        """Keep one connection for all calls of the block; in a stage, undo them together."""
        return self._file.kept_open()

    @contextmanager
    def atomically(self) -> Iterator[None]:
        """Make all calls of the block durable together; undo all if the block raises."""
        with self._transaction():
            yield

    def verify_integrity(self) -> None:
        """Check all of the store's file, and every row's digest; see `ClientFile`."""
        self._file.verify_integrity()

    def put_pending(
        self, run_id: str, round_number: int, attempt: int, *, personal: bytes, experts: bytes
    ) -> None:
        """Keep the personal part of an attempt that the coordinator has not committed yet.

        It replaces an earlier pending part. `personal` and `experts` are opaque; the personal part
        was trained with these experts.

        Raises:
            InvalidRecordError: The attempt is not newer than the committed one.
        """
        require_text(run_id=run_id)
        require_count(round_number=round_number, attempt=attempt)
        require_bytes(personal=personal, experts=experts)
        with self._transaction() as rows:
            committed = slots_of(rows, run_id).get("committed")
            if committed is not None and (round_number, attempt) <= committed[:2]:
                raise InvalidRecordError(
                    f"round {round_number}, attempt {attempt} is not newer than round"
                    f" {committed.round_number}, attempt {committed.attempt}, which is committed"
                )
            state = PersonalState(round_number, attempt, personal, experts)
            fill_slot(rows, run_id, "pending", state)

    def roll(self, run_id: str, last_committed: tuple[int, int] | None) -> None:
        """Bring the personal part to the coordinator's state; the pending slot is empty after it.

        The coordinator and a client cannot commit in one transaction. So the client keeps two
        states and learns from the next message which of them counts: the pending state if it is
        of `last_committed` (forward), else the committed one (back).

        `last_committed` is the newest (round, attempt) that the coordinator committed *with this
        client's update*; None if there is none.

        Raises:
            ClientAheadError: The client committed something newer, so the coordinator's database
                must be an old copy; nothing changes.
        """
        require_text(run_id=run_id)
        with self._transaction() as rows:
            slots = slots_of(rows, run_id)
            pending, committed = slots.get("pending"), slots.get("committed")
            if committed is not None and committed[:2] > (last_committed or (-1, -1)):
                raise ClientAheadError(
                    f"the client committed round {committed.round_number}, attempt"
                    f" {committed.attempt} of run {run_id!r}, which the coordinator does not know:"
                    " its database is older than the client's"
                )
            if pending is not None and pending[:2] == last_committed:
                fill_slot(rows, run_id, "committed", pending)
            if pending is not None:
                rows.delete(Personal, {"run_id": run_id, "slot": "pending"})

    def slots(self, run_id: str) -> tuple[PersonalState | None, PersonalState | None]:
        """Return the committed and the pending personal part, None for a missing part."""
        with self._transaction(read_only=True) as rows:
            found = slots_of(rows, run_id)
        return found.get("committed"), found.get("pending")

    def put_noise(self, run_id: str, state: bytes) -> None:
        """Keep the state from which the noise of the run's next attempt continues.

        Unlike the personal part, it does not depend on a commit: noise is never drawn twice.
        """
        require_text(run_id=run_id)
        require_bytes(state=state)
        with self._transaction() as rows:
            rows.put(Noise, {"run_id": run_id, "state": state})

    def noise(self, run_id: str) -> bytes:
        """Return the state from which the run's noise continues, empty before the first attempt."""
        with self._transaction(read_only=True) as rows:
            found = rows.read(Noise, {"run_id": run_id})
        return found[0].state if found else b""

    def reserve_release(self, row: LedgerRow, *, payload: bytes) -> Release:
        """Write a release to the client's own ledger, durably; send only after this returns.

        A (run, round, attempt, channel) allows one payload, ever: another payload would be a second
        release, even if the coordinator asks for it. Sending the same payload again costs nothing.

        The row has the status `reserved`. The store keeps only SHA-256 of the payload, the bytes to
        be sent.

        Returns:
            `reserved` for a new release, `resend` for the same bytes as before.

        Raises:
            ReleaseRefusedError: Other bytes, or other facts about them, were reserved before.
            InvalidRecordError: The row has a value out of range.
        """
        require_bytes(payload=payload)
        require_ledger_row(row)
        require_text(noise_kind=row.noise_kind)
        digest = hashlib.sha256(payload).digest()
        key = release_key(row)
        with self._transaction() as rows:
            # The table's key refuses a second tombstone; that is rare, so there is no read before.
            try:
                rows.insert(Tombstones, {**key, "payload_digest": digest})
            except AlreadyExistsError:
                (before,) = rows.read(Tombstones, key)
            else:
                # The table's key refuses a row without its tombstone.
                add_rows(rows, ClientLedger, [row])
                return "reserved"
            ledger = read_rows(rows, ClientLedger, key)
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
        where = {"run_id": run_id, "round_number": round_number, "attempt": attempt}
        with self._transaction() as rows:
            settle(rows, ClientLedger, where, status=status)

    def release(self, run_id: str, round_number: int, attempt: int) -> None:
        """Settle as `released` all rows of an attempt that are still reserved, if any."""
        where = {"run_id": run_id, "round_number": round_number, "attempt": attempt}
        with self._transaction() as rows:
            settle_open(rows, ClientLedger, where, status="released")

    def rows(
        self,
        run_id: str | None = None,
        attempt: tuple[int, int] | None = None,
        *,
        round_number: int | None = None,
    ) -> tuple[LedgerRow, ...]:
        """Return the client's own ledger in the order of the key.

        All of the client's life by default, or a run's, a round's, or a (round, attempt)'s rows.
        """
        where: dict[str, object] = {} if run_id is None else {"run_id": run_id}
        if attempt is not None:
            where |= {"round_number": attempt[0], "attempt": attempt[1]}
        elif round_number is not None:
            where["round_number"] = round_number
        with self._transaction(read_only=True) as rows:
            return read_rows(rows, ClientLedger, where)

    def add_failure(self, run_id: str, round_number: int, attempt: int, *, reason: str) -> None:
        """Remember a failure inside the client, without data; keeps an attempt's last failure."""
        require_text(run_id=run_id, reason=reason)
        require_count(round_number=round_number, attempt=attempt)
        key = {"run_id": run_id, "round_number": round_number, "attempt": attempt}
        with self._transaction() as rows:
            rows.delete(Failures, key)
            rows.insert(Failures, {**key, "reason": reason})

    def failures(self, run_id: str) -> tuple[Failure, ...]:
        """Return the failures inside the client in a run, by round and attempt."""
        order = ("round_number", "attempt")
        with self._transaction(read_only=True) as rows:
            found = rows.read(Failures, {"run_id": run_id}, order=order)
        return tuple(Failure(run_id, r.round_number, r.attempt, r.reason) for r in found)

    def erase_run(self, run_id: str) -> None:
        """Erase all of a run except its charges and the client's last attempt.

        The charges stay for the client's life, and the number of its last attempt keeps it from
        answering an attempt twice. Old pages are given back as well: when SQLite splits a page, it
        leaves copies that `secure_delete` does not fill with zeros. An unknown run erases nothing.

        Raises:
            DatabaseBusy: Another process uses the store; the erased rows stay erased.
        """
        self.forget_run(run_id)
        self._file.compact()

    def forget_run(self, run_id: str) -> None:
        """Erase the same rows; the caller must give back old pages."""
        require_text(run_id=run_id)
        with self._transaction() as rows:
            for table in (Personal, Noise, Replies, Failures, Tombstones):
                rows.delete(table, {"run_id": run_id})
            rows.update(Sessions, {"run_id": run_id}, state=b"")

    def remember_serial(self, serial: int) -> None:
        """Remember an enrolment file's serial; `InvalidRecordError` if a newer one was used."""
        require_count(serial=serial)
        with self._transaction() as rows:
            newest = identity_row(rows).enrolment_serial
            if serial < newest:
                raise InvalidRecordError(
                    f"the enrolment file has serial {serial}, but this client has used {newest}"
                    " before; it must be at least that"
                )
            if serial > newest:
                rows.update(Identity, {}, enrolment_serial=serial)

    def _transaction(self, *, read_only: bool = False) -> AbstractContextManager[OwnRows]:
        """Return rows whose changes are durable when the block ends, and undone if it raises."""
        joined = self._file.joined(read_only=read_only)
        if joined is not None:
            return nullcontext(OwnRows(joined, self._client))
        return self._own_transaction(read_only=read_only)

    @contextmanager
    def _own_transaction(self, *, read_only: bool) -> Iterator[OwnRows]:
        with self._file.transaction(read_only=read_only) as rows:
            yield OwnRows(rows, self._client)


HANDLE_SECRET_BYTES = 32
OWN: Final = "own"
"""Name of the store in a file that holds no other."""
_PSEUDONYM_BYTES = 16


def open_client_store(
    path: Path | str, *, pseudonym: str | None = None, read_only: bool = False
) -> ClientStore:
    """Open a client's store and check it; without a file, make it with a fresh identity.

    The file holds no other store; its folder is created. A new store gets the pseudonym, by default
    16 random bytes in hex; an existing store must have it. With `read_only` an existing store is
    opened, and nothing is written, not even beside the file.

    Raises:
        InvalidRecordError: The store belongs to another pseudonym.
        NotFound: It is read-only, and there is no file.
        SchemaMismatch: The file is not a store, or of an unknown version.
        DatabaseDamaged: The file is empty, cut or broken, or its schema was changed.
        StorageFull: The disk is full or read-only.
    """
    if pseudonym is not None:
        require_text(pseudonym=pseudonym)
    if not read_only:
        create_file(Path(path), {OWN: _drawn(pseudonym)})
    store = ClientStore(ClientFile(Path(path), read_only=read_only), OWN)
    if pseudonym not in (None, store.identity.pseudonym):
        raise InvalidRecordError(
            f"pseudonym is {pseudonym!r}, but the store {path} belongs to"
            f" {store.identity.pseudonym!r}"
        )
    return store


class ClientStores:
    """The stores of all clients of a simulation, in one file, by client in order of names."""

    def __init__(self, file: ClientFile) -> None:
        """Made by ``open_client_stores`` only."""
        self._file = file
        with file.transaction(read_only=True) as rows:
            self.stores = {client: ClientStore(file, client) for client in clients_of(rows)}

    def stage(self, clients: Sequence[str] = ()) -> AbstractContextManager[None]:
        """Make all writes of clients in the block durable together; see `ClientFile.stage`.

        Within it a `ClientStore.kept_open` that raises is undone as a whole.
        """
        return self._file.stage(clients)

    def kept_open(self) -> AbstractContextManager[None]:
        """Keep one connection for all calls of the block."""
        return self._file.kept_open()

    def erase_run(self, run_id: str) -> None:
        """Erase all of a run in every store except its charges; see `ClientStore.erase_run`."""
        with self.stage(tuple(self.stores)):
            for store in self.stores.values():
                store.forget_run(run_id)
        self._file.compact()

    def verify_integrity(self) -> None:
        """Check all pages, all indices, the schema, and every row's digest; see `ClientFile`."""
        self._file.verify_integrity()


def open_client_stores(
    path: Path | str, clients: Sequence[str] = (), *, read_only: bool = False
) -> ClientStores:
    """Open a file with the stores of several clients and check it.

    The stores of `clients` that are missing are made, each with a fresh identity. For `read_only`
    and the errors see `open_client_store`.
    """
    if not read_only:
        create_file(Path(path), {client: _drawn(None) for client in clients})
    file = ClientFile(Path(path), read_only=read_only)
    with file.transaction(read_only=True) as rows:
        missing = set(clients) - set(clients_of(rows))
    if missing and not read_only:
        with file.transaction() as rows:
            known = set(clients_of(rows))
            insert_identities(rows, {c: _drawn(None) for c in sorted(missing - known)})
    return ClientStores(file)


def _drawn(pseudonym: str | None) -> ClientIdentity:
    name = pseudonym or secrets.token_hex(_PSEUDONYM_BYTES)
    return ClientIdentity(name, secrets.token_bytes(HANDLE_SECRET_BYTES))
