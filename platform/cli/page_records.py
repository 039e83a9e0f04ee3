"""What the live page shows: the documents of the other commands, drawn up anew at each request.

Nothing is written, and no transaction outlives the call that it is in. The database's structure is
checked when it is first opened, and at every `verify`.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from platform.agreement import Agreed, stored_tree
from platform.agreement.statements import unfinished_document
from platform.cli.auditing import audited
from platform.cli.budgeting import (
    ATTEMPT_COLUMNS,
    CLIENT_COLUMNS,
    attempt_rows,
    client_rows,
    closing_words,
    stated_budget,
    terms_words,
)
from platform.cli.output import epsilon, fraction
from platform.cli.page_gauges import run_gauges
from platform.cli.querying import NAMES, AuditFilter, entry_rows, matching
from platform.cli.reporting import summary_rows, unfinished_rows
from platform.cli.watching import NAMES as ROUND_COLUMNS
from platform.cli.watching import round_cells, round_remarks
from platform.disk.opening import database_file, open_existing
from platform.errors import ConfigError, UnknownRun
from platform.page import Cell, Field, Gauge, Plot, Point, Sheet, Table
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

RUNS_A_PAGE: Final = 50
ENTRIES_A_PAGE: Final = 100
TRIES: Final = 5
"""Readings of a database that is written to meanwhile, before it is too busy."""
PATIENCE: Final = 2.0
"""Seconds that a hub may take to answer."""
READERS: Final = (
    "Who reads this page is not `observer`: audit log and budgets tell who was in which cohort, "
    "which the epsilon for observer may count on to stay secret."
)
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

    def runs(self, text: str, page: int) -> Sheet:
        """Return the runs whose id or name contains a text, a page of them, newest first."""
        search = (Field(name="q", label="id or name", value=text, hint="quickstart"),)
        if not self._file.is_file():
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
            lead=_counted(known, rows),
            search=search,
            tables=[
                Table(
                    caption="Newest first",
                    columns=columns,
                    rows=rows,
                    empty="No run matches." if text else "There is no run yet.",
                )
            ],
            links=list(_pages(text, page, len(known))),
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
        return _run_sheet(run_id, agreed, budget)

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
            tables=[
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
            wanted = _filter(asked)
            found = self._patiently(lambda database: matching(database, wanted, self._storage))
        except (ConfigError, UnknownRun) as error:
            # With the search, so that it can be put right; a field here is an option elsewhere.
            text = str(error).removeprefix("--")
            return Sheet(title="Audit log", lead=text, fails=True, search=search)
        return Sheet(
            title="Audit log",
            lead=_first(found),
            search=search,
            tables=[_entries(found, several=wanted.run_id is None)],
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
            tables=list(_verified_tables(found, faults)),
        )

    def gauges(self) -> Sequence[Gauge]:
        """Return the newest runs' numbers, without the name of any client."""
        if not self._file.is_file():
            return ()

        def read(database: Database) -> Sequence[Gauge]:
            with database.unit_of_work(read_only=True) as uow:
                return run_gauges(uow)

        return self._patiently(read)

    def stamp(self) -> str:
        """Return a text that is another one whenever something was written."""
        told = []
        for name in (self._file.name, f"{self._file.name}-wal"):
            with suppress(OSError):
                found = self._file.with_name(name).stat()
                told.append((name, found.st_ino, found.st_size, found.st_mtime_ns))
        return hashlib.sha256(repr(told).encode()).hexdigest()[:16]

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


def _counted(known: Sequence[object], shown: Sequence[object]) -> str:
    runs = "1 run" if len(known) == 1 else f"{len(known)} runs"
    return f"{runs}." if len(shown) == len(known) else f"{runs}, {len(shown)} of them here."


def _pages(text: str, page: int, known: int) -> Iterator[Cell]:
    for name, number in (("newer", page - 1), ("older", page + 1)):
        if number >= 1 and (number - 1) * RUNS_A_PAGE < known:
            yield Cell(name, "/", {"q": text, "page": str(number)})


