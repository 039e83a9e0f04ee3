"""Options that several commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from platform.cli.completing import config_names, run_names

ABOUT: Final = (
    "Sotto: private federated prompt learning. Without a command it runs the quickstart: "
    "fifty clients learn one prompt under noise and secure aggregation, in under a minute."
)
DEFAULT_STORAGE: Final = "sqlite:///runs/sotto.db"


def _print_version(wanted: bool) -> None:
    if wanted:
        from platform.cli.versions import version_text

        typer.echo(version_text())
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version",
        help="Say which version this is, and whether it is a checkout.",
        callback=_print_version,
        is_eager=True,
    ),
]
RunName = Annotated[
    str,
    typer.Argument(metavar="RUN", help="A run's id, or `latest`.", autocompletion=run_names),
]
Config = Annotated[
    Path,
    typer.Argument(help="A YAML file, or a packaged name.", autocompletion=config_names),
]
Reference = Annotated[
    bool,
    typer.Option(
        "--reference",
        help="Take all settings of the published run of a paper's table (configs/references).",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else to stdout.")]
Storage = Annotated[
    str, typer.Option("--storage", help="The coordinator's database, as storage.url states it.")
]
METHODS: Any = typer.Option(
    "--methods",
    metavar="DIR",
    help="A folder with methods of your own, NAME.py and NAME.yaml; their code is run.",
)
"""Of `Path | None`."""
