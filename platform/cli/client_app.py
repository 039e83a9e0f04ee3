"""The data holder's command line: check the client, run it, see what it has spent.

Exit codes: 0 done; 1 the client could not go on; 2 bad input, or a check failed. Heavy imports
happen inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.main import get_command

from platform.cli.command_line import CommandLine, Json, PlainGroup, Version
from platform.cli.ending import end_with

CONFIG: Final = "CONFIG"
"""Help shows this name for the command that has no name and takes the settings' file."""
ABOUT: Final = (
    "Sotto's data holder: data, keys, store and training stay on this machine. With CONFIG alone, "
    "a YAML file, it runs until it is ended, and declines what would pass its own limits; "
    "`example` prints such a file to start from."
)


class _FileOrCommand(PlainGroup):
    """Takes a first argument that names no command as the settings' file."""

    # The types are of a package that only typer depends on.
    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command, and what is left for it."""
        if args[0] != CONFIG and args[0] in self.commands:
            return super().resolve_command(ctx, args)
        return CONFIG, self.commands[CONFIG], args


client_app = CommandLine(
    name="python -m platform.client",
    cls=_FileOrCommand,
    help=ABOUT,
    no_args_is_help=True,
    # They belong to the file's own command.
    context_settings={"ignore_unknown_options": True},
)
keys_app = CommandLine(help="The client's private key, which stays here.", no_args_is_help=True)
client_app.add_typer(keys_app, name="keys")
receipts_app = CommandLine(
    help="The charges of this client in the coordinator's log.", no_args_is_help=True
)
client_app.add_typer(receipts_app, name="receipts")

Settings = Annotated[Path, typer.Argument(metavar="CONFIG", help="The client's YAML file.")]
BackupFile = Annotated[Path, typer.Argument(metavar="FILE", help="The backup, a single file.")]
ChargesFiles = Annotated[
    list[Path], typer.Argument(metavar="CHARGES...", help="Files that `charges` wrote.")
]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's name, as in the logs.")]
KeyFile = Annotated[Path, typer.Argument(metavar="FILE", help="File of the private key.")]


@client_app.callback()
def default(version: Version = False) -> None:
    """Take options before any command."""


@client_app.command(CONFIG, by="serving.serve_command")
def serve(config: Settings, as_json: Json = False) -> None:
    """Run the client until it is ended."""


@client_app.command(by="holder.check_command")
def check(config: Settings, as_json: Json = False) -> None:
    """Check data, keys, storage and limits before the client joins a run."""


@client_app.command(by="holder.budget_command")
def budget(config: Settings, as_json: Json = False) -> None:
    """Show what was spent, run by run and in total, and what is left; also while it runs."""


@client_app.command(by="holder.backup_command")
def backup(config: Settings, file: BackupFile, as_json: Json = False) -> None:
    """Back up the store into a new FILE, also while the client runs; the key is not in it."""


@client_app.command(by="holder.restore_command")
def restore(config: Settings, file: BackupFile, as_json: Json = False) -> None:
    """Bring a lost store back; the client must then catch up.

    Only for a lost store: with two copies of one client, each would spend without the other's
    knowledge.
    """


@client_app.command("catch-up", by="holder.catch_up_command")
def catch_up(config: Settings, files: ChargesFiles, as_json: Json = False) -> None:
    """Add the charges since the backup from which the store came; the client may run.

    The coordinator's command `charges` writes them. The client believes it, because only the
    coordinator has a record of them. Give one file of every coordinator with whom the client has
    taken part.
    """


@client_app.command(by="holder.leave_command")
def leave(
    config: Settings,
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN...]", help="Names of runs, or --all.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All runs ever accepted.")] = False,
    statement: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the statement of leaving one run, to hand over."),
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Leave runs for good: erase all of them here but what was spent; this cannot be undone.

    The client tells the coordinator when the run asks next, so keep it running until then. If the
    coordinator cannot be reached, hand the statement to its operator as a file.
    """


@client_app.command(by="serving.evaluate_command")
def evaluate(config: Settings, run_id: RunName, as_json: Json = False) -> None:
    """Print the own model's accuracy on the own test images, after a run has ended."""


@client_app.command(by="serving.predict_command")
def predict(
    config: Settings,
    run_id: RunName,
    files: Annotated[list[Path], typer.Argument(metavar="FILES...", help="Image files.")],
    as_json: Json = False,
) -> None:
    """Classify images with the own model of a run that has ended."""


@client_app.command(by="serving.export_command")
def export(
    config: Settings,
    run_id: RunName,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new safetensors file.")],
    as_json: Json = False,
) -> None:
    """Write the own model of an ended run; it was made without noise and stays with you."""


@client_app.command(by="holder.example_command")
def example() -> None:
    """Print a settings file to start from."""


@keys_app.command("create", by="holder.create_key_command")
def keys_create(file: KeyFile, as_json: Json = False) -> None:
    """Make a private key, which stays here, and show its public half for others."""


@keys_app.command("show", by="holder.show_key_command")
def keys_show(file: KeyFile, as_json: Json = False) -> None:
    """Show the public half of a key."""


@receipts_app.command("verify", by="serving.verify_receipts")
def receipts_verify(
    source: Annotated[
        Path,
        typer.Argument(metavar="CONFIG|FILE", help="The client's YAML file, or exported receipts."),
    ],
    compare: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Another client's exported receipts.")
    ] = None,
    *,
    key: Annotated[str | None, typer.Option(help="The log's public key, as you know it.")] = None,
    uploads: Annotated[
        list[Path] | None,
        typer.Option("--upload", metavar="FILE", help="An upload, byte by byte as sent."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compute epsilon anew from receipts alone; exit code 3 says that they do not hold.

    With CONFIG this also compares them with the client's own ledger; with --compare it compares
    signed heads of equal size. If two files share no head, the exit code is 3 too.
    """


@receipts_app.command("export", by="serving.export_receipts")
def receipts_export(
    config: Settings,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file, to hand on.")],
    as_json: Json = False,
) -> None:
    """Write all receipts to a file: charges, proofs and signed heads, but no data."""


def main() -> None:
    """Run the command line and exit."""
    end_with(get_command(client_app))
