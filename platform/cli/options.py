"""Options that several commands have in common: `--version`, and what a shell completes, too.

A completion that cannot be answered has no answers: whoever presses a key has not asked for an
error.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from platform.errors import PlatformError

ABOUT: Final = (
    "Sotto: private federated prompt learning. Without a command it runs the quickstart: "
    "fifty clients learn one prompt under noise and secure aggregation, in under a minute."
)
DEFAULT_STORAGE: Final = "sqlite:///runs/sotto.db"

ROOT: Final = Path(__file__).resolve().parents[2]
"""What holds the packages: a checkout, or a folder of installed packages."""


def _print_version(wanted: bool) -> None:
    if wanted:
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


def run_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the runs of the database that was named before, newest first."""
    from platform.disk.opening import open_existing
    from platform.results.reading import LATEST
    from storage import StorageError

    # While words are completed, options that were not given have no value.
    usual = {one.name: one.default for one in context.command.params}
    url = str(context.params.get("storage") or usual["storage"])
    try:
        with open_existing(url) as database, database.unit_of_work(read_only=True) as uow:
            known = [LATEST, *(run.run_id for run in reversed(uow.runs.list()))]
    except (PlatformError, StorageError, OSError):
        return []
    return [name for name in known if name.startswith(incomplete)]


def config_names(incomplete: str) -> list[str]:
    """Return the packaged configurations; the shell itself knows the files."""
    from platform.config import Sources
    from platform.config.files import packaged_names

    return sorted(name for name in packaged_names(Sources()) if name.startswith(incomplete))


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


def version_text(root: Path = ROOT) -> str:
    """Return the version in one line, and whether it is a checkout.

    Args:
        root: The folder that holds the packages.
    """
    from platform.experiment.environment import checkout_commit, sotto_version

    declared = _declared(root)
    if declared is None:
        return f"sotto {sotto_version() or 'of unknown version'}, installed in {root}"
    commit = checkout_commit(root)
    known = "" if commit is None else f" at commit {commit[:12]}"
    return f"sotto {declared}, a checkout in {root}{known}"


def _declared(root: Path) -> str | None:
    """Return a checkout's own version, as what is installed may be another; None of no checkout."""
    from platform.experiment.environment import OWN

    try:
        project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    except (OSError, ValueError, KeyError):
        return None
    return str(project["version"]) if project.get("name") == OWN else None
