"""Whether a run's ledger agrees with its audit log, its rounds and the clients' own ledgers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

from platform.agreement.reading import RunRecords, TrailEntry
from platform.config import RunConfig, Sources, parse_config
from platform.disk.log_files import rows_digest
from platform.errors import ConfigError, RecordsDisagree
from platform.mechanisms import Mechanisms
from platform.parties.identities import client_names, stores_file
from platform.protection.charging import as_releases, law_of, stored_tree
from platform.rounds.audit_trail import release_facts
from privacy import UnknownMechanism
from storage import LedgerRow, RoundRecord, RunRecord, open_client_stores

Reserved = tuple[int, int, str]
"""Round, attempt and channel: one audit entry reserves one of these."""


def ledger_disagreements(records: RunRecords, mechanisms: Mechanisms) -> Iterator[str]:
    """Yield where the ledger differs from the reservations, or settles rows wrongly.

    Args:
        records: Of the run.
        mechanisms: All that a row may name.
    """
    reserved: dict[object, list[TrailEntry]] = {}
    for item in records.entries("release.reserved"):
        key = (item.entry.round, item.detail.get("attempt"), item.entry.channel)
        reserved.setdefault(key, []).append(item)
    groups = grouped(records.ledger)
    for key, rows in groups.items():
        entries = reserved.pop(key, [])
        if len(entries) != 1:
            yield f"the ledger has {_many(key, rows)}, which {len(entries)} audit entries reserved"
            continue
        yield from _facts(rows, entries[0], mechanisms)
    for entry in (left for several in reserved.values() for left in several):
        yield f"{entry.name} reserved releases of round {entry.entry.round}, which the ledger lacks"
    yield from _settled(records, groups)


def grouped(ledger: Sequence[LedgerRow]) -> dict[Reserved, list[LedgerRow]]:
    """Return the rows by round, attempt and channel."""

    def key(row: LedgerRow) -> Reserved:
        return row.round_number, row.attempt, row.channel

    return {found: list(rows) for found, rows in groupby(sorted(ledger, key=key), key)}


def place(row: LedgerRow) -> str:
    """Return the name of a ledger row in messages."""
    return (
        f"row (round {row.round_number}, attempt {row.attempt}, channel {row.channel}, client "
        f"{row.pseudonym})"
    )


def _many(key: Reserved, rows: Sequence[LedgerRow]) -> str:
    return f"{len(rows)} rows of round {key[0]}, attempt {key[1]}, channel {key[2]}"


def _facts(rows: Sequence[LedgerRow], entry: TrailEntry, mechanisms: Mechanisms) -> Iterator[str]:
    first = rows[0]
    key = first.round_number, first.attempt, first.channel
    stated = {name: value for name, value in entry.detail.items() if name not in _OF_ALL}
    try:
        releases = as_releases(rows, mechanisms)
    except (UnknownMechanism, ValueError) as error:
        yield f"ledger {place(first)} cannot be priced: {error}"
        return
    for row, release in zip(rows, releases, strict=True):
        own = release_facts(release)
        for name in sorted({*own, *stated}):
            if own.get(name) != stated.get(name):
                yield (
                    f"ledger {place(row)}: {name} is {own.get(name)!r} there and "
                    f"{stated.get(name)!r} in {entry.name}"
                )
                return
    if entry.detail.get("clients") != len(rows):
        reserved = entry.detail.get("clients")
        yield f"the ledger has {_many(key, rows)}, but {entry.name} reserved {reserved!r}"
    elif entry.detail.get("rows_sha256") != rows_digest(rows, with_status=False):
        yield f"the ledger's {_many(key, rows)} are not those that {entry.name} reserved"


_OF_ALL = ("clients", "rows_sha256")
"""Keys of an audit entry's detail that describe all its rows together."""


def _settled(records: RunRecords, groups: Mapping[Reserved, Sequence[LedgerRow]]) -> Iterator[str]:
    committed = {row.round_number: row for row in records.rounds if row.document.get("survivors")}
    aborted = {
        (item.entry.round, item.detail.get("attempt")): item
        for item in records.entries("round.aborted")
    }
    for (number, attempt, _), rows in groups.items():
        ended, given_up = committed.get(number), aborted.get((number, attempt))
        free = given_up is not None and given_up.detail.get("charged") is False
        why = "no audit entry says" if given_up is None else f"{given_up.name} does not say"
        for row in rows:
            if (row.status == "aborted") != free:
                yield (
                    f"ledger {place(row)} is {row.status}, but {given_up.name} says that nothing "
                    "had left a client"
                    if free and given_up is not None
                    else f"ledger {place(row)} is aborted, but {why} that nothing had left a client"
                )
                break
        kept = ended is not None and ended.attempt == attempt
        yield from _released(records, number, attempt, rows, kept=kept)


