"""After the last round: personalise, measure, compare with local training, and say it all.

What `personalise` makes never leaves a client; it is kept in the client's own store under an
attempt of its own, one past the last round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from methods import Arrays
from platform.agreement import require_agreement
from platform.agreement.files import finished_digests
from platform.disk.digests import bytes_digest, rows_digest
from platform.disk.run_lock import only_process_of
from platform.disk.transactions import mark_interrupted, transaction
from platform.experiment.caveats import run_warnings
from platform.experiment.expert_weights import mean_expert_weights
from platform.experiment.newcomers import measure_newcomers
from platform.experiment.resuming import require_spent_elsewhere
from platform.experiment.second_phase import take_over, take_up
from platform.experiment.summary import metrics_csv, read_summary, summary_document, write_run_files
from platform.experiment.twins import train_twin
from platform.parties.evaluation import Measured, Model, measure
from platform.parties.profile import ClientProfile
from platform.rounds.audit_trail import AuditTrail
from platform.rounds.documents import NO_ACCURACY
from platform.rounds.loop import Federation
from platform.rounds.observing import Observer
from platform.rounds.phases import in_rounds
from platform.rounds.pool import FixedPool, fixed_pool
from platform.rounds.progress import Progress
from platform.rounds.spending import Spending
from platform.rounds.wiring import Wiring, final_attempt
from storage import StorageError, StorageFull


def execute(wiring: Wiring, observer: Observer) -> dict[str, Any]:
    """Run what is missing of a run, and reports it.

    Returns:
        The summary, which is also written to the run's folder.

    Raises:
        RunBusy: If another process runs it; nothing is done.
        RunStopped: If a round was aborted; the run can be resumed.
    """
    # Before anything is read that decides what the run does next.
    with ExitStack() as locks:
        for folder in _folders(wiring):
            locks.enter_context(only_process_of(folder))
        try:
            return _execute(wiring, observer)
        except (KeyboardInterrupt, StorageFull):
            with suppress(StorageError):
                mark_interrupted(wiring.database, wiring.run_id)
            raise


def _folders(wiring: Wiring) -> list[Path]:
    """Return the folders of all runs whose clients' stores are written.

    A first run's before its second phase's.
    """
    if wiring.source_id is None:
        return [wiring.folder]
    return [wiring.folder.with_name(wiring.source_id), wiring.folder]


def _execute(wiring: Wiring, observer: Observer) -> dict[str, Any]:
    with wiring.database.unit_of_work(read_only=True) as uow:
        is_finished = uow.runs.get(wiring.run_id).status == "finished"
    if is_finished:
        # There is nothing to go on with; what it came to is what its records hold.
        return dict(
            require_agreement(wiring.database, wiring.run_id, wiring.config.mechanisms).summary
            or {}
        )
    federation = Federation(wiring, observer)
    first, progress = wiring.source_id, _rounds(wiring, federation, observer)
    documents = _documents(wiring)
    before = _before(wiring, federation, progress, documents)
    seconds = personalise(wiring, progress)
    last = dict.fromkeys(wiring.population.clients, final_attempt(wiring))
    final = measure(wiring.method, wiring.models(progress.state, last), wiring.evaluation)
    newcomers = measure_newcomers(wiring, progress.state)
    local = None if first else _measured_twins(wiring, federation, observer, documents)
    wiring.database.verify_integrity()
    require_agreement(wiring.database, wiring.run_id, wiring.config.mechanisms)
    summary = summary_document(
        wiring,
        documents,
        final=final,
        local=local,
        validation=federation.validate(progress.state, last),
        newcomers=newcomers,
        epsilon=Spending(wiring).price(),
        accountants=Spending(wiring).accountants(),
        warnings=run_warnings(wiring, documents, progress.ended_early, progress.uncollected),
        before=before,
        personalising=seconds,
    )
    models = wiring.models(progress.state, last)
    weights = mean_expert_weights(wiring.method, models, wiring.evaluation)
    summary["final"]["expert_weights"] = weights
    if first is not None:
        take_over(summary, read_summary(wiring.folder.with_name(first)))
    _close(wiring, summary, progress.ended_early)
    return summary


def _rounds(wiring: Wiring, federation: Federation, observer: Observer) -> Progress:
    if wiring.source_id is None:
        require_spent_elsewhere(wiring)
        return federation.run_rounds()
    observer.run_started(wiring.run_id, wiring.config.rounds, wiring.config.rounds)
    return take_up(wiring, wiring.source_id)


def _before(
    wiring: Wiring,
    federation: Federation,
    progress: Progress,
    documents: Sequence[Mapping[str, Any]],
) -> Mapping[str, Any]:
    """Return accuracy before clients personalise.

    The last round's, measured now where nobody did.
    """
    measured: Mapping[str, Any] = documents[-1]["accuracy"] if documents else NO_ACCURACY
    if measured["mean"] is not None or wiring.protection.collects_at is None or wiring.source_id:
        return measured
    clients, kept_as = wiring.population.clients.values(), final_attempt(wiring)
    if any(client.has_personalised(kept_as) for client in clients):
        # Of an interrupted finish there is no before any more.
        return measured
    return federation.measure(progress.state, progress.committed).local.document()


def personalise(wiring: Wiring, progress: Progress) -> float | None:
    """Let every client personalise, and keeps the result in its own store.

    Returns:
        Seconds that it took; None where an interrupted finish had done a part of it before.
    """
    started, pool, kept_as = wiring.clock(), _fixed_pool(wiring), final_attempt(wiring)
    is_whole = True
    for name, client in wiring.population.clients.items():
        broadcast = wiring.method.broadcast(progress.state, name)
        fetched = None
        if pool is not None and wiring.protection.collects_at is not None:
            fetched = pool.fetch(client.pool_handle(wiring.protection.collects_at))
        is_new = client.personalise(broadcast, fetched, progress.committed.get(name), kept_as)
        is_whole = is_whole and is_new
    return wiring.clock() - started if is_whole else None


def _fixed_pool(wiring: Wiring) -> FixedPool | None:
    """Return what all clients fetch after the last round, where the pool is made once."""
    rules, number = wiring.pool_rules, wiring.protection.collects_at
    if rules is None or number is None:
        return None
    with wiring.database.unit_of_work(read_only=True) as uow:
        return fixed_pool(uow.pool.entries(wiring.source), number, rules.minimum)


def _documents(wiring: Wiring) -> list[Mapping[str, Any]]:
    with wiring.database.unit_of_work(read_only=True) as uow:
        return [row.document for row in uow.rounds.all(wiring.source)]


def _measured_twins(
    wiring: Wiring,
    federation: Federation,
    observer: Observer,
    documents: Sequence[Mapping[str, Any]],
) -> Measured | None:
    """Return none where nobody asks for them: they cost as much training as the run."""
    if not wiring.config.evaluation.local_twins:
        return None
    measured = measure_twins(wiring, federation, observer, documents)
    observer.preparing("local twins", 1, 1)
    return measured


def measure_twins(
    wiring: Wiring,
    federation: Federation,
    observer: Observer,
    documents: Sequence[Mapping[str, Any]],
) -> Measured:
    """Return every client's accuracy after the same training alone, under the same protocol."""
    models = _twins(wiring, federation.initial_state(), observer, documents)
    return measure(wiring.method, models, wiring.evaluation)


