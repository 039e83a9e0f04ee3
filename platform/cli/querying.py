"""`audit query`: events and charges, filtered on any field."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from platform.cli.access import resolved
from platform.cli.output import console, print_json, printable, table
from platform.disk.opening import open_existing
from platform.errors import ConfigError, listed
from storage import AuditEntry, Database, Leaf, UnitOfWork
from storage.records import LEDGER_STATUSES

LARGEST_ROUND: Final = 2**63 - 1
"""The largest number that a database holds."""
CHARGE: Final = "charge."
"""What the action of a charge begins with; its status follows."""
CHARGES: Final = tuple(CHARGE + status for status in LEDGER_STATUSES)
FORMATS: Final = ("table", "json", "csv")

NAMES: Final = ("#", "time", "actor", "action", "round", "channel", "detail")
_FIELDS: Final = (
    "sequence",
    "run",
    "actor",
    "action",
    "round",
    "channel",
    "time",
    "detail",
    "hash",
)
# Where a spreadsheet would begin to compute.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


class Period(NamedTuple):
    """From when to when, as ISO texts; None is open."""

    since: str | None
    until: str | None


@dataclass(frozen=True, kw_only=True)
class AuditFilter:
    """What to show; None is no condition."""

    run_id: str | None
    actor: str | None
    action: str | None
    round_number: int | None
    channel: str | None
    status: str | None
    period: Period
    detail: str | None

    @property
    def of_charges(self) -> str | None:
        """The status of charges that are asked for, by their status or action."""
        if self.action is not None and self.action.startswith(CHARGE):
            return self.action.removeprefix(CHARGE)
        return self.status


def print_audit(
    wanted: AuditFilter, storage: str, *, shown_as: str, limit: int | None = None
) -> None:
    """Print the entries that meet every condition, oldest first.

    Args:
        wanted: The conditions.
        storage: The coordinator's database.
        shown_as: One of `FORMATS`.
        limit: The first so many only, None for all.

    Raises:
        ConfigError: If a condition is none that anything could meet.
        UnknownRun: If there is no such run, or no database.
    """
    if shown_as not in FORMATS:
        raise ConfigError(f"--format: {shown_as!r} is not valid; valid: {', '.join(FORMATS)}")
    _require_shape(wanted, limit)
    with closing(open_existing(storage)) as database:
        found = matching(database, wanted, storage, limit)
    if shown_as == "json":
        print_json(found)
    elif shown_as == "csv":
        _print_csv(found)
    else:
        console().print(table(None, NAMES, entry_rows(found)))


def matching(
    database: Database, wanted: AuditFilter, storage: str, limit: int | None
) -> list[dict[str, Any]]:
    """Return the entries that meet every condition, oldest first.

    Args:
        database: The coordinator's.
        wanted: The conditions.
        storage: The database's URL, for messages.
        limit: The first so many only, None for all.

    Raises:
        ConfigError: If a condition is none that anything could meet.
        UnknownRun: If there is no such run.
    """
    _require_shape(wanted, limit)
    run_id = None if wanted.run_id is None else resolved(database, wanted.run_id, storage)
    with database.unit_of_work(read_only=True) as uow:
        return _found(uow, wanted, run_id, limit)


def entry_rows(found: Iterable[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return what stands in each column of `NAMES`, entry by entry."""
    return [_row(entry) for entry in found]


def _found(
    uow: UnitOfWork, wanted: AuditFilter, run_id: str | None, limit: int | None
) -> list[dict[str, Any]]:
    of_client = wanted.actor is not None and wanted.actor in uow.log.pseudonyms()
    if wanted.of_charges is not None or of_client:
        _require_charges(uow, wanted, of_client=of_client)
        found = [_charge(uow, leaf) for leaf in _charges(uow, wanted, run_id, limit)]
    else:
        found = [_event(entry) for entry in _events(uow, wanted, run_id, limit)]
    if not found:
        _require_known(uow, wanted)
    return found


def _events(
    uow: UnitOfWork, wanted: AuditFilter, run_id: str | None, limit: int | None
) -> Sequence[AuditEntry]:
    return uow.audit.query(
        run=run_id,
        actor=wanted.actor,
        action=wanted.action,
        round=wanted.round_number,
        channel=wanted.channel,
        since=_time("--since", wanted.period.since),
        until=_time("--until", wanted.period.until),
        detail_contains=wanted.detail,
        limit=limit,
    )


