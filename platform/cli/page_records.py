"""The sheets of the live page: the other commands' documents, read anew at each request.

The page writes nothing, and no transaction outlives the call that opened it. The database's
structure is checked when the page first opens it, and at every `verify`.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from platform.agreement import Agreed, stored_tree
from platform.agreement.statements import stated_document
from platform.cli import auditing, budgeting, reporting
from platform.cli.federation import CONNECTED, connected_rows
from platform.cli.output import epsilon, fraction
from platform.disk.opening import database_file, is_there, open_existing
from platform.errors import ConfigError, UnknownRun
from platform.relay.links import status_of
from platform.results.page import Cell, Field, Gauge, Sheet, Table
from platform.results.report.blocks import Line, Plot
from platform.rounds.documents import ADVERSARIES, in_rounds, shown_round
from storage import (
    Database,
    DatabaseBusy,
    DatabaseReplaced,
    NotFound,
    RoundRecord,
    RunRecord,
    SchemaMismatch,
    StorageError,
    UnitOfWork,
)
from storage.engine import retried
from storage.files import stamp_of
from storage.records import RUN_STATUSES

TRIES: Final = 5
"""Readings of a database that changes meanwhile, before it counts as too busy."""
HINDERED: Final = (DatabaseBusy, DatabaseReplaced)
"""The database was written to meanwhile, or replaced by another file."""
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
"""The fields by which readers search the audit log, and an example of each."""

T = TypeVar("T")

NEWEST: Final = 20
"""The metrics cover this many runs, and all runs that are going on."""
SINGLE: Final = {
    "sotto_dropped_clients": ("Clients lost in the last round.", "dropped"),
    "sotto_cohort_clients": ("Clients in the last round's cohort.", "cohort"),
    "sotto_bytes_up": ("Mean bytes from an invited client in the last round.", "bytes_up"),
    "sotto_bytes_down": ("Mean bytes to an invited client in the last round.", "bytes_down"),
    "sotto_round_seconds": ("Seconds that the last round took.", "seconds"),
}

RUNS_A_PAGE: Final = 50
ENTRIES_A_PAGE: Final = 100
READERS: Final = (
    "A reader of this page is not `observer`, who sees the final model only: this page shows every "
    "round and its time."
)


class PageRecords:
    """Makes the page's sheets; several threads may call it."""

    def __init__(self, storage: str, socket: Path | None) -> None:
        """Take the database's URL, and the socket of a hub or None."""
        self._storage = storage
        self._file = database_file(storage)
        self._socket = socket
        self._lock = threading.Lock()
        self._database: Database | None = None

    def prepare(self) -> None:
        """Open the database if it exists, so that the first reader does not wait for the check."""
        if is_there(self._storage):
            self._patiently(lambda database: database.is_read_only)

    def runs(self, text: str, page: int) -> Sheet:
        """Return the runs whose id or name contains a text, a page of them, newest first."""
        if not is_there(self._storage):
            return Sheet(title="Runs", lead=f"There is no run in {self._storage} yet.")

        def read(database: Database) -> tuple[list[RunRecord], list[tuple[Any, ...]]]:
            with database.unit_of_work(read_only=True) as uow:
                known = [
                    run
                    for run in reversed(uow.runs.list())
                    if text.lower() in run.run_id.lower() or text.lower() in run.name.lower()
                ]
                shown = known[(page - 1) * RUNS_A_PAGE : page * RUNS_A_PAGE]
                return known, [row(uow, run) for run in shown]

        def row(uow: UnitOfWork, run: RunRecord) -> tuple[Any, ...]:
            rounds = rounds_of(uow, run)
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

        known, rows = self._patiently(read)
        runs = "1 run" if len(known) == 1 else f"{len(known)} runs"
        links = [
            Cell(name, "/", {"q": text, "page": str(number)})
            for name, number in (("newer", page - 1), ("older", page + 1))
            if number >= 1 and (number - 1) * RUNS_A_PAGE < len(known)
        ]
        columns = ("run", "config", "status", "created", "rounds", "accuracy", "epsilon s/p/o")
        none = "No run matches." if text else "There is no run yet."
        return Sheet(
            title="Runs",
            lead=f"{runs}." if len(rows) == len(known) else f"{runs}, {len(rows)} of them here.",
            search=(Field(name="q", label="id or name", value=text, hint="quickstart"),),
            blocks=[Table("Newest first", columns, rows, none)],
            links=links,
            notes=(LISTED,),
        )

    def run(self, run_id: str) -> Sheet:
        """Return the sheet of one run, if its records agree."""
        if not run_id:
            raise UnknownRun("RUN: is missing; the page of runs lists all runs")
        try:
            agreed, budget = self._patiently(
                lambda database: budgeting.stated_budget(database, run_id)
            )
        except NotFound as error:
            raise UnknownRun(f"RUN: {run_id!r} is unknown; the page of runs lists all") from error
        return run_sheet(run_id, agreed, budget)

    def clients(self) -> Sheet:
        """Return the clients that are connected to the hub."""
        if self._socket is None:
            return Sheet(
                title="Connected clients",
                lead="Not known: `serve --socket` with a run's federation.socket shows them here.",
            )
        try:
            found = status_of(self._socket, PATIENCE)
        except OSError as error:
            raise ConfigError(
                f"No coordinator answers at {str(self._socket)!r} ({error.strerror or error}): no "
                "federation goes on there."
            ) from error
        rows = connected_rows(found)
        there = sum(client.reachable for client in found.clients)
        return Sheet(
            title="Connected clients",
            lead=f"{there} of {len(rows)} can be reached.",
            blocks=[Table("Each client", CONNECTED, rows)],
        )

    def audit(self, asked: Mapping[str, str]) -> Sheet:
        """Return the first entries that meet all conditions, or why no entry can meet them."""
        search = [
            Field(name=name, label=name, value=asked.get(name, ""), hint=hint)
            for name, hint in FIELDS.items()
        ]
        try:
            wanted = filter_of(asked)
            found = self._patiently(
                lambda database: auditing.matching(database, wanted, self._storage, ENTRIES_A_PAGE)
            )
        except (ConfigError, UnknownRun) as error:
            # The search stays, so that the reader can correct it; a field here is an option there.
            text = str(error).removeprefix("--")
            return Sheet(title="Audit log", lead=text, fails=True, search=search)
        columns: Sequence[str] = auditing.NAMES
        rows: list[tuple[Any, ...]] = auditing.entry_rows(found)
        if wanted.run_id is None:
            # Entries may be of several runs, so each has a link to its run.
            columns = ("run", *auditing.NAMES)
            links = (Cell(one["run"], "/audit", {"run": one["run"]}) for one in found)
            rows = [(link, *row) for link, row in zip(links, rows, strict=True)]
        lead = f"{len(found)} entries, oldest first."
        if len(found) == ENTRIES_A_PAGE:
            lead = f"The first {len(found)} entries, oldest first; narrow the search for others."
        return Sheet(
            title="Audit log",
            lead=lead,
            search=search,
            blocks=[Table("Entries", columns, rows, "No entry matches.")],
            notes=(
                READERS,
                "Nothing is verified here: an entry that was changed may meet other conditions.",
            ),
        )

    def verified(self) -> Sheet:
        """Compare every record with all others, as `audit verify` does."""
        found = retried(lambda: auditing.audited(self._storage), tries=TRIES, after=HINDERED)
        faults = auditing.faults_in(found)
        broken = f"FAILED: {len(faults)} faults. Do not use any number that rests on these records."
        return Sheet(
            title="Verify",
            lead=broken if faults else f"HOLDS: all records of {len(found['runs'])} runs agree.",
            fails=bool(faults),
            blocks=list(verified_tables(found, faults)),
        )

    def gauges(self) -> Sequence[Gauge]:
        """Return the newest runs' numbers, without the name of any client."""
        return self._patiently(run_gauges) if is_there(self._storage) else ()

    def stamp(self) -> str:
        """Return a text that changes whenever the database's file changes."""
        return stamp_of(self._file)

    def _patiently(self, read: Callable[[Database], T]) -> T:
        def attempt() -> T:
            with self._lock:
                if self._database is None:
                    self._database = open_existing(self._storage)
                database = self._database
            try:
                # Each of its transactions has a connection of its own.
                return read(database)
            except DatabaseReplaced:
                with self._lock:
                    self._database = None
                raise

        return retried(attempt, tries=TRIES, after=HINDERED)


