"""A run whose clients are processes of their own: rounds, parting and report, without their images.

Nothing is measured: accuracy is what clients release with their uploads, noised, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platform.agreement import require_agreement
from platform.experiment.caveats import run_warnings
from platform.experiment.concluding import (
    alone_with,
    close_run,
    documents_of,
    is_finished,
    summary_of,
)
from platform.experiment.evaluation import Examined, Measured
from platform.experiment.resuming import require_spent_elsewhere
from platform.experiment.summary import Findings, summary_document
from platform.rounds.asking import personalise, pool_gone
from platform.rounds.documents import NO_ACCURACY
from platform.rounds.loop import Federation
from platform.rounds.observing import Observer
from platform.rounds.run import Progress, Run
from storage import Database

UNSEEN = Examined(Measured("client_mean", {}), None)
"""What a coordinator finds on clients' images."""


@dataclass(frozen=True, kw_only=True)
class Conducted:
    """A run with what its coordinator has beside it.

    Attributes:
        run: The run.
        folder: Where its files go.
        database: The coordinator's.
        admit: Lets in clients that have come since, before a round.
    """

    run: Run
    folder: Path
    database: Database
    admit: Callable[[], None] = lambda: None


def nothing_measured(run: Run, round_number: int, after: Progress) -> Mapping[str, Any]:
    """Return what a round's document says of accuracy where nobody sees clients' images."""
    return {"accuracy": NO_ACCURACY, "validation": NO_ACCURACY, "protocol": None}


def conduct(conducted: Conducted, observer: Observer) -> dict[str, Any]:
    """Run what is missing of a run, and report it.

    Returns:
        The summary, which is also written to the run's folder.

    Raises:
        RunBusy: If another process runs it; nothing is done.
        RunStopped: If a round was aborted, or a client cannot be heard; the run can be resumed.
    """
    with alone_with(conducted.run.run_id, conducted.database, [conducted.folder]):
        return _conduct(conducted, observer)


def _conduct(conducted: Conducted, observer: Observer) -> dict[str, Any]:
    run, database = conducted.run, conducted.database
    if is_finished(run):
        return dict(summary_of(run, database, run.run_id))
    require_spent_elsewhere(run, database)
    progress = Federation(run, observer, conducted.admit).run_rounds()
    seconds = personalise(run, progress)
    documents, uncollected = documents_of(run), pool_gone(run, progress)
    database.verify_integrity()
    require_agreement(database, run.run_id, run.terms.config.mechanisms)
    findings = Findings(
        final=UNSEEN,
        local=None,
        silence=None,
        newcomers=None,
        before=NO_ACCURACY,
        personalising=seconds,
    )
    warnings = run_warnings(
        run, documents, ended_early=progress.ended_early, uncollected=uncollected
    )
    summary = summary_document(run, documents, findings, warnings)
    close_run(run, conducted.folder, summary, progress.ended_early)
    return summary
