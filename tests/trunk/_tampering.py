"""Edits of a run's files, as somebody makes them who has the files and not our code."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.trunk._runs import Finished

Edit = Callable[[sqlite3.Connection], None]


def edit(file: Path, change: Edit) -> None:
    """Changes a database past our code: its triggers are dropped first."""
    with closing(sqlite3.connect(file)) as connection:
        query = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        for (name,) in connection.execute(query).fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        change(connection)
        connection.commit()


def execute(file: Path, *statements: str) -> None:
    """Runs statements past our code; each must change something."""

    def change(connection: sqlite3.Connection) -> None:
        for statement in statements:
            assert connection.execute(statement).rowcount > 0

    edit(file, change)


def stores(run: Finished) -> list[Path]:
    """The files of the clients' stores."""
    return sorted((run.folder / "clients").glob("*.db"))


def edit_summary(run: Finished, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes `summary.json`, which is then written as it was."""
    path = run.folder / "summary.json"
    summary = json.loads(path.read_text())
    change(summary)
    path.write_text(json.dumps(summary, indent=2) + "\n")
