"""Options that several commands have in common."""

from __future__ import annotations

from typing import Annotated, Final

import typer

DEFAULT_STORAGE: Final = "sqlite:///runs/sotto.db"

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else to stdout.")]
Storage = Annotated[
    str, typer.Option("--storage", help="The coordinator's database, as storage.url states it.")
]
ClientOption = Annotated[
    int | None,
    typer.Option("--client", help="Use this simulated client's personal part, from 0.", min=0),
]
