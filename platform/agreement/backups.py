"""Backups of the coordinator's database, with the records beside it.

These records are the files of runs that the audit log binds, and the stores of a simulation's
clients, which must be from the same moment as the database. A backup contains no keys, enrolment
files, images or caches. It contains no data holder's own store, which is on the holder's machine.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

from platform.agreement.statements import FILES, SUMMARY
from platform.disk.archives import Archive, Manifest, make_backup, restore_backup
from platform.disk.files import make_folder
from platform.disk.log_files import HEADS, copy_heads, heads_file
from platform.disk.opening import database_file, is_there
from platform.errors import ConfigError, UnknownRun
from platform.parties.identities import STORES
from platform.rounds.audit_trail import AuditTrail
from privacy import Authentication
from storage import Database, DatabaseDamaged, open_client_stores, open_database
from storage.copying import copy_databases
from storage.database import schema_version
from storage.homes import PREFIX

KIND: Final = "coordinator"
DATABASE: Final = "database.db"
RUN_FILES: Final = (*FILES, SUMMARY)
_RUN: Final = r"[A-Za-z0-9._-]{0,127}[A-Za-z0-9_-]"
_FILES: Final = "|".join(map(re.escape, RUN_FILES))
_NAMES: Final = re.compile(
    rf"{re.escape(DATABASE)}|{re.escape(HEADS)}|runs/({_RUN})/({_FILES}|clients/{re.escape(STORES)})"
    rf"|clients/[0-9a-f]{{16}}/{re.escape(STORES)}"
)
_OF_RUN: Final = "runs/"


def back_up(url: str, file: Path, now: datetime) -> Manifest:
    """Back up a coordinator's database, even while runs write to it; a failure leaves none."""
    database = require_database(url)
    # Refuses another program's database before it is copied.
    schema_version(url)

    def build(folder: Path) -> tuple[Manifest, Mapping[str, Path]]:
        members = _copied(database, folder)
        version = schema_version(f"{PREFIX}{members[DATABASE]}")
        with (
            _second_copy(members[DATABASE], folder / "examined") as scratch,
            open_database(f"{PREFIX}{scratch}") as opened,
        ):
            # The ends of the audit chains, and how many leaves the log has.
            heads, size = _heads(opened), opened.verify_log().size
        stores = {name: path for name, path in members.items() if name.endswith(STORES)}
        for name, path in stores.items():
            if (run := _run_of(name)) is not None and run not in heads:
                # Another process is still setting up its run.
                del members[name]
            else:
                with _second_copy(path, folder / "examined") as scratch:
                    open_client_stores(scratch).verify_integrity()
        for run_id in heads:
            # A run that goes on may have files that its records do not know; it writes them again.
            found = ((name, database.parent / run_id / name) for name in RUN_FILES)
            members |= {f"{_OF_RUN}{run_id}/{n}": path for n, path in found if path.is_file()}
        try:
            # The heads of the log up to the copy's size.
            if copy_heads(database, size, folder / HEADS):
                members[HEADS] = folder / HEADS
        except Authentication as error:
            raise DatabaseDamaged(str(error)) from error
        facts = {"heads": {run: list(head) for run, head in heads.items()}}
        made = now.isoformat(timespec="seconds")
        return Manifest(kind=KIND, schema=version, made=made, facts=facts), members

    return make_backup(file, build, may_hold)


def restore(file: Path, url: str, now: datetime) -> Manifest:
    """Restore a backup into an empty folder, which stays as it was if the backup is not whole.

    The function notes the restoration in the audit log of each run that has not finished, because
    the run's records miss all releases after the backup.
    """
    database = database_file(url)

    def lay_out(archive: Archive, folder: Path) -> None:
        manifest, main = archive.manifest, folder / database.name
        if DATABASE not in manifest.digests:
            raise ConfigError(f"FILE: {str(file)!r} holds no database")
        archive.extract(DATABASE, main)
        # Opening it to write brings it to the newest schema.
        with open_database(f"{PREFIX}{main}", now=lambda: now) as opened:
            heads = _heads(opened)
            if {run: list(head) for run, head in heads.items()} != manifest.facts.get("heads"):
                raise ConfigError(f"FILE: {str(file)!r} names other runs than its database")
            for name in sorted(set(manifest.digests) - {DATABASE}):
                if name == HEADS:
                    archive.extract(name, heads_file(main))
                else:
                    _lay(archive, name, folder, heads)
            with opened.unit_of_work() as uow:
                for run in uow.runs.list():
                    if run.status != "finished":
                        AuditTrail(uow.audit, run.run_id).restored(manifest.made)
                uow.commit()

    return restore_backup(file, database.parent, kind=KIND, lay_out=lay_out, may_hold=may_hold)


def require_database(url: str) -> Path:
    """Return the file of a database, which must exist (`UnknownRun`)."""
    if not is_there(url):
        raise UnknownRun(
            f"--storage: there is no database at {url}; valid: one that `run` has made"
        )
    return database_file(url)


def stores_beside(folder: Path) -> list[Path]:
    """Return the files of simulated clients' stores that lie beside a database."""
    return [path for _, path in _stores(folder)]


def may_hold(name: str) -> bool:
    """Return whether a backup may hold a member of this name."""
    return _NAMES.fullmatch(name) is not None


def _copied(database: Path, folder: Path) -> dict[str, Path]:
    """Return copies of the database and of the clients' stores beside it, by member."""
    members = {DATABASE: folder / DATABASE}

    def place(name: str) -> Path:
        members[name] = folder / f"stores-{len(members)}.db"
        return members[name]

    copy_databases(database, members[DATABASE], lambda: dict(_stores(database.parent)), place)
    return members


def _stores(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.glob(f"*/clients/{STORES}")):
        yield f"{_OF_RUN}{path.relative_to(folder).as_posix()}", path
    for path in sorted(folder.glob(f"clients/*/{STORES}")):
        yield path.relative_to(folder).as_posix(), path


def _run_of(name: str) -> str | None:
    found = _NAMES.fullmatch(name)
    return None if found is None else found.group(1)


@contextmanager
def _second_copy(copy: Path, scratch: Path) -> Iterator[Path]:
    """Yield a copy of a copy: opening would migrate an older schema, which the first must keep."""
    shutil.copyfile(copy, scratch)
    try:
        yield scratch
    finally:
        for ending in ("", "-wal", "-shm"):
            scratch.with_name(scratch.name + ending).unlink(missing_ok=True)


def _heads(database: Database) -> dict[str, tuple[int, str]]:
    database.verify_integrity()
    with database.unit_of_work(read_only=True) as uow:
        heads = {run.run_id: uow.audit.verify(run.run_id) for run in uow.runs.list()}
    return {run: (head.count, head.hash) for run, head in heads.items()}


def _lay(archive: Archive, name: str, folder: Path, runs: Iterable[str]) -> None:
    run = _run_of(name)
    if run is not None and run not in set(runs):
        raise ConfigError(f"FILE: {name!r} is of a run that its database does not know")
    target = folder / name.removeprefix(_OF_RUN)
    make_folder(target.parent)
    archive.extract(name, target)
    if name.endswith(STORES):
        open_client_stores(target).verify_integrity()
