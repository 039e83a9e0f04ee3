"""The commands `report` and `budget`; heavy imports happen inside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from platform.cli.command_line import CommandLine
from platform.cli.options import DEFAULT_STORAGE, Json, Storage
from platform.errors import ConfigError

report_app = CommandLine()


@report_app.command()
def report(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or `latest`.")],
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
    tensorboard: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write its rounds as TensorBoard reads them instead."),
    ] = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Show a run: accuracy, epsilon and traffic of every round; or make its privacy report."""
    is_plain = format_ is None and not compare and output is None and audit is None
    if tensorboard is not None:
        from platform.cli.event_files import events_command

        if not is_plain:
            raise ConfigError(
                "--tensorboard: it stands alone; --format, --compare, --output and --audit are"
                " for the privacy report"
            )
        events_command(run_id, tensorboard, storage, as_json=as_json)
        return
    if is_plain:
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
            metavar="[RUN]", help="A run's id, or `latest`; without it the newest runs."
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
