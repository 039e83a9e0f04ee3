"""Privacy ledgers: rows are reserved before a release and settled after it, never deleted.

The coordinator's ledger and a client's own have the same columns, so the functions here work on
either table.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from storage._validate import (
    require_all_or_none,
    require_at_least_one,
    require_count,
    require_float,
    require_member,
    require_positive,
    require_text,
)
from storage.errors import AlreadyExistsError, InvalidRecordError, InvalidTransitionError, NotFound
from storage.leaves import NewLeaves
from storage.records import LEDGER_STATUSES, LedgerRow, LedgerStatus
from storage.runs import require_run
from storage.sealing import Rows, Where
from storage.tables import Ledger

if TYPE_CHECKING:
    from storage.client_rows import OwnRows
    from storage.client_tables import ClientLedger

    LedgerTable: TypeAlias = type[Ledger] | type[ClientLedger]
    LedgerRows: TypeAlias = Rows | OwnRows


_KEY: Final = ("run_id", "round_number", "attempt", "pseudonym", "channel")
_NAMES: Final = tuple(field.name for field in fields(LedgerRow))
_FACTS: Final = attrgetter(*_NAMES)
_LOGGED: Final = (
    f"FROM leaves JOIN ledger USING ({', '.join(_KEY)})"
    " WHERE leaves.position >= ? AND leaves.position < ? AND leaves.kind <> 'event'"
)


class LedgerRepository:
    """The coordinator's ledger."""

    def __init__(self, rows: Rows, leaves: NewLeaves) -> None:
        """Work within one transaction."""
        self._rows = rows
        self._leaves = leaves

    def reserve(self, rows: Sequence[LedgerRow]) -> None:
        """Add rows, all of status `reserved`; commit before anything leaves a client.

        Raises:
            AlreadyExistsError: A (run, round, attempt, pseudonym, channel) was reserved before.
            InvalidRecordError: A row has a value out of range or another status.
        """
        for run_id in {row.run_id for row in rows}:
            require_run(self._rows, run_id)
        insert_rows(self._rows, Ledger, rows)
        self._leaves.add_charges(rows)

    def set_status(
        self,
        run_id: str,
        round_number: int,
        attempt: int,
        status: LedgerStatus,
        *,
        pseudonyms: Collection[str] | None = None,
        channel: str | None = None,
    ) -> None:
        """Settle the rows of an attempt as `released` or `aborted`.

        `pseudonyms` and `channel` limit the rows; by default all rows of the attempt are settled.

        Raises:
            NotFound: Unknown run, or no row of a named client.
            InvalidTransitionError: A row is settled already; then no row is changed.
        """
        require_run(self._rows, run_id)
        where = {"run_id": run_id, "round_number": round_number, "attempt": attempt}
        if channel is not None:
            where["channel"] = channel
        settled = settle(self._rows, Ledger, where, status=status, pseudonyms=pseudonyms)
        self._leaves.add_settled(settled)

    def rows(self, run_id: str, *, pseudonym: str | None = None) -> tuple[LedgerRow, ...]:
        """Return the rows of a run (of one client), by round, attempt, pseudonym and channel."""
        require_run(self._rows, run_id)
        where = {"run_id": run_id}
        if pseudonym is not None:
            where["pseudonym"] = pseudonym
        return read_rows(self._rows, Ledger, where)

    def rows_of_rounds(self, run_id: str, rounds: Sequence[int]) -> tuple[LedgerRow, ...]:
        """Return the rows of some rounds of a run, in the order of `rows`."""
        where = {"run_id": run_id, "round_number": list(rounds)}
        return read_rows(self._rows, Ledger, where) if rounds else ()

    def rows_of(self, pseudonyms: Collection[str]) -> tuple[LedgerRow, ...]:
        """Return the rows of these clients over all runs, by run and then in the order of `rows`.

        Epsilon adds up over a client's life, not over a run. A client without rows has spent
        nothing, so an unknown pseudonym is not an error.
        """
        return read_rows(self._rows, Ledger, {"pseudonym": sorted(set(pseudonyms))})


def insert_rows(rows: LedgerRows, table: LedgerTable, new: Sequence[LedgerRow]) -> None:
    """Check rows and add them; see `LedgerRepository.reserve`."""
    for row in new:
        require_ledger_row(row)
        # Only rows from before laws were named lack a law; see `LedgerRow`.
        require_text(noise_kind=row.noise_kind)
    keys = [ledger_key(row) for row in new]
    if len(set(keys)) != len(keys):
        raise AlreadyExistsError("the rows to reserve hold the same key twice")
    for run_id, round_number, attempt in sorted({key[:3] for key in keys}):
        place = {"run_id": run_id, "round_number": round_number, "attempt": attempt}
        for known in sorted({ledger_key(row) for row in rows.read(table, place)} & set(keys)):
            raise AlreadyExistsError(
                "the release of (run, round, attempt, pseudonym, channel) ="
                f" {known!r} is in the ledger already"
            )
    add_rows(rows, table, new)


