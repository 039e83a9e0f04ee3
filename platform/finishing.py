"""After the last round: personalise, measure, compare with local training, and say it all.

What `personalise` makes never leaves a client; it is kept in the client's own store under an
attempt of its own, one past the last round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from methods import Arrays
from platform.audit_trail import AuditTrail
from platform.caveats import run_warnings
from platform.client_profile import ClientProfile
from platform.evaluation import Measured, Model, measure
from platform.expert_weights import mean_expert_weights
from platform.federation import Federation, Progress
from platform.messages import Attempt
from platform.newcomers import measure_newcomers
from platform.observing import Observer
from platform.pool import fixed_experts
from platform.records import summary_document, write_run_files
from platform.run_lock import only_process_of
from platform.spending import Spending
from platform.storing import transaction
from platform.twin import train_twin
from platform.wiring import Wiring
from storage import StorageError, StorageFull


def final_attempt(wiring: Wiring) -> Attempt:
    """Where personalised state is kept: one round past the last, attempt 0."""
    return (wiring.config.rounds + 1, 0)


def execute(wiring: Wiring, observer: Observer) -> dict[str, Any]:
    """Runs what is missing of a run, and reports it.

    Returns:
        The summary, which is also written to the run's folder.

    Raises:
        RunBusy: If another process runs it; nothing is done.
        RunStopped: If a round was aborted; the run can be resumed.
    """
    # Before anything is read that decides what the run does next.
    with only_process_of(wiring.folder):
        try:
            return _execute(wiring, observer)
        except (KeyboardInterrupt, StorageFull):
            _mark_interrupted(wiring)
            raise


def _execute(wiring: Wiring, observer: Observer) -> dict[str, Any]:
    federation = Federation(wiring, observer)
    progress, ended_early = federation.run_rounds()
    personalise(wiring, progress)
    last = dict.fromkeys(wiring.population.clients, final_attempt(wiring))
    final = measure(wiring.method, wiring.models(progress.state, last), wiring.evaluation)
    documents = _documents(wiring)
    newcomers = measure_newcomers(wiring, progress.state)
    local = measure_twins(wiring, federation, observer, documents)
    observer.preparing("local twins", 1, 1)
    summary = summary_document(
        wiring,
        documents,
        final=final,
        local=local,
        validation=federation.validate(progress.state, last),
        newcomers=newcomers,
        epsilon=Spending(wiring).price(),
        accountants=Spending(wiring).accountants(),
        warnings=run_warnings(wiring, documents, ended_early),
    )
    models = wiring.models(progress.state, last)
    weights = mean_expert_weights(wiring.method, models, wiring.evaluation)
    summary["final"]["expert_weights"] = weights
    _close(wiring, summary, ended_early)
    return summary


def _mark_interrupted(wiring: Wiring) -> None:
    # Only a label for `runs`: what a run may do next never depends on it.
    with suppress(StorageError), transaction(wiring.database) as uow:
        uow.runs.set_status(wiring.run_id, "interrupted")


def personalise(wiring: Wiring, progress: Progress) -> None:
    """Lets every client personalise, and keeps the result in its own store."""
    experts, kept_as = _fixed_experts(wiring), final_attempt(wiring)
    for name, client in wiring.population.clients.items():
        broadcast = wiring.method.broadcast(progress.state, name)
        client.personalise(broadcast, experts, progress.committed.get(name), kept_as)


def _fixed_experts(wiring: Wiring) -> tuple[Arrays, ...] | None:
    """What all clients fetch after the last round, where the method asks for that."""
    if wiring.pool_rules is None or not wiring.pool_rules.policy.fixed:
        return None
    with wiring.database.unit_of_work(read_only=True) as uow:
        return fixed_experts(uow.pool.entries(wiring.run_id))


def _documents(wiring: Wiring) -> list[Mapping[str, Any]]:
    with wiring.database.unit_of_work(read_only=True) as uow:
        return [row.document for row in uow.rounds.all(wiring.run_id)]


def measure_twins(
    wiring: Wiring,
    federation: Federation,
    observer: Observer,
    documents: Sequence[Mapping[str, Any]],
) -> Measured:
    """Every client's accuracy after the same training alone, under the same protocol."""
    models = _twins(wiring, federation.initial_state(), observer, documents)
    return measure(wiring.method, models, wiring.evaluation)


def _twins(
    wiring: Wiring, start: Arrays, observer: Observer, documents: Sequence[Mapping[str, Any]]
) -> Iterator[Model]:
    population = wiring.population
    for position, (name, client) in enumerate(population.clients.items()):
        observer.preparing("local twins", position, len(population.clients))
        rounds = [d["round"] for d in documents if name in d["survivors"]]
        profile: ClientProfile = client.profile
        twin = train_twin(
            profile, population.make_trainer, start, rounds, last_round=wiring.config.rounds
        )
        yield Model(name, *twin)


def _close(wiring: Wiring, summary: dict[str, Any], ended_early: str | None) -> None:
    with transaction(wiring.database) as uow:
        AuditTrail(uow.audit, wiring.run_id).run_ended("finished", ended_early)
        head = uow.audit.head(wiring.run_id)
        summary["audit_head"] = {"count": head.count, "hash": head.hash}
        # Files first: a finished run always has its report.
        write_run_files(wiring.folder, summary)
        uow.runs.set_status(wiring.run_id, "finished")
