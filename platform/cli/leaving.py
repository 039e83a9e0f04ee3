"""`leave` of a data holder: out of runs for good, and what stays here of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from platform.cli.output import console, print_json
from platform.errors import ConfigError
from platform.holder.leaving import leave_runs, write_statement
from platform.holder.settings import load_holder


def leave_command(
    config: Path, run_ids: Sequence[str] | None, statement: Path | None, *, as_json: bool
) -> None:
    """Leave runs for good, and say what is left here of each.

    Args:
        config: The data holder's YAML file.
        run_ids: The runs; None for all.
        statement: Where the statement of leaving a single run is written, None for nowhere.
        as_json: Whether stdout gets JSON.

    Raises:
        ConfigError: If no run is named, or the settings or files are not valid.
        UnknownRun: If a run was never accepted here.
        StorageError: If the store cannot be written to.
    """
    if run_ids is not None and not run_ids:
        raise ConfigError("RUN: none is named; valid: names of runs, or --all")
    if statement is not None and (run_ids is None or len(run_ids) != 1):
        raise ConfigError("--statement: it says that one run was left; valid with one RUN")
    settings = load_holder(config)
    found = leave_runs(settings, run_ids)
    if statement is not None:
        write_statement(settings, found[0].run_id, statement)
    if as_json:
        print_json([asdict(one) for one in found])
        return
    out = console()
    for one in found:
        word = "left" if one.is_new else "had been left, and is erased once more"
        out.print(f"{one.run_id}: {word}; {one.charges} charges stay, all else is erased")
    if any(one.is_new and not one.is_signed for one in found):
        out.print("note: without an identity the statement is not signed")
    out.print(
        "keep the client running until the coordinator has heard it; backups are older than this, "
        "and are yours to delete",
    )
