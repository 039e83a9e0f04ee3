"""The rows of one transaction, kept in memory until it is committed.

The transaction holds the file's write lock, so no other process changes a row. A row that was read
once stays true, and writes wait until the transaction's end, where one statement writes the changes
of a hundred clients to a table. Within the transaction every client reads earlier writes as if they
were in the file. One client's writes are undone here, in memory, because SQLite did not get them
yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import takewhile
from operator import attrgetter
from typing import Any, Final

from storage.engine import Statements
from storage.errors import AlreadyExistsError
from storage.sealing import Rows, Shape, Where, shape_of
from storage.tables import Sealed

Key = tuple[Any, ...]
"""Values of a table's key, or of its first columns, in their order."""
MOST_BYTES: Final = 1 << 26
"""Bytes to keep in memory when a stage's next client begins; more are written out before."""
_AT_ONCE: Final = 25
"""Owners whose rows one statement reads."""
_GUESSES: Final = 3
"""Reads of a table that are made for all owners at once: receipts read three rounds."""
_UNKNOWN: Final = object()


@dataclass(slots=True)
class _Part:
    """The known rows of one owner in one table; the owner is the first column of the key.

    Attributes:
        rows: By key, each row that was read or written; None for a key without a row.
        complete: Starts of keys under which all rows are known.
        cleared: Starts of keys under which all rows of the file are to be deleted.
        changed: Keys of rows that differ from the file's, in the order in which they were written.
    """

    rows: dict[Key, Any] = field(default_factory=dict)
    complete: set[Key] = field(default_factory=set)
    cleared: set[Key] = field(default_factory=set)
    changed: dict[Key, None] = field(default_factory=dict)

    def is_known(self, start: Key) -> bool:
        """Return whether all rows under the start of a key are known."""
        return start in self.rows or _is_under(start, self.complete)

    def under(self, start: Key) -> list[Any]:
        """Return the rows under the start of a key that is known."""
        length = len(start)
        return [r for key, r in self.rows.items() if r is not None and key[:length] == start]

    def learn(self, key: Key, row: Any) -> None:
        """Note a row of the file, unless a later write or deletion replaces it."""
        if key not in self.rows and not _is_under(key, self.cleared):
            self.rows[key] = row


