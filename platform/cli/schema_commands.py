"""The command `schemas`; heavy imports happen inside it."""

from __future__ import annotations

from typing import Annotated

import typer

from platform.cli.command_line import CommandLine
from platform.cli.options import Json

schema_app = CommandLine()


@schema_app.command()
def schemas(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Print this one, as JSON.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the JSON Schemas of all outputs and errors, or print one."""
    from platform.cli.schemas.printing import schemas_command

    schemas_command(name, as_json=as_json)
