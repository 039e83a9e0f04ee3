"""The rows of one transaction, kept in memory until it is committed.

Whoever holds the file's write lock knows that nobody else changes a row: what was read once in the
transaction stays true, and what is written may be put off to its end, where one statement writes
what a hundred clients changed in a table. Within the transaction everybody finds what was written
before, as if it lay in the file; what one client wrote is undone here, as SQLite was sent none of
it yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import takewhile
from operator import attrgetter
from typing import Any, Final

from storage.errors import AlreadyExistsError
from storage.sealing import Rows, Shape, Where, shape_of
from storage.statements import Statements
from storage.tables import Sealed

Key = tuple[Any, ...]
"""Values of a table's key, or of its first columns, in their order."""
MOST_BYTES: Final = 1 << 26
"""Bytes that may wait when a stage's next client is heard; more are written first."""
_UNKNOWN: Final = object()


@dataclass
class _Table:
    """What is known of one table in this transaction.

    Attributes:
        shape: The table's.
        rows: By key each row that was read or written; None for one that is not there.
        complete: Starts of keys, shorter than a key, of which all rows are known, and their keys.
        cleared: Starts of keys of which all rows that the file holds are deleted.
        changed: Keys of rows that differ from the file's, in the order in which they were written.
    """

    shape: Shape
    rows: dict[Key, Any] = field(default_factory=dict)
    complete: dict[Key, dict[Key, None]] = field(default_factory=dict)
    cleared: dict[Key, None] = field(default_factory=dict)
    changed: dict[Key, None] = field(default_factory=dict)

    def is_known(self, start: Key) -> bool:
        """Return whether all rows under the start of a key are known."""
        complete = self.complete
        if start in complete or start in self.rows:
            return True
        return any(start[:length] in complete for length in range(1, len(start)))

    def is_cleared(self, key: Key) -> bool:
        """Return whether the row that the file holds under a key is to be deleted."""
        cleared = self.cleared
        return bool(cleared) and any(key[:length] in cleared for length in range(1, len(key)))

    def learn(self, key: Key, row: Any) -> None:
        """Note a row, or that there is none."""
        self.rows[key] = row
        for length in range(1, len(key)):
            keys = self.complete.get(key[:length])
            if keys is not None:
                keys[key] = None

    def under(self, start: Key) -> list[Any]:
        """Return the rows under the start of a key that is known."""
        rows = self.rows
        keys: Iterable[Key] = self.complete.get(start, ())
        if len(start) == self.shape.key_length:
            keys = (start,)
        elif start not in self.complete:
            # A shorter start is known, of which this is a part.
            keys = [key for key in rows if key[: len(start)] == start]
        return [row for key in keys if (row := rows.get(key)) is not None]


