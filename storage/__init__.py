"""Where Sotto's state lives: the coordinator's database and each client's own store.

Knows tables, transactions, the anonymous expert pool, the privacy ledger and the hash-chained
audit log; does not know what an update or a mask means. Start at ``open_database``,
``open_client_store`` and ``open_client_stores``; ``storage.errors`` draws the tree of errors.
"""

from __future__ import annotations

from storage.client_opening import ClientStores, open_client_store, open_client_stores
from storage.client_store import ClientStore
from storage.database import Database, UnitOfWork, open_database
from storage.errors import (
    AlreadyExistsError,
    AuditChainBroken,
    CheckpointError,
    ClientAheadError,
    DatabaseBusy,
    DatabaseDamaged,
    DatabaseReplaced,
    InvalidRecordError,
    InvalidTransitionError,
    LogBroken,
    NotFound,
    ReleaseRefusedError,
    SchemaMismatch,
    SessionMovedError,
    StorageError,
    StorageFull,
)
from storage.records import (
    AttemptRecord,
    AuditEntry,
    AuditHead,
    ClientIdentity,
    Failure,
    Leaf,
    LedgerRow,
    LedgerStatus,
    PersonalState,
    PoolEntry,
    RoundRecord,
    RunRecord,
    RunStatus,
    SessionRecord,
    StateRecord,
    TreeHead,
)

__all__ = [
    "AlreadyExistsError",
    "AttemptRecord",
    "AuditChainBroken",
    "AuditEntry",
    "AuditHead",
    "CheckpointError",
    "ClientAheadError",
    "ClientIdentity",
    "ClientStore",
    "ClientStores",
    "Database",
    "DatabaseBusy",
    "DatabaseDamaged",
    "DatabaseReplaced",
    "Failure",
    "InvalidRecordError",
    "InvalidTransitionError",
    "Leaf",
    "LedgerRow",
    "LedgerStatus",
    "LogBroken",
    "NotFound",
    "PersonalState",
    "PoolEntry",
    "ReleaseRefusedError",
    "RoundRecord",
    "RunRecord",
    "RunStatus",
    "SchemaMismatch",
    "SessionMovedError",
    "SessionRecord",
    "StateRecord",
    "StorageError",
    "StorageFull",
    "TreeHead",
    "UnitOfWork",
    "open_client_store",
    "open_client_stores",
    "open_database",
]
