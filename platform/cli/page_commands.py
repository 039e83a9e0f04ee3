"""The command `serve`; heavy imports happen inside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from platform.cli.command_line import CommandLine
from platform.cli.options import DEFAULT_STORAGE, Storage

page_app = CommandLine()


@page_app.command()
def serve(
    *,
    host: Annotated[
        str, typer.Option(help="Address to serve at; another than localhost needs token and TLS.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8765,
    name: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="A further name of the page, a proxy's say. Repeatable."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Whose token readers must have; of mode 600."),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Serve by TLS with this (PEM).")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key (PEM).")] = None,
    socket: Annotated[
        Path | None,
        typer.Option(metavar="SOCKET", help="federation.socket: show who is connected there."),
    ] = None,
    storage: Storage = DEFAULT_STORAGE,
) -> None:
    """Serve a page of runs, budgets and the audit log, which follows runs that go on; read-only."""
    from platform.cli.page_serving import PlaceAsked, page_command

    asked = PlaceAsked(
        host=host,
        port=port,
        names=tuple(name or ()),
        token_file=token_file,
        certificate=certificate,
        key=key,
    )
    page_command(asked, storage, socket)