class WorkingRows(Rows):
    """The rows of one transaction that holds the write lock; `flush` before it is committed."""

    def __init__(self, statements: Statements) -> None:
        """Run on this connection."""
        super().__init__(statements)
        self._tables: dict[type[Sealed], _Table] = {}
        self._undo: list[Callable[[], None]] = []
        self._is_undoable = False
        self._bytes = 0

    @contextmanager
    def undone_together(self) -> Iterator[None]:
        """Undo what the block wrote if it raises; blocks may not lie in one another."""
        if self._bytes > MOST_BYTES:
            self.flush()
        self._undo, self._is_undoable = [], True
        try:
            yield
        except BaseException:
            for undo in reversed(self._undo):
                undo()
            raise
        finally:
            self._undo, self._is_undoable = [], False

    def flush(self) -> None:
        """Write what was put off, and forget what is known.

        Raises:
            StorageError: What the driver says, in our words; then nothing may be committed.
        """
        if self._is_undoable:
            raise RuntimeError("what may have to be undone was to be written")
        tables, self._tables, self._bytes = self._tables, {}, 0
        for table in tables.values():
            self._write(table)

    def insert(self, table: type[Sealed], *rows: Mapping[str, Any]) -> None:
        """Add rows with their digests.

        Raises:
            AlreadyExistsError: One is there already; those before it were added.
        """
        known = self._known(table)
        for row in rows:
            sealed = known.shape.made(*known.shape.sealed(row))
            key = known.shape.key(sealed)
            if self._find(known, key) is not None:
                raise AlreadyExistsError(f"the row of table {known.shape.name} exists already")
            self._set(known, key, sealed)

    def put(self, table: type[Sealed], row: Mapping[str, Any]) -> None:
        """Add a row, in the place of one with the same key if there is one."""
        known = self._known(table)
        sealed = known.shape.made(*known.shape.sealed(row))
        key = known.shape.key(sealed)
        self._find(known, key)
        self._set(known, key, sealed)

    def swap(self, table: type[Sealed], before: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
        """Put a row in the place of another of the same key, if that is still as it was."""
        known = self._known(table)
        sealed = known.shape.made(*known.shape.sealed(row))
        key = known.shape.key(sealed)
        found = self._find(known, key)
        if found is None or found[:-1] != tuple(before[name] for name in known.shape.columns[:-1]):
            return False
        self._set(known, key, sealed)
        return True

    def read(
        self,
        table: type[Sealed],
        where: Where,
        *,
        order: Sequence[str] = (),
        newest_first: bool = False,
        limit: int | None = None,
    ) -> list[Any]:
        """Return the rows that meet all conditions, each checked when it was read first."""
        known = self._known(table)
        start, others = _start(known.shape, where)
        if not start or newest_first or limit is not None:
            self.flush()
            return super().read(table, where, order=order, newest_first=newest_first, limit=limit)
        self._load(known, start)
        found = known.under(start)
        for name in others:
            found = [row for row in found if getattr(row, name) == where[name]]
        return sorted(found, key=attrgetter(*order)) if order and len(found) > 1 else found

    def column(
        self, table: type[Sealed], name: str, where: Where, *, newest_first: bool = False
    ) -> tuple[Any, ...]:
        """Return the different values of one column, sorted; no digest is looked at."""
        self.flush()
        return super().column(table, name, where, newest_first=newest_first)

    def reseal(self, table: type[Sealed], rows: Sequence[Any], **changes: object) -> None:
        """Change columns that are no key in rows that `read` returned, and seal them anew."""
        known = self._known(table)
        for row in rows:
            sealed = known.shape.resealed(row._replace(**changes))
            self._set(known, known.shape.key(sealed), sealed)

    def delete(self, table: type[Sealed], where: Where) -> None:
        """Delete the rows that meet all conditions."""
        known = self._known(table)
        start, others = _start(known.shape, where)
        if not start or others:
            self.flush()
            super().delete(table, where)
        elif len(start) == known.shape.key_length:
            self._find(known, start)
            self._set(known, start, None)
        else:
            self._clear(known, start)

    def verify(self, tables: Sequence[type[Sealed]]) -> None:
        """Read every row of some tables and check it."""
        self.flush()
        super().verify(tables)

    def _known(self, table: type[Sealed]) -> _Table:
        found = self._tables.get(table)
        if found is None:
            found = self._tables[table] = _Table(shape_of(table))
        return found

    def _find(self, known: _Table, key: Key) -> Any:
        self._load(known, key)
        return known.rows.get(key)

    def _load(self, known: _Table, start: Key) -> None:
        """Read what the file holds under the start of a key, unless that is known."""
        if known.is_known(start):
            return
        shape = known.shape
        is_key = len(start) == shape.key_length
        if not is_key:
            known.complete[start] = {k: None for k in known.rows if k[: len(start)] == start}
        text = f"{shape.selection} WHERE {shape.starts[len(start)]}"
        for values in self.statements.run(text, start):
            row = self._checked(shape, values)
            key = shape.key(row)
            # What was written or deleted since is newer than what the file holds.
            if key not in known.rows and not known.is_cleared(key):
                known.learn(key, row)
        if is_key and start not in known.rows:
            known.learn(start, None)

    def _set(self, known: _Table, key: Key, row: Any) -> None:
        before, is_first = known.rows.get(key, _UNKNOWN), key not in known.changed

        def undo() -> None:
            known.rows[key] = before
            if before is _UNKNOWN:
                # After a deletion nobody has asked what the file holds.
                del known.rows[key]
            if is_first:
                del known.changed[key]

        self._undo.append(undo)
        known.learn(key, row)
        known.changed[key] = None
        if row is not None:
            self._bytes += sum(len(row[place]) for place in known.shape.blobs)

    def _clear(self, known: _Table, start: Key) -> None:
        """Delete all rows under the start of a key, which need not be read for that."""
        length = len(start)
        gone = {k: row for k, row in known.rows.items() if k[:length] == start}
        was_known, was_cleared = known.complete.get(start), start in known.cleared

        def undo() -> None:
            known.rows.update(gone)
            for shorter in range(1, length):
                # Read since, it lacks what is there again.
                known.complete.pop(start[:shorter], None)
            if was_known is None:
                del known.complete[start]
            if not was_cleared:
                del known.cleared[start]

        self._undo.append(undo)
        known.complete[start] = dict.fromkeys(gone)
        known.cleared[start] = None
        known.rows.update(dict.fromkeys(gone))

    def _write(self, known: _Table) -> None:
        shape, run = known.shape, self.statements.run_many
        for length in sorted({len(start) for start in known.cleared}):
            starts = [start for start in known.cleared if len(start) == length]
            run(f"DELETE FROM {shape.name} WHERE {shape.starts[length]}", starts)  # noqa: S608
        kept = [row for key in known.changed if (row := known.rows[key]) is not None]
        gone = [key for key in known.changed if known.rows[key] is None]
        if kept:
            run(f"INSERT OR REPLACE{shape.insertion}", kept)
        if gone:
            run(f"DELETE FROM {shape.name} WHERE {shape.starts[shape.key_length]}", gone)  # noqa: S608


def _start(shape: Shape, where: Where) -> tuple[Key, Sequence[str]]:
    """Return the first values of a key that conditions give, and which conditions are left over.

    Empty where one of them is on several values.
    """
    if any(type(value) in (list, tuple) for value in where.values()):
        return (), ()
    names, others = _split(shape.keys, tuple(where))
    return tuple([where[name] for name in names]), others


@lru_cache(maxsize=256)
def _split(keys: tuple[str, ...], names: tuple[str, ...]) -> tuple[Sequence[str], Sequence[str]]:
    start = tuple(takewhile(names.__contains__, keys))
    return start, tuple(name for name in names if name not in start)
