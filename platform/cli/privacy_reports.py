"""`report --format`: the privacy budget report, for people, machines, browsers and printers."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from platform.agreement.budgets import read_budget
from platform.cli.output import console, table
from platform.disk.files import write_bytes
from platform.disk.opening import open_existing
from platform.errors import ConfigError
from platform.results.reading import resolved_once
from platform.results.report.blocks import Block, Bullets, Facts, Paragraph, Table, text_of
from platform.results.report.document import Report, budget_report
from platform.results.report.empirical import OtherClaim, read_audit
from platform.results.report.rendering import html_page, load_weasyprint, pdf_file, plain_data
from platform.results.report.subject import read_log


def privacy_report_command(
    names: Sequence[str],
    storage: str,
    *,
    format_: str,
    output: Path | None,
    audit: Path | None = None,
    as_json: bool,
) -> None:
    """Make the privacy budget report of a run.

    Args:
        names: The run, or `latest`, and the runs that stand beside it.
        storage: The database's URL.
        format_: One of `FORMATS`.
        output: The file to write; None for stdout.
        audit: A file that `audit-privacy --json` printed; None without an audit.
        as_json: Whether `--json` was given, which asks for the short form of a run.

    Raises:
        ConfigError: If an option is not valid, or the library that lays out a PDF is missing.
        UnknownRun: If there is no such run.
        RunStopped: If records do not agree; nothing is written then.
        AuditChainBroken: If an audit log was changed; nothing is written then.
        LogBroken: If the log over all runs does not hold, or does not go through its kept heads.
    """
    if as_json:
        raise ConfigError(
            "--json: prints a run in short; leave it out here, or take --format json for the "
            "privacy budget report"
        )
    if format_ not in FORMATS:
        raise ConfigError(f"--format: {format_!r} is unknown; valid: {', '.join(FORMATS)}")
    if format_ == "pdf":
        if output is None:
            raise ConfigError("--output: is missing; a pdf goes into a file, such as report.pdf")
        try:
            load_weasyprint()
        except ImportError as error:
            raise ConfigError(
                "--format: pdf needs WeasyPrint, which is not installed; valid: table, json, "
                "html, or pdf after `.venv/bin/pip install -e '.[pdf]'` in the checkout"
            ) from error
        except OSError as error:
            raise ConfigError(
                "--format: pdf needs the library Pango, which is not installed; valid: table, "
                "json, html, or pdf after `apt-get install libpango-1.0-0 libpangoft2-1.0-0`"
            ) from error
    if output is not None and output.exists():
        raise ConfigError(f"--output: {str(output)!r} exists already; valid is one that does not")
    with closing(open_existing(storage)) as database:
        found = resolved_once(database, names, storage, "--compare")
        first, *others = [read_budget(database, name) for name in found]
        runs = {one.agreed.records.run_id for one in (first, *others)}
        log = read_log(database, runs | {one.agreed.spending.run_id for one in (first, *others)})
    seen = () if audit is None else read_audit(audit)
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    try:
        report = budget_report(first, others, made=made, log=log, seen=seen)
    except OtherClaim as error:
        raise ConfigError(f"--audit: {str(audit)!r} is of another claim: {error}") from error
    data = FORMATS[format_](report)
    if output is None:
        sys.stdout.write(data.decode())
        return
    write_bytes(output, data)
    console().print(f"report: {output}", soft_wrap=True)


def _as_table(report: Report) -> bytes:
    text = io.StringIO()
    out = console(file=text)

    def say(block: Block) -> None:
        match block:
            case Paragraph():
                out.print(text_of(block.words))
            case Bullets():
                for item in block.items:
                    out.print(f"- {text_of(item)}")
            case Facts():
                facts = [(term, text_of(line)) for term, line in block.rows]
                out.print(table(None, ("what", "value"), facts))
            case Table():
                rows = [tuple(map(text_of, row)) for row in block.rows]
                out.print(table(block.caption, block.columns, rows))
            case _:
                out.print(f"{block.title}. {block.says}")

    out.print(report.title)
    say(report.lead)
    for warning in report.warnings:
        out.print(f"warning: {warning}")
    for section in report.sections:
        out.print(f"\n{section.title}\n{'-' * len(section.title)}")
        for block in section.blocks:
            say(block)
    return text.getvalue().encode()


FORMATS: Final[Mapping[str, Callable[[Report], bytes]]] = {
    "table": _as_table,
    "json": lambda report: (
        json.dumps(plain_data(report), indent=2, allow_nan=False) + "\n"
    ).encode(),
    "html": lambda report: html_page(report).encode(),
    "pdf": pdf_file,
}
"""The forms of a report."""
