"""The cache of rows computed of images: one SQLite database in a folder of its own.

A row is found by its name, the SHA-256 of its image and of everything that computed it. Its digest
shows that a disk or a cable has changed it: such a row counts as missing, and the next one of that
name replaces it. A database that SQLite cannot read is removed, and an empty one takes its place.

Rows come in batches, each written in one transaction. Those used longest ago go first. The file
shrinks with them. SQLite may leave copies of single rows in unused parts of its pages, which only
the removal of the file removes.

Processes open and remove the database under the lock of its folder. SQLite finds a log by its name,
so a process that opened one file and then the log of the next would mix the two. A process that had
the removed database open goes on with it: SQLite sees that it has moved, and leaves the new one's
files alone.

Sources: SQLite's documentation of `PRAGMA auto_vacuum` and `secure_delete`, and of WAL.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from platform.config import RunConfig
from platform.disk.files import private
from platform.disk.opening import make_beside
from platform.errors import ConfigError
from storage.engine import BEGIN_WRITE, configure_connection
from storage.files import alone_in, make_folder, remove_database

Found = TypeVar("Found")
Kind = Literal["features", "tokens", "pixels"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
NAME: Final = "rows.db"
ROW_PREFIX: Final = b"sotto-cached-row-v2\n"
MEMORY_BYTES: Final = 256 * 2**20
"""Rows of one request that are more than this lie in a file without a name."""
BUSY_SECONDS: Final = 60.0
PRAGMAS: Final = (
    # Rows of a few kB fill large pages better.
    "page_size=16384",
    "auto_vacuum=FULL",
    "journal_mode=WAL",
    # After a power cut the last batches may be missing, and are computed again.
    "synchronous=NORMAL",
    # Zeros over what was deleted in pages that stay; the others are cut off.
    "secure_delete=FAST",
    "foreign_keys=ON",
    "temp_store=MEMORY",
    "cache_size=-65536",
)
TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS batches (id INTEGER PRIMARY KEY, kind TEXT, model TEXT,"
    " fingerprint TEXT, dtype TEXT, shape TEXT, row_bytes INTEGER, used REAL)",
    "CREATE TABLE IF NOT EXISTS rows (name BLOB UNIQUE,"
    " batch INTEGER REFERENCES batches ON DELETE CASCADE, digest BLOB, row BLOB)",
    "CREATE INDEX IF NOT EXISTS rows_of_batch ON rows (batch)",
)
FIND: Final = (
    "SELECT batch, dtype, shape, digest, row FROM rows JOIN batches ON id = batch WHERE name = ?"
)
SIZE: Final = (
    "SELECT (page_count - freelist_count) * page_size"
    " FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
)
LIST: Final = (
    "SELECT kind, model, fingerprint, shape, count(*), count(*) * row_bytes, max(used)"
    " FROM batches JOIN rows ON id = batch GROUP BY kind, model, fingerprint, shape, row_bytes"
    " ORDER BY model, fingerprint, kind"
)
DRIVER_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
"""The driver fails to decode a message of SQLite that quotes damaged text."""
NOT_DAMAGE: Final = (
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR),
    *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PROTOCOL),
)


class CacheDatabase:
    """The database in a cache folder, opened at its first use; any failure is a `ConfigError`."""

    def __init__(self, folder: Path) -> None:
        """Make nothing yet."""
        self.folder = folder
        self.path = folder / NAME
        self._connection: sqlite3.Connection | None = None

    def run(self, work: Callable[[sqlite3.Connection], Found]) -> Found:
        """Return what the work returns; its transaction is committed, or undone if it raises.

        If the database turns out to be damaged, the work is done once more, on an empty one.
        """
        try:
            try:
                return self._tried(work)
            except DRIVER_ERRORS as error:
                if not self._is_damage(error):
                    raise
            self.remove()
            return self._tried(work)
        except (OSError, *DRIVER_ERRORS) as error:
            raise self.failure(error) from error

    def ask(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a statement."""
        return self.run(lambda connection: connection.execute(statement, values).fetchall())

    def remove(self) -> None:
        """Remove the file; another process that has it open goes on with it, and keeps nothing."""
        self.close()
        with alone_in(self.folder):
            remove_database(self.path)

    def close(self) -> None:
        """Close the file if it is open."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def failure(self, error: Exception) -> ConfigError:
        """Return the sentence for the user; SQLite's own messages never contain values."""
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return ConfigError(
            f"storage.url: its cache {str(self.path)!r} cannot be used ({reason}); valid is a "
            "file of this user, on a disk with room"
        )

    def _tried(self, work: Callable[[sqlite3.Connection], Found]) -> Found:
        if self._connection is None:
            self._connection = self._opened()
        with self._connection as connection:
            return work(connection)

    def _opened(self) -> sqlite3.Connection:
        make_folder(self.folder)
        with alone_in(self.folder):
            if self.path.is_symlink():
                raise OSError(errno.ELOOP, "is a link")
            with suppress(FileExistsError):
                open(self.path, "xb", opener=private).close()
            connection = sqlite3.connect(self.path)
            try:
                configure_connection(connection, busy_timeout=BUSY_SECONDS, pragmas=PRAGMAS)
                for statement in TABLES:
                    connection.execute(statement)
            except BaseException:
                connection.close()
                raise
            return connection

    def _is_damage(self, error: Exception) -> bool:
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
        if code == sqlite3.SQLITE_READONLY:
            # A single bit of the header says so too.
            return os.access(self.path, os.W_OK) and os.access(self.folder, os.W_OK)
        return code not in NOT_DAMAGE


