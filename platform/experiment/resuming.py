"""A run that goes on must be the run that was charged: same configuration, clients and releases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from platform.agreement import Agreed, require_agreement
from platform.errors import RunStopped
from platform.protection.charging import as_row, rows_that_count
from platform.protection.uploads import Protection
from platform.rounds.run import Run
from privacy import ReleaseKey
from storage import Database, LedgerRow

SIZES = ("standard_deviation", "clipping_norm")
FACTS = ("mechanism", "relation", "sampling", "sampling_probability", "count", *SIZES)
"""What all ledger rows of one channel of a run have in common, its sizes last."""


def require_same_run(run: Run, database: Database, folder: Path) -> None:
    """Check that clients and releases are those that the run's ledger charges.

    Raises:
        RunStopped: If a client is missing, or what follows would be another release.
    """
    require_known_clients(run, f"in {folder / 'clients'} ")
    require_same_releases(database, run.source, run.terms.protection)


def require_kept(agreed: Agreed) -> None:
    """Check that a run still has what goes on from it.

    Raises:
        RunStopped: If its models were erased.
    """
    if agreed.records.is_pruned:
        raise RunStopped(
            f"run {agreed.records.run_id}: its models were erased by `runs --prune`, so nothing "
            "goes on from it; its records stay: see `report` and `budget`, or start a new run"
        )


def require_same_enrolment(run_id: str, started: str | None, now: str | None) -> None:
    """Check that the cohort's keys are those of the enrolment that the run was started with.

    An attempt that is open was made from it, and so was what the report claims.

    Args:
        run_id: The run.
        started: Fingerprint of the file then, None without one.
        now: Fingerprint of the file as it is.

    Raises:
        RunStopped: If it is another file.
    """
    if now != started:
        raise RunStopped(
            f"run {run_id}: secure_aggregation.enrolment has the fingerprint {now} now and had "
            f"{started} when the run was started; put that file back or start a new run"
        )


def require_same_releases(database: Database, run_id: str, protection: Protection) -> None:
    """Check that a run's releases are those that its ledger charges.

    A budget that was met for other noise than what follows is met for neither.

    Raises:
        RunStopped: If one is another.
    """
    with database.unit_of_work(read_only=True) as uow:
        charged = uow.ledger.rows(run_id)
    for number in sorted({row.round_number for row in charged}):
        rows = [row for row in charged if row.round_number == number]
        _require_same_rows(run_id, protection.in_round(number), rows)


def require_spent_elsewhere(run: Run, database: Database) -> None:
    """Check the records of all runs whose spending counts against a lifetime budget.

    Raises:
        RunStopped: If those of one do not agree.
        AuditChainBroken: If the audit log of one was changed.
    """
    if run.terms.budget.lifetime_budget is None:
        return
    with run.records.read() as uow:
        everybody = tuple(run.roll.pseudonyms.values())
        rows = rows_that_count(uow, run.terms.config, run.source, everybody)
    for run_id in sorted({row.run_id for row in rows}):
        require_agreement(database, run_id, run.terms.config.mechanisms)


def _require_same_rows(run_id: str, protection: Protection, charged: Sequence[LedgerRow]) -> None:
    releases = protection.releases(
        ReleaseKey(run_id=run_id, round_number=1, attempt=1, pseudonym="any")
    )
    planned = {row.channel: row for row in map(as_row, releases)}
    # Norm and noise of a round follow from what came before it where the norm adapts.
    facts = FACTS if protection.extras.adaptive is None else FACTS[: -len(SIZES)]
    for row in charged:
        now = planned.get(row.channel)
        if now is None:
            raise RunStopped(
                f"run {run_id}: its ledger has a release on channel {row.channel!r}, which "
                f"the run does not make now; valid: {', '.join(sorted(planned)) or 'none'}"
            )
        for name in facts:
            if getattr(row, name) != getattr(now, name):
                raise RunStopped(
                    f"run {run_id}: {name} is {getattr(now, name)} now and "
                    f"{getattr(row, name)} in its ledger; valid is what it was charged for, or a "
                    "new run"
                )


def require_known_clients(run: Run, where: str = "") -> None:
    """Refuse clients with a new store, which would start anew at epsilon 0.

    Args:
        run: The run.
        where: In which stores' place people look, for errors.

    Raises:
        RunStopped: If one that was charged has not introduced itself.
    """
    with run.records.read() as uow:
        charged = {row.pseudonym for row in uow.ledger.rows(run.source)}
    if not charged <= set(run.roll.pseudonyms.values()):
        raise RunStopped(
            f"run {run.run_id}: a client's store {where}is missing or "
            "another's, so what it spent cannot be carried on; put it back or start a new run"
        )
