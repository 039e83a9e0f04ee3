"""The end of the audit log, and the versions of what ran: by these the report can be checked."""

from __future__ import annotations

import json
from collections.abc import Iterator

from platform.reports.blocks import (
    Basis,
    Block,
    Facts,
    Figure,
    Section,
    Table,
    Words,
    paragraph,
    words,
)
from platform.reports.subject import Subject


def log_section(subject: Subject) -> Section:
    """Return head of the log, digests and versions."""
    return Section("log", "Audit log and versions", tuple(_log(subject)))


def _log(subject: Subject) -> Iterator[Block]:
    records = subject.agreed.records
    head, run = records.head, records.run
    text = f"{head.count}:{head.hash}"
    checking = f"python -m platform.coordinator audit verify --run {run.run_id} --head {text}"
    basis = Basis(
        what="the run's whole audit log, each entry hashed with the one before",
        run_id=run.run_id,
        entries=(head.count,),
        check=checking,
    )
    yield Facts(
        (
            ("Head of the run's log", words(Figure(text, text, basis))),
            *_over_all_runs(subject),
            ("Digest of the configuration", words(run.config_digest)),
            ("Status of the run", words(run.status)),
        )
    )
    yield paragraph(
        "Records were compared before this document was made: ledger, rounds, audit log, run "
        "folder and, in a simulation, the clients' own ledgers agree. Kept with somebody else, "
        "the head shows later that nothing before it was changed, removed or cut."
    )
    versions = _versions(run.versions_json)
    if versions:
        yield Table(
            "What ran",
            ("Part", "Version"),
            tuple((words(name), words(text)) for name, text in versions),
        )


def _over_all_runs(subject: Subject) -> Iterator[tuple[str, Words]]:
    log = subject.log
    if log is None:
        yield "Log over all runs", words("nobody read it")
        return
    basis = Basis(
        what="all leaves of the log, recomputed from their rows, and every head that was kept",
        run_id=subject.run_id,
        check="python -m platform.coordinator audit verify",
    )
    size = Figure(str(log.size), log.size, basis)
    yield "Log over all runs", words(size, f" leaves, root {log.root}")
    if log.is_signed:
        yield "Heads signed by", words(f"{log.key}; {log.heads} are kept beside the database")
    else:
        yield "Heads signed by", words("nobody: no head is signed by a key that is known")


def _versions(stored: str) -> list[tuple[str, str]]:
    try:
        found = json.loads(stored)
    except (ValueError, RecursionError):
        return []
    if not isinstance(found, dict):
        return []
    return [(str(name), "unknown" if text is None else str(text)) for name, text in found.items()]