def add_rows(rows: LedgerRows, table: LedgerTable, new: Sequence[LedgerRow]) -> None:
    """Add checked rows; rows before one that is there already may have been added."""
    rows.insert(table, *(dict(zip(_NAMES, _FACTS(row), strict=True)) for row in new))


def settle_open(
    rows: LedgerRows, table: LedgerTable, where: Where, *, status: LedgerStatus
) -> None:
    """Move those of some rows that are still reserved to another status."""
    found = rows.read(table, where, order=_KEY)
    rows.reseal(table, [row for row in found if row.status == "reserved"], status=status)


def settle(
    rows: LedgerRows,
    table: LedgerTable,
    where: Where,
    *,
    status: LedgerStatus,
    pseudonyms: Collection[str] | None = None,
) -> tuple[LedgerRow, ...]:
    """Move rows from `reserved` to another status, and return them; see `set_status`."""
    require_member("status", status, LEDGER_STATUSES)
    found = rows.read(table, where, order=_KEY)
    if pseudonyms is not None:
        wanted = set(pseudonyms)
        found = [row for row in found if row.pseudonym in wanted]
        missing = wanted - {row.pseudonym for row in found}
        if missing:
            raise NotFound(f"nothing was reserved for {', '.join(sorted(missing))}")
    elif not found:
        raise NotFound("nothing was reserved under this run, round and attempt")
    for row in found:
        if row.status != "reserved" or status == "reserved":
            raise InvalidTransitionError(
                f"the ledger row of {row.pseudonym} in round {row.round_number}, attempt"
                f" {row.attempt} is {row.status} and cannot become {status}; only reserved rows"
                " become released or aborted"
            )
    rows.reseal(table, found, status=status)
    return tuple(replace(LedgerRow(*_FACTS(row)), status=status) for row in found)


def read_rows(rows: LedgerRows, table: LedgerTable, where: Where) -> tuple[LedgerRow, ...]:
    """Return the rows that meet all conditions, in the order of their key."""
    return tuple(LedgerRow(*_FACTS(row)) for row in rows.read(table, where, order=_KEY))


def read_logged(rows: Rows, start: int, end: int) -> tuple[LedgerRow, ...]:
    """Return the rows behind leaves of the log, from one place to before another."""
    found = rows.selected(Ledger, _LOGGED, (start, end))
    return tuple(LedgerRow(*_FACTS(row)) for row in found)


def require_ledger_row(row: LedgerRow) -> None:
    """Require a row, not settled yet, of all facts that an accountant needs; the error has one."""
    require_text(run_id=row.run_id, pseudonym=row.pseudonym, channel=row.channel)
    require_text(mechanism=row.mechanism, relation=row.relation, sampling=row.sampling)
    require_count(round_number=row.round_number, attempt=row.attempt)
    require_at_least_one(count=row.count)
    require_float(
        standard_deviation=row.standard_deviation,
        clipping_norm=row.clipping_norm,
        sampling_probability=row.sampling_probability,
    )
    # NaN would be stored as NULL, and minus zero would lose its sign.
    if not (math.isfinite(row.standard_deviation) and row.standard_deviation >= 0.0):
        raise InvalidRecordError("standard_deviation must be finite and at least 0")
    if not row.clipping_norm > 0.0:
        raise InvalidRecordError("clipping_norm must be above 0 (infinity where nothing bounds it)")
    if not 0.0 < row.sampling_probability <= 1.0:
        raise InvalidRecordError("sampling_probability must be above 0 and at most 1")
    _require_shares(row)
    _require_cohort(row)
    if row.status != "reserved":
        raise InvalidRecordError(f"status is {row.status!r}; new ledger rows must be reserved")


def _require_shares(row: LedgerRow) -> None:
    # An accountant would price half a group as if the other half were missing.
    if not require_all_or_none(
        share_deviation=row.share_deviation,
        shares=row.shares,
        dimension=row.dimension,
        corrupt=row.corrupt,
    ):
        return
    require_text(noise_kind=row.noise_kind)
    require_at_least_one(shares=row.shares, dimension=row.dimension)
    require_count(corrupt=row.corrupt)
    require_positive(share_deviation=row.share_deviation)


def _require_cohort(row: LedgerRow) -> None:
    if not require_all_or_none(
        cohort_kind=row.cohort_kind,
        cohort_size=row.cohort_size,
        cohort_population=row.cohort_population,
        cohort_drawn=row.cohort_drawn,
    ):
        return
    require_text(cohort_kind=row.cohort_kind)
    require_at_least_one(cohort_size=row.cohort_size, cohort_population=row.cohort_population)
    if cast("int", row.cohort_size) > cast("int", row.cohort_population):
        raise InvalidRecordError(
            f"cohort_size is {row.cohort_size}; it must be at most cohort_population,"
            f" {row.cohort_population}"
        )
    if not isinstance(row.cohort_drawn, bool):
        raise InvalidRecordError(
            f"cohort_drawn must be a bool, not {type(row.cohort_drawn).__name__}"
        )


def ledger_key(row: Any) -> tuple[str, int, int, str, str]:
    """Return the key of a row: run, round, attempt, pseudonym and channel."""
    return row.run_id, row.round_number, row.attempt, row.pseudonym, row.channel
