"""The commands of `new`; heavy imports happen inside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from platform.cli.command_line import CommandLine
from platform.cli.options import Json

new_app = CommandLine(
    help="Start something of your own from files that work.", no_args_is_help=True
)


@new_app.command("method")
def new_method(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The method's: small letters, digits and _.")
    ],
    into: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the three files, made if need be; default is this folder, or, in a "
            "checkout of Sotto, where its methods, presets and tests are.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a method that trains, its preset, and a test that fails until a number is yours."""
    from platform.cli.starting_method import new_method_command

    new_method_command(name, into, as_json=as_json)