def _released(
    records: RunRecords, number: int, attempt: int, rows: Sequence[LedgerRow], *, kept: bool
) -> Iterator[str]:
    released = [row for row in rows if row.status == "released"]
    over = {row.round_number: row.attempt for row in records.rounds}
    if released and over.get(number) != attempt:
        yield f"ledger {place(released[0])} is released, but no round has this attempt"
    if not kept:
        return
    (document,) = (row.document for row in records.rounds if row.round_number == number)
    survivors = len(document["survivors"])
    # If cohorts are secret, the rows of clients that were not drawn are settled as well.
    secret = any(row.cohort_kind is not None for row in rows)
    if len(released) < survivors or (len(released) > survivors and not secret):
        yield (
            f"the ledger has {len(released)} released rows of round {number}, attempt {attempt}, "
            f"channel {rows[0].channel}, but the round's row has {survivors} survivors"
        )


COHORT = ("cohort_kind", "cohort_size", "cohort_population", "cohort_drawn")
"""Columns that a client does not know of its row: how the coordinator drew the cohort."""

RowKey = tuple[int, int, str, str]


@dataclass(frozen=True)
class OwnLedger:
    """A client's own ledger.

    Attributes:
        client: Its name, as rounds list survivors.
        pseudonym: Its name in ledgers.
        rows: Its own ledger, over all runs.
    """

    client: str
    pseudonym: str
    rows: tuple[LedgerRow, ...]


def client_disagreements(
    records: RunRecords, own: Sequence[OwnLedger], rounds_then: Sequence[RoundRecord]
) -> Iterator[str]:
    """Yield where a client's own ledger and the coordinator's differ.

    Args:
        records: The coordinator's.
        own: The clients'.
        rounds_then: The rounds that were over before `own` was read. If the run goes on, later
            rounds may be missing in `own`.
    """
    known = {ledger.pseudonym for ledger in own}
    for row in records.ledger:
        if row.pseudonym not in known:
            yield (
                f"a client's store is missing or another's: none is of ledger {place(row)}; put it "
                "back or start a new run"
            )
            return
    mine = {_key(row): row for row in records.ledger}
    for ledger in own:
        theirs = {_key(row): row for row in ledger.rows if row.run_id == records.run_id}
        for key, row in theirs.items():
            yield from _compared(ledger, row, mine.get(key))
        yield from _missing(records, ledger, theirs, rounds_then)


def _key(row: LedgerRow) -> RowKey:
    return row.round_number, row.attempt, row.channel, row.pseudonym


def _compared(ledger: OwnLedger, own: LedgerRow, row: LedgerRow | None) -> Iterator[str]:
    where = f"{place(own)} of {ledger.client}'s own ledger"
    if row is None:
        yield f"{where} is not in the coordinator's"
        return
    if row.status == "aborted":
        yield f"{where} is aborted in the coordinator's, though the client had made its upload"
    if own.status == "released" and row.status != "released":
        yield f"{where} is released, but {row.status} in the coordinator's"
    if row.cohort_drawn is False:
        yield f"{where} is of a client that was not drawn, says the coordinator's"
    # An attempt that was open during a software update may name its law on one side only.
    facts, theirs = ({**asdict(one), "noise_kind": law_of(one)} for one in (own, row))
    for name in facts:
        unknown = name in COHORT and facts[name] is None
        if name != "status" and not unknown and facts[name] != theirs[name]:
            yield (
                f"{where}: {name} is {facts[name]!r} there and {theirs[name]!r} in the "
                "coordinator's"
            )


def _missing(
    records: RunRecords,
    ledger: OwnLedger,
    theirs: Mapping[RowKey, LedgerRow],
    rounds_then: Sequence[RoundRecord],
) -> Iterator[str]:
    """Yield survivors' rows that are missing; a client that was lost may have none."""
    survived = {
        (row.round_number, row.attempt)
        for row in rounds_then
        if ledger.client in row.document.get("survivors", ())
    }
    for row in records.ledger:
        if row.pseudonym != ledger.pseudonym or (row.round_number, row.attempt) not in survived:
            continue
        if _key(row) not in theirs:
            yield f"ledger {place(row)} is not in {ledger.client}'s own ledger, though it survived"
        if row.status != "released":
            yield f"ledger {place(row)} is {row.status}, though {ledger.client} survived"


def config_of(run: RunRecord, mechanisms: Mechanisms) -> RunConfig:
    """Return the configuration in a run's row, checked against these mechanisms.

    Raises:
        RecordsDisagree: If it is not valid.
    """
    try:
        return parse_config(stored_tree(run), sources=Sources(mechanisms=mechanisms))
    except (ConfigError, TypeError) as error:
        raise RecordsDisagree(run.run_id, f"its configuration is not valid: {error}") from error


def read_own_ledgers(config: RunConfig, folder: Path) -> tuple[OwnLedger, ...]:
    """Return the own ledgers of a simulation's clients; missing stores are left out.

    Args:
        config: The run's.
        folder: Of the clients' run.
    """
    path = stores_file(config, folder)
    if not path.is_file() or not path.stat().st_size:
        return ()
    opened = open_client_stores(path, read_only=True)
    names = {*client_names(config.task.clients), *config.canary_names}
    with opened.kept_open():
        opened.verify_integrity()
        return tuple(
            OwnLedger(name, store.identity.pseudonym, store.rows())
            for name, store in opened.stores.items()
            if name in names
        )