def _require_charges(uow: UnitOfWork, wanted: AuditFilter, *, of_client: bool) -> None:
    """Refuse conditions that charges cannot meet."""
    for option, value in zip(("--since", "--until"), wanted.period, strict=True):
        if value is not None:
            raise ConfigError(f"{option}: {value!r} matches no charge, as charges have no time")
    for option, name in (("--detail", wanted.detail), ("--action", wanted.action)):
        if name is not None and not (option == "--action" and name.startswith(CHARGE)):
            raise ConfigError(f"{option}: {name!r} matches no charge; valid: {', '.join(CHARGES)}")
    if wanted.actor is not None and not of_client:
        known = listed(uow.log.pseudonyms())
        raise ConfigError(f"--actor: {wanted.actor!r} was never charged; valid: {known}")


def _charges(
    uow: UnitOfWork, wanted: AuditFilter, run_id: str | None, limit: int | None
) -> Iterable[Leaf]:
    return uow.log.charges(
        run_id=run_id,
        pseudonym=wanted.actor,
        round_number=wanted.round_number,
        channel=wanted.channel,
        status=wanted.of_charges,
        limit=limit,
    )


def _event(entry: AuditEntry) -> dict[str, Any]:
    return {**asdict(entry), "detail": _detail(entry.detail)}


def _charge(uow: UnitOfWork, leaf: Leaf) -> dict[str, Any]:
    """Return a charge in the form of an event, once its row was found to fit its leaf."""
    _, text = uow.log.data(leaf).split(b"\n", 1)
    return {
        "sequence": None,
        "leaf": leaf.position,
        "run": leaf.run_id,
        "actor": leaf.pseudonym,
        "action": f"{CHARGE}{leaf.status or 'reserved'}",
        "round": leaf.round_number,
        "channel": leaf.channel,
        "time": None,
        "detail": json.loads(text),
        "hash": leaf.hash.hex(),
    }


def _require_shape(wanted: AuditFilter, limit: int | None) -> None:
    if wanted.round_number is not None and not 0 <= wanted.round_number <= LARGEST_ROUND:
        raise ConfigError(
            f"--round: {wanted.round_number} is not valid; it must be 0 to {LARGEST_ROUND}"
        )
    if wanted.status is not None and wanted.status not in LEDGER_STATUSES:
        known = ", ".join(LEDGER_STATUSES)
        raise ConfigError(f"--status: {wanted.status!r} is not valid; valid: {known}")
    if limit is not None and not 1 <= limit <= LARGEST_ROUND:
        raise ConfigError(
            f"--limit: {limit} is not valid; it must be at least 1 and at most {LARGEST_ROUND}"
        )


def _require_known(uow: UnitOfWork, wanted: AuditFilter) -> None:
    """Refuse names that nothing has; known ones that nothing has together are no mistake."""
    valid = {
        "--actor": (wanted.actor, {*uow.audit.known("actor"), *uow.log.pseudonyms()}),
        "--action": (wanted.action, {*uow.audit.known("action"), *CHARGES}),
        "--channel": (wanted.channel, {*uow.audit.known("channel"), *uow.log.channels()}),
    }
    for option, (value, known) in valid.items():
        if value is not None and value not in known:
            raise ConfigError(
                f"{option}: {value!r} matches nothing; valid: {listed(sorted(known))}"
            )


def _print_csv(found: Iterable[dict[str, Any]]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(_FIELDS)
    for entry in found:
        detail = json.dumps(entry["detail"], sort_keys=True, separators=(",", ":"))
        values = [*(entry[name] for name in _FIELDS[:-2]), detail, entry["hash"]]
        writer.writerow([_cell(value) for value in values])


def _cell(value: Any) -> Any:
    """Return what a spreadsheet shows and a terminal cannot obey."""
    if not isinstance(value, str):
        return value
    return printable(f"'{value}" if value.startswith(_FORMULA) else value)


def _row(entry: dict[str, Any]) -> tuple[Any, ...]:
    time = None if entry["time"] is None else f"{entry['time'][:19]}Z"
    detail = json.dumps(entry["detail"], sort_keys=True, ensure_ascii=False)
    place = entry["sequence"] if entry["time"] is not None else entry["leaf"]
    rest = (entry["actor"], entry["action"], entry["round"], entry["channel"])
    return (place, time, *rest, detail)


def _detail(text: str) -> Any:
    """Return the parsed detail; one that was edited into something else as the text that it is."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


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