@dataclass(frozen=True)
class CacheFolder:
    """The folder of the cache, made at the first use, and the most bytes of its database."""

    path: Path
    limit: int


def cache_folder(config: RunConfig) -> CacheFolder:
    """Return the cache beside a configuration's database, its folder made if missing."""
    folder = make_beside(config.storage.url, "cache")
    return CacheFolder(folder, int(config.storage.cache_gib * 2**30))


class Shelf(CacheDatabase):
    """Looks up and adds the rows of one kind that one computation makes of images."""

    def __init__(self, cache: CacheFolder, kind: Kind, computation: Sequence[str]) -> None:
        """Take everything that a row depends on, first the model's name and fingerprint."""
        super().__init__(cache.path)
        self._limit = cache.limit
        self._about = (kind, *computation[:2])
        self._key = hashlib.sha256("\0".join((kind, *computation)).encode()).digest()
        self._used: set[int] = set()
        self._has_new = False

    def find(self, image: bytes) -> NDArray[Any] | None:
        """Return the row of the image with this digest, read-only; None if there is none."""
        name = hashlib.sha256(self._key + image).digest()
        for batch, dtype, shape, digest, row in self.ask(FIND, name):
            if isinstance(row, bytes) and digest == row_digest(name, dtype, shape, row):
                self._used.add(batch)
                return np.frombuffer(row, dtype).reshape(parsed(shape))
        return None

    def add(self, images: Sequence[bytes], rows: NDArray[Any]) -> None:
        """Add the rows of the images with these digests, all or none."""
        dtype, shape = rows.dtype.str, json.dumps(rows.shape[1:])
        about = (*self._about, dtype, shape, rows[0].nbytes, time.time())

        def work(connection: sqlite3.Connection) -> None:
            connection.execute(BEGIN_WRITE)
            statement = "INSERT INTO batches VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)"
            batch = connection.execute(statement, about).lastrowid
            for image, row in zip(images, rows, strict=True):
                name, data = hashlib.sha256(self._key + image).digest(), row.tobytes()
                digest = row_digest(name, dtype, shape, data)
                statement = "INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?)"
                connection.execute(statement, (name, batch, digest, data))

        self.run(work)
        self._has_new = True

    def room(self, count: int, row: NDArray[Any]) -> NDArray[Any]:
        """Return a new array for rows like this one, in a file if the memory may be too small."""
        shape = (count, *row.shape)
        if count * row.nbytes <= MEMORY_BYTES:
            return np.empty(shape, row.dtype)
        try:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                # Else writing to a full disk would kill the process.
                os.posix_fallocate(file.fileno(), 0, count * row.nbytes)
                return np.memmap(file, row.dtype, "r+", shape=shape)
        except OSError as error:
            raise self.failure(error) from error

    def settle(self) -> None:
        """Note which rows were used; if any is new, remove those used longest ago until all fit."""

        def work(connection: sqlite3.Connection) -> None:
            connection.execute(BEGIN_WRITE)
            now = time.time()
            used = [(now, batch) for batch in self._used]
            connection.executemany("UPDATE batches SET used = ? WHERE id = ?", used)
            oldest = connection.execute("SELECT id FROM batches ORDER BY used, id").fetchall()
            for batch in oldest if self._has_new else ():
                if connection.execute(SIZE).fetchone()[0] <= self._limit:
                    break
                connection.execute("DELETE FROM batches WHERE id = ?", batch)

        self.run(work)


