"""What the live page shows: the documents of the other commands, drawn up anew at each request.

Nothing is written, and no transaction outlives the call that it is in. The database's structure is
checked when it is first opened, and at every `verify`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from platform.agreement import stored_tree
from platform.cli.auditing import audited
from platform.cli.budgeting import stated_budget
from platform.cli.output import epsilon, fraction
from platform.cli.page_gauges import run_gauges
from platform.cli.page_sheets import (
    ENTRIES_A_PAGE,
    READERS,
    RUNS_A_PAGE,
    counted,
    entries_table,
    filter_of,
    first_words,
    further_pages,
    run_sheet,
    verified_tables,
)
from platform.cli.querying import matching
from platform.disk.opening import database_file, is_there, open_existing
from platform.errors import ConfigError, UnknownRun
from platform.page import Cell, Field, Gauge, Sheet, Table
from platform.relay.links import status_of
from platform.rounds.documents import shown_round
from storage import (
    Database,
    DatabaseBusy,
    DatabaseReplaced,
    NotFound,
    RoundRecord,
    RunRecord,
    UnitOfWork,
)
from storage.files import stamp_of

TRIES: Final = 5
"""Readings of a database that is written to meanwhile, before it is too busy."""
PATIENCE: Final = 2.0
"""Seconds that a hub may take to answer."""
LISTED: Final = (
    "Accuracy and epsilon (server/peers/observer) are those that the last round states; a run's "
    "own page says whether all of its records agree."
)
FIELDS: Final = {
    "run": "quickstart-...",
    "actor": "coordinator",
    "action": "round.committed",
    "round": "3",
    "channel": "sum",
    "status": "reserved",
    "since": "2026-01-31",
    "until": "2026-02-28",
    "text": "in the detail",
}
"""What the audit log is searched by, and an example of each."""

T = TypeVar("T")


class PageRecords:
    """Draws the page's sheets up; may be called from several threads."""

    def __init__(self, storage: str, socket: Path | None) -> None:
        """Take the database's URL, and the socket of a hub or None."""
        self._storage = storage
        self._file = database_file(storage)
        self._socket = socket
        self._lock = threading.Lock()
        self._database: Database | None = None

    def prepare(self) -> None:
        """Open the database if it is there, so that the first reader does not wait for the check.

        Raises:
            StorageError: If it is none, or damaged.
        """
        if self._is_there():
            self._patiently(lambda database: database.is_read_only)

    def runs(self, text: str, page: int) -> Sheet:
        """Return the runs whose id or name contains a text, a page of them, newest first."""
        search = (Field(name="q", label="id or name", value=text, hint="quickstart"),)
        if not self._is_there():
            return Sheet(title="Runs", lead=f"There is no run in {self._storage} yet.")

        def read(database: Database) -> tuple[list[RunRecord], list[tuple[Any, ...]]]:
            with database.unit_of_work(read_only=True) as uow:
                known = [run for run in reversed(uow.runs.list()) if _has(run, text)]
                shown = known[(page - 1) * RUNS_A_PAGE : page * RUNS_A_PAGE]
                return known, [_run_row(uow, run) for run in shown]

        known, rows = self._patiently(read)
        columns = ("run", "config", "status", "created", "rounds", "accuracy", "epsilon s/p/o")
        return Sheet(
            title="Runs",
            lead=counted(known, rows),
            search=search,
            blocks=[
                Table(
                    caption="Newest first",
                    columns=columns,
                    rows=rows,
                    empty="No run matches." if text else "There is no run yet.",
                )
            ],
            links=list(further_pages(text, page, len(known))),
            notes=(LISTED,),
        )

    def run(self, run_id: str) -> Sheet:
        """Return all of one run, if its records agree.

        Raises:
            UnknownRun: If there is no such run.
            RunStopped: If its records do not agree; no number of it is stated then.
            AuditChainBroken: If its audit log was changed.
        """
        if not run_id:
            raise UnknownRun("RUN: which one is not said; the page of runs lists all")
        try:
            agreed, budget = self._patiently(lambda database: stated_budget(database, run_id))
        except NotFound as error:
            raise UnknownRun(f"RUN: {run_id!r} is unknown; the page of runs lists all") from error
        return run_sheet(run_id, agreed, budget)

    def clients(self) -> Sheet:
        """Return who is connected to the hub.

        Raises:
            ConfigError: If nobody answers there.
        """
        if self._socket is None:
            return Sheet(
                title="Connected clients",
                lead="Not known: `serve --socket` with a run's federation.socket shows them here.",
            )
        try:
            found = status_of(self._socket, PATIENCE)
        except OSError as error:
            raise ConfigError(
                f"Nobody answers at {str(self._socket)!r} ({error.strerror or error}): no "
                "federation goes on there."
            ) from error
        rows = [
            (c.name, "yes" if c.reachable else "no", c.asked or "-", c.last or "-")
            for c in found.clients
        ]
        there = sum(client.reachable for client in found.clients)
        return Sheet(
            title="Connected clients",
            lead=f"{there} of {len(rows)} can be reached.",
            blocks=[
                Table(
                    caption="Each client",
                    columns=("client", "reachable", "asked for", "last answer"),
                    rows=rows,
                )
            ],
        )

    def audit(self, asked: Mapping[str, str]) -> Sheet:
        """Return the first entries that meet all conditions, or why nothing can meet them."""
        search = [
            Field(name=name, label=name, value=asked.get(name, ""), hint=hint)
            for name, hint in FIELDS.items()
        ]
        try:
            wanted = filter_of(asked)
            found = self._patiently(
                lambda database: matching(database, wanted, self._storage, ENTRIES_A_PAGE)
            )
        except (ConfigError, UnknownRun) as error:
            # With the search, so that it can be put right; a field here is an option elsewhere.
            text = str(error).removeprefix("--")
            return Sheet(title="Audit log", lead=text, fails=True, search=search)
        return Sheet(
            title="Audit log",
            lead=first_words(found),
            search=search,
            blocks=[entries_table(found, several=wanted.run_id is None)],
            notes=(
                READERS,
                "Nothing is verified here: an entry that was changed may meet other conditions.",
            ),
        )

    def verified(self) -> Sheet:
        """Hold every record against all others, as `audit verify` does."""
        found = _again(lambda: audited(self._storage))
        # The faults of a first run are those of its second phases too.
        faults = list(
            dict.fromkeys(
                [*found["problems"], *(p for run in found["runs"] for p in run["problems"])]
            )
        )
        broken = (
            f"FAILED: {len(faults)} faults. No number that rests on these records is to be used."
        )
        return Sheet(
            title="Verify",
            lead=broken if faults else f"HOLDS: all records of {len(found['runs'])} runs agree.",
            fails=bool(faults),
            blocks=list(verified_tables(found, faults)),
        )

    def gauges(self) -> Sequence[Gauge]:
        """Return the newest runs' numbers, without the name of any client."""
        if not self._is_there():
            return ()

        def read(database: Database) -> Sequence[Gauge]:
            with database.unit_of_work(read_only=True) as uow:
                return run_gauges(uow)

        return self._patiently(read)

    def stamp(self) -> str:
        """Return a text that is another one whenever something was written."""
        return stamp_of(self._file)

    def _is_there(self) -> bool:
        return is_there(self._storage)

    def _patiently(self, read: Callable[[Database], T]) -> T:
        return _again(lambda: read(self._open()), self._forget)

    def _open(self) -> Database:
        """Return the database, whose every transaction has a connection of its own."""
        with self._lock:
            if self._database is None:
                self._database = open_existing(self._storage)
            return self._database

    def _forget(self) -> None:
        with self._lock:
            self._database = None


def _again(read: Callable[[], T], forget: Callable[[], None] = lambda: None) -> T:
    """Read once more where it was written meanwhile, or replaced by another file."""
    for _ in range(TRIES - 1):
        try:
            return read()
        except DatabaseReplaced:
            forget()
        except DatabaseBusy:
            continue
    return read()


def _has(run: RunRecord, text: str) -> bool:
    return text.lower() in run.run_id.lower() or text.lower() in run.name.lower()


def _run_row(uow: UnitOfWork, run: RunRecord) -> tuple[Any, ...]:
    first = stored_tree(run).get("phase_two_of")
    # A second phase goes on from its first run's rounds and has none of its own.
    rounds: Sequence[RoundRecord] = uow.rounds.all(first or run.run_id)
    last = shown_round(rounds[-1].document) if rounds else None
    spent = {} if last is None else last["epsilon"]
    return (
        Cell(run.run_id, "/run", {"id": run.run_id}),
        run.name,
        run.status,
        f"{run.created[:19]}Z",
        len(rounds),
        "-" if last is None else fraction(last["accuracy"]["mean"]),
        "/".join(epsilon(value) for value in spent.values()) or "-",
    )
