"""`runs --prune`: what only going on with a run needs is named, confirmed and erased."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime

import typer

from platform.cli.access import resolved
from platform.cli.output import console, print_json, size
from platform.cli.run_listing import status_of
from platform.disk.opening import is_there, open_existing
from platform.errors import ConfigError
from platform.experiment.pruning import (
    Leftovers,
    leftovers,
    prune,
    pruned_runs,
    require_nothing_follows,
    second_phases_first,
)
from storage import Database, RunRecord

KEPT = (
    "kept: ledgers, audit log, rounds, configuration, report and metrics, so that `report`, "
    "`budget` and `audit verify` state what was spent as before; nothing can be resumed, exported "
    "or predicted from these runs any more"
)


def prune_command(
    names: Sequence[str], storage: str, *, is_sure: bool, dry_run: bool, as_json: bool
) -> None:
    """Erase the models of some runs, or of all that did not finish.

    Args:
        names: The runs; none for all that did not finish and that nobody runs.
        storage: The database's URL.
        is_sure: Ask nobody.
        dry_run: Say what would be erased, and erase nothing.
        as_json: Print JSON; then nobody can be asked.

    Raises:
        ConfigError: If a run is one on which another rests, or nobody can be asked.
        UnknownRun: If there is no such run.
        RunBusy: If a process runs one of them.
        RecordsDisagree: If the records of one do not agree.
        AuditChainBroken: If the audit log of one was changed.
    """
    if not is_sure and not dry_run and (as_json or not can_be_asked()):
        raise ConfigError("--prune: nobody can be asked here; valid is --yes or --dry-run as well")
    found = _found(names, storage)
    if not as_json:
        _print(found)
    erases = bool(found) and not dry_run
    if erases and not is_sure:
        erases = typer.confirm("Erase this for good?")
    freed = 0
    if erases:
        with closing(open_existing(storage, read_only=False)) as database:
            freed = sum(prune(database, one.run_id) for one in found)
    if as_json:
        runs = [asdict(one) for one in found]
        print_json({"runs": runs, "erased": erases, "bytes_freed": freed})
    elif erases:
        console().print(f"pruned {_runs(len(found))}; files are smaller by {size(max(freed, 0))}")
    elif found:
        console().print("nothing was erased")


def can_be_asked() -> bool:
    """Return whether somebody sits at a terminal."""
    return sys.stdin.isatty()


def _found(names: Sequence[str], storage: str) -> list[Leftovers]:
    if not is_there(storage) and not names:
        return []
    with closing(open_existing(storage)) as database:
        chosen = _chosen(database, names, storage)
        _require_free_of_others(database, chosen)
        found = [leftovers(database, run_id) for run_id in chosen]
    return [one for one in found if not one.is_over]


def _chosen(database: Database, names: Sequence[str], storage: str) -> list[str]:
    wanted = {resolved(database, name, storage) for name in names}
    with database.unit_of_work(read_only=True) as uow:
        known = uow.runs.list()
    if not names:
        wanted = {run.run_id for run in known if _is_over_early(run, database)}
    return second_phases_first([run for run in known if run.run_id in wanted])


def _is_over_early(run: RunRecord, database: Database) -> bool:
    status = status_of(run, database.path.parent / run.run_id, datetime.now(UTC))
    return status not in ("finished", "running")


def _require_free_of_others(database: Database, chosen: Sequence[str]) -> None:
    """Refuse before anything is erased what would be refused at its turn."""
    with database.unit_of_work(read_only=True) as uow:
        gone = pruned_runs(uow)
        for number, run_id in enumerate(chosen):
            require_nothing_follows(uow, run_id, gone | set(chosen[:number]))


def _print(found: Sequence[Leftovers]) -> None:
    out = console()
    if not found:
        out.print("there is nothing to prune")
        return
    out.print(f"of {_runs(len(found))} this would be erased for good:")
    for one in found:
        out.print(f"- {one.run_id} ({one.status}): {', '.join(_parts(one))}")
    out.print(KEPT)


def _parts(one: Leftovers) -> list[str]:
    numbers = " and ".join(map(str, one.states))
    parts = [
        (len(one.states), f"what the server had after round {numbers}"),
        (len(one.generations), f"{len(one.generations)} generations of the pool"),
        (one.clients, f"the personal parts of {one.clients} clients"),
    ]
    return [text for count, text in parts if count] or ["nothing but its place in the list"]


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"
