"""`report --format`: the privacy budget report, for people, machines, browsers and printers."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from rich.console import Console

from platform.agreement.budgets import read_budget
from platform.cli.output import console, table
from platform.disk.files import write_bytes
from platform.disk.log_files import heads_file, kept_heads, known_key
from platform.disk.opening import open_existing
from platform.errors import ConfigError, RunStopped
from platform.reports import Report, budget_report
from platform.reports.blocks import Block, Bullets, Facts, Paragraph, Table, text_of
from platform.reports.empirical import OtherClaim, SeenChannel
from platform.reports.rendering import html_page, load_weasyprint, pdf_file, plain_data
from platform.reports.subject import LogView
from platform.results.reading import resolved
from privacy import ReleaseKey
from storage import Database


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
    _require_valid(format_, output)
    with closing(open_existing(storage)) as database:
        found = [resolved(database, name, storage) for name in names]
        twice = sorted({name for name in found if found.count(name) > 1})
        if twice:
            raise ConfigError(f"--compare: {twice[0]!r} is named twice; valid is each run once")
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


def _require_valid(format_: str, output: Path | None) -> None:
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
            facts = [(term, text_of(line)) for term, line in block.rows]
            out.print(table(None, ("what", "value"), facts))
        case Table():
            rows = [tuple(map(text_of, row)) for row in block.rows]
            out.print(table(block.caption, block.columns, rows))
        case _:
            out.print(f"{block.title}. {block.says}")


FORMATS: Final[Mapping[str, Callable[[Report], bytes]]] = {
    "table": _as_table,
    "json": lambda report: (
        json.dumps(plain_data(report), indent=2, allow_nan=False) + "\n"
    ).encode(),
    "html": lambda report: html_page(report).encode(),
    "pdf": pdf_file,
}
"""The forms of a report."""


def read_log(database: Database, run_ids: Iterable[str]) -> LogView:
    """Recompute the log from its rows, and return the places of some runs' records in it.

    Args:
        database: The coordinator's.
        run_ids: The runs.

    Raises:
        Authentication: If the signature of a kept head does not hold.
        LogBroken: If the log does not hold, or does not go through a kept head.
        RunStopped: If no head is kept, although there is a key that signs heads.
    """
    trusted = known_key(database.path)
    kept = kept_heads(database.path, trusted)
    if trusted is not None and not kept.heads:
        raise RunStopped(f"{heads_file(database.path).name}: it has no head, but there is a key")
    head = database.verify_log(kept.heads)
    charges: dict[ReleaseKey, int] = {}
    events: dict[tuple[str, int], int] = {}
    with database.unit_of_work(read_only=True) as uow:
        for run_id in sorted(set(run_ids)):
            for leaf in uow.log.charges(run_id=run_id):
                if leaf.kind == "charge":
                    key = ReleaseKey(
                        run_id=leaf.run_id,
                        round_number=leaf.round_number or 0,
                        attempt=leaf.attempt or 0,
                        pseudonym=leaf.pseudonym or "",
                        channel=leaf.channel or "",  # type: ignore[arg-type]
                    )
                    charges[key] = leaf.position
            for entry in uow.audit.query(run=run_id):
                leaf = uow.log.of_event(run_id, entry.sequence)
                events[run_id, leaf.sequence or 0] = leaf.position
    return LogView(
        size=head.size,
        root=head.root.hex(),
        key=None if kept.key is None else kept.key.encode(),
        heads=len(kept.heads),
        was_lost=bool(kept.lost),
        charges=charges,
        events=events,
    )


Word = Annotated[str, Field(pattern=r"^[a-z_]{1,40}$")]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class _Seen(BaseModel):
    """One channel; the report shows these of its fields."""

    model_config = ConfigDict(strict=True)

    channel: Literal["sum", "pool", "training"]
    mechanism: Word
    unit: Literal["client", "record"]
    epsilon_lower_bound_95: NotNegative
    claimed_epsilon: NotNegative
    delta: Share
    canaries: Annotated[int, Field(ge=1)]
    power: Share
    passed: bool


class _Game(BaseModel):
    """The verdict on offers, folders, clients that fail, or hostile peers."""

    model_config = ConfigDict(strict=True)

    channel: Literal["offers", "folders", "failures", "peers"]
    passed: bool


_FILE: TypeAdapter[list[_Seen | _Game]] = TypeAdapter(list[_Seen | _Game])
_VALID: Final = "valid is what `audit-privacy CONFIG --json` prints"


def read_audit(path: Path) -> tuple[SeenChannel, ...]:
    """Return the channels of an audit.

    Raises:
        ConfigError: If the file is missing, or `audit-privacy --json` did not write it.
    """
    try:
        found = _FILE.validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"--audit: {str(path)!r} cannot be read ({error.strerror}); {_VALID}"
        ) from error
    except ValidationError as error:
        raise ConfigError(f"--audit: {str(path)!r} is not valid; {_VALID}") from error
    channels = [one for one in found if isinstance(one, _Seen)]
    if not channels:
        raise ConfigError(f"--audit: {str(path)!r} is of no channel; {_VALID}")
    # An attacker who tells folders or failing clients apart does so on every channel.
    alike = all(one.passed for one in found if isinstance(one, _Game))
    return tuple(
        SeenChannel(
            channel=one.channel,
            mechanism=one.mechanism,
            unit=one.unit,
            epsilon=one.claimed_epsilon,
            delta=one.delta,
            lower_bound=one.epsilon_lower_bound_95,
            canaries=one.canaries,
            power=one.power,
            passed=one.passed and alike,
        )
        for one in channels
    )
