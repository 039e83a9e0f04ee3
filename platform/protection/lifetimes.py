"""Whose lifetime a run spends from, and what other runs of the database have spent of it.

In a federation a client is its own store, which keeps one pseudonym for good. In a simulation the
data say who is who: runs on the same source are runs of the same clients. Nearly every key of a
task deals the images out anew, and so does a folder that comes or goes, so nobody can say which
client of another run held the images that a client holds now. Each client is therefore charged for
all other runs on its source, each at what that run charged the client that it charged most.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from platform.config import RunConfig
from platform.config.rules import MADE, OWN
from platform.errors import RecordsDisagree
from platform.protection.ledger_rows import as_releases
from privacy import RunningLedger
from storage import LedgerRow, RunRecord, UnitOfWork

FILELESS: Final = (*MADE, "digits")
"""Data sets that read nothing below `task.root`."""
_FOLDERS: Final = (*OWN, "folders")
"""Data sets that are whatever lies in `task.root`."""


@dataclass(frozen=True)
class Source:
    """Where a simulation's data come from.

    Attributes:
        name: Of a data set that is the same wherever it lies; None for folders of the user's own.
        root: The folder that is read, without links; None where none is.
    """

    name: str | None
    root: Path | None

    @classmethod
    def of(cls, dataset: str, root: str) -> Source:
        """Return the source of `task.dataset` and `task.root`; no other key tells of one."""
        return cls(
            None if dataset in _FOLDERS else dataset,
            None if dataset in FILELESS else Path(os.path.realpath(root)),
        )

    def overlaps(self, other: Source) -> bool:
        """Whether the two may hold the same data: by name, else where a folder is in the other."""
        if self.name is not None and other.name is not None:
            return self.name == other.name
        if self.root is None or other.root is None:
            return False
        return self.root.is_relative_to(other.root) or other.root.is_relative_to(self.root)


def is_by_source(config: RunConfig) -> bool:
    """Whether each client is charged for all runs on its source; else for runs of its pseudonym."""
    return config.federation is None and config.privacy.lifetime_budget is not None


def rows_that_count(
    uow: UnitOfWork, config: RunConfig, run_id: str, pseudonyms: Collection[str]
) -> list[LedgerRow]:
    """Return the ledger rows of other runs that have spent from the lifetimes of a run's clients.

    Args:
        uow: A view of the database.
        config: The run's.
        run_id: The run.
        pseudonyms: Its clients.

    Raises:
        RecordsDisagree: If a run's row says nothing of its data.
    """
    if not is_by_source(config):
        return [row for row in uow.ledger.rows_of(pseudonyms) if row.run_id != run_id]
    source = Source.of(config.task.dataset, config.task.root)
    others = (run for run in uow.runs.list() if run.run_id != run_id)
    return [
        row
        for run in others
        if source.overlaps(_source_of(run))
        for row in uow.ledger.rows(run.run_id)
    ]


def charged_elsewhere(
    config: RunConfig, rows: Iterable[LedgerRow], pseudonyms: Collection[str]
) -> RunningLedger:
    """Return what a run's clients are charged for other runs.

    Args:
        config: The run's.
        rows: What `rows_that_count` gave.
        pseudonyms: The run's clients.

    Raises:
        UnknownMechanism: A row names a mechanism that is not there, so that nobody can price it.
    """
    charged = RunningLedger(as_releases(rows, config.mechanisms))
    return charged.charged_to_all(pseudonyms) if is_by_source(config) else charged


def _source_of(run: RunRecord) -> Source:
    """Return where a run's data came from; those of a federation are none that a simulation has."""
    tree = stored_tree(run)
    if tree.get("federation") is not None:
        return Source(f"federation of run {run.run_id}", None)
    try:
        return Source.of(tree["task"]["dataset"], tree["task"]["root"])
    except (TypeError, KeyError) as error:
        raise RecordsDisagree(
            run.run_id, "the configuration in its row names no data set"
        ) from error


def stored_tree(run: RunRecord) -> dict[str, Any]:
    """Return the configuration in a run's row, as plain data that nobody has checked.

    Raises:
        RecordsDisagree: If it is no JSON object.
    """
    try:
        tree = json.loads(run.config_json)
    except (ValueError, RecursionError):
        tree = None
    if not isinstance(tree, dict):
        raise RecordsDisagree(run.run_id, "the configuration in its row is no JSON object")
    return tree
