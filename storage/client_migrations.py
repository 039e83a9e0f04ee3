"""Steps of the schema of clients' stores: what each version changed, never edited once it was kept.

A store says its version as ``PRAGMA user_version``. The statements stand here as they were, not as
the tables of today would make them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from storage.errors import SchemaMismatch
from storage.statements import Statements
from storage.versions import SchemaVersion, require_version

FIRST: Final = "0.1.0"
STEPS: Final[Mapping[str, Sequence[str]]] = {
    # A store that came back from a backup says so.
    "0.2.0": (
        "CREATE TABLE restored ( client TEXT NOT NULL, restored TEXT NOT NULL,"
        " caught_up TEXT NOT NULL, digest BLOB NOT NULL,"
        " CONSTRAINT pk_restored PRIMARY KEY (client) )",
    ),
    # A client keeps receipts of what it was charged, and the last head that it saw of each log.
    "0.3.0": (
        "CREATE TABLE receipts ( client TEXT NOT NULL, run_id TEXT NOT NULL,"
        " size INTEGER NOT NULL, receipt BLOB NOT NULL,"
        " digest BLOB NOT NULL, CONSTRAINT pk_receipts PRIMARY KEY (client, run_id, size) )",
        "CREATE TABLE logs ( client TEXT NOT NULL, origin TEXT NOT NULL,"
        " signer TEXT NOT NULL, size INTEGER NOT NULL, root BLOB NOT NULL,"
        " digest BLOB NOT NULL, CONSTRAINT pk_logs PRIMARY KEY (client, origin) )",
        "CREATE TABLE receipted ( client TEXT NOT NULL, run_id TEXT NOT NULL,"
        " origin TEXT NOT NULL, size INTEGER NOT NULL, round_number INTEGER NOT NULL,"
        " attempt INTEGER NOT NULL, ahead TEXT NOT NULL, cosignature TEXT NOT NULL,"
        " digest BLOB NOT NULL, CONSTRAINT pk_receipted PRIMARY KEY (client, run_id) )",
    ),
    # Noise that is correlated over rounds goes on from what the last attempt left.
    "0.4.0": (
        "CREATE TABLE noise ( client TEXT NOT NULL, run_id TEXT NOT NULL, state BLOB NOT NULL,"
        " digest BLOB NOT NULL, CONSTRAINT pk_noise PRIMARY KEY (client, run_id) )",
    ),
}
"""By version, in their order, what made it of the one before."""
NEWEST: Final = (FIRST, *STEPS)[-1]


def version_of(statements: Statements) -> str:
    """Return the version of an open store's schema.

    Raises:
        SchemaMismatch: The file is something else, or of a version that is not known.
    """
    ((number,),) = statements.run("PRAGMA user_version")
    if not number:
        raise SchemaMismatch(f"file {statements.where} is not a client's store of Sotto")
    version = str(SchemaVersion.of_number(number))
    require_version(statements.where, version, (FIRST, *STEPS))
    return version


def migrate(statements: Statements, version: str) -> None:
    """Bring an open store to the newest schema, in the transaction that is open."""
    versions = (FIRST, *STEPS)
    for later in versions[versions.index(version) + 1 :]:
        for statement in STEPS[later]:
            statements.run(statement)
    state_version(statements)


def state_version(statements: Statements) -> None:
    """Write into an open store that it has the newest schema."""
    found = SchemaVersion.parse(NEWEST)
    if found is not None:
        statements.run(f"PRAGMA user_version={found.number}")