def _run_sheet(run_id: str, agreed: Agreed, budget: Mapping[str, Any]) -> Sheet:
    summary = agreed.summary
    document = unfinished_document(agreed) if summary is None else summary
    rows = unfinished_rows(document) if summary is None else summary_rows(summary)
    rounds = document["rounds"]
    return Sheet(
        title=f"Run {run_id}",
        lead=terms_words(budget),
        warnings=[*budget["warnings"], READERS],
        plots=[_plot(rounds)],
        tables=[
            Table(caption="Results", columns=("result", "value"), rows=rows),
            Table(
                caption="Rounds",
                columns=(*ROUND_COLUMNS[:-1], "seconds", "beside it"),
                rows=[(*round_cells(one), round_remarks(one).strip()) for one in rounds],
                empty="No round is over yet.",
            ),
            Table(
                caption="Budget, client by client",
                columns=CLIENT_COLUMNS,
                rows=client_rows(budget),
                empty="No client has been charged for anything yet.",
            ),
            Table(
                caption="Attempts without a result",
                columns=ATTEMPT_COLUMNS,
                rows=attempt_rows(budget),
                empty="None: no round was lost or aborted.",
            ),
        ],
        notes=[text.removeprefix("note: ") for text in closing_words(budget)],
        links=[Cell("its audit log", "/audit", {"run": run_id})],
    )


def _plot(rounds: Sequence[Mapping[str, Any]]) -> Plot:
    points = []
    for one in rounds:
        spent, accuracy = one["epsilon"]["server"], one["accuracy"]["mean"]
        if accuracy is not None and not isinstance(spent, str):
            label = f"round {one['round']}: {fraction(accuracy)} at epsilon {epsilon(spent)}"
            points.append(Point(spent, accuracy, label))
    return Plot(
        title="Accuracy against epsilon for server, round by round",
        across="epsilon for server, cumulative",
        up="accuracy, mean over clients",
        points=points,
        absent="Nothing to draw: no round has both an accuracy and a finite epsilon for server.",
    )


def _filter(asked: Mapping[str, str]) -> AuditFilter:
    number = asked.get("round")
    if number is not None and not (number.isascii() and number.isdecimal() and len(number) < 19):
        raise ConfigError(f"round: {number!r} is not valid; it must be a number such as 3")
    return AuditFilter(
        run_id=asked.get("run"),
        actor=asked.get("actor"),
        action=asked.get("action"),
        round_number=None if number is None else int(number),
        channel=asked.get("channel"),
        status=asked.get("status"),
        since=asked.get("since"),
        until=asked.get("until"),
        detail=asked.get("text"),
        limit=ENTRIES_A_PAGE,
    )


def _first(found: Sequence[object]) -> str:
    if len(found) == ENTRIES_A_PAGE:
        return f"The first {len(found)} entries, oldest first; narrow the search for others."
    return f"{len(found)} entries, oldest first."


def _entries(found: Sequence[dict[str, Any]], *, several: bool) -> Table:
    rows = [
        (*((Cell(one["run"], "/audit", {"run": one["run"]}),) if several else ()), *row)
        for one, row in zip(found, entry_rows(found), strict=True)
    ]
    columns = (*(("run",) if several else ()), *NAMES)
    return Table(caption="Entries", columns=columns, rows=rows, empty="Nothing meets all of it.")


def _verified_tables(found: Mapping[str, Any], faults: Sequence[str]) -> Iterator[Table]:
    if faults:
        yield Table(caption="What is wrong", columns=("fault",), rows=[(text,) for text in faults])
    log = found["log"]
    if log is not None and not log["problems"]:
        rows = [("leaves", log["size"]), ("root", log["root"]), ("kept heads", log["heads"])]
        signed = log["key"] or "unknown, so no signature was checked"
        yield Table(
            caption="Log of all runs", columns=("what", "value"), rows=[*rows, ("key", signed)]
        )
    yield Table(
        caption="Run by run",
        columns=("run", "verdict", "entries", "head"),
        rows=[
            (run["run"], "FAILED" if run["problems"] else "holds", run["count"], run["hash"])
            for run in found["runs"]
        ],
        empty="No run could be read.",
    )