class WorkingRows(Rows):
    """The rows of one transaction that holds the write lock; `flush` before it is committed."""

    def __init__(self, statements: Statements, owners: Sequence[Any] = ()) -> None:
        """Run on this connection.

        Statements run on `statements`. `owners` will likely read the same keys, apart from the
        first column, which is the owner: a read for one of them reads for all.
        """
        super().__init__(statements)
        self._owners = dict.fromkeys(owners)
        self._guessed: Counter[tuple[type[Sealed], int]] = Counter()
        self._parts: dict[type[Sealed], dict[Any, _Part]] = {}
        self._undo: list[Callable[[], None]] | None = None
        self._bytes = 0

    @contextmanager
    def undone_together(self) -> Iterator[None]:
        """Undo the block's writes if it raises; blocks must not be nested."""
        if self._bytes > MOST_BYTES:
            self.flush()
        undoing = self._undo = []
        try:
            yield
        except BaseException:
            for undo in reversed(undoing):
                undo()
            raise
        finally:
            self._undo = None

    def flush(self) -> None:
        """Write all waiting changes, and forget all known rows; commit nothing after an error."""
        if self._undo is not None:
            raise RuntimeError("flush was called while writes may still have to be undone")
        parts, self._parts, self._bytes = self._parts, {}, 0
        for table, of_owners in parts.items():
            self._write(shape_of(table), of_owners.values())

    def insert(self, table: type[Sealed], *rows: Mapping[str, Any]) -> None:
        """Add rows with their digests; the rows before one that exists were added."""
        shape = shape_of(table)
        for row in rows:
            sealed = shape.made(*shape.sealed(row))
            key = shape.key(sealed)
            if self._find(table, key) is not None:
                raise AlreadyExistsError(f"the row of table {shape.name} exists already")
            self._set(table, key, sealed)

    def put(self, table: type[Sealed], row: Mapping[str, Any]) -> None:
        """Add a row, in place of a row with the same key if there is one."""
        shape = shape_of(table)
        sealed = shape.made(*shape.sealed(row))
        key = shape.key(sealed)
        self._find(table, key)
        self._set(table, key, sealed)

    def swap(self, table: type[Sealed], before: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
        """Replace the row of the same key if it is unchanged; return whether it was."""
        shape = shape_of(table)
        sealed = shape.made(*shape.sealed(row))
        key = shape.key(sealed)
        found = self._find(table, key)
        if found is None or found[:-1] != tuple([before[name] for name in shape.columns[:-1]]):
            return False
        self._set(table, key, sealed)
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
        """Return the rows that meet all conditions, each checked at its first read."""
        start, others = _start(shape_of(table), where)
        if not start or newest_first or limit is not None:
            self.flush()
            return super().read(table, where, order=order, newest_first=newest_first, limit=limit)
        found = self._load(table, start).under(start)
        for name in others:
            found = [row for row in found if getattr(row, name) == where[name]]
        return sorted(found, key=attrgetter(*order)) if order and len(found) > 1 else found

    def column(
        self, table: type[Sealed], name: str, where: Where, *, newest_first: bool = False
    ) -> tuple[Any, ...]:
        """Return the different values of one column, sorted, without a check of digests."""
        self.flush()
        return super().column(table, name, where, newest_first=newest_first)

    def reseal(self, table: type[Sealed], rows: Sequence[Any], **changes: object) -> None:
        """Change columns outside the key in rows that `read` returned, and seal them anew."""
        shape = shape_of(table)
        for row in rows:
            sealed = shape.resealed(row._replace(**changes))
            self._set(table, shape.key(sealed), sealed)

    def delete(self, table: type[Sealed], where: Where) -> None:
        """Delete the rows that meet all conditions."""
        shape = shape_of(table)
        start, others = _start(shape, where)
        if not start or others:
            self.flush()
            super().delete(table, where)
        elif len(start) == shape.key_length:
            self._find(table, start)
            self._set(table, start, None)
        else:
            self._clear(table, start)

    def verify(self, tables: Sequence[type[Sealed]]) -> None:
        """Read every row of some tables and check it."""
        self.flush()
        super().verify(tables)

    def _part(self, table: type[Sealed], owner: Any) -> _Part:
        parts = self._parts.setdefault(table, {})
        found = parts.get(owner)
        if found is None:
            found = parts[owner] = _Part()
        return found

    def _find(self, table: type[Sealed], key: Key) -> Any:
        return self._load(table, key).rows.get(key)

    def _load(self, table: type[Sealed], start: Key) -> _Part:
        """Return an owner's known rows: at least all rows under the start of a key."""
        part = self._part(table, start[0])
        if not part.is_known(start):
            asking = self._asking(table, start)
            for first in range(0, len(asking), _AT_ONCE):
                # If memory runs short, the remaining owners read for themselves later.
                if not first or self._bytes <= MOST_BYTES:
                    self._fetch(table, asking[first : first + _AT_ONCE], start[1:])
        return part

    def _asking(self, table: type[Sealed], start: Key) -> Sequence[Any]:
        """Return whose rows to read: only this owner's, or those of all owners.

        The first few reads of a table are made for all owners. If the owners then read other keys,
        each reads alone, so only those first reads can be in vain.
        """
        guess = (table, len(start))
        if start[0] not in self._owners or self._guessed[guess] == _GUESSES:
            return [start[0]]
        self._guessed[guess] += 1
        rest = start[1:]
        others = (o for o in self._owners if o != start[0])
        unknown = [o for o in others if not self._part(table, o).is_known((o, *rest))]
        return [start[0], *unknown]

    def _fetch(self, table: type[Sealed], owners: Sequence[Any], rest: Key) -> None:
        shape = shape_of(table)
        marks = ", ".join("?" * len(owners))
        others = "".join(f" AND {name} = ?" for name in shape.keys[1 : len(rest) + 1])
        text = f"{shape.selection} WHERE {shape.keys[0]} IN ({marks}){others}"
        for values in self.statements.run(text, (*owners, *rest)):
            row = self._checked(shape, values)
            self._bytes += sum([len(row[place]) for place in shape.blobs])
            self._part(table, row[0]).learn(shape.key(row), row)
        for owner in owners:
            self._part(table, owner).complete.add((owner, *rest))

    def _set(self, table: type[Sealed], key: Key, row: Any) -> None:
        part = self._part(table, key[0])
        rows, changed = part.rows, part.changed
        if self._undo is not None:
            self._undo.append(_undo_of(part, key))
        rows[key] = row
        changed[key] = None
        if row is not None:
            self._bytes += sum([len(row[place]) for place in shape_of(table).blobs])

    def _clear(self, table: type[Sealed], start: Key) -> None:
        """Delete all rows under the start of a key, without reading them."""
        part = self._part(table, start[0])
        gone = {key: row for key, row in part.rows.items() if key[: len(start)] == start}
        if self._undo is not None:
            complete, cleared = part.complete.copy(), part.cleared.copy()

            def undo() -> None:
                part.rows.update(gone)
                # Later reads lack the rows that the undo brings back.
                part.complete, part.cleared = complete, cleared

            self._undo.append(undo)
        part.rows.update(dict.fromkeys(gone))
        part.complete.add(start)
        part.cleared.add(start)

    def _write(self, shape: Shape, parts: Iterable[_Part]) -> None:
        parts, run = list(parts), self.statements.run_many
        cleared = [start for part in parts for start in part.cleared]
        for length in sorted({len(start) for start in cleared}):
            starts = [start for start in cleared if len(start) == length]
            run(f"DELETE FROM {shape.name}{shape.condition(length)}", starts)  # noqa: S608
        changed = [(key, part.rows[key]) for part in parts for key in part.changed]
        kept = [row for _, row in changed if row is not None]
        if kept:
            run(f"INSERT OR REPLACE{shape.insertion}", kept)
        gone = [key for key, row in changed if row is None]
        if gone:
            run(f"DELETE FROM {shape.name}{shape.condition(shape.key_length)}", gone)  # noqa: S608


def _undo_of(part: _Part, key: Key) -> Callable[[], None]:
    """Return a function that restores the present knowledge of a row."""
    rows, changed = part.rows, part.changed
    before, is_first = rows.get(key, _UNKNOWN), key not in changed

    def undo() -> None:
        rows[key] = before
        if before is _UNKNOWN:
            # After the deletion of a key's start, the file's row was never read.
            del rows[key]
        if is_first:
            del changed[key]

    return undo


def _is_under(start: Key, starts: set[Key]) -> bool:
    """Return whether `starts` holds a start of a key, or a shorter start of it."""
    if not starts or start in starts:
        return bool(starts)
    return any(start[:length] in starts for length in range(1, len(start)))


def _start(shape: Shape, where: Where) -> tuple[Key, Sequence[str]]:
    """Return the first values of a key that conditions give, and the names of the others.

    Both are empty if a condition allows several values.
    """
    values = tuple(where.values())
    if list in map(type, values) or tuple in map(type, values):
        return (), ()
    names, others = _split(shape.keys, tuple(where))
    return tuple([where[name] for name in names]), others


@lru_cache(maxsize=256)
def _split(keys: Key, names: tuple[str, ...]) -> tuple[Sequence[str], Sequence[str]]:
    start = tuple(takewhile(names.__contains__, keys))
    return start, tuple(name for name in names if name not in start)
