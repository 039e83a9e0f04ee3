"""The whole of a run's records against each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from platform.agreement.clients import OwnLedger, client_disagreements
from platform.agreement.files import file_disagreements, read_summary, summary_disagreements
from platform.agreement.ledgers import ledger_disagreements
from platform.agreement.reading import RunRecords, read_records
from platform.agreement.rounds import round_disagreements
from platform.agreement.runs import run_disagreements
from platform.agreement.statements import statement_disagreements
from platform.agreement.stores import config_of, read_own_ledgers
from platform.config import RunConfig
from platform.errors import RecordsDisagree
from privacy import PrivacyError
from storage import AuditChainBroken, AuditHead, Database, RoundRecord, StorageError


def disagreements(
    records: RunRecords, own: Sequence[OwnLedger] | None, rounds_then: Sequence[RoundRecord]
) -> Iterator[str]:
    """Where the records of one run do not tell the same, most telling first.

    Args:
        records: The coordinator's.
        own: The clients' own ledgers, None where they are not to be had.
        rounds_then: The rounds that were over before `own` was read.
    """
    yield from run_disagreements(records)
    yield from round_disagreements(records)
    yield from ledger_disagreements(records)
    if own is not None:
        yield from client_disagreements(records, own, rounds_then)


def problems_of(database: Database, run_id: str, head: AuditHead | None = None) -> list[str]:
    """All that is wrong with one run, in sentences; its first run's too, if it is a second phase.

    Args:
        database: Where the run is; its folder lies beside the file.
        run_id: The run.
        head: The end of its audit chain at some earlier time, None if nobody kept one.

    Raises:
        NotFound: If there is no such run.
    """
    return [str(error) for error in _errors(database, run_id, head)]


def require_agreement(database: Database, run_id: str) -> RunRecords:
    """Checks that all records of a run tell the same.

    Args:
        database: Where the run is; its folder lies beside the file.
        run_id: The run.

    Returns:
        The run's records, from which whatever is stated of it follows.

    Raises:
        RecordsDisagree: Naming the first that does not.
        AuditChainBroken: If its audit log was changed.
        NotFound: If there is no such run.
    """
    for error in _errors(database, run_id, None):
        raise error
    with database.unit_of_work(read_only=True) as uow:
        return read_records(uow, run_id)


def _errors(
    database: Database, run_id: str, head: AuditHead | None
) -> Iterator[RecordsDisagree | StorageError]:
    with database.unit_of_work(read_only=True) as uow:
        run = uow.runs.get(run_id)
    try:
        config = config_of(run)
        if config.phase_two_of is not None:
            yield from _errors(database, config.phase_two_of, None)
        for problem in _problems(database, run_id, config, head):
            yield RecordsDisagree(run_id, problem)
    except AuditChainBroken as error:
        yield error
    except (PrivacyError, StorageError, ValueError) as error:
        yield RecordsDisagree(run_id, str(error))


def _problems(
    database: Database, run_id: str, config: RunConfig, head: AuditHead | None
) -> Iterator[str]:
    folder, source = database.path.parent / run_id, config.phase_two_of or run_id
    # The stores in between: what a run that goes on meanwhile adds is in one of both readings.
    with database.unit_of_work(read_only=True) as uow:
        before = read_records(uow, run_id, head)
    own = read_own_ledgers(config, folder.with_name(source))
    with database.unit_of_work(read_only=True) as uow:
        records = read_records(uow, run_id, head)
        spending = records if source == run_id else read_records(uow, source)
    yield from disagreements(records, own, before.rounds)
    ended = records.entries("run.finished")
    if ended:
        text, summary = read_summary(folder)
        yield from statement_disagreements(summary, spending, config)
        yield from summary_disagreements(text, summary, ended[0])
    yield from file_disagreements(records, folder)
