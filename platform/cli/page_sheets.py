"""Sheets of the live page, drawn up from documents that were read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from platform.agreement import Agreed
from platform.agreement.statements import stated_document
from platform.cli.budgeting import (
    ATTEMPT_COLUMNS,
    CLIENT_COLUMNS,
    attempt_rows,
    client_rows,
    closing_words,
    terms_words,
)
from platform.cli.output import epsilon, fraction
from platform.cli.querying import NAMES, AuditFilter, Period, entry_rows
from platform.cli.reporting import summary_rows, unfinished_rows
from platform.cli.watching import NAMES as ROUND_COLUMNS
from platform.cli.watching import round_cells, round_remarks
from platform.errors import ConfigError
from platform.page import Cell, Plot, Point, Sheet, Table

RUNS_A_PAGE: Final = 50
ENTRIES_A_PAGE: Final = 100
READERS: Final = (
    "Who reads this page is not `observer`, who sees the final model only: this page shows every "
    "round, and when it was."
)


def counted(known: Sequence[object], shown: Sequence[object]) -> str:
    """Return how many runs there are, and how many of them are shown."""
    runs = "1 run" if len(known) == 1 else f"{len(known)} runs"
    return f"{runs}." if len(shown) == len(known) else f"{runs}, {len(shown)} of them here."


def further_pages(text: str, page: int, known: int) -> Iterator[Cell]:
    """Yield links to the pages before and after this one."""
    for name, number in (("newer", page - 1), ("older", page + 1)):
        if number >= 1 and (number - 1) * RUNS_A_PAGE < known:
            yield Cell(name, "/", {"q": text, "page": str(number)})


def run_sheet(run_id: str, agreed: Agreed, budget: Mapping[str, Any]) -> Sheet:
    """Return all of one run whose records agree."""
    summary = agreed.summary
    document = stated_document(agreed)
    rows = unfinished_rows(document) if summary is None else summary_rows(summary)
    rounds = document["rounds"]
    return Sheet(
        title=f"Run {run_id}",
        lead=terms_words(budget),
        warnings=[*budget["warnings"], READERS],
        blocks=[
            _plot(rounds),
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
        up="mean accuracy",
        points=points,
        absent="Nothing to draw: no round has both an accuracy and a finite epsilon for server.",
    )


def filter_of(asked: Mapping[str, str]) -> AuditFilter:
    """Return what a search asks for.

    Raises:
        ConfigError: If the round is no number.
    """
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
        period=Period(asked.get("since"), asked.get("until")),
        detail=asked.get("text"),
    )


def first_words(found: Sequence[object]) -> str:
    """Return how many entries were found."""
    if len(found) == ENTRIES_A_PAGE:
        return f"The first {len(found)} entries, oldest first; narrow the search for others."
    return f"{len(found)} entries, oldest first."


def entries_table(found: Sequence[dict[str, Any]], *, several: bool) -> Table:
    """Return the entries, with a link to each one's run where there may be several."""
    rows = [
        (*((Cell(one["run"], "/audit", {"run": one["run"]}),) if several else ()), *row)
        for one, row in zip(found, entry_rows(found), strict=True)
    ]
    columns = (*(("run",) if several else ()), *NAMES)
    return Table(caption="Entries", columns=columns, rows=rows, empty="Nothing meets all of it.")


def verified_tables(found: Mapping[str, Any], faults: Sequence[str]) -> Iterator[Table]:
    """Yield the faults, then the log and each run."""
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
