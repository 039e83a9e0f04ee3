"""Which runs of a database there are, and which of them belong to which cells of a sweep.

A cell is found again by its configuration alone, so a sweep has no state of its own: what the
database and the runs' folders hold is all there is.
"""

from __future__ import annotations

from dataclasses import dataclass

from platform.agreement import stored_tree
from platform.config.identity import code_of, identity
from platform.disk.opening import run_folder
from platform.rounds.audit_trail import parsed_detail
from storage import Database


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
