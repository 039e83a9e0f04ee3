"""`audit query` and `audit verify`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import typer

from platform.agreement import erased_folders, faults_of, registry_disagreements
from platform.cli import exit_codes
from platform.cli.access import resolved
from platform.cli.output import console, print_json, printable, table
from platform.disk.opening import open_existing
from platform.errors import ConfigError
from storage import AuditEntry, AuditHead, Database, DatabaseBusy, StorageError

LARGEST_ROUND = 2**63 - 1
"""The largest number that a database holds."""


@dataclass(frozen=True, kw_only=True)
class AuditFilter:
    """What to show; None is no condition."""

    run_id: str | None
    actor: str | None
    action: str | None
    round_number: int | None
    channel: str | None
    since: str | None
    until: str | None
    detail: str | None


def print_audit(wanted: AuditFilter, storage: str, *, as_json: bool) -> None:
    """Print the entries that meet every condition, oldest first."""
    _require_round(wanted.round_number)
    with closing(open_existing(storage)) as database:
        run_id = None if wanted.run_id is None else resolved(database, wanted.run_id, storage)
        with database.unit_of_work(read_only=True) as uow:
            entries = uow.audit.query(
                run=run_id,
                actor=wanted.actor,
                action=wanted.action,
                round=wanted.round_number,
                channel=wanted.channel,
                since=_time("--since", wanted.since),
                until=_time("--until", wanted.until),
                detail_contains=wanted.detail,
            )
    if as_json:
        print_json([{**asdict(e), "detail": _detail(e)} for e in entries])
        return
    rows = [
        (e.sequence, f"{e.time[:19]}Z", e.actor, e.action, e.round, e.channel, e.detail)
        for e in entries
    ]
    names = ("#", "time", "actor", "action", "round", "channel", "detail")
    console().print(table(None, names, rows))


def verify_audit(run_id: str | None, head: str | None, storage: str, *, as_json: bool) -> None:
    """Hold the records of one run, or of all, against each other, and say all that is wrong.

    Without a run, also the list of all runs, and the folders beside the database.

    Raises:
        Exit: With the code for records that do not hold.
    """
    expected = None if head is None else parse_head(head)
    if expected is not None and run_id is None:
        raise ConfigError("--head: needs --run, since every run has a chain of its own")
    found = audited(storage, run_id, expected)
    if as_json:
        print_json(found)
    else:
        _print_verified(found)
    if found["problems"] or any(run["problems"] for run in found["runs"]):
        raise typer.Exit(exit_codes.AUDIT_BROKEN)


def audited(storage: str, run_id: str | None = None, head: AuditHead | None = None) -> Any:
    """Return document of `audit verify`: each run, then what is wrong with all of them together.

    Args:
        storage: The coordinator's database.
        run_id: One run, None for all.
        head: The end of its audit chain at some earlier time, None if nobody kept one.

    Raises:
        UnknownRun: If there is no such run, or no database.
        DatabaseBusy: If it is being written to all the time.
    """
    found: dict[str, Any] = {"runs": [], "problems": []}
    try:
        with closing(open_existing(storage)) as database:
            chosen = None if run_id is None else resolved(database, run_id, storage)
            if chosen is None:
                found["problems"] += _of_all(database)
            found["runs"] += _of_each(database, chosen, head)
    except DatabaseBusy:
        raise
    except StorageError as error:
        # What cannot be opened or listed is no bad input here: to find that is what this is for.
        found["problems"].append(str(error))
    return found


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
    return [*problems, *erased_folders(database, known)]


def _print_verified(found: Mapping[str, Any]) -> None:
    told = list(found["problems"])
    for run in found["runs"]:
        told += run["problems"]
        if not run["problems"]:
            text = f"{run['run']}: {run['count']} entries hold, head {run['hash']}"
            console().print(printable(text))
    # The faults of a first run are those of its second phases too.
    for text in dict.fromkeys(told):
        typer.echo(f"error: {printable(text)}", err=True)


def _detail(entry: AuditEntry) -> Any:
    """Return the parsed detail; one that was edited into something else as the text that it is."""
    try:
        return json.loads(entry.detail)
    except (ValueError, RecursionError):
        return entry.detail


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


def _require_round(number: int | None) -> None:
    if number is not None and not 0 <= number <= LARGEST_ROUND:
        raise ConfigError(f"--round: {number} is not valid; it must be 0 to {LARGEST_ROUND}")


def _time(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {text!r} is not an ISO time such as 2026-01-31") from error
    if parsed.tzinfo is None:
        return parsed.replace(tzinfo=UTC)
    try:
        return parsed.astimezone(UTC)
    except OverflowError as error:
        raise ConfigError(f"{option}: {text!r} is no time between the years 1 and 9999") from error
