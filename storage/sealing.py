"""Rows of tables that carry a digest, checked whenever a row is read.

Statements are written from the tables' own names; what comes from elsewhere is bound to them.

It covers all other columns of the row, its key and its status included, so a bit that flips on a
disk or in a cable is noticed before anybody computes with it. It defends against accidents and
careless edits, not against somebody who edits a row and computes its digest anew: that no row was
added, removed or rewritten is shown by what must agree with it elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from typing import Any, Final, cast

from storage.errors import DatabaseDamaged
from storage.row_shapes import Shape, equalities, shape_of
from storage.statements import Statements
from storage.tables import Sealed

Where = Mapping[str, object]
"""By column its value, or a tuple or list of values of which it has one."""

# What people call a column of a key; keys of bytes are secret, or mean nothing to anybody.
_WORDS: Final = {
    "run_id": "run",
    "round_number": "round",
    "attempt": "attempt",
    "pseudonym": "client",
    "channel": "channel",
    "stage": "stage",
    "slot": "slot",
    "generation": "generation",
    "client": "store",
}


class Rows:
    """The rows of sealed tables within one transaction."""

    def __init__(self, statements: Statements) -> None:
        """Run on this connection."""
        self.statements = statements

    def insert(self, table: type[Sealed], *rows: Mapping[str, Any]) -> None:
        """Add rows with their digests; each holds a value for every other column."""
        if rows:
            shape = shape_of(table)
            self.statements.run_many(f"INSERT{shape.insertion}", [shape.sealed(r) for r in rows])

    def put(self, table: type[Sealed], row: Mapping[str, Any]) -> None:
        """Add a row, in the place of one with the same key if there is one."""
        shape = shape_of(table)
        self.statements.run_many(f"INSERT OR REPLACE{shape.insertion}", [shape.sealed(row)])

    def swap(self, table: type[Sealed], before: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
        """Put a row in the place of another of the same key, if that is still as it was.

        Returns:
            Whether it was: by its digest, which covers all of it.
        """
        shape = shape_of(table)
        condition, values = _condition({name: row[name] for name in shape.keys})
        known = shape.sealed(before)[-1]
        text = f"{shape.replacement}{condition} AND digest = ?"
        return self.statements.count(text, (*shape.sealed(row), *values, known)) == 1

    def read(
        self,
        table: type[Sealed],
        where: Where,
        *,
        order: Sequence[str] = (),
        newest_first: bool = False,
        limit: int | None = None,
    ) -> list[Any]:
        """Return the rows that meet all conditions, each checked against its digest.

        Args:
            table: Of these rows.
            where: The conditions.
            order: Columns to sort by.
            newest_first: Whether they are sorted from the largest down.
            limit: Return no more than these.

        Raises:
            DatabaseDamaged: Naming the file, the table and the row.
        """
        shape = shape_of(table)
        condition, values = _condition(where)
        text = shape.selection + condition + _ordered(order, newest_first=newest_first)
        if limit is not None:
            text += f" LIMIT {limit}"
        return [self._checked(shape, row) for row in self.statements.run(text, values)]

    def selected(self, table: type[Sealed], text: str, values: Sequence[Any]) -> list[Any]:
        """Return the rows of a table that a statement chooses, each checked against its digest.

        Args:
            table: Of these rows.
            text: The statement from its ``FROM`` on; no other table's columns are returned.
            values: What is bound to it.

        Raises:
            DatabaseDamaged: Naming the file, the table and the row.
        """
        shape = shape_of(table)
        columns = ", ".join(f"{shape.name}.{name}" for name in shape.columns)
        found = self.statements.run(f"SELECT {columns} {text}", values)
        return [self._checked(shape, row) for row in found]

    def column(
        self, table: type[Sealed], name: str, where: Where, *, newest_first: bool = False
    ) -> tuple[Any, ...]:
        """Return the different values of one column, sorted; no digest is looked at."""
        condition, values = _condition(where)
        text = f"SELECT DISTINCT {name} FROM {shape_of(table).name}{condition}"  # noqa: S608
        text += _ordered([name], newest_first=newest_first)
        return tuple(value for (value,) in self.statements.run(text, values))

    def update(self, table: type[Sealed], where: Where, **changes: object) -> int:
        """Change columns that are no key, in all rows that meet all conditions; seal them anew.

        Returns:
            How many rows were changed.

        Raises:
            DatabaseDamaged: A row did not fit its digest before; then none is changed.
        """
        rows = self.read(table, where)
        self.reseal(table, rows, **changes)
        return len(rows)

    def reseal(self, table: type[Sealed], rows: Sequence[Any], **changes: object) -> None:
        """Change columns that are no key in rows that `read` returned, and seal them anew."""
        shape = shape_of(table)
        changed = [row._replace(**changes) for row in rows]
        condition, _ = _condition(dict.fromkeys(shape.keys))
        settings = ", ".join(f"{name} = ?" for name in (*changes, "digest"))
        self.statements.run_many(
            f"UPDATE {shape.name} SET {settings}{condition}",  # noqa: S608
            [
                (*changes.values(), shape.digest(row[:-1]), *(getattr(row, k) for k in shape.keys))
                for row in changed
            ],
        )

    def delete(self, table: type[Sealed], where: Where) -> None:
        """Delete the rows that meet all conditions."""
        condition, values = _condition(where)
        self.statements.run(f"DELETE FROM {shape_of(table).name}{condition}", values)  # noqa: S608

    def verify(self, tables: Sequence[type[Sealed]]) -> None:
        """Read every row of some tables, one at a time, and check it against its digest.

        Raises:
            DatabaseDamaged: Naming the first row that does not fit.
        """
        for table in tables:
            last: tuple[Any, ...] | None = ()
            while last is not None:
                last = self.verify_page(table, last)

    def verify_page(
        self, table: type[Sealed], after: tuple[Any, ...] = ()
    ) -> tuple[Any, ...] | None:
        """Read the next rows of a table in the order of its key, and check their digests.

        Args:
            table: The table.
            after: The key of the last row that was read, empty to begin.

        Returns:
            The key of the last row of these, None where there were no more.

        Raises:
            DatabaseDamaged: Naming the first row that does not fit.
        """
        shape, row = shape_of(table), None
        text = shape.page if after else shape.first_page
        with closing(self.statements.stream(text, after)) as found:
            for values in found:
                row = self._checked(shape, values)
        return None if row is None else tuple(getattr(row, name) for name in shape.keys)

    def _checked(self, shape: Shape, values: tuple[Any, ...]) -> Any:
        row = shape.row(values)
        if shape.digest(row[:-1]) != row.digest:
            raise _damaged(self.statements.where, shape, row)
        return row


def _condition(where: Where) -> tuple[str, list[Any]]:
    values = list(where.values())
    if _SEVERAL.isdisjoint(map(type, values)):
        return equalities(tuple(where)), values
    texts: list[str] = []
    flat: list[Any] = []
    for name, value in where.items():
        several = list(cast("Collection[Any]", value)) if _is_several(value) else [value]
        # Nothing is equal to NULL; an empty list is not SQL everywhere.
        texts.append(f"{name} IN ({', '.join('?' * len(several)) or 'NULL'})")
        flat += several
    return f" WHERE {' AND '.join(texts)}", flat


def _is_several(value: object) -> bool:
    return type(value) in _SEVERAL


_SEVERAL: Final = frozenset({tuple, list})


def _ordered(names: Sequence[str], *, newest_first: bool) -> str:
    way = " DESC" if newest_first else ""
    return f" ORDER BY {', '.join(name + way for name in names)}" if names else ""


def _damaged(where: str, shape: Shape, row: Any) -> DatabaseDamaged:
    known = row._asdict()
    parts = [f"{word} {known[name]!r}" for name, word in _WORDS.items() if name in known]
    return DatabaseDamaged(
        f"database {where} is damaged: the row of table {shape.name} of {', '.join(parts)} does not"
        " fit its digest"
    )
