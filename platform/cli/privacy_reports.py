"""`report --format`: the privacy budget report, for people, machines, browsers and printers."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console

from platform.agreement.budgets import RunBudget, read_budget
from platform.cli.access import resolved
from platform.cli.audit_files import read_audit
from platform.cli.output import console, table
from platform.disk.files import write_bytes
from platform.disk.log_files import heads_file, kept_heads, known_key
from platform.disk.opening import open_existing
from platform.errors import ConfigError, RunStopped
from platform.reports import Report, budget_report
from platform.reports.blocks import Block, Bullets, Facts, Paragraph, Table, Words, text_of
from platform.reports.empirical import OtherClaim
from platform.reports.rendering import html_page, load_weasyprint, pdf_file, plain_data
from platform.reports.subject import LogView
from privacy import ReleaseKey
from storage import Database, Leaf, UnitOfWork


@dataclass(frozen=True, kw_only=True)
class ReportQuestion:
    """Which report is asked for.

    Attributes:
        run_id: The run, or `latest`.
        compared: Runs to stand beside it.
        format: One of `FORMATS`.
        output: The file to be written; None for stdout.
        audit: What `audit-privacy --json` printed; None where there is none.
    """

    run_id: str
    compared: tuple[str, ...]
    format: str
    output: Path | None
    audit: Path | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All runs, the report's own first."""
        return (self.run_id, *self.compared)


def privacy_report_command(question: ReportQuestion, storage: str, *, as_json: bool) -> None:
    """Make the privacy budget report of a run.

    Raises:
        ConfigError: If the question is not valid, or what lays out a PDF is not installed.
        UnknownRun: If there is no such run.
        RunStopped: If records do not agree; nothing is written then.
        AuditChainBroken: If an audit log was changed; likewise.
        LogBroken: If the log over all runs does not hold, or not with the heads that were kept.
    """
    _require_valid(question, as_json=as_json)
    with closing(open_existing(storage)) as database:
        names = [resolved(database, name, storage) for name in question.names]
        _require_different(names)
        first, *others = [read_budget(database, name) for name in names]
        runs = {one.agreed.records.run_id for one in (first, *others)}
        log = read_log(database, runs | {one.agreed.spending.run_id for one in (first, *others)})
    report = _report(question, first, others, log)
    data = FORMATS[question.format](report)
    if question.output is None:
        sys.stdout.write(data.decode())
        return
    write_bytes(question.output, data)
    console().print(f"report: {question.output}", soft_wrap=True)


def _report(
    question: ReportQuestion, first: RunBudget, others: Sequence[RunBudget], log: LogView
) -> Report:
    seen = () if question.audit is None else read_audit(question.audit)
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    try:
        return budget_report(first, others, made=made, log=log, seen=seen)
    except OtherClaim as error:
        raise ConfigError(
            f"--audit: {str(question.audit)!r} is of another claim: {error}"
        ) from error


def _require_valid(question: ReportQuestion, *, as_json: bool) -> None:
    if as_json:
        raise ConfigError(
            "--json: prints a run in short; leave it out here, or take --format json for the "
            "privacy budget report"
        )
    if question.format not in FORMATS:
        raise ConfigError(f"--format: {question.format!r} is unknown; valid: {', '.join(FORMATS)}")
    if question.format == "pdf":
        if question.output is None:
            raise ConfigError("--output: is missing; a pdf goes into a file, such as report.pdf")
        _require_layout()
    if question.output is not None and question.output.exists():
        raise ConfigError(
            f"--output: {str(question.output)!r} exists already; valid is one that does not"
        )


def _require_layout() -> None:
    try:
        load_weasyprint()
    except ImportError as error:
        raise ConfigError(
            "--format: pdf needs WeasyPrint, which is not installed; valid: table, json, html, or "
            "pdf after `.venv/bin/pip install -e '.[pdf]'` in the checkout"
        ) from error
    except OSError as error:
        raise ConfigError(
            "--format: pdf needs the library Pango, which is not installed; valid: table, json, "
            "html, or pdf after `apt-get install libpango-1.0-0 libpangoft2-1.0-0`"
        ) from error


def _require_different(names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"--compare: {twice[0]!r} is named twice; valid is each run once")


def _as_html(report: Report) -> bytes:
    return html_page(report).encode()


def _as_json(report: Report) -> bytes:
    return (json.dumps(plain_data(report), indent=2, allow_nan=False) + "\n").encode()


def _as_table(report: Report) -> bytes:
    text = io.StringIO()
    out = console(file=text)
    out.print(report.title)
    _print_block(out, report.lead)
    for warning in report.warnings:
        out.print(f"warning: {warning}")
    for section in report.sections:
        out.print(f"\n{section.title}\n{'-' * len(section.title)}")
        for block in section.blocks:
            _print_block(out, block)
    return text.getvalue().encode()


def _print_block(out: Console, block: Block) -> None:
    match block:
        case Paragraph():
            out.print(text_of(block.words))
        case Bullets():
            for item in block.items:
                out.print(f"- {text_of(item)}")
        case Facts():
            rows = [(term, text_of(line)) for term, line in block.rows]
            out.print(table(None, ("what", "value"), rows))
        case Table():
            out.print(table(block.caption, block.columns, [_cells(row) for row in block.rows]))
        case _:
            out.print(f"{block.title}. {block.says}")


def _cells(row: tuple[Words, ...]) -> tuple[str, ...]:
    return tuple(map(text_of, row))


FORMATS: Final[Mapping[str, Callable[[Report], bytes]]] = {
    "table": _as_table,
    "json": _as_json,
    "html": _as_html,
    "pdf": pdf_file,
}
"""What a report may be made into."""


def read_log(database: Database, run_ids: Iterable[str]) -> LogView:
    """Recompute the log from its rows, and return where in it the records of some runs are.

    Args:
        database: The coordinator's.
        run_ids: The runs whose leaves are wanted.

    Raises:
        Authentication: If a head that was kept does not hold.
        LogBroken: If the log does not, or does not go through such a head.
        RunStopped: If no head is kept, although there is a key that signs them.
    """
    trusted = known_key(database.path)
    kept = kept_heads(database.path, trusted)
    if trusted is not None and not kept.heads:
        raise RunStopped(f"{heads_file(database.path).name}: no head is there, as there must be")
    head = database.verify_log(kept.heads)
    charges: dict[ReleaseKey, int] = {}
    events: dict[tuple[str, int], int] = {}
    with database.unit_of_work(read_only=True) as uow:
        for run_id in sorted(set(run_ids)):
            charged = uow.log.charges(run_id=run_id)
            charges |= {_key(leaf): leaf.position for leaf in charged if leaf.kind == "charge"}
            events |= _events(uow, run_id)
    return LogView(
        size=head.size,
        root=head.root.hex(),
        key=None if kept.key is None else kept.key.encode(),
        heads=len(kept.heads),
        was_lost=bool(kept.lost),
        charges=charges,
        events=events,
    )


def _events(uow: UnitOfWork, run_id: str) -> dict[tuple[str, int], int]:
    entries = uow.audit.query(run=run_id)
    found = (uow.log.of_event(run_id, entry.sequence) for entry in entries)
    return {(run_id, leaf.sequence or 0): leaf.position for leaf in found}


def _key(leaf: Leaf) -> ReleaseKey:
    return ReleaseKey(
        run_id=leaf.run_id,
        round_number=leaf.round_number or 0,
        attempt=leaf.attempt or 0,
        pseudonym=leaf.pseudonym or "",
        channel=leaf.channel or "",  # type: ignore[arg-type]
    )
