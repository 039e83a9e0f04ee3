"""The commands `export` and `predict`; heavy imports happen inside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from platform.cli.command_line import CommandLine
from platform.cli.options import DEFAULT_STORAGE, METHODS, Json, RunName, Storage

model_app = CommandLine()

MethodsOption = Annotated[Path | None, METHODS]
ClientOption = Annotated[
    int | None,
    typer.Option(
        "--client", help="Use this simulated client's personal part, from 0.", min=0, max=99_999
    ),
]


@model_app.command()
def export(
    run_id: RunName,
    *,
    output: Annotated[Path | None, typer.Option(help="Folder; default exports/RUN.")] = None,
    client: ClientOption = None,
    methods_: MethodsOption = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Write the trained prompts as safetensors, with a model card."""
    from platform.bootstrap import Surroundings
    from platform.cli.models import export_command

    surroundings = Surroundings.with_methods(methods_)
    export_command(run_id, storage, surroundings, output=output, client=client, as_json=as_json)


@model_app.command()
def predict(
    run_id: RunName,
    files: Annotated[
        list[Path], typer.Argument(help="Image files, or text files of one text each.")
    ],
    *,
    client: ClientOption = None,
    methods_: MethodsOption = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Classify images, or texts, with what a run trained."""
    from platform.bootstrap import Surroundings
    from platform.cli.models import predict_command

    surroundings = Surroundings.with_methods(methods_)
    predict_command(run_id, files, storage, surroundings, client=client, as_json=as_json)
