"""Compares all records of a run with each other, and a database's runs with their sequence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from platform.agreement.reading import Agreed, RunRecords, read_records
from platform.agreement.statements import (
    file_disagreements,
    read_summary,
    statement_disagreements,
    summary_disagreements,
)
from platform.agreement.trail import (
    OwnLedger,
    attempt_disagreements,
    canary_disagreements,
    client_disagreements,
    config_of,
    ending_disagreements,
    leaving_disagreements,
    ledger_disagreements,
    read_own_ledgers,
    round_disagreements,
    run_disagreements,
    shown_disagreements,
)
from platform.config import RunConfig
from platform.config.files import read_yaml
from platform.config.run import recorded_origins
from platform.errors import ConfigError, RecordsDisagree
from platform.mechanisms import KNOWN, Mechanisms
from platform.parties.identities import shared_stores
from platform.rounds.audit_trail import parsed_detail, run_number
from privacy import PrivacyError
from storage import (
    AuditChainBroken,
    AuditEntry,
    AuditHead,
    Database,
    DatabaseBusy,
    NotFound,
    RoundRecord,
    StorageError,
    UnitOfWork,
    open_client_stores,
)
from storage.engine import retried

TRIES: Final = 5
"""Readings of a run before it is too busy to be read."""

Fault = RecordsDisagree | AuditChainBroken


def require_agreement(database: Database, run_id: str, mechanisms: Mechanisms = KNOWN) -> Agreed:
    """Check that all records of a run agree, and those of its first phase's run; return them.

    The run's folder lies beside the database's file. `RecordsDisagree` has the first disagreement.
    """
    # Read again if a client of a run that goes on wrote to its store meanwhile.
    examine = partial(_examine, database, run_id, None, mechanisms)
    agreed, faults = retried(examine, tries=TRIES)
    if agreed is None or faults:
        raise faults[0]
    return agreed


def faults_of(
    database: Database, run_id: str, head: AuditHead | None = None, mechanisms: Mechanisms = KNOWN
) -> tuple[AuditHead | None, list[Fault]]:
    """Return the end of a run's audit chain and all faults of its records, the most telling first.

    The run's folder lies beside the database's file. `head` is the end of the chain at an earlier
    time, None without a kept end. The end now is None if the chain does not hold.
    """
    examine = partial(_examine, database, run_id, head, mechanisms)
    agreed, faults = retried(examine, tries=TRIES)
    return (None if agreed is None else agreed.records.head), faults


def disagreements(
    records: RunRecords,
    own: Sequence[OwnLedger] | None,
    rounds_then: Sequence[RoundRecord],
    config: RunConfig,
) -> Iterator[str]:
    """Yield where the records of one run do not agree, the most telling first.

    `own` are the clients' own ledgers, None if they are out of reach, and `rounds_then` the rounds
    that were over before these were read.
    """
    yield from run_disagreements(records)
    yield from round_disagreements(records, config.pool.generations)
    yield from attempt_disagreements(records)
    members = () if config.federation is None else config.federation.clients
    yield from leaving_disagreements(records, members)
    begun, name = records.entries("run.created"), config.privacy.mechanism
    then = recorded_origins(begun[0].detail).get("mechanism") if begun else None
    now = config.plugins.origin("mechanism", name)
    if (None if now is None else now.sha256) != (None if then is None else then.get("sha256")):
        yield (
            f"its mechanism {name!r} is not the code of the run's start, so nobody can say what "
            "its charges mean; put that file back"
        )
    yield from ledger_disagreements(records, config.mechanisms)
    if own is not None:
        yield from client_disagreements(records, own, rounds_then)
    yield from canary_disagreements(records, config)
    yield from ending_disagreements(records)


def _examine(
    database: Database,
    run_id: str,
    head: AuditHead | None,
    mechanisms: Mechanisms,
    *,
    second: str | None = None,
) -> tuple[Agreed | None, list[Fault]]:
    """Return a run's readable records and all faults; `second` is the run of its second phase."""
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


TRACES: Final = ("summary.json", "metrics.csv", "metrics.jsonl", "clients", "run.lock")
"""Files that a run's folder has only after its database knows the run."""


