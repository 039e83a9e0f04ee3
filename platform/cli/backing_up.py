"""`backup`, `restore`, `upgrade` and `charges` of the coordinator."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from platform.agreement.backups import back_up, require_database, restore, stores_beside
from platform.cli.output import console, print_json
from platform.disk.archives import Manifest
from platform.disk.files import write_bytes
from platform.disk.opening import database_file, open_existing
from platform.errors import ConfigError
from platform.rounds.spending import charges_of
from platform.wire.charges import encode_charges
from storage import StorageFull, open_client_stores
from storage.client_files import stored_version
from storage.database import schema_version


def backup_command(file: Path, storage: str, *, as_json: bool) -> None:
    """Back up a database, and say what is in the backup.

    Raises:
        ConfigError: If the URL is none of an SQLite file, or the backup is there already.
        StorageError: If something is damaged, or cannot be written; then there is no backup.
    """
    manifest = back_up(storage, file, datetime.now(UTC))
    show_manifest(file, manifest, as_json=as_json)


def restore_command(file: Path, storage: str, *, as_json: bool) -> None:
    """Bring a backup back, and say what was in it.

    Raises:
        ConfigError: If the backup is none that is whole, or something is in the database's folder.
        StorageError: If what is in it cannot be used, or not be written; then nothing is there.
    """
    manifest = restore(file, storage, datetime.now(UTC))
    show_manifest(database_file(storage), manifest, as_json=as_json)


def show_manifest(place: Path, manifest: Manifest, *, as_json: bool) -> None:
    """Say what a backup holds, and where it lies now."""
    names = sorted(manifest.digests)
    if as_json:
        facts = {"schema": manifest.schema, "made": manifest.made, **manifest.facts}
        print_json({"path": str(place), "kind": manifest.kind, **facts, "members": names})
        return
    out = console()
    out.print(str(place), soft_wrap=True)
    out.print(f"{manifest.kind} of schema {manifest.schema}, made {manifest.made}")
    for run, (count, digest) in manifest.facts.get("heads", {}).items():
        out.print(f"{run}: audit log of {count} entries, head {digest}")


def upgrade_command(storage: str, *, as_json: bool) -> None:
    """Migrate a database, and the stores of simulated clients beside it.

    Raises:
        ConfigError: If the URL is none of an SQLite file.
        UnknownRun: If there is no database.
        StorageError: If one is damaged, or of a newer version; it stays as it was.
    """
    database = require_database(storage)
    stores = stores_beside(database.parent)
    before = [schema_version(storage), *map(stored_version, stores)]
    open_existing(storage, read_only=False).close()
    for path in stores:
        open_client_stores(path)
    after = [schema_version(storage), *map(stored_version, stores)]
    found = list(zip(map(str, (database, *stores)), before, after, strict=True))
    if as_json:
        print_json([{"path": path, "before": old, "after": new} for path, old, new in found])
        return
    for name, old, new in found:
        changed = f"schema {old} -> {new}" if old != new else f"schema {new}, nothing to do"
        console().print(f"{name}: {changed}", soft_wrap=True)


def charges_command(pseudonym: str, file: Path, storage: str, *, as_json: bool) -> None:
    """Write what one client was charged into a new file.

    Raises:
        ConfigError: If the ledger knows no such client, or the file is there already.
        StorageFull: If it cannot be written.
    """
    if file.exists():
        raise ConfigError(f"FILE: {str(file)!r} exists already; valid is one that does not")
    with closing(open_existing(storage)) as database:
        with database.unit_of_work(read_only=True) as uow:
            found = charges_of(uow, pseudonym, datetime.now(UTC))
    try:
        write_bytes(file, encode_charges(found))
    except OSError as error:
        raise StorageFull(f"{str(file)!r} cannot be written: {error.strerror}") from error
    counts = {run_id: len(run.rows) for run_id, run in found.runs.items()}
    if as_json:
        print_json({"path": str(file), "pseudonym": pseudonym, "charges": counts})
        return
    for run_id, count in counts.items():
        console().print(f"{run_id}: {count} charges of {pseudonym}")
