"""The coordinator's database by its URL, and where the files of its runs lie."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from platform.errors import ConfigError, UnknownRun
from storage import Database, InvalidRecordError, open_database
from storage.files import make_folder
from storage.homes import file_of, shown


def open_storage(url: str) -> Database:
    """Return the coordinator's database, its folder made if missing.

    Raises:
        ConfigError: If the URL names no database, or its folder cannot be made.
    """
    make_beside(url)
    return open_database(url)


def make_beside(url: str, name: str = "") -> Path:
    """Return the folder of the coordinator's database, or one in it, made if missing.

    Raises:
        ConfigError: If it cannot be made, or the URL names no database.
    """
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
    """Return whether there is a database.

    Raises:
        ConfigError: If the URL names no database.
    """
    return database_file(url).is_file()


def open_existing(url: str, *, read_only: bool = True) -> Database:
    """Return the coordinator's database where there is one already.

    Args:
        url: Of a SQLite file.
        read_only: Whether nothing may be written, not even beside the file; who works beside
            others that write reads better as one of them.

    Raises:
        ConfigError: If the URL names no database.
        UnknownRun: If there is no such file.
    """
    if not is_there(url):
        raise UnknownRun(
            f"--storage: there is no database at {url} yet; valid: one that `run` has made"
        )
    return open_database(url, read_only=read_only)


@contextmanager
def closed_on_error(database: Database) -> Iterator[Database]:
    """Close the database if the block raises; otherwise it goes on in what the block has built.

    Left to the garbage collector it would be closed at any time, also while somebody else opens
    the file to read it and has just seen that another has it open.
    """
    try:
        yield database
    except BaseException:
        database.close()
        raise


def database_file(url: str) -> Path:
    """Return the file of a SQLite URL.

    Raises:
        ConfigError: If the URL names none.
    """
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
    """Return where a run's files lie: beside the database."""
    return database_file(url).parent / run_id
