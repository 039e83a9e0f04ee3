"""Finding a run that exists."""

from __future__ import annotations

import json
from typing import Any

from platform.bootstrap import open_existing, run_folder
from platform.errors import UnknownRun
from storage import NotFound

LATEST = "latest"


def resolve_run(run_id: str, storage: str) -> str:
    """The run's full id; `latest` is the newest run.

    Raises:
        UnknownRun: If there is no such run.
    """
    database = open_existing(storage)
    try:
        with database.unit_of_work(read_only=True) as uow:
            if run_id != LATEST:
                return uow.runs.get(run_id).run_id
            known = uow.runs.list()
    except NotFound as error:
        raise UnknownRun(
            f"RUN: {run_id!r} is unknown in {storage}; `runs` lists the known ones"
        ) from error
    finally:
        database.close()
    if not known:
        raise UnknownRun(f"RUN: there is no run in {storage} yet")
    return known[-1].run_id


def require_summary(run_id: str, storage: str) -> dict[str, Any]:
    """A finished run's summary.

    Raises:
        UnknownRun: If there is no such run, or it has not finished.
    """
    found = resolve_run(run_id, storage)
    path = run_folder(storage, found) / "summary.json"
    if not path.is_file():
        raise UnknownRun(f"RUN: {found} has not finished; go on with `run --resume {found}`")
    summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return summary
