"""One transaction on the coordinator's database, committed when the block ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from platform.disk.log_files import keep_head
from storage import CheckpointError, Database, UnitOfWork

LOGGER = logging.getLogger(__name__)


@contextmanager
def transaction(database: Database) -> Iterator[UnitOfWork]:
    """Return a unit of work that is committed unless the block raises.

    Where the log has grown its head is kept outside the database, once it is committed.

    A reader in the way of erasing old pages does not undo the commit, so it is no failure of the
    round; the next commit or opening erases them.

    Raises:
        StorageFull: Nothing was committed.
        DatabaseBusy: Nothing was committed.
        Unwritable: Committed, but the log's head could not be kept.
    """
    with database.unit_of_work() as uow:
        yield uow
        try:
            head = uow.commit()
        except CheckpointError as error:
            LOGGER.warning("%s", error)
            head = error.head
    if head is not None:
        keep_head(database.path, head)


@dataclass(frozen=True)
class Records:
    """Where a coordinator writes, and reads what it wrote.

    Attributes:
        read: One view of all that is kept.
        write: One transaction, committed when its block ends.
        file: The database's; the heads of its log lie beside it.
    """

    read: Callable[[], AbstractContextManager[UnitOfWork]]
    write: Callable[[], AbstractContextManager[UnitOfWork]]
    file: Path


def records_in(database: Database) -> Records:
    """Return the records of a database."""
    read = partial(database.unit_of_work, read_only=True)
    return Records(read, partial(transaction, database), database.path)


def mark_interrupted(database: Database, run_id: str) -> None:
    """Label a run that is not going on any more; what it may do next never depends on it.

    A signal can come just after the run's last commit, so one that has finished stays finished.

    Raises:
        StorageError: If the label cannot be written.
    """
    with transaction(database) as uow:
        if uow.runs.get(run_id).status == "running":
            uow.runs.set_status(run_id, "interrupted")
