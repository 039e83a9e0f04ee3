"""The commands that read records: `audit`, `report`, `budget`, `runs` and `compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from platform.cli.command_line import (
    DEFAULT_STORAGE,
    CommandLine,
    Json,
    RunName,
    Storage,
    run_names,
)

audit_app = CommandLine(help="Query and verify the audit log.", no_args_is_help=True)


@audit_app.command("query", by="auditing.print_audit")
def audit_query(
    *,
    run_id: Annotated[str | None, typer.Option("--run", help="Entries of this run.")] = None,
    actor: Annotated[
        str | None, typer.Option(help="Who acted; a client's pseudonym shows its charges.")
    ] = None,
    action: Annotated[str | None, typer.Option(help="What was done.")] = None,
    round_number: Annotated[int | None, typer.Option("--round", help="In this round.")] = None,
    channel: Annotated[str | None, typer.Option(help="sum, pool or metrics.")] = None,
    status: Annotated[
        str | None,
        typer.Option(help="reserved, released or aborted: show such charges, not events."),
    ] = None,
    since: Annotated[str | None, typer.Option(help="At or after this ISO time.")] = None,
    until: Annotated[str | None, typer.Option(help="At or before this ISO time.")] = None,
    detail: Annotated[str | None, typer.Option(help="Text that the detail contains.")] = None,
    limit: Annotated[
        int | None,
        typer.Option(help="Only the first LIMIT, at once; `audit verify` checks the chains."),
    ] = None,
    shown_as: Annotated[str, typer.Option("--format", help="table, json or csv.")] = "table",
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Show audit entries, filtered on any field; a name without any entry is refused."""


@audit_app.command("verify", by="auditing.verify_audit")
def audit_verify(
    *,
    run_id: Annotated[
        str | None, typer.Option("--run", help="This run only; otherwise all.")
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(help="COUNT:HASH as summary.json states it; finds a cut tail. Needs --run."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(help="The log's public key, as another party keeps it; not with --run."),
    ] = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Compare all records of runs with each other; exit code 3 if some do not agree."""


@audit_app.command("head", by="auditing.print_head")
def audit_head(storage: Storage = DEFAULT_STORAGE, as_json: Json = False) -> None:
    """Print the log's head, a signed checkpoint, for others to keep."""


@audit_app.command("prove", by="auditing.print_proof")
def audit_prove(
    event: Annotated[
        str, typer.Argument(metavar="EVENT", help="RUN:NUMBER of an event, or a leaf's number.")
    ],
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Prove that an event or charge is in the log, to a reader who knows a head of it."""


@audit_app.command("export", by="auditing.export_log")
def audit_export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    with_salts: Annotated[
        bool,
        typer.Option("--with-salts", help="Also open the commitments: who was drawn in secret."),
    ] = False,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Write the log as tiles (C2SP tlog-tiles), which other programs can check."""


@audit_app.command("watch", by="auditing.follow_log")
def audit_watch(
    seconds: Annotated[float, typer.Option(help="Between looks.", min=0.05, max=86_400)] = 2.0,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Show events as they come, until Ctrl-C; exit code 3 if the log loses what it had."""


@audit_app.command("change-key", by="auditing.change_log_key")
def audit_change_key(storage: Storage = DEFAULT_STORAGE) -> None:
    """Make a new key for the log's heads; the old key signs the change."""


report_app = CommandLine()


@report_app.command(by="reporting.report_command")
def report(
    run_id: RunName,
    *,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="Make the privacy budget report instead: json, html or pdf; default as FILE ends.",
        ),
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(metavar="RUN", help="Compare with this run in the report. Repeatable."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report here; pdf needs it.")
    ] = None,
    audit: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What `audit-privacy --json` printed, for the report."),
    ] = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Show a run: accuracy, epsilon and traffic of every round; or make its privacy report."""


@report_app.command(by="budgeting.budget_command")
def budget(
    run_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="A run's id, or `latest`; without it the newest runs.",
            autocompletion=run_names,
        ),
    ] = None,
    client: Annotated[
        str | None, typer.Option("--client", metavar="PSEUDONYM", help="This client only.")
    ] = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Show what clients have spent, what is left, and how many further rounds fit."""


@report_app.command(by="keeping.runs_command")
def runs(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN...]",
            help="With --prune: these runs, finished or not; default all that did not finish.",
            autocompletion=run_names,
        ),
    ] = None,
    *,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Erase models, pool and clients' personal parts; records of what was spent, and "
            "their proofs, stay.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Prune without asking.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what --prune would erase, and erase nothing.")
    ] = False,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """List the runs, newest first, with accuracy and epsilon; or prune them."""


@report_app.command(by="reporting.compare_command")
def compare(
    names: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Ids of two runs or more.", autocompletion=run_names),
    ],
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Put runs side by side: accuracy, epsilon by adversary, and the settings that differ."""
