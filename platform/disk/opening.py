"""The coordinator's database by its URL, its transactions, and where the files of its runs lie."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from platform.disk.log_files import keep_head
from platform.errors import ConfigError, UnknownRun
from storage import CheckpointError, Database, InvalidRecordError, UnitOfWork, open_database
from storage.files import make_folder
from storage.homes import file_of, shown


def open_storage(url: str) -> Database:
    """Return the coordinator's database, its folder made if missing."""
    make_beside(url)
    return open_database(url)


def make_beside(url: str, name: str = "") -> Path:
    """Return the folder of the coordinator's database, or one in it, made if missing."""
    folder = database_file(url).parent / name
    try:
        make_folder(folder)
    except OSError as error:
        raise ConfigError(
            f"storage.url: its folder {str(folder)!r} cannot be made ({error.strerror}); valid is "
            "one that can be written to"
        ) from error
    return folder


def is_there(url: str) -> bool:
    """Return whether there is a database."""
    return database_file(url).is_file()


def open_existing(url: str, *, read_only: bool = True) -> Database:
    """Return the coordinator's database, which must exist (`UnknownRun`).

    With `read_only` nothing may be written, not even beside the file. A process that reads beside
    writers should open the database as a writer.
    """
    if not is_there(url):
        raise UnknownRun(
            f"--storage: there is no database at {url} yet; valid: one that `run` has made"
        )
    return open_database(url, read_only=read_only)


@contextmanager
def closed_on_error(database: Database) -> Iterator[Database]:
    """Close the database if the block raises; else the objects that the block built keep it.

    The garbage collector would close it at any time, also while another process opens the file to
    read it and has just seen that it is open elsewhere.
    """
    try:
        yield database
    except BaseException:
        database.close()
        raise


def database_file(url: str) -> Path:
    """Return the file of a SQLite URL; `ConfigError` if it names none."""
    try:
        file = file_of(url)
    except InvalidRecordError as error:
        raise ConfigError(str(error)) from error
    if file.is_dir():
        raise ConfigError(
            f"storage.url: {shown(url)!r} is not valid; it names a folder, and must name a file"
        )
    return file


def run_folder(url: str, run_id: str) -> Path:
    """Return the folder of a run's files, beside the database."""
    return database_file(url).parent / run_id


LOGGER = logging.getLogger(__name__)


@contextmanager
def transaction(database: Database) -> Iterator[UnitOfWork]:
    """Return a unit of work that is committed unless the block raises.

    If the log has grown, the function keeps its head outside the database after the commit.
    `Unwritable` means that this failed, after the commit.

    A reader may prevent that old pages are erased. This does not undo the commit, so the round has
    not failed; the next commit or opening erases the pages.
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
    """A coordinator's records.

    Attributes:
        read: Opens a consistent view.
        write: Opens a transaction, which is committed when its block ends.
        file: Of the database; the heads of its log lie beside it.
    """

    read: Callable[[], AbstractContextManager[UnitOfWork]]
    write: Callable[[], AbstractContextManager[UnitOfWork]]
    file: Path


def records_in(database: Database) -> Records:
    """Return the records of a database."""
    read = partial(database.unit_of_work, read_only=True)
    return Records(read, partial(transaction, database), database.path)


def mark_interrupted(database: Database, run_id: str) -> None:
    """Label a run that has stopped. The run's later behaviour does not depend on this label.

    A signal can come just after the run's last commit, so a finished run stays finished.
    """
    with transaction(database) as uow:
        if uow.runs.get(run_id).status == "running":
            uow.runs.set_status(run_id, "interrupted")
