"""The commands of `audit`; heavy imports happen inside them."""

from __future__ import annotations

from typing import Annotated

import typer

from platform.cli.options import DEFAULT_STORAGE, Json, Storage

audit_app = typer.Typer(help="Query and verify the audit log.", no_args_is_help=True)


@audit_app.command("query")
def audit_query(
    *,
    run_id: Annotated[str | None, typer.Option("--run", help="Entries of this run.")] = None,
    actor: Annotated[str | None, typer.Option(help="Who acted.")] = None,
    action: Annotated[str | None, typer.Option(help="What was done.")] = None,
    round_number: Annotated[int | None, typer.Option("--round", help="In this round.")] = None,
    channel: Annotated[str | None, typer.Option(help="sum, pool or metrics.")] = None,
    since: Annotated[str | None, typer.Option(help="At or after this ISO time.")] = None,
    until: Annotated[str | None, typer.Option(help="At or before this ISO time.")] = None,
    detail: Annotated[str | None, typer.Option(help="Text that the detail contains.")] = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Show audit entries, filtered on any field."""
    from platform.cli.auditing import AuditFilter, print_audit

    wanted = AuditFilter(
        run_id=run_id,
        actor=actor,
        action=action,
        round_number=round_number,
        channel=channel,
        since=since,
        until=until,
        detail=detail,
    )
    print_audit(wanted, storage, as_json=as_json)


@audit_app.command("verify")
def audit_verify(
    run_id: Annotated[
        str | None, typer.Option("--run", help="This run only; otherwise all.")
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(help="COUNT:HASH as summary.json states it; finds a cut tail. Needs --run."),
    ] = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Hold all records of runs against each other; exit code 3 if some do not agree."""
    from platform.cli.auditing import verify_audit

    verify_audit(run_id, head, storage, as_json=as_json)
