"""`sotto`: the coordinator's commands, and the data holder's under `sotto client`.

The script that an install makes runs from any folder, as the start-up hook finds this package
wherever the current folder is (`docs/adr/0060-one-command.md`).
"""

from __future__ import annotations

from typing import Any, Final

from typer.main import get_command, get_install_completion_arguments

from platform.cli.app import app
from platform.cli.client_app import client_app
from platform.cli.ending import end_with

CLIENT: Final = "client"
"""The data holder's commands among the coordinator's."""


def command_line() -> Any:
    """Return both command lines as one, which a shell can complete."""
    line: Any = get_command(app)
    line.add_command(get_command(client_app), CLIENT)
    # Only here: a shell completes by the first word, and that of `python -m ...` is not ours.
    line.params.extend(get_install_completion_arguments())
    return line


def main() -> None:
    """Run the command line and exit."""
    end_with(command_line())