def rounds_of(uow: UnitOfWork, run: RunRecord) -> Sequence[RoundRecord]:
    """Return a run's rounds; a second phase has none itself, but continues its first run's."""
    return uow.rounds.all(stored_tree(run).get("phase_two_of") or run.run_id)


def run_gauges(database: Database) -> list[Gauge]:
    """Return the numbers of the newest runs and of those that go on: by run, never by client.

    Counts by client would tell who was drawn into a cohort. Every number is as a run's last round
    states it; `audit verify` says whether the records agree.
    """
    with database.unit_of_work(read_only=True) as uow:
        known = uow.runs.list()
        going_on = [run for run in known[:-NEWEST] if run.status == "running"]
        rounds = {
            run.run_id: in_rounds([shown_round(row.document) for row in rounds_of(uow, run)])
            for run in (*going_on, *known[-NEWEST:])
        }
    states = Counter(run.status for run in known)
    last = [(run_id, found[-1]) for run_id, found in rounds.items() if found]
    by_status = [((status,), float(states[status])) for status in RUN_STATUSES]
    # An infinite epsilon is the text `inf`.
    spent = [
        ((run_id, name), float(one["epsilon"][name]))
        for run_id, one in last
        for name in ADVERSARIES
    ]
    return [
        Gauge("sotto_runs", "Runs in the database.", ("status",), by_status),
        _by_run("sotto_rounds", "Rounds that are over.", [(n, len(r)) for n, r in rounds.items()]),
        _by_run(
            "sotto_accuracy_ratio",
            "Mean accuracy over clients after the last round.",
            [(name, one["accuracy"]["mean"]) for name, one in last],
        ),
        Gauge(
            "sotto_epsilon",
            "Epsilon of the worst client, cumulative, for a round fixed beforehand.",
            ("run", "adversary"),
            spent,
        ),
        *[
            _by_run(name, text, [(run_id, one[key]) for run_id, one in last])
            for name, (text, key) in SINGLE.items()
        ],
    ]


