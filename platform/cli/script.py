"""`sotto`: the coordinator's commands, and the data holder's under `sotto client`.

The script that an install makes runs from any folder, as the start-up hook finds this package
wherever the current folder is (`docs/adr/0060-how-commands-end.md`).
"""

from __future__ import annotations

from typing import Any, Final

from platform._early_ending import end_early_by_signals

NAME: Final = "sotto"
CLIENT: Final = "client"
"""The data holder's commands among the coordinator's."""


def command_line() -> Any:
    """Return both command lines as one, which a shell can complete."""
    # Not before `main` has seen to signals, as it takes a while to import all this.
    from typer.main import get_command, get_install_completion_arguments

    from platform.cli.app import app
    from platform.cli.client_app import client_app

    line: Any = get_command(app)
    line.add_command(get_command(client_app), CLIENT)
    # Only here: a shell completes by the first word, and that of `python -m ...` is not ours.
    line.params.extend(get_install_completion_arguments())
    return line


def main() -> None:
    """Run the command line and exit; where a shell asks for completions, print those."""
    end_early_by_signals()
    line = command_line()
    # It ends the process where the shell asked, by a variable of the environment.
    line._main_shell_completion({}, NAME)
    from platform.cli.ending import end_with

    end_with(line, NAME)
