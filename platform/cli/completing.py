"""What a shell is told that a run's or a configuration's name may become.

A question that cannot be answered has no answers: whoever presses a key has not asked for an error.
"""

from __future__ import annotations

import typer

from platform.errors import PlatformError


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
