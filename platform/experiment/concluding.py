"""The end of any run: its rounds' documents, and its report with what that rests on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from platform.agreement import require_agreement
from platform.agreement.statements import finished_digests
from platform.disk.files import only_process_of
from platform.disk.log_files import bytes_digest, rows_digest
from platform.disk.opening import mark_interrupted
from platform.errors import ClientsSilent, RecordsDisagree, Unwritable
from platform.experiment.canary_verdict import Verdict
from platform.experiment.summary import metrics_files, write_run_files
from platform.rounds.audit_trail import AuditTrail
from platform.rounds.run import Run
from storage import Database, StorageError, StorageFull


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
