"""Checks that a database still has all runs that were set up in it, one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from platform.config.files import read_yaml
from platform.errors import ConfigError
from platform.parties.identities import shared_stores
from platform.rounds.audit_trail import parsed_detail, run_number
from storage import (
    AuditChainBroken,
    AuditEntry,
    AuditHead,
    Database,
    DatabaseBusy,
    NotFound,
    StorageError,
    UnitOfWork,
    open_client_stores,
)

TRACES: Final = ("summary.json", "metrics.csv", "metrics.jsonl", "clients", "run.lock")
"""Files that a run's folder has only after its database knows the run."""


def registry_disagreements(uow: UnitOfWork) -> Iterator[str]:
    """Yield where the runs do not form the sequence in which they were set up.

    Each run names the run before it and the end of that run's chain. So an erased run leaves a gap,
    unless it was the newest run.
    """
    known = {run.run_id for run in uow.runs.list()}
    entries = {entry.run: entry for entry in uow.audit.beginnings()}
    numbers: dict[int, str] = {}
    for run_id in sorted(known - entries.keys()):
        yield f"run {run_id}: no audit entry says that it was set up"
    for run_id, entry in sorted(entries.items()):
        detail = parsed_detail(entry)
        number = run_number(detail)
        if number in numbers:
            yield f"runs {numbers[number]} and {run_id} are both number {number} of the database"
        numbers[number] = run_id
        before = detail.get("before")
        if isinstance(before, Mapping):
            yield from _before(uow, entry, before)
    missing = set(range(1, max(numbers, default=0))) - numbers.keys()
    for number in sorted(missing):
        yield f"run number {number} of the database is missing: it was erased"


def _before(uow: UnitOfWork, entry: AuditEntry, before: Mapping[str, Any]) -> Iterator[str]:
    name, count, digest = (before.get(key) for key in ("run", "count", "hash"))
    said = f"run {name}, which was set up before run {entry.run}"
    if not (isinstance(name, str) and isinstance(count, int) and isinstance(digest, str)):
        yield f"run {entry.run}: audit entry 1 (run.created) names no run before it"
        return
    try:
        uow.audit.verify(name, AuditHead(count, digest))
    except NotFound:
        yield f"{said}, is missing: it was erased"
    except AuditChainBroken as error:
        yield f"{said}, is not as it was then: {error}"


def erased_folders(database: Database, known: set[str]) -> Iterator[str]:
    """Yield, in sentences, folders of runs that the database beside them does not know.

    Another database in the same folder may know a run: the configuration in the run's own folder
    names its database's file.

    Args:
        database: The database.
        known: Its runs.
    """
    for folder in sorted(path for path in database.path.parent.iterdir() if path.is_dir()):
        if folder.name in known or not (folder / "config.yaml").is_file():
            continue
        # A run that was killed while it was set up leaves only its configuration.
        trace = next((name for name in TRACES if (folder / name).exists()), None)
        if trace is not None and _database_of(folder / "config.yaml") in (None, database.path.name):
            yield (
                f"folder {folder.name!r} has {trace} and config.yaml of a run that the database "
                "does not know: it was erased"
            )


def unknown_charges(database: Database, known: set[str]) -> Iterator[str]:
    """Yield, in sentences, runs that charged clients and that the database does not know.

    Clients with a lifetime budget have a store for all runs on their data. The store still shows a
    run whose rows, heads and folder are all gone.

    Args:
        database: The database.
        known: Its runs.
    """
    folder = database.path.parent
    for path in shared_stores(folder):
        where = path.relative_to(folder).as_posix()
        try:
            opened = open_client_stores(path, read_only=True)
            with opened.kept_open():
                # By run, the number of clients with charges in their own ledgers.
                charged = Counter(
                    run_id
                    for store in opened.stores.values()
                    for run_id in {row.run_id for row in store.rows()}
                )
        except DatabaseBusy:
            raise
        except StorageError as error:
            yield f"clients' stores {where}: {error}"
            continue
        # `erased_folders` names runs whose folder has a configuration.
        for run_id in sorted(charged.keys() - known):
            if not (folder / run_id / "config.yaml").is_file():
                yield (
                    f"own ledgers of {charged[run_id]} clients in {where} have charges of run "
                    f"{run_id}, which the database does not know: it was erased, or an older copy "
                    "of the database was put back"
                )


def _database_of(path: Path) -> str | None:
    """Return the name of the database's file from a run's configuration, None if not named."""
    try:
        tree = read_yaml(path.read_text(encoding="utf-8"))
        return Path(str(tree["storage"]["url"])).name
    except (ConfigError, OSError, ValueError, KeyError, TypeError, RecursionError, yaml.YAMLError):
        return None
