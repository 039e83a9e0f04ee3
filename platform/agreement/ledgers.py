"""Whether a run's ledger is the one that its audit log and its rounds tell of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from platform.agreement.reading import RunRecords, TrailEntry
from platform.disk.log_files import rows_digest
from platform.mechanisms import Mechanisms
from platform.protection.charging import as_releases
from platform.rounds.audit_trail import release_facts
from privacy import UnknownMechanism
from storage import LedgerRow

Key = tuple[int, int, str]
"""Round, attempt and channel: what one audit entry reserves."""


def ledger_disagreements(records: RunRecords, mechanisms: Mechanisms) -> Iterator[str]:
    """Yield where the ledger has other rows than were reserved, or settles them otherwise.

    Args:
        records: Of the run.
        mechanisms: All that a row may name; a row that names another agrees with nothing.
    """
    reserved: dict[object, list[TrailEntry]] = {}
    for item in records.entries("release.reserved"):
        key = (item.entry.round, item.detail.get("attempt"), item.entry.channel)
        reserved.setdefault(key, []).append(item)
    groups = grouped(records.ledger)
    for key, rows in groups.items():
        entries = reserved.pop(key, [])
        if len(entries) != 1:
            yield f"the ledger has {_of(key, rows)}, which {len(entries)} audit entries reserved"
            continue
        yield from _facts(rows, entries[0], mechanisms)
    for entry in (left for several in reserved.values() for left in several):
        yield f"{entry.name} reserved releases of round {entry.entry.round}, which the ledger lacks"
    yield from _settled(records, groups)


def grouped(ledger: Sequence[LedgerRow]) -> dict[Key, list[LedgerRow]]:
    """Return the rows by round, attempt and channel."""

    def key(row: LedgerRow) -> Key:
        return row.round_number, row.attempt, row.channel

    return {found: list(rows) for found, rows in groupby(sorted(ledger, key=key), key)}


def place(row: LedgerRow) -> str:
    """Return how a message names a ledger row."""
    return (
        f"row (round {row.round_number}, attempt {row.attempt}, channel {row.channel}, client "
        f"{row.pseudonym})"
    )


def _of(key: Key, rows: Sequence[LedgerRow]) -> str:
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
        yield f"the ledger has {_of(key, rows)}, but {entry.name} reserved {reserved!r}"
    elif entry.detail.get("rows_sha256") != rows_digest(rows, with_status=False):
        yield f"the ledger's {_of(key, rows)} are not those that {entry.name} reserved"


_OF_ALL = ("clients", "rows_sha256")
"""What an entry says of its rows together."""


def _settled(records: RunRecords, groups: Mapping[Key, Sequence[LedgerRow]]) -> Iterator[str]:
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
    # Where cohorts are secret, the rows of clients that were not drawn are settled as well.
    secret = any(row.cohort_kind is not None for row in rows)
    if len(released) < survivors or (len(released) > survivors and not secret):
        yield (
            f"the ledger has {len(released)} released rows of round {number}, attempt {attempt}, "
            f"channel {rows[0].channel}, but the round's row has {survivors} survivors"
        )
