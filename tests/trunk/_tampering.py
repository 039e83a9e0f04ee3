"""Edits of a run's files, as somebody makes them who has the files, and knows our code.

Accidents and careless edits do not fit the rows' digests, and storage's own tests are about those.
Here triggers are put back and digests computed anew, so that only other records can tell.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, select, update

from storage.client_tables import CLIENT_TABLES
from storage.sealing import row_digest
from storage.tables import SEALED_TABLES, Audit, Sealed
from tests._chains import GENESIS, entry_hash
from tests.trunk._runs import Finished

Edit = Callable[[Connection], None]


def edit(file: Path, change: Edit, *, is_store: bool = False) -> None:
    """Changes a database past our code: without its triggers, which are put back after it."""
    engine = create_engine(f"sqlite:///{file}")
    query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
    with engine.begin() as connection:
        triggers = connection.exec_driver_sql(query).all()
        for name, _ in triggers:
            connection.exec_driver_sql(f"DROP TRIGGER {name}")
        change(connection)
        for table in CLIENT_TABLES if is_store else SEALED_TABLES:
            _seal(connection, table)
        for _, sql in triggers:
            connection.exec_driver_sql(sql)
    engine.dispose()


def _seal(connection: Connection, table: type[Sealed]) -> None:
    columns = table.__table__.columns
    for row in connection.execute(select(*columns)).all():
        values = {name: value for name, value in row._asdict().items() if name != "digest"}
        digest = row_digest(table.__tablename__, values)
        if digest != row.digest:
            keys = [column == values[column.name] for column in table.__table__.primary_key]
            connection.execute(update(table).where(*keys).values(digest=digest))


def execute(file: Path, *statements: str, is_store: bool = False) -> None:
    """Runs statements past our code; each must change something."""

    def change(connection: Connection) -> None:
        for statement in statements:
            assert connection.exec_driver_sql(statement).rowcount > 0

    edit(file, change, is_store=is_store)


def execute_and_rehash(file: Path, *statements: str) -> None:
    """The same, and every audit chain hashes to what is in it afterwards."""
    execute(file, *statements)
    edit(file, _rehash)


def _rehash(connection: Connection) -> None:
    columns = Audit.__table__.columns
    heads: dict[str, str] = {}
    rows = connection.execute(select(*columns).order_by(Audit.run_id, Audit.sequence)).all()
    for row in rows:
        values = {name: value for name, value in row._asdict().items() if name != "hash"}
        run, number = values.pop("run_id"), values.pop("round_number")
        heads[run] = entry_hash(heads.get(run, GENESIS), run=run, round=number, **values)
        place = [Audit.run_id == run, Audit.sequence == row.sequence]
        connection.execute(update(Audit).where(*place).values(hash=heads[run]))


def edit_summary(run: Finished, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes `summary.json`, which is then written as it was."""
    path = run.folder / "summary.json"
    summary = json.loads(path.read_text())
    change(summary)
    path.write_text(json.dumps(summary, indent=2) + "\n")
