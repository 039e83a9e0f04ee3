"""A run from its first missing round to its report, simulated or with clients elsewhere.

`execute` runs a simulation: after the last round clients personalise, and the models are measured
and compared with local training. `conduct` runs a federation, whose coordinator never sees clients'
images: it measures nothing, and accuracy is only what clients release with their uploads, noised.
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
    folders = [simulation.folder]
    if simulation.run.source_id is not None:
        # A second phase also writes the stores of the first run's clients.
        folders.insert(0, simulation.folder.with_name(simulation.run.source_id))
    # The locks come before all reads that decide what the run does next.
    with alone_with(simulation.run_id, simulation.database, folders):
        return _execute(simulation, observer)


def _execute(simulation: Simulation, observer: Observer) -> dict[str, Any]:
    run, plan = simulation.run, simulation.learning.evaluation
    if is_finished(run):
        return dict(summary_of(run, simulation.database, run.run_id))
    if run.source_id is None:
        require_spent_elsewhere(run, simulation.database)
        progress = Federation(run, observer).run_rounds()
    else:
        rounds = run.terms.config.rounds
        observer.run_started(run.run_id, rounds, rounds)
        progress = take_up(run, run.source_id)
    documents = documents_of(run)
    verdict = judge_canaries(simulation, progress, documents)
    # Accuracy before clients personalise: the last round's, or measured now. A finish that was
    # interrupted cannot measure it any more.
    before: Mapping[str, Any] = documents[-1]["accuracy"] if documents else NO_ACCURACY
    if before["mean"] is None and run.terms.fetches_at_end and not run.source_id:
        found = examine_before(plan, run, progress)
        before = before if found is None else found.document()
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


UNSEEN = Examined(Measured("client_mean", {}), None)
"""A coordinator measures nothing, as it sees no client's images."""


@dataclass(frozen=True, kw_only=True)
class Conducted:
    """A run with its coordinator's folder and database.

    Attributes:
        run: The run.
        folder: Where its files go.
        database: The coordinator's.
        admit: Called before a round; lets in clients that have come since.
    """

    run: Run
    folder: Path
    database: Database
    admit: Callable[[], None] = lambda: None


def nothing_measured(run: Run, round_number: int, after: Progress) -> Mapping[str, Any]:
    """Return the accuracy in a round's document if the coordinator sees no client's images."""
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
        folders: Of the run, and of any other run whose clients' stores are written.

    Raises:
        RunBusy: If another process runs in one of the folders; nothing is done.
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
    """Return whether the run's row says that it has finished."""
    with run.records.read() as uow:
        return uow.runs.get(run.run_id).status == "finished"


def summary_of(run: Run, database: Database, run_id: str) -> Mapping[str, Any]:
    """Return a finished run's summary, which agrees with its records.

    Raises:
        RecordsDisagree: If the run has no summary, or records do not agree.
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
    """Write the report, and write its digest and those of its sources into the audit log.

    The files are written before the transaction ends, so a finished run always has its report. A
    run that is killed between the two has not finished; resuming it writes both anew.

    Args:
        run: The run.
        folder: Its own.
        summary: Its report; the head of the audit log is added.
        ended_early: Why it ended before its last round, if it did.
        revealed: What canaries showed, and their key, if the run had canaries.
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
