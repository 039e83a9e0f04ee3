"""`audit query` and `audit verify`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import typer

from platform.agreement import (
    erased_folders,
    faults_of,
    registry_disagreements,
    unknown_charges,
)
from platform.cli import exit_codes
from platform.cli.access import resolved
from platform.cli.output import console, print_json, printable
from platform.disk.log_files import KeptHeads, heads_file, kept_heads, known_key
from platform.disk.opening import open_existing
from platform.errors import ConfigError
from privacy import Authentication
from privacy.transparency import NoteKey
from storage import AuditHead, Database, DatabaseBusy, StorageError, TreeHead


def verify_audit(
    run_id: str | None,
    head: str | None,
    storage: str,
    *,
    key: str | None = None,
    as_json: bool,
) -> None:
    """Hold the records of one run, or of all, against each other, and say all that is wrong.

    Without a run, also the list of all runs, the folders beside the database, and the log over all
    runs against the heads that were kept of it.

    Raises:
        Exit: With the code for records that do not hold.
    """
    expected = None if head is None else parse_head(head)
    if expected is not None and run_id is None:
        raise ConfigError("--head: needs --run, since every run has a chain of its own")
    if key is not None and run_id is not None:
        raise ConfigError("--key: valid without --run only, since one log is of all runs")
    trusted = None if key is None else parse_key(key)
    found = audited(storage, run_id, expected, key=trusted)
    if as_json:
        print_json(found)
    else:
        _print_verified(found)
    if found["problems"] or any(run["problems"] for run in found["runs"]):
        raise typer.Exit(exit_codes.AUDIT_BROKEN)


def audited(
    storage: str,
    run_id: str | None = None,
    head: AuditHead | None = None,
    *,
    key: NoteKey | None = None,
) -> Any:
    """Return document of `audit verify`: each run, then what is wrong with all of them together.

    Args:
        storage: The coordinator's database.
        run_id: One run, None for all.
        head: The end of its audit chain at some earlier time, None if nobody kept one.
        key: By which the log's heads must be signed, None for the one beside the database.

    Raises:
        UnknownRun: If there is no such run, or no database.
        DatabaseBusy: If it is being written to all the time.
    """
    found: dict[str, Any] = {"runs": [], "log": None, "problems": []}
    try:
        with closing(open_existing(storage)) as database:
            chosen = None if run_id is None else resolved(database, run_id, storage)
            if chosen is None:
                found["problems"] += _of_all(database)
                found["log"], problems = log_checked(database, key)
                found["problems"] += problems
            found["runs"] += _of_each(database, chosen, head)
    except DatabaseBusy:
        raise
    except StorageError as error:
        # What cannot be opened or listed is no bad input here: to find that is what this is for.
        found["problems"].append(str(error))
    return found


def log_checked(database: Database, key: NoteKey | None = None) -> tuple[dict[str, Any], list[str]]:
    """Return what the log came to, and what is wrong with it or with a head that was kept of it.

    Args:
        database: The coordinator's.
        key: By which heads must be signed, None for the one beside the database.
    """
    found: dict[str, Any] = {"size": None, "root": None, "heads": 0, "key": None}
    problems: list[str] = []
    heads: tuple[TreeHead, ...] = ()
    name = heads_file(database.path).name
    try:
        trusted = key or known_key(database.path)
        kept = kept_heads(database.path, trusted)
        heads = kept.heads
        found |= {"heads": len(heads), "key": None if kept.key is None else kept.key.encode()}
        if trusted is not None and not heads:
            problems.append(f"{name}: no head is there, as there must be")
        # Who names a key has heard of it from somebody else.
        if kept.lost and key is None:
            problems.append(_lost_at(name, kept))
    except (Authentication, ConfigError) as error:
        problems.append(str(error))
    try:
        head = database.verify_log(heads)
        found |= {"size": head.size, "root": head.root.hex()}
    except DatabaseBusy:
        raise
    except StorageError as error:
        problems.append(str(error))
    return {**found, "problems": problems}, problems


def _lost_at(name: str, kept: KeptHeads) -> str:
    return (
        f"{name}: line {kept.lost[-1]}: a new key took the log over without the old one's"
        " signature; if its operator says so too, give the new one as --key"
    )


def _of_each(
    database: Database, chosen: str | None, head: AuditHead | None
) -> Iterator[dict[str, Any]]:
    with database.unit_of_work(read_only=True) as uow:
        names = [run.run_id for run in uow.runs.list()] if chosen is None else [chosen]
    for name in names:
        reached, faults = faults_of(database, name, head)
        yield {
            "run": name,
            "count": None if reached is None else reached.count,
            "hash": None if reached is None else reached.hash,
            "problems": [str(fault) for fault in faults],
        }


def _of_all(database: Database) -> list[str]:
    """Return what is wrong with the file as a whole, with the list of runs, or beside it."""
    problems = []
    try:
        database.verify_integrity()
    except StorageError as error:
        problems.append(str(error))
    with database.unit_of_work(read_only=True) as uow:
        known = {run.run_id for run in uow.runs.list()}
        problems += registry_disagreements(uow)
    return [*problems, *erased_folders(database, known), *unknown_charges(database, known)]


def _print_verified(found: Mapping[str, Any]) -> None:
    told = list(found["problems"])
    for run in found["runs"]:
        told += run["problems"]
        if not run["problems"]:
            text = f"{run['run']}: {run['count']} entries hold, head {run['hash']}"
            console().print(printable(text))
    log = found["log"]
    if log is not None and not log["problems"]:
        signed = "" if log["key"] else ", their signatures unchecked as no key is known"
        heads = f"{log['heads']} kept heads{signed}" if log["heads"] else "no head was kept"
        console().print(printable(f"log: {log['size']} leaves hold, {heads}, root {log['root']}"))
        if not told:
            console().print(
                "all records agree; that no newer ones are missing, only a head that somebody "
                "else kept can show: docs/records.md"
            )
    # The faults of a first run are those of its second phases too.
    for text in dict.fromkeys(told):
        typer.echo(f"error: {printable(text)}", err=True)


def parse_key(text: str) -> NoteKey:
    """Return a log's public key.

    Raises:
        ConfigError: If it is none.
    """
    try:
        return NoteKey.decode(text)
    except ValueError as error:
        raise ConfigError(
            f"--key: {text!r} is not valid; it must be NAME+ID+KEY as `audit head` states it"
        ) from error


def parse_head(text: str) -> AuditHead:
    """Return a chain's head from `COUNT:HASH`.

    Raises:
        ConfigError: If it is not of this form.
    """
    count, _, digest = text.partition(":")
    if not re.fullmatch(r"[0-9]{1,18}", count) or not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise ConfigError(
            f"--head: {text!r} is not valid; it must be COUNT:HASH as summary.json states it"
        )
    return AuditHead(int(count), digest)