def registry_disagreements(uow: UnitOfWork) -> Iterator[str]:
    """Yield where the runs do not form the sequence in which they were set up.

    Each run names the run before it and the end of that run's chain. So an erased run leaves a gap,
    unless it was the newest run.
    """
    known = {run.run_id for run in uow.runs.list()}
    entries = {entry.run: entry for entry in uow.audit.beginnings()}
    numbers: dict[int, str] = {}
    for run_id in sorted(known - entries.keys()):
        yield f"run {run_id}: no audit entry says that it was set up"
    for run_id, entry in sorted(entries.items()):
        detail = parsed_detail(entry)
        number = run_number(detail)
        if number in numbers:
            yield f"runs {numbers[number]} and {run_id} are both number {number} of the database"
        numbers[number] = run_id
        before = detail.get("before")
        if isinstance(before, Mapping):
            yield from _before(uow, entry, before)
    missing = set(range(1, max(numbers, default=0))) - numbers.keys()
    for number in sorted(missing):
        yield f"run number {number} of the database is missing: it was erased"


def _before(uow: UnitOfWork, entry: AuditEntry, before: Mapping[str, Any]) -> Iterator[str]:
    name, count, digest = (before.get(key) for key in ("run", "count", "hash"))
    said = f"run {name}, which was set up before run {entry.run}"
    if not (isinstance(name, str) and isinstance(count, int) and isinstance(digest, str)):
        yield f"run {entry.run}: audit entry 1 (run.created) names no run before it"
        return
    try:
        uow.audit.verify(name, AuditHead(count, digest))
    except NotFound:
        yield f"{said}, is missing: it was erased"
    except AuditChainBroken as error:
        yield f"{said}, is not as it was then: {error}"


def erased_folders(database: Database, known: set[str]) -> Iterator[str]:
    """Yield, in sentences, folders of runs that the database beside them does not know.

    Another database in the same folder may know a run: the configuration in the run's own folder
    names its database's file.
    """
    for folder in sorted(path for path in database.path.parent.iterdir() if path.is_dir()):
        if folder.name in known or not (folder / "config.yaml").is_file():
            continue
        # A run that was killed while it was set up leaves only its configuration.
        trace = next((name for name in TRACES if (folder / name).exists()), None)
        if trace is not None and _database_of(folder / "config.yaml") in (None, database.path.name):
            yield (
                f"folder {folder.name!r} has {trace} and config.yaml of a run that the database "
                "does not know: it was erased"
            )


def unknown_charges(database: Database, known: set[str]) -> Iterator[str]:
    """Yield, in sentences, runs that charged clients and that the database does not know.

    Clients with a lifetime budget have a store for all runs on their data. The store still shows a
    run whose rows, heads and folder are all gone.
    """
    folder = database.path.parent
    for path in shared_stores(folder):
        where = path.relative_to(folder).as_posix()
        try:
            opened = open_client_stores(path, read_only=True)
            with opened.kept_open():
                # By run, the number of clients with charges in their own ledgers.
                charged = Counter(
                    run_id
                    for store in opened.stores.values()
                    for run_id in {row.run_id for row in store.rows()}
                )
        except DatabaseBusy:
            raise
        except StorageError as error:
            yield f"clients' stores {where}: {error}"
            continue
        # `erased_folders` names runs whose folder has a configuration.
        for run_id in sorted(charged.keys() - known):
            if not (folder / run_id / "config.yaml").is_file():
                yield (
                    f"own ledgers of {charged[run_id]} clients in {where} have charges of run "
                    f"{run_id}, which the database does not know: it was erased, or an older copy "
                    "of the database was put back"
                )


def _database_of(path: Path) -> str | None:
    """Return the name of the database's file from a run's configuration, None if not named."""
    try:
        tree = read_yaml(path.read_text(encoding="utf-8"))
        return Path(str(tree["storage"]["url"])).name
    except (ConfigError, OSError, ValueError, KeyError, TypeError, RecursionError, yaml.YAMLError):
        return None
