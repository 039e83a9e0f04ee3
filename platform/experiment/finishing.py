"""After the last round: personalise, measure, compare with local training, and say it all.

Clients are known by their messages here as in a round. What is trained in nobody's round, local
twins and newcomers, is the simulation's own affair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from platform.agreement import require_agreement
from platform.experiment.canary_verdict import judge_canaries
from platform.experiment.caveats import run_warnings
from platform.experiment.concluding import (
    alone_with,
    close_run,
    documents_of,
    is_finished,
    summary_of,
)
from platform.experiment.evaluation import EvaluationPlan, examine_before, examine_last
from platform.experiment.newcomers import measure_newcomers
from platform.experiment.resuming import require_spent_elsewhere
from platform.experiment.second_phase import take_over, take_up
from platform.experiment.silence import measure_silence
from platform.experiment.simulation import Simulation
from platform.experiment.summary import Findings, summary_document
from platform.experiment.twins import measure_twins
from platform.rounds.asking import personalise
from platform.rounds.documents import NO_ACCURACY
from platform.rounds.loop import Federation
from platform.rounds.observing import Observer
from platform.rounds.run import Progress, Run


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