def _by_run(name: str, text: str, values: Sequence[tuple[str, float | None]]) -> Gauge:
    # A withheld value, such as the size of a secret cohort, has no number.
    found = [((run_id,), float(value)) for run_id, value in values if value is not None]
    return Gauge(name, text, ("run",), found)


def run_sheet(run_id: str, agreed: Agreed, budget: Mapping[str, Any]) -> Sheet:
    """Return the sheet of one run whose records agree."""
    summary = agreed.summary
    document = stated_document(agreed)
    if summary is None:
        rows = reporting.unfinished_rows(document)
    else:
        head = summary["audit_head"]
        rows = [*reporting.summary_rows(summary), ("audit head", f"{head['count']}:{head['hash']}")]
    rounds, points, notes = document["rounds"], list[tuple[float, float]](), list[str]()
    for one in rounds:
        spent, accuracy = one["epsilon"]["server"], one["accuracy"]["mean"]
        if accuracy is not None and not isinstance(spent, str):
            points.append((float(spent), float(accuracy)))
            notes.append(f"round {one['round']}: {fraction(accuracy)} at epsilon {epsilon(spent)}")
    title = "Accuracy against epsilon for server, round by round"
    absent = "Nothing to draw: no round has both an accuracy and a finite epsilon for server."
    drawn = Plot(
        title=title,
        says="Its numbers are in the table of rounds.",
        across="epsilon for server, cumulative",
        up="mean accuracy",
        lines=(Line("", tuple(points), tuple(notes)),),
        percent=True,
    )
    return Sheet(
        title=f"Run {run_id}",
        lead=budgeting.terms_words(budget),
        warnings=[*budget["warnings"], READERS],
        blocks=[
            drawn if points else Table(title, (), (), absent),
            Table("Results", ("result", "value"), rows),
            Table(
                "Rounds",
                (*reporting.NAMES[:-1], "seconds", "beside it"),
                [(*reporting.round_cells(d), reporting.round_remarks(d).strip()) for d in rounds],
                "No round is over yet.",
            ),
            Table(
                "Budget, client by client",
                budgeting.CLIENT_COLUMNS,
                budgeting.client_rows(budget),
                "No client has been charged for anything yet.",
            ),
            Table(
                "Attempts without a result",
                budgeting.ATTEMPT_COLUMNS,
                budgeting.attempt_rows(budget),
                "None: no round was lost or aborted.",
            ),
        ],
        notes=[text.removeprefix("note: ") for text in budgeting.closing_words(budget)],
        links=[Cell("its audit log", "/audit", {"run": run_id})],
    )


