"""The commands of `audit`; heavy imports happen inside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from platform.cli.command_line import CommandLine
from platform.cli.options import DEFAULT_STORAGE, Json, Storage

audit_app = CommandLine(help="Query and verify the audit log.", no_args_is_help=True)


@audit_app.command("query")
def audit_query(
    *,
    run_id: Annotated[str | None, typer.Option("--run", help="Entries of this run.")] = None,
    actor: Annotated[
        str | None, typer.Option(help="Who acted; of a client's pseudonym its charges.")
    ] = None,
    action: Annotated[str | None, typer.Option(help="What was done.")] = None,
    round_number: Annotated[int | None, typer.Option("--round", help="In this round.")] = None,
    channel: Annotated[str | None, typer.Option(help="sum, pool or metrics.")] = None,
    status: Annotated[
        str | None,
        typer.Option(help="Charges, which are reserved, released or aborted, in place of events."),
    ] = None,
    since: Annotated[str | None, typer.Option(help="At or after this ISO time.")] = None,
    until: Annotated[str | None, typer.Option(help="At or before this ISO time.")] = None,
    detail: Annotated[str | None, typer.Option(help="Text that the detail contains.")] = None,
    limit: Annotated[
        int | None,
        typer.Option(help="The first so many only, at once: chains are left to `audit verify`."),
    ] = None,
    shown_as: Annotated[str, typer.Option("--format", help="table, json or csv.")] = "table",
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Show audit entries, filtered on any field; a name that nothing has is refused."""
    from platform.cli.querying import AuditFilter, Period, print_audit

    wanted = AuditFilter(
        run_id=run_id,
        actor=actor,
        action=action,
        round_number=round_number,
        channel=channel,
        status=status,
        period=Period(since, until),
        detail=detail,
    )
    print_audit(wanted, storage, shown_as="json" if as_json else shown_as, limit=limit)


@audit_app.command("verify")
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
        typer.Option(help="The log's public key, as somebody else keeps it; not with --run."),
    ] = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Hold all records of runs against each other; exit code 3 if some do not agree."""
    from platform.cli.auditing import verify_audit

    verify_audit(run_id, head, storage, key=key, as_json=as_json)


@audit_app.command("head")
def audit_head(storage: Storage = DEFAULT_STORAGE, as_json: Json = False) -> None:
    """Print the log's head, a signed checkpoint, to be kept by others."""
    from platform.cli.proving import print_head

    print_head(storage, as_json=as_json)


@audit_app.command("prove")
def audit_prove(
    event: Annotated[
        str, typer.Argument(metavar="EVENT", help="RUN:NUMBER of an event, or a leaf's number.")
    ],
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Prove that an event or charge is in the log, to somebody who knows a head of it."""
    from platform.cli.proving import print_proof

    print_proof(event, storage, as_json=as_json)


@audit_app.command("export")
def audit_export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is not there yet.")],
    salts: Annotated[
        bool,
        typer.Option("--with-salts", help="Also what commitments are to: who was drawn in secret."),
    ] = False,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Write the log as tiles (C2SP tlog-tiles), which strangers' tools can check."""
    from platform.cli.proving import export_log

    export_log(folder, storage, with_salts=salts, as_json=as_json)


@audit_app.command("watch")
def audit_watch(
    seconds: Annotated[float, typer.Option(help="Between two looks.", min=0.05, max=86_400)] = 2.0,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Show events as they come, until Ctrl-C; exit code 3 if the log loses what it had."""
    from platform.cli.proving import follow_log

    follow_log(storage, seconds, as_json=as_json)


@audit_app.command("change-key")
def audit_change_key(storage: Storage = DEFAULT_STORAGE) -> None:
    """Make a new key for the log's heads; the old one signs that it hands over."""
    from platform.cli.proving import change_log_key

    change_log_key(storage)
