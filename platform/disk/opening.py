"""The coordinator's database by its URL, and where the files of its runs lie."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, urlencode

from platform.disk.log_files import keep_head, kept_heads, known_key
from platform.errors import ConfigError, RecordsDisagree, UnknownRun
from storage import (
    Database,
    InvalidRecordError,
    LogBroken,
    RunRecord,
    TreeHead,
    UnitOfWork,
    open_database,
)
from storage.address import EXAMPLE, FOLDER, address_of, names_server, shown
from storage.database import database_exists, schema_version
from storage.files import make_folder

BEFORE_LOG: Final = "0.1.0"
"""The schema in which no log was kept."""
CONFIG: Final = "config.yaml"
"""What is in a run's folder before its database knows the run."""
T = TypeVar("T")

SQLITE_PREFIX = "sqlite:///"


def open_storage(url: str) -> Database:
    """Return the coordinator's database, its folder made if missing.

    Raises:
        ConfigError: If the URL names no database, its folder cannot be made, or a server's folder
            is not the one in which its runs were made.
        LogBroken: If a server's log does not go through the heads that were kept of it.
    """
    make_beside(url)
    return _opened(url, read_only=False)


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
        StorageError: If a server cannot be reached, or its database is another program's.
    """
    file = database_file(url)
    return _said(lambda: database_exists(url)) if names_server(url) else file.is_file()


def open_existing(url: str, *, read_only: bool = True) -> Database:
    """Return the coordinator's database where there is one already.

    Args:
        url: Of a SQLite file, or of a server.
        read_only: Whether nothing may be written, not even beside the file; who works beside
            others that write reads better as one of them.

    Raises:
        ConfigError: If the URL names no database, or a server's folder is not the one in which its
            runs were made.
        UnknownRun: If there is no such file, or nothing of ours on the server.
        LogBroken: If a server's log does not go through the heads that were kept of it.
    """
    if not is_there(url):
        raise UnknownRun(
            f"--storage: there is no database at {url} yet; valid: one that `run` has made"
        )
    return _opened(url, read_only=read_only)


def _opened(url: str, *, read_only: bool) -> Database:
    if not names_server(url):
        return open_database(url, read_only=read_only)
    known = _said(lambda: schema_version(url)) if is_there(url) else None
    database = _said(lambda: open_database(url, read_only=read_only))
    with closed_on_error(database):
        _require_own_heads(database, was_logged=known != BEFORE_LOG)
    return database


def _require_own_heads(database: Database, *, was_logged: bool) -> None:
    """Require the folder in which a server's runs were made.

    In another one, heads would be signed by another key, and runs' files be missing. The first head
    is kept before there is a leaf, so that a process may be killed after any commit.
    """
    heads = kept_heads(database.path, known_key(database.path)).heads
    with database.unit_of_work(read_only=True) as uow:
        head = TreeHead(uow.log.size(), uow.log.tree().root())
        if heads:
            _require_on_the_way(uow, heads[-1], head)
        runs = [run.run_id for run in uow.runs.list()]
    folder = database.path.parent
    known = heads[-1].size if heads else 0
    are_here = bool(heads) and all((folder / run / CONFIG).is_file() for run in runs)
    if was_logged and head.size and not known and not are_here:
        raise ConfigError(
            f"storage.url: folder {str(folder)!r} holds no heads of the log of database"
            f" {database.path.name}; valid is the one in which its runs were made"
        )
    if not heads and not database.is_read_only:
        keep_head(database.path, head)


def _require_on_the_way(uow: UnitOfWork, kept: TreeHead, head: TreeHead) -> None:
    if kept.size > head.size:
        raise LogBroken(head.size, f"a kept head says that there are {kept.size} leaves")
    if uow.log.tree(kept.size).root() != kept.root:
        raise LogBroken(
            max(kept.size - 1, 0), f"a kept head of {kept.size} leaves has another root"
        )


def _said(ask: Callable[[], T]) -> T:
    """Return an answer; what is wrong with a URL is the user's to put right."""
    try:
        return ask()
    except InvalidRecordError as error:
        raise ConfigError(str(error)) from error


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
    """Return the file of a SQLite URL; of a server's a place in its folder, where files lie beside.

    Raises:
        ConfigError: If the URL names neither.
    """
    if names_server(url):
        return _said(lambda: address_of(url).path)
    name = url.removeprefix(SQLITE_PREFIX)
    if name in (url, "", ":memory:") or "?" in name or Path(name).is_dir():
        raise ConfigError(
            f"storage.url: {shown(url)!r} is not valid; it must be {SQLITE_PREFIX} and a file's"
            f" path, or a server's URL such as {EXAMPLE}"
        )
    return Path(name)


def require_file(url: str, command: str) -> None:
    """Require a database that is a file, for what a server's own tools are to do.

    Raises:
        ConfigError: If the URL is one of a server, or names no database.
    """
    path = database_file(url)
    if names_server(url):
        raise ConfigError(
            f"--storage: `{command}` copies SQLite files, and {path.name} is on a server; valid is"
            f" pg_dump or pg_restore, and a copy of folder {str(path.parent)!r}, both while no run"
            " goes on"
        )


def absolute_url(url: str) -> str:
    """Return a server's URL that means the same whatever folder a process works in.

    Raises:
        ConfigError: If the URL names no database.
    """
    folder = database_file(url).absolute().parent
    before, _, after = url.partition("?")
    pairs = [(name, value) for name, value in parse_qsl(after) if name != FOLDER]
    return f"{before}?{urlencode([*pairs, (FOLDER, str(folder))], safe='/')}"


def run_folder(url: str, run_id: str) -> Path:
    """Return where a run's files lie: beside the database."""
    return database_file(url).parent / run_id


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
