"""Everything that storage raises, as one tree.

    StorageError
    ├── NotFound                 a run, round or row does not exist
    ├── AlreadyExistsError       a row with this key was written before
    ├── InvalidRecordError       a value that may not be stored (also a ``ValueError``)
    ├── InvalidTransitionError   a ledger row may not move to this status
    ├── ReleaseRefusedError      a client was asked for a second release of one attempt
    ├── SessionMovedError        a client answered something else meanwhile
    ├── ClientAheadError         a client's state is newer than the coordinator's
    ├── AuditChainBroken         a row of the audit log was changed, removed, moved or cut off
    ├── LogBroken                a leaf of the log does not fit its row, its tree or a kept head
    ├── DatabaseDamaged          the file or a row of it is not what was written
    ├── DatabaseReplaced         the file was deleted or replaced while it was open
    ├── SchemaMismatch           the file is of an unknown version
    │   └── ForeignFile          the file is not ours
    ├── StorageFull              the disk is full or the file cannot be written to
    ├── DatabaseBusy             another process holds the database
    └── CheckpointError          committed, but old pages could not be erased yet

Messages name fields, runs and files; never the contents of a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage.records import TreeHead


class StorageError(Exception):
    """Root of all errors of this package; also an unexpected failure of the database itself."""


class NotFound(StorageError):
    """The database does not have what the caller asked for."""


class AlreadyExistsError(StorageError):
    """A row with the same key is in the database already; rows are never overwritten."""


class InvalidRecordError(StorageError, ValueError):
    """A value that may not be stored: wrong type, range or form."""


class InvalidTransitionError(StorageError):
    """A ledger row may only move from ``reserved`` to ``released`` or ``aborted``, and once."""


class ReleaseRefusedError(StorageError):
    """A second, different release was asked for under a (run, round, attempt, channel)."""


class SessionMovedError(StorageError):
    """Another process of the same client has answered something since this answer was made."""


class ClientAheadError(StorageError):
    """The client committed an attempt that is newer than the coordinator's newest."""


class AuditChainBroken(StorageError):
    """The entries of the audit log do not match its hashes.

    Attributes:
        run: The run whose chain is broken.
        sequence: The first sequence number that is wrong or missing (the chain starts at 1).
    """

    def __init__(self, run: str, sequence: int, reason: str) -> None:
        """Name the first bad row and the reason."""
        super().__init__(f"the audit log of run {run!r} is broken at entry {sequence}: {reason}")
        self.run = run
        self.sequence = sequence


class LogBroken(StorageError):
    """The log is not the tree of its leaves, or not the tree of a kept head.

    Attributes:
        position: The first leaf that is wrong or missing, counted from 0.
    """

    def __init__(self, position: int, reason: str) -> None:
        """Name the leaf and the reason."""
        super().__init__(f"the log is broken at leaf {position}: {reason}")
        self.position = position


class DatabaseDamaged(StorageError):
    """A file is cut or broken, its schema was changed, or a row does not fit its digest."""


class DatabaseReplaced(StorageError):
    """A database was deleted or replaced while it was open; do nothing more with it."""


class SchemaMismatch(StorageError):
    """The file is not a database of ours, or of a version that we do not know."""


class ForeignFile(SchemaMismatch):
    """The file is of another program, and stays as it is."""


class StorageFull(StorageError):
    """Nothing more can be written: the disk is full or the file is read-only."""


class DatabaseBusy(StorageError):
    """Another connection held the database for longer than the busy timeout."""


class CheckpointError(StorageError):
    """The commit *stands*, but old pages could not be erased.

    A reader was in the way, or the disk is full. Until a later checkpoint succeeds (the next
    commit and the next opening try again), deleted rows may still lie in the write-ahead log.

    Attributes:
        head: Size and root of the log if the commit made it grow, to be kept elsewhere.
    """

    head: TreeHead | None = None


def run_not_found(run_id: str) -> NotFound:
    """Return the error for an unknown run, with the command that lists runs."""
    return NotFound(f"run {run_id!r} does not exist; list the runs with `sotto runs`")
