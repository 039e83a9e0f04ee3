"""The commands `backup`, `restore`, `upgrade` and `charges`; heavy imports happen inside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from platform.cli.command_line import CommandLine
from platform.cli.options import DEFAULT_STORAGE, Json, Storage

backup_app = CommandLine()

BackupFile = Annotated[Path, typer.Argument(metavar="FILE", help="The backup, a single file.")]
NewFile = Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")]
Pseudonym = Annotated[str, typer.Argument(help="The client's, as `restore` told its owner.")]


@backup_app.command()
def backup(file: BackupFile, storage: Storage = DEFAULT_STORAGE, as_json: Json = False) -> None:
    """Back up the database and its runs' records into a new FILE, also while a run goes on.

    FILE counts once it is there: it was checked then. Keys, enrolment files, images and data
    holders' own stores are not in it. It holds what the database holds, pool entries among it,
    for as long as it is kept.
    """
    from platform.cli.backing_up import backup_command

    backup_command(file, storage, as_json=as_json)


@backup_app.command()
def restore(file: BackupFile, storage: Storage = DEFAULT_STORAGE, as_json: Json = False) -> None:
    """Bring a backup back; the database's folder must be missing or empty.

    A run that went on after the backup was made cannot go on from it where its clients are data
    holders: they know of more than the database, and say so.
    """
    from platform.cli.backing_up import restore_command

    restore_command(file, storage, as_json=as_json)


@backup_app.command()
def upgrade(storage: Storage = DEFAULT_STORAGE, as_json: Json = False) -> None:
    """Bring the database, and simulated clients' stores beside it, to this version's schema."""
    from platform.cli.backing_up import upgrade_command

    upgrade_command(storage, as_json=as_json)


@backup_app.command()
def charges(
    pseudonym: Pseudonym, file: NewFile, storage: Storage = DEFAULT_STORAGE, as_json: Json = False
) -> None:
    """Write what one client was charged into a new FILE, for its owner.

    A client whose store came back from a backup takes it over with `catch-up`.
    """
    from platform.cli.backing_up import charges_command

    charges_command(pseudonym, file, storage, as_json=as_json)
