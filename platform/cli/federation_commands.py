"""The commands of `federation`; heavy imports happen inside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from platform.cli.command_line import CommandLine
from platform.cli.options import DEFAULT_STORAGE, Json, Storage

federation_app = CommandLine(help="A run whose clients are elsewhere.", no_args_is_help=True)


@federation_app.command("status")
def federation_status(
    socket: Annotated[
        Path, typer.Argument(metavar="SOCKET", help="The run's federation.socket.")
    ] = Path("runs/hub.sock"),
    storage: Annotated[
        str | None,
        typer.Option("--storage", help="The coordinator's database: who is behind, or left."),
    ] = None,
    run_id: Annotated[
        str, typer.Option("--run", metavar="RUN", help="The run in it; default is the newest.")
    ] = "latest",
    as_json: Json = False,
) -> None:
    """Show who can be reached, whom the run waits for, who refused last, and who is behind."""
    from platform.cli.federation_status import status_command

    status_command(socket, storage, run_id, as_json=as_json)


@federation_app.command("remove")
def federation_remove(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or `latest`.")],
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="One of federation.clients.")],
    statement: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What the client's own command `leave` has written."),
    ] = None,
    storage: Storage = DEFAULT_STORAGE,
    *,
    as_json: Json = False,
) -> None:
    """Take a client off a run for good: its machine is lost, or it sent its statement as a file.

    End the run first, and resume it afterwards. Nothing is erased on the client's machine; what it
    was charged stays.
    """
    from platform.cli.removing import remove_command

    remove_command(run_id, client, statement, storage, as_json=as_json)
