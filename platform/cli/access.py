"""Finding a run that exists, and its report if its records agree."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from platform.agreement import Agreed, require_agreement
from platform.disk.opening import open_existing
from platform.errors import UnknownRun, listed
from storage import Database, NotFound

LATEST = "latest"


def resolve_run(run_id: str, storage: str) -> str:
    """Return the run's full id; `latest` is the newest run.

    Raises:
        UnknownRun: If there is no such run.
    """
    with closing(open_existing(storage)) as database:
        return resolved(database, run_id, storage)


def resolved(database: Database, run_id: str, storage: str) -> str:
    """Return the run's full id in an open database; `latest` is the newest run.

    Raises:
        UnknownRun: If there is no such run.
    """
    try:
        with database.unit_of_work(read_only=True) as uow:
            if run_id != LATEST:
                return uow.runs.get(run_id).run_id
            known = uow.runs.list()
    except NotFound as error:
        raise UnknownRun(
            f"RUN: {run_id!r} is unknown in {storage}; valid: {listed(_newest(database))} (`runs` "
            "lists all)"
        ) from error
    if not known:
        raise UnknownRun(f"RUN: there is no run in {storage} yet")
    return known[-1].run_id


def _newest(database: Database) -> list[str]:
    """Return what names a run, newest first; nothing where there is none."""
    with database.unit_of_work(read_only=True) as uow:
        known = [run.run_id for run in reversed(uow.runs.list())]
    return [LATEST, *known] if known else []


def agreed_run(run_id: str, storage: str) -> Agreed:
    """Return a run whose records agree, finished or not.

    Raises:
        UnknownRun: If there is no such run.
        RunStopped: If its records do not agree.
        AuditChainBroken: If its audit log was changed.
    """
    with closing(open_existing(storage)) as database:
        return require_agreement(database, resolved(database, run_id, storage))


def require_summary(run_id: str, storage: str) -> dict[str, Any]:
    """Return a finished run's summary, if its records agree.

    Raises:
        UnknownRun: If there is no such run, or it has not finished.
        RunStopped: If its records do not agree.
        AuditChainBroken: If its audit log was changed.
    """
    agreed = agreed_run(run_id, storage)
    if agreed.summary is None:
        found = agreed.records.run_id
        raise UnknownRun(f"RUN: {found} has not finished; go on with `run --resume {found}`")
    return dict(agreed.summary)
