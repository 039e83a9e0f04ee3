"""`methods` and `runs`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from methods import Registry
from platform.agreement import stored_tree
from platform.cli.output import console, print_json, table
from platform.disk.opening import is_there, open_existing


def print_methods(folder: Path | None, *, as_json: bool) -> None:
    """List all methods with their options, those of a folder included.

    Raises:
        BrokenMethod: If one from outside cannot be used.
    """
    registry = Registry(folder=folder)
    infos = [registry.info(name) for name in registry.available()]
    if as_json:
        print_json([asdict(info) for info in infos])
        return
    rows = [(info.name, info.title, ", ".join(info.options)) for info in infos]
    console().print(table(None, ("method", "what it is", "options"), rows))


def print_runs(storage: str, *, as_json: bool) -> None:
    """List all runs, newest first.

    Raises:
        RecordsDisagree: If the row of one has no configuration.
    """
    if not is_there(storage):
        if as_json:
            print_json([])
        else:
            console().print(f"there is no run in {storage} yet")
        return
    with open_existing(storage) as database, database.unit_of_work(read_only=True) as uow:
        found = [
            (
                run.run_id,
                run.name,
                run.status,
                f"{run.created[:19]}Z",
                # A second phase goes on from its first run's rounds and has none of its own.
                len(uow.rounds.all(first or run.run_id)),
                first,
            )
            for run in reversed(uow.runs.list())
            for first in [stored_tree(run).get("phase_two_of")]
        ]
    names = ("run", "config", "status", "created", "rounds", "phase_two_of")
    if as_json:
        print_json([dict(zip(names, row, strict=True)) for row in found])
        return
    shown = [tuple("" if value is None else value for value in row) for row in found]
    console().print(table(None, names, shown))