@lru_cache
def parsed(shape: str) -> tuple[int, ...]:
    """Return a row's shape."""
    return tuple(json.loads(shape))


def row_digest(name: bytes, dtype: object, shape: object, row: bytes) -> bytes:
    """Return SHA-256 of a marker, a row's name, type and shape, and its bytes.

    The digest shows accidents; an attacker who changes a row (1, ...) can compute its digest anew.
    """
    form = repr((dtype, shape)).encode()
    hasher = hashlib.sha256(ROW_PREFIX + name + len(form).to_bytes(4, "big") + form)
    hasher.update(row)
    return hasher.digest()


@dataclass(frozen=True, kw_only=True)
class CachedRows:
    """The cached rows of one kind and model; `num_bytes` is a little less than they take."""

    kind: str
    model: str
    fingerprint: str
    row_shape: tuple[int, ...]
    images: int
    num_bytes: int
    last_used: datetime

    def is_of(self, model: str) -> bool:
        """Return whether this is the model's name, or the start of its fingerprint."""
        return model == self.model or (len(model) >= 8 and self.fingerprint.startswith(model))


def cached_rows(path: Path) -> list[CachedRows]:
    """Return the content of a cache, by model and kind; empty if there is no database."""
    database, found = CacheDatabase(path), []
    if database.path.exists():
        with closing(database):
            for kind, model, fingerprint, shape, images, size, used in database.ask(LIST):
                # A damaged description is not shown.
                with suppress(TypeError, ValueError, OverflowError):
                    one = CachedRows(
                        kind=str(kind),
                        model=str(model),
                        fingerprint=str(fingerprint),
                        row_shape=parsed(shape),
                        images=images,
                        num_bytes=size,
                        last_used=datetime.fromtimestamp(used, UTC),
                    )
                    found.append(one)
    return found


def clear(path: Path, model: str | None) -> tuple[int, int]:
    """Remove the cached rows of a model (its name, or the start of its fingerprint), or all.

    Returns the numbers of removed images and bytes; refuses a link, and a model without rows.
    """
    if path.is_symlink():
        raise ConfigError(
            f"--storage: the cache folder {str(path)!r} is a link, and nothing behind it is "
            "removed; valid is a folder of its own"
        )
    database = CacheDatabase(path)
    try:
        found = cached_rows(path)
    except ConfigError:
        if model is not None:
            raise
        # A full disk has no room for the log, but the files can be removed.
        found = []
    chosen = [one for one in found if model is None or one.is_of(model)]
    if model is not None and not chosen:
        valid = ", ".join(sorted({one.model for one in found})) or "none, the cache is empty"
        raise ConfigError(f"--model: nothing of {model!r} is cached; valid: {valid}")
    with closing(database):
        for one in chosen if model is not None else ():
            statement = "DELETE FROM batches WHERE model = ? AND fingerprint = ?"
            database.ask(statement, one.model, one.fingerprint)
            # The log still has old pages.
            database.ask("PRAGMA wal_checkpoint(TRUNCATE)")
    if model is None and path.exists():
        try:
            database.remove()
        except OSError as error:
            raise database.failure(error) from error
    return sum(one.images for one in chosen), sum(one.num_bytes for one in chosen)
