"""`audit query` and `audit verify`."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from platform.bootstrap import open_existing
from platform.cli.access import resolve_run
from platform.cli.output import console, print_json, table
from platform.errors import ConfigError
from storage import AuditHead

LARGEST_ROUND = 2**63 - 1
"""The largest number that a database holds."""


@dataclass(frozen=True)
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
    """Prints the entries that meet every condition, oldest first."""
    _require_round(wanted.round_number)
    run_id = None if wanted.run_id is None else resolve_run(wanted.run_id, storage)
    database = open_existing(storage)
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
    database.close()
    if as_json:
        print_json([{**asdict(e), "detail": json.loads(e.detail)} for e in entries])
        return
    rows = [
        (e.sequence, f"{e.time[:19]}Z", e.actor, e.action, e.round, e.channel, e.detail)
        for e in entries
    ]
    names = ("#", "time", "actor", "action", "round", "channel", "detail")
    console().print(table(None, names, rows))


def verify_audit(run_id: str | None, head: str | None, storage: str, *, as_json: bool) -> None:
    """Recomputes the chains.

    Raises:
        AuditChainBroken: Naming the run and the first entry that does not hold.
    """
    expected = None if head is None else parse_head(head)
    if expected is not None and run_id is None:
        raise ConfigError("--head: needs --run, since every run has a chain of its own")
    chosen = None if run_id is None else resolve_run(run_id, storage)
    database = open_existing(storage)
    verified = []
    with database.unit_of_work(read_only=True) as uow:
        names = [chosen] if chosen is not None else [run.run_id for run in uow.runs.list()]
        for name in names:
            verified.append({"run": name, **asdict(uow.audit.verify(name, expected))})
    database.close()
    if as_json:
        print_json(verified)
        return
    for item in verified:
        console().print(f"{item['run']}: {item['count']} entries hold, head {item['hash']}")


def parse_head(text: str) -> AuditHead:
    """A chain's head from `COUNT:HASH`.

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
