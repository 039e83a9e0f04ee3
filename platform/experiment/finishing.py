"""After the last round: personalise, measure, compare with local training, and say it all.

Clients are known by their messages here as in a round. What is trained in nobody's round, local
twins and newcomers, is the simulation's own affair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platform.agreement import require_agreement
from platform.agreement.statements import finished_digests
from platform.disk.files import only_process_of
from platform.disk.log_files import bytes_digest, rows_digest
from platform.disk.opening import mark_interrupted
from platform.errors import ClientsSilent, RecordsDisagree, Unwritable
from platform.experiment.canary_verdict import Verdict, judge_canaries
from platform.experiment.caveats import run_warnings
from platform.experiment.comparisons import measure_newcomers, measure_silence, measure_twins
from platform.experiment.evaluation import (
    EvaluationPlan,
    Examined,
    Measured,
    examine_before,
    examine_last,
)
from platform.experiment.resuming import require_spent_elsewhere, take_over, take_up
from platform.experiment.simulation import Simulation
from platform.experiment.summary import Findings, metrics_files, summary_document, write_run_files
from platform.rounds.asking import personalise, pool_gone
from platform.rounds.audit_trail import AuditTrail
from platform.rounds.documents import NO_ACCURACY
from platform.rounds.loop import Federation
from platform.rounds.observing import Observer
from platform.rounds.run import Progress, Run
from storage import Database, StorageError, StorageFull


def execute(simulation: Simulation, observer: Observer) -> dict[str, Any]:
    """Run what is missing of a run, and report it.

    Returns:
        The summary, which is also written to the run's folder.

    Raises:
        RunBusy: If another process runs it; nothing is done.
        RunStopped: If a round was aborted, or a client cannot be heard; the run can be resumed.
    """
    # Before anything is read that decides what the run does next.
    with alone_with(simulation.run_id, simulation.database, _folders(simulation)):
        return _execute(simulation, observer)


def _folders(simulation: Simulation) -> list[Path]:
    """Return the folders of all runs whose clients' stores are written.

    A first run's before its second phase's.
    """
    if simulation.run.source_id is None:
        return [simulation.folder]
    return [simulation.folder.with_name(simulation.run.source_id), simulation.folder]


def _execute(simulation: Simulation, observer: Observer) -> dict[str, Any]:
    run, plan = simulation.run, simulation.learning.evaluation
    if is_finished(run):
        # What it came to is what its records hold.
        return dict(summary_of(run, simulation.database, run.run_id))
    progress = _rounds(simulation, observer)
    documents = documents_of(run)
    verdict = judge_canaries(simulation, progress, documents)
    before = _before(plan, run, progress, documents)
    seconds = personalise(run, progress)
    final = examine_last(plan, run, progress.state)
    newcomers = measure_newcomers(simulation, progress.state)
    local = None if run.source_id else measure_twins(simulation, observer, documents)
    silence = measure_silence(simulation, observer, documents)
    simulation.database.verify_integrity()
    require_agreement(simulation.database, run.run_id, run.terms.config.mechanisms)
    findings = Findings(
        final=final,
        local=local,
        silence=silence,
        newcomers=newcomers,
        before=before,
        personalising=seconds,
        canaries=None if verdict is None else verdict.document,
    )
    warnings = run_warnings(
        run,
        documents,
        ended_early=progress.ended_early,
        uncollected=progress.uncollected,
        remarks=plan.panel.remarks,
        canaries=findings.canaries,
    )
    summary = summary_document(run, documents, findings, warnings)
    if run.source_id is not None:
        take_over(summary, summary_of(run, simulation.database, run.source_id))
    close_run(run, simulation.folder, summary, progress.ended_early, revealed=verdict)
    return summary


def _rounds(simulation: Simulation, observer: Observer) -> Progress:
    run = simulation.run
    if run.source_id is None:
        require_spent_elsewhere(run, simulation.database)
        return Federation(run, observer).run_rounds()
    rounds = run.terms.config.rounds
    observer.run_started(run.run_id, rounds, rounds)
    return take_up(run, run.source_id)


def _before(
    plan: EvaluationPlan, run: Run, progress: Progress, documents: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any]:
    """Return accuracy before clients personalise.

    The last round's, measured now where nobody did.
    """
    known: Mapping[str, Any] = documents[-1]["accuracy"] if documents else NO_ACCURACY
    collects = run.terms.fetches_at_end
    if known["mean"] is not None or not collects or run.source_id:
        return known
    found = examine_before(plan, run, progress)
    # Of an interrupted finish there is no before any more.
    return known if found is None else found.document()


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


@contextmanager
def alone_with(run_id: str, database: Database, folders: Sequence[Path]) -> Iterator[None]:
    """Keep a run to this process, and say in its row if it is interrupted.

    Args:
        run_id: The run.
        database: The coordinator's.
        folders: Of the run, and of any other whose clients' stores are written.

    Raises:
        RunBusy: If another process has one of them; nothing is done.
    """
    with ExitStack() as locks:
        for folder in folders:
            locks.enter_context(only_process_of(folder))
        try:
            yield
        except (KeyboardInterrupt, StorageFull, Unwritable, ClientsSilent):
            with suppress(StorageError):
                mark_interrupted(database, run_id)
            raise


def is_finished(run: Run) -> bool:
    """Return whether there is nothing to go on with."""
    with run.records.read() as uow:
        return uow.runs.get(run.run_id).status == "finished"


def summary_of(run: Run, database: Database, run_id: str) -> Mapping[str, Any]:
    """Return a finished run's summary, which agrees with its records.

    Raises:
        RecordsDisagree: If there is none, or it does not agree.
    """
    mechanisms = run.terms.config.mechanisms
    summary = require_agreement(database, run_id, mechanisms).summary
    if summary is None:
        raise RecordsDisagree(run_id, "it has finished, and has no summary")
    return summary


def documents_of(run: Run) -> list[Mapping[str, Any]]:
    """Return the documents of a run's committed rounds."""
    with run.records.read() as uow:
        return [row.document for row in uow.rounds.all(run.source)]


def close_run(
    run: Run,
    folder: Path,
    summary: dict[str, Any],
    ended_early: str | None,
    *,
    revealed: Verdict | None = None,
) -> None:
    """Write the report and say in the audit log what it was, with what it rests on.

    Files first: a finished run always has its report. Killed between the two it has not finished,
    and what goes on with it writes both anew.

    Args:
        run: The run.
        folder: Its own.
        summary: Its report; the head of the audit log is added.
        ended_early: Why it ended before its last round, if it did.
        revealed: What canaries showed, and their key, where there were any.
    """
    with run.records.write() as uow:
        state = uow.states.latest(run.run_id)
        digests = {
            **finished_digests(folder, summary, metrics_files(summary["rounds"])),
            "ledger_sha256": rows_digest(uow.ledger.rows(run.run_id), with_status=True),
            "state_sha256": None if state is None else bytes_digest(state.blob),
        }
        trail = AuditTrail(uow.audit, run.run_id)
        if revealed is not None:
            trail.canaries_revealed(revealed.key, revealed.document)
        trail.run_finished(ended_early, digests)
        head = uow.audit.head(run.run_id)
        summary["audit_head"] = {"count": head.count, "hash": head.hash}
        write_run_files(folder, summary)
        uow.runs.set_status(run.run_id, "finished")
