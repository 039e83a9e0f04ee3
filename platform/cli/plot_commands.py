"""The command `plot`; heavy imports happen inside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from platform.cli.command_line import CommandLine
from platform.cli.options import DEFAULT_STORAGE, Json, Storage

plot_app = CommandLine()


@plot_app.command()
def plot(
    name: Annotated[
        str,
        typer.Argument(
            metavar="RUN|SWEEP", help="A run's id, `latest`, or the folder of a sweep's results."
        ),
    ],
    *,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="curves, tradeoff, clients, experts, holdings; of a sweep also final and axes. "
            "Repeatable; default is all that there is data for.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|FOLDER",
            help="A .svg or .png for one picture, or a folder; default pictures/NAME.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over what is there.")] = False,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Draw a run or a sweep, as SVG and PNG: accuracy, epsilon, clients, experts, holdings."""
    from platform.cli.plotting import PlotQuestion, plot_command

    question = PlotQuestion(name=name, kinds=tuple(kind or ()), output=output, force=force)
    plot_command(question, storage, as_json=as_json)
