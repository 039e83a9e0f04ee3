"""Compares all records of a run with each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from platform.agreement.ledgers import (
    OwnLedger,
    client_disagreements,
    config_of,
    ledger_disagreements,
    read_own_ledgers,
)
from platform.agreement.reading import Agreed, RunRecords, read_records
from platform.agreement.statements import (
    file_disagreements,
    read_summary,
    statement_disagreements,
    summary_disagreements,
)
from platform.agreement.trail import (
    attempt_disagreements,
    canary_disagreements,
    ending_disagreements,
    leaving_disagreements,
    round_disagreements,
    run_disagreements,
    shown_disagreements,
)
from platform.config import RunConfig
from platform.errors import RecordsDisagree
from platform.mechanisms import BUILT_IN, Mechanisms
from privacy import PrivacyError
from storage import (
    AuditChainBroken,
    AuditHead,
    Database,
    DatabaseBusy,
    RoundRecord,
    StorageError,
)

TRIES: Final = 5
"""Readings of a run before it is too busy to be read."""

Fault = RecordsDisagree | AuditChainBroken


def require_agreement(database: Database, run_id: str, mechanisms: Mechanisms = BUILT_IN) -> Agreed:
    """Check that all records of a run agree, and those of its first phase's run.

    Args:
        database: Where the run is; its folder lies beside the file.
        run_id: The run.
        mechanisms: All that configuration and ledger may name.

    Returns:
        The checked records, from which all statements about the run follow.

    Raises:
        RecordsDisagree: If some do not agree, with the first disagreement.
        AuditChainBroken: If its audit log was changed.
        DatabaseBusy: If other processes write to it all the time.
        NotFound: If there is no such run.
    """
    agreed, faults = _patiently(database, run_id, None, mechanisms)
    if agreed is None or faults:
        raise faults[0]
    return agreed


def faults_of(
    database: Database,
    run_id: str,
    head: AuditHead | None = None,
    mechanisms: Mechanisms = BUILT_IN,
) -> tuple[AuditHead | None, list[Fault]]:
    """Return all faults of a run's records, the most telling first.

    Args:
        database: Where the run is; its folder lies beside the file.
        run_id: The run.
        head: The end of its audit chain at an earlier time, None without a kept end.
        mechanisms: All that configuration and ledger may name.

    Returns:
        The end of the chain now, None if the chain does not hold, and every fault.

    Raises:
        DatabaseBusy: If it is being written to all the time.
        NotFound: If there is no such run.
    """
    agreed, faults = _patiently(database, run_id, head, mechanisms)
    return (None if agreed is None else agreed.records.head), faults


def disagreements(
    records: RunRecords,
    own: Sequence[OwnLedger] | None,
    rounds_then: Sequence[RoundRecord],
    config: RunConfig,
) -> Iterator[str]:
    """Yield where the records of one run do not agree, the most telling first.

    Args:
        records: The coordinator's.
        own: The clients' own ledgers, None if they are out of reach.
        rounds_then: The rounds that were over before `own` was read.
        config: The run's configuration.
    """
    yield from run_disagreements(records)
    yield from round_disagreements(records, config.pool.generations)
    yield from attempt_disagreements(records)
    members = () if config.federation is None else config.federation.clients
    yield from leaving_disagreements(records, members)
    yield from ledger_disagreements(records, config.mechanisms)
    if own is not None:
        yield from client_disagreements(records, own, rounds_then)
    yield from canary_disagreements(records, config)
    yield from ending_disagreements(records)


def _patiently(
    database: Database, run_id: str, head: AuditHead | None, mechanisms: Mechanisms
) -> tuple[Agreed | None, list[Fault]]:
    """Read again if a client of a run that goes on wrote to its store meanwhile."""
    for _ in range(TRIES - 1):
        with suppress(DatabaseBusy):
            return _examine(database, run_id, head, mechanisms)
    return _examine(database, run_id, head, mechanisms)


def _examine(
    database: Database,
    run_id: str,
    head: AuditHead | None,
    mechanisms: Mechanisms,
    *,
    second: str | None = None,
) -> tuple[Agreed | None, list[Fault]]:
    """Return the records of a run as far as they could be read, and all their faults.

    `second` is the run that is the second phase of this one.
    """
    with database.unit_of_work(read_only=True) as uow:
        run = uow.runs.get(run_id)
    faults: list[Fault] = []
    agreed: Agreed | None = None
    try:
        config = config_of(run, mechanisms)
        source = config.phase_two_of
        if source is not None and second is not None:
            raise ValueError(f"it is a second phase itself, so run {second} cannot be its second")
        if source is not None:
            faults += _examine(database, source, None, mechanisms, second=run_id)[1]
        agreed, own, rounds_then = _read(database, run_id, config, head)
        found = disagreements(agreed.records, own, rounds_then, config)
        faults += [RecordsDisagree(run_id, problem) for problem in found]
        agreed, problems = _files(agreed, database)
        faults += [RecordsDisagree(run_id, problem) for problem in problems]
    except DatabaseBusy:
        raise
    except (AuditChainBroken, RecordsDisagree) as error:
        faults.append(error)
    except (PrivacyError, StorageError, ValueError) as error:
        faults.append(RecordsDisagree(run_id, str(error)))
    return agreed, faults


def _read(
    database: Database, run_id: str, config: RunConfig, head: AuditHead | None
) -> tuple[Agreed, tuple[OwnLedger, ...] | None, Sequence[RoundRecord]]:
    folder, source = database.path.parent, config.phase_two_of or run_id
    # Read the stores in between, so that rows of a running run are in one of both readings.
    with database.unit_of_work(read_only=True) as uow:
        rounds_then = read_records(uow, run_id, head).rounds
    # A federation's clients keep their ledgers to themselves.
    own = None if config.federation else read_own_ledgers(config, folder / source)
    with database.unit_of_work(read_only=True) as uow:
        records = read_records(uow, run_id, head)
        spending = records if source == run_id else read_records(uow, source)
    return Agreed(config, records, spending, None), own, rounds_then


def _files(agreed: Agreed, database: Database) -> tuple[Agreed, list[str]]:
    records, folder = agreed.records, database.path.parent / agreed.records.run_id
    problems = list(file_disagreements(records, folder))
    ended = records.entries("run.finished")
    if not ended:
        return agreed, problems
    try:
        text, summary = read_summary(folder)
    except ValueError as error:
        return agreed, [str(error), *problems]
    stated = [
        *statement_disagreements(summary, agreed.spending, agreed.config),
        *shown_disagreements(records, summary),
        *summary_disagreements(text, summary, ended[0]),
    ]
    return replace(agreed, summary=summary), stated + problems
