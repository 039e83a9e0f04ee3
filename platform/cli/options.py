"""Options that several commands have in common."""

from __future__ import annotations

from typing import Annotated, Final

import typer

ABOUT: Final = (
    "Sotto: private federated prompt learning. Without a command it runs the quickstart: "
    "pFedMoAP on rendered shapes, ten clients, noised uploads under secure aggregation."
)
DEFAULT_STORAGE: Final = "sqlite:///runs/sotto.db"

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
