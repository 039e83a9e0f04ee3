"""`federation remove`: a client is taken off a run for good."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from platform.bootstrap.federating import remove_client
from platform.bootstrap.planning import Surroundings
from platform.cli.access import resolve_run
from platform.cli.output import console, print_json


def remove_command(
    run_id: str, client: str, statement: Path | None, storage: str, *, as_json: bool
) -> None:
    """Take a client off a run, and say what went with it.

    Raises:
        ConfigError: If the run has no such client any more, or the statement is not its own.
        UnknownRun: If there is no such run.
        RunStopped: If another process runs it, or its records do not agree.
    """
    found = resolve_run(run_id, storage)
    gone = remove_client(found, storage, client, statement=statement, surroundings=Surroundings())
    if as_json:
        print_json({"run_id": found, **asdict(gone)})
        return
    console().print(
        f"{client} takes part in run {found} no more; {gone.generations} generations of the pool "
        "went with it, and what it was charged stays",
    )
