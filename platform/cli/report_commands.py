"""The commands `runs`, `report`, `compare` and `budget`; heavy imports happen inside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from platform.cli.command_line import CommandLine
from platform.cli.options import DEFAULT_STORAGE, Json, RunName, Storage, run_names
from platform.errors import ConfigError

report_app = CommandLine()


@report_app.command()
def report(
    run_id: RunName,
    *,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="Make the privacy budget report instead: table, json, html or pdf.",
        ),
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(metavar="RUN", help="Put this run beside it in the report. Repeatable."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report here; needed for pdf.")
    ] = None,
    audit: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What `audit-privacy --json` printed, for the report."),
    ] = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Show a run: accuracy, epsilon and traffic of every round; or make its privacy report."""
    if format_ is None and not compare and output is None and audit is None:
        from platform.cli.reporting import print_report

        print_report(run_id, storage, as_json=as_json)
        return
    from platform.cli.privacy_reports import ReportQuestion, privacy_report_command

    question = ReportQuestion(
        run_id=run_id,
        compared=tuple(compare or ()),
        format=format_ or "table",
        output=output,
        audit=audit,
    )
    privacy_report_command(question, storage, as_json=as_json)


@report_app.command()
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
        str | None,
        typer.Option("--client", metavar="PSEUDONYM", help="This client only."),
    ] = None,
    *,
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Without RUN: all runs, not only the newest 20 and those that go on."
        ),
    ] = False,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Show what clients have spent, what is left, and how many further rounds fit."""
    from platform.cli.budgeting import budget_command

    budget_command(run_id, client, storage, every=every, as_json=as_json)


@report_app.command()
def runs(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN...]",
            help="With --prune: these runs, finished or not; without any, all that did not finish.",
            autocompletion=run_names,
        ),
    ] = None,
    *,
    every: Annotated[
        bool, typer.Option("--all", help="List pruned runs too, and the numbers of old ones.")
    ] = False,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Erase models, pool and clients' personal parts; what was spent, and all that "
            "proves it, stays.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Prune without asking.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what --prune would erase, and erase nothing.")
    ] = False,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """List the runs, newest first, with accuracy and epsilon; or prune them."""
    if prune:
        from platform.cli.run_listing import prune_command

        prune_command(names or (), storage, is_sure=yes, dry_run=dry_run, as_json=as_json)
        return
    if names or yes or dry_run:
        option = f"RUN: {names[0]!r}" if names else "--yes:" if yes else "--dry-run:"
        raise ConfigError(f"{option} means nothing without --prune; valid is with it, or neither")
    from platform.cli.run_listing import runs_command

    runs_command(storage, every=every, as_json=as_json)


@report_app.command()
def compare(
    names: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Ids of two runs or more.", autocompletion=run_names),
    ],
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Put runs side by side: accuracy, epsilon by adversary, and the settings that differ."""
    from platform.cli.comparing import compare_command

    compare_command(names, storage, as_json=as_json)
