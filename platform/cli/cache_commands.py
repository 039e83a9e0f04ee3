"""The commands of `cache`; heavy imports happen inside them."""

from __future__ import annotations

from typing import Annotated

import typer

from platform.cli.command_line import CommandLine
from platform.cli.options import DEFAULT_STORAGE, Json, Storage

cache_app = CommandLine(
    help="What frozen models made of images, kept beside the database.", no_args_is_help=True
)


@cache_app.command("list")
def cache_list(storage: Storage = DEFAULT_STORAGE, as_json: Json = False) -> None:
    """Show what is cached: models, images, size and when it was used last."""
    from platform.cli.cache import list_command

    list_command(storage, as_json=as_json)


@cache_app.command("clear")
def cache_clear(
    model: Annotated[
        str | None, typer.Option(help="A model's name, or how its fingerprint starts.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All models.")] = False,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Delete what is cached; later runs encode their images anew."""
    from platform.cli.cache import clear_command

    clear_command(storage, model=model, everything=everything, as_json=as_json)
