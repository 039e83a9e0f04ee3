"""Erasing the models, the pool and the clients' own parts of a run, which only its resuming needs.

Pruning keeps the records of what was spent and their proofs: ledgers, the audit log, the log over
all runs, rounds and attempts, the configuration, and the report with its metrics. So a pruned run
can still be stated, priced and verified; it cannot be resumed or exported, and cannot predict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from platform.agreement import Agreed, require_agreement, stored_tree
from platform.disk.files import only_process_of
from platform.disk.opening import transaction
from platform.errors import ConfigError
from platform.parties.identities import stores_file
from platform.rounds.audit_trail import PRUNED, AuditTrail
from storage import ClientStore, Database, RunRecord, UnitOfWork, open_client_stores


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """The parts of a run that pruning would erase.

    Attributes:
        states: Rounds whose server state is stored.
        generations: Rounds whose pool entries are stored.
        clients: Number of clients whose own part of the run lies beside the database.
        is_pruned: Whether its records say that it was pruned.
    """

    run_id: str
    status: str
    states: tuple[int, ...]
    generations: tuple[int, ...]
    clients: int
    is_pruned: bool

    @property
    def is_over(self) -> bool:
        """Whether pruning is complete."""
        return self.is_pruned and not self.clients


def leftovers(database: Database, run_id: str) -> Leftovers:
    """Return the parts of a run that pruning would erase.

    If its records do not agree, every part is evidence, and an error says so.
    """
    agreed = require_agreement(database, run_id)
    with database.unit_of_work(read_only=True) as uow:
        return Leftovers(
            run_id=run_id,
            status=agreed.records.run.status,
            states=uow.states.rounds(run_id),
            generations=uow.pool.generations(run_id),
            clients=sum(1 for _ in _own_parts(_stores(agreed, database), run_id)),
            is_pruned=agreed.records.is_pruned,
        )


def prune(database: Database, run_id: str) -> int:
    """Erase a run's models, and say so in its audit log first.

    If the process is killed half-way, the run says that it was pruned, and a second call erases the
    rest. If a process runs it, or its records do not agree, nothing is erased. Returns the bytes by
    which its clients' stores shrink.
    """
    with only_process_of(database.path.parent / run_id):
        agreed = require_agreement(database, run_id)
        with transaction(database) as uow:
            require_nothing_follows(uow, run_id, pruned_runs(uow))
            if not agreed.records.is_pruned:
                generations = uow.pool.drop_generations(run_id, uow.pool.generations(run_id))
                AuditTrail(uow.audit, run_id).run_pruned(uow.states.rounds(run_id), generations)
                uow.states.erase(run_id)
                uow.attempts.erase_stages(run_id)
        path = _stores(agreed, database)
        if path is None:
            return 0
        before = path.stat().st_size
        open_client_stores(path).erase_run(run_id)
        return before - path.stat().st_size


def require_nothing_follows(uow: UnitOfWork, run_id: str, pruned: Set[str]) -> None:
    """Refuse to prune a run whose pool and clients a second phase that is not pruned uses."""
    for run in uow.runs.list():
        if run.run_id not in pruned and stored_tree(run).get("phase_two_of") == run_id:
            raise ConfigError(
                f"RUN: {run.run_id} is a second phase of {run_id} and rests on its pool; valid is"
                f" to prune {run.run_id} as well"
            )


def pruned_runs(uow: UnitOfWork) -> frozenset[str]:
    """Return the runs whose audit log says "pruned"; `audit verify` checks the log itself."""
    known = max(len(uow.runs.list()), 1)
    return frozenset(entry.run for entry in uow.audit.query(action=PRUNED, limit=known))


def second_phases_first(runs: Sequence[RunRecord]) -> list[str]:
    """Return runs in an order of pruning: second phases before the runs that they rest on."""
    ordered = sorted(runs, key=lambda run: stored_tree(run).get("phase_two_of") is None)
    return [run.run_id for run in ordered]


def _stores(agreed: Agreed, database: Database) -> Path | None:
    """Return the file of the clients' stores; None where clients keep their stores elsewhere."""
    config, run_id = agreed.config, agreed.records.run_id
    if config.federation is not None:
        return None
    path = stores_file(config, database.path.parent / (config.phase_two_of or run_id))
    return path if path.is_file() and path.stat().st_size else None


def _own_parts(path: Path | None, run_id: str) -> Iterator[ClientStore]:
    """Yield the stores that hold a personal part of a run."""
    if path is not None:
        opened = open_client_stores(path, read_only=True)
        with opened.kept_open():
            yield from (one for one in opened.stores.values() if any(one.slots(run_id)))
