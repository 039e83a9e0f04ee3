"""`runs`: all runs of a database, newest first, and what came of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from platform.agreement import require_agreement, stored_tree
from platform.cli.output import console, epsilon, fraction, print_json, table
from platform.disk.opening import is_there, open_existing
from platform.disk.run_lock import is_held
from platform.errors import RecordsDisagree
from platform.experiment.pruning import pruned_runs
from platform.results.reading import numbers_of
from platform.rounds.documents import ADVERSARIES
from storage import AuditChainBroken, Database, RunRecord, UnitOfWork

NEWEST: Final = 20
"""Runs whose numbers are stated, for which all records of a run are compared."""
SETTING_UP: Final = timedelta(minutes=10)
"""How long a run may take from its row to the lock of whoever runs it."""
COLUMNS: Final = ("run", "method", "data", "accuracy", "epsilon", "status", "age")
AGES: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))

Document = Mapping[str, Any]


def runs_command(storage: str, *, every: bool, as_json: bool) -> None:
    """List all runs, newest first.

    Args:
        storage: The database's URL.
        every: Pruned runs too, and the numbers of all, however long that takes.
        as_json: Print JSON, in which no run is left out.

    Raises:
        RecordsDisagree: If the row of one has no configuration.
    """
    if not is_there(storage):
        if as_json:
            print_json([])
        else:
            console().print(f"there is no run in {storage} yet")
        return
    with open_existing(storage) as database:
        found = run_documents(database, datetime.now(UTC), most=None if every else NEWEST)
    if as_json:
        print_json(found)
    else:
        _print(found, datetime.now(UTC), every=every)


def run_documents(database: Database, now: datetime, *, most: int | None) -> list[dict[str, Any]]:
    """Return what is known of each run, newest first.

    Args:
        database: Where they are; their folders lie beside it.
        now: With a time zone.
        most: Runs whose accuracy and epsilon are stated, the newest; None for all.

    Raises:
        RecordsDisagree: If the row of one has no configuration.
    """
    folder = database.path.parent
    with database.unit_of_work(read_only=True) as uow:
        pruned = pruned_runs(uow)
        found = [
            {
                **_row(uow, run),
                "status": status_of(run, folder / run.run_id, now),
                "pruned": run.run_id in pruned,
            }
            for run in reversed(uow.runs.list())
        ]
    for number, one in enumerate(found):
        is_stated = most is None or number < most
        one |= _numbers(database, one["run"]) if is_stated else _UNSTATED
    return found


def status_of(run: RunRecord, folder: Path, now: datetime) -> str:
    """Return where a run stands; one that was killed is not running, whatever its row says.

    Args:
        run: The run.
        folder: Its own, with the lock of whoever runs it.
        now: With a time zone.
    """
    if run.status != "running":
        return run.status
    held = is_held(folder)
    is_being_set_up = held is None and now - _created(run.created) < SETTING_UP
    return "running" if held or is_being_set_up else "interrupted"


def _row(uow: UnitOfWork, run: RunRecord) -> dict[str, Any]:
    tree = stored_tree(run)
    first = tree.get("phase_two_of")
    return {
        "run": run.run_id,
        "config": run.name,
        "status": run.status,
        "created": f"{run.created[:19]}Z",
        # A second phase goes on from its first run's rounds and has none of its own.
        "rounds": len(uow.rounds.all(first or run.run_id)),
        "phase_two_of": first,
        "method": _named(tree, "method", "name"),
        "dataset": _named(tree, "task", "dataset"),
        "planned_rounds": tree.get("rounds"),
    }


def _named(tree: Mapping[str, Any], section: str, key: str) -> Any:
    found = tree.get(section)
    return found.get(key) if isinstance(found, dict) else None


_UNSTATED: Final = {"accuracy": None, "epsilon": None, "problem": None}


def _numbers(database: Database, run_id: str) -> dict[str, Any]:
    """Return accuracy and epsilon of a run whose records agree, else what is wrong."""
    try:
        numbers = numbers_of(require_agreement(database, run_id))
    except (RecordsDisagree, AuditChainBroken) as error:
        return {**_UNSTATED, "problem": str(error)}
    stated = {"accuracy": numbers.accuracy["mean"], "epsilon": numbers.epsilons}
    return {**_UNSTATED, **stated}


def _print(found: Sequence[Document], now: datetime, *, every: bool) -> None:
    out = console()
    shown = [one for one in found if every or not one["pruned"]]
    if not shown:
        out.print("there is no run that was not pruned")
    else:
        out.print(table(None, COLUMNS, [_cells(one, now) for one in shown]))
    for one in shown:
        if one["problem"] is not None:
            out.print(f"warning: {one['problem']}")
    left_out = len(found) - len(shown)
    if left_out:
        runs = "1 pruned run is" if left_out == 1 else f"{left_out} pruned runs are"
        out.print(f"note: {runs} left out; `--all` lists them too, `budget` what they spent")
    if not every and len(found) > NEWEST:
        out.print(f"note: numbers of the newest {NEWEST} runs only; `--all` states those of all")


def _cells(one: Document, now: datetime) -> tuple[str, ...]:
    phase = "" if one["phase_two_of"] is None else ", second phase"
    return (
        one["run"],
        f"{one['method']}{phase}",
        str(one["dataset"]),
        fraction(one["accuracy"]),
        epsilons_in_short(one["epsilon"]),
        _status(one),
        age(now - _created(one["created"])),
    )


def _status(one: Document) -> str:
    if one["problem"] is not None:
        return "records disagree"
    if one["pruned"]:
        return f"{one['status']}, pruned"
    if one["status"] == "finished":
        return "finished"
    return f"{one['status']} {one['rounds']}/{one['planned_rounds']}"


def epsilons_in_short(spent: Mapping[str, float | str | None] | None) -> str:
    """Return one number where all adversaries have the same, else server/peers/observer."""
    if spent is None:
        return "-"
    each = [epsilon(spent[name]) for name in ADVERSARIES]
    return each[0] if len(set(each)) == 1 else "/".join(each)


def age(passed: timedelta) -> str:
    """Return how long ago something was, in the largest unit of which there is one."""
    seconds = max(int(passed.total_seconds()), 0)
    unit, length = next((one for one in AGES if seconds >= one[1]), AGES[-1])
    return f"{seconds // length} {unit}"


def _created(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
