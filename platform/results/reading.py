"""Runs out of a database, each of them only if its records agree; nothing is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from platform.agreement import Agreed, require_agreement, stored_tree
from platform.agreement.statements import stated_document
from platform.config.run import code_of, identity
from platform.disk.opening import is_there, open_existing, run_folder
from platform.errors import UnknownRun, listed
from platform.results.numbers import RunNumbers
from platform.results.sweeps import SweepCell, read_sweep
from platform.rounds.audit_trail import parsed_detail
from storage import Database
from storage.homes import PREFIX

LATEST: Final = "latest"


def numbers_of(agreed: Agreed) -> RunNumbers:
    """Return the numbers of a run whose records agree."""
    config = agreed.config
    return RunNumbers(
        run_id=agreed.records.run_id,
        config=config.name,
        dataset=config.task.dataset,
        method=config.method.name,
        seed=config.seed,
        protocol=config.evaluation.protocol,
        document=stated_document(agreed),
    )


def read_runs(url: str, names: Iterable[str] | None = None) -> list[Agreed]:
    """Return runs of a database, oldest first.

    Args:
        url: The database.
        names: Ids, or `latest`; None for all.

    Raises:
        UnknownRun: If there is no such run, or no database.
        RecordsDisagree: If the records of a run do not agree.
        AuditChainBroken: If an audit log was changed.
    """
    with closing(open_existing(url)) as database:
        known = known_ids(database)
        wanted = known if names is None else [resolved(known, name, url) for name in names]
        return [require_agreement(database, run_id) for run_id in dict.fromkeys(wanted)]


def known_ids(database: Database) -> list[str]:
    """Return the ids of all runs, oldest first."""
    with database.unit_of_work(read_only=True) as uow:
        return [run.run_id for run in uow.runs.list()]


def resolved(known: Sequence[str], name: str, url: str) -> str:
    """Return a run's full id; `latest` is the newest run.

    Args:
        known: Ids of all runs, oldest first.
        name: An id, or `latest`.
        url: Of the database, for the message.

    Raises:
        UnknownRun: If there is no such run.
    """
    if name in known:
        return name
    if name != LATEST:
        newest = [LATEST, *reversed(known)] if known else []
        raise UnknownRun(
            f"RUN: {name!r} is unknown in {url}; valid: {listed(newest)} (`runs` lists all)"
        )
    if not known:
        raise UnknownRun(f"RUN: there is no run in {url} yet")
    return known[-1]


def read_sweep_runs(folder: Path, url: str) -> tuple[list[tuple[RunNumbers, Agreed]], int]:
    """Return the runs of a sweep that have begun, in the order of its cells, and how many have not.

    Args:
        folder: Where the sweep writes its results.
        url: The database of its runs, but of those that have one of their own.

    Raises:
        ConfigError: If the folder is none of a sweep.
        UnknownRun: If none of its runs has begun in this database.
        RecordsDisagree: If the records of a run do not agree.
        AuditChainBroken: If an audit log was changed.
    """
    cells = read_sweep(folder)
    found: dict[str, tuple[RunNumbers, Agreed]] = {}
    for database in dict.fromkeys(cell.database for cell in cells):
        place = url if database is None else f"{PREFIX}{folder.absolute() / database}"
        found |= _begun(place, [cell for cell in cells if cell.database == database])
    if not found:
        raise UnknownRun(
            f"SWEEP: no run of {str(folder)!r} has begun in {url}; valid is the --storage that the "
            "sweep was given"
        )
    runs = [found[cell.identity] for cell in cells if cell.identity in found]
    return runs, len(cells) - len(runs)


def _begun(url: str, cells: Sequence[SweepCell]) -> dict[str, tuple[RunNumbers, Agreed]]:
    if not is_there(url):
        return {}
    with closing(open_existing(url)) as database:
        known = runs_by_cell(database, url)
        return {
            cell.identity: _placed(require_agreement(database, known[cell.identity].run_id), cell)
            for cell in cells
            if cell.identity in known
        }


def _placed(agreed: Agreed, cell: SweepCell) -> tuple[RunNumbers, Agreed]:
    """Return a run's numbers under what the sweep calls it."""
    numbers = replace(numbers_of(agreed), config=cell.config, axes=cell.axes)
    return numbers, agreed


@dataclass(frozen=True)
class KnownRun:
    """A run of a cell.

    Attributes:
        run_id: The run.
        finished: Whether it has a summary.
    """

    run_id: str
    finished: bool


def runs_by_cell(database: Database, url: str) -> dict[str, KnownRun]:
    """Return runs of a database by their cell's identity: a finished one first, else the newest.

    Args:
        database: Open.
        url: Its own, for the folders beside it.

    Raises:
        StorageError: If the database cannot be read.
        RecordsDisagree: If the row of a run has no configuration.
    """
    found: dict[str, KnownRun] = {}
    with database.unit_of_work(read_only=True) as uow:
        rows = uow.runs.list()
        begun = {entry.run: parsed_detail(entry) for entry in uow.audit.beginnings()}
    for row in rows:
        key = identity(stored_tree(row), code_of(begun.get(row.run_id, {}).get("method")))
        is_finished = row.status == "finished"
        if is_finished and not (run_folder(url, row.run_id) / "summary.json").is_file():
            # Nothing can make it again as it was, so the cell is run anew.
            continue
        # Oldest first: a later run replaces an earlier one that did not finish.
        if is_finished or key not in found or not found[key].finished:
            found[key] = KnownRun(row.run_id, is_finished)
    return found