def _twins(
    wiring: Wiring, start: Arrays, observer: Observer, documents: Sequence[Mapping[str, Any]]
) -> Iterator[Model]:
    population = wiring.population
    for position, (name, client) in enumerate(population.clients.items()):
        observer.preparing("local twins", position, len(population.clients))
        rounds = [d["round"] for d in in_rounds(documents) if name in d["survivors"]]
        profile: ClientProfile = client.profile
        twin = train_twin(
            profile, population.make_trainer, start, rounds, final_round=final_attempt(wiring)[0]
        )
        yield Model(name, *twin)


def _close(wiring: Wiring, summary: dict[str, Any], ended_early: str | None) -> None:
    """Write the report and says in the audit log what it was, with what it rests on.

    Files first: a finished run always has its report. Killed between the two it has not finished,
    and what goes on with it writes both anew.
    """
    with transaction(wiring.database) as uow:
        state = uow.states.latest(wiring.run_id)
        digests = {
            **finished_digests(wiring.folder, summary, metrics_csv(summary["rounds"])),
            "ledger_sha256": rows_digest(uow.ledger.rows(wiring.run_id), with_status=True),
            "state_sha256": None if state is None else bytes_digest(state.blob),
        }
        AuditTrail(uow.audit, wiring.run_id).run_finished(ended_early, digests)
        head = uow.audit.head(wiring.run_id)
        summary["audit_head"] = {"count": head.count, "hash": head.hash}
        write_run_files(wiring.folder, summary)
        uow.runs.set_status(wiring.run_id, "finished")
