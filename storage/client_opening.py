"""Opening clients' stores: one client's own file, or the file of all clients of a simulation."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from storage._validate import require_text
from storage.client_files import ClientFile, clients_of, create_file, insert_identities
from storage.client_store import ClientStore
from storage.errors import InvalidRecordError
from storage.records import ClientIdentity

HANDLE_SECRET_BYTES = 32
OWN: Final = "own"
"""The name of the store in a file that holds no other."""
_PSEUDONYM_BYTES = 16


def open_client_store(
    path: Path | str, *, pseudonym: str | None = None, read_only: bool = False
) -> ClientStore:
    """Open a client's store and check it, creating it with a fresh identity where there is none.

    Args:
        path: The file, which holds no other store; its folder is created.
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
        create_file(Path(path), {OWN: _drawn(pseudonym)})
    store = ClientStore(ClientFile(Path(path), read_only=read_only), OWN)
    if pseudonym not in (None, store.identity.pseudonym):
        raise InvalidRecordError(
            f"pseudonym is {pseudonym!r}, but the store {path} belongs to"
            f" {store.identity.pseudonym!r}"
        )
    return store


class ClientStores:
    """The stores of all clients of a simulation, in one file.

    Attributes:
        stores: By client, in the order of the names.
    """

    def __init__(self, file: ClientFile) -> None:
        """Made by ``open_client_stores`` only."""
        self._file = file
        with file.transaction(read_only=True) as rows:
            self.stores = {client: ClientStore(file, client) for client in clients_of(rows)}

    def stage(self, clients: Sequence[str] = ()) -> AbstractContextManager[None]:
        """Make all that clients write in the block durable together, when it ends.

        Within it each `ClientStore.kept_open` is undone as a whole where it raises.

        Args:
            clients: Who will ask alike in it, so that it is read for all at once.

        Raises:
            DatabaseBusy: Another process wrote to the file all the time.
            DatabaseReplaced: The file was deleted or replaced; nothing that was written counts.
            StorageFull: Nothing was written.
        """
        return self._file.stage(clients)

    def kept_open(self) -> AbstractContextManager[None]:
        """Keep one connection for all calls of the block."""
        return self._file.kept_open()

    def erase_run(self, run_id: str) -> None:
        """Erase all of a run in every store but what was spent in it; see `ClientStore.erase_run`.

        Raises:
            DatabaseBusy: Another process is at work in the file; what was erased stays so.
        """
        with self.stage(tuple(self.stores)):
            for store in self.stores.values():
                store.forget_run(run_id)
        self._file.compact()

    def verify_integrity(self) -> None:
        """Check all pages, all indices, the schema, and every row's digest.

        Raises:
            DatabaseDamaged: Naming what is wrong first.
            DatabaseReplaced: The file was deleted or replaced since it was opened.
        """
        self._file.verify_integrity()


def open_client_stores(
    path: Path | str, clients: Sequence[str] = (), *, read_only: bool = False
) -> ClientStores:
    """Open a file with the stores of several clients and check it.

    Args:
        path: The file; its folder is created.
        clients: Whose stores there must be: those that are missing are made, each with a fresh
            identity.
        read_only: Open one that exists, and write nothing whatever, not even beside the file.

    Raises:
        NotFound: It is to be read only, and there is none.
        SchemaMismatch: The file is something else, or of an unknown version.
        DatabaseDamaged: The file is empty, cut or broken, or its schema was changed.
        StorageFull: The disk is full or read-only.
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