def filter_of(asked: Mapping[str, str]) -> auditing.AuditFilter:
    """Return the conditions of a search; `ConfigError` if the round is not a number."""
    number = asked.get("round")
    if number is not None and not (number.isascii() and number.isdecimal() and len(number) < 19):
        raise ConfigError(f"round: {number!r} is not valid; it must be a number such as 3")
    options = {"run": "run_id", "round": "round_number", "text": "detail"}
    conditions: dict[str, Any] = {options.get(name, name): asked.get(name) for name in FIELDS}
    return auditing.AuditFilter(
        **{**conditions, "round_number": None if number is None else int(number)}
    )


def verified_tables(found: Mapping[str, Any], faults: Sequence[str]) -> Iterator[Table]:
    """Yield the faults, then the log and each run."""
    if faults:
        yield Table("What is wrong", ("fault",), [(text,) for text in faults])
    log = found["log"]
    if log is not None and not log["problems"]:
        rows = [("leaves", log["size"]), ("root", log["root"]), ("kept heads", log["heads"])]
        signed = log["key"] or "unknown, so no signature was checked"
        yield Table("Log of all runs", ("what", "value"), [*rows, ("key", signed)])
    verdicts = [
        (run["run"], "FAILED" if run["problems"] else "holds", run["count"], run["hash"])
        for run in found["runs"]
    ]
    columns = ("run", "verdict", "entries", "head")
    yield Table("Run by run", columns, verdicts, "No run could be read.")


def page_command(
    storage: str, socket: Path | None, names: Sequence[str] | None, **place: Any
) -> None:
    """Serve the page until Ctrl-C or SIGTERM; `place` has the other fields of `Place`."""
    database_file(storage)
    try:
        from platform.results.page.server import Place, serve
    except ImportError as error:
        raise ConfigError(
            f"serve: needs {error.name}, which is not installed; valid after "
            "`.venv/bin/pip install -e '.[serve]'` in the checkout"
        ) from error

    def tell(address: str) -> None:
        sys.stdout.write(f"page: {address} (Ctrl-C ends it)\n")
        sys.stdout.flush()

    records = PageRecords(storage, socket)
    try:
        records.prepare()
    except SchemaMismatch:
        # A file of another program, or of a newer version, gets no page.
        raise
    except StorageError:
        # If the database is damaged or busy, the page itself says so.
        pass
    serve(records, Place(names=names or (), **place), tell)
