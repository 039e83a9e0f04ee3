"""Finding a run that exists, and its report if its records agree."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from platform.agreement import Agreed, require_agreement
from platform.disk.opening import open_existing
from platform.errors import UnknownRun
from platform.results.reading import known_ids
from platform.results.reading import resolved as known_as
from storage import Database


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
    return known_as(known_ids(database), run_id, storage)


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
