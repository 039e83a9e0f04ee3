"""How every command line ends: what is meant for the user is one sentence and an exit code.

Under `--json` the sentence is a JSON object on one line, the last one of stderr: stdout holds
answers only, so that a program never takes an error for one. A command that ends with another code
than 0 and has printed to stdout has answered, and the answer is a bad one: records that disagree,
a failed check, a refuted claim.
"""

from __future__ import annotations

import json
import os
import re
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import click
import typer

from platform.cli import exit_codes
from platform.cli.interrupting import Ended, interruptible
from platform.cli.usage import usage_problem

JSON: Final = "--json"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a command has no answer.

    Attributes:
        error: One sentence: the field, its value and what is valid, or what went wrong.
        kind: Which error it is: `usage`, `interrupted`, `internal` (a mistake of this program), or
            the error's own name, such as `config_error` or `unknown_run`.
        exit_code: Of the process.
        field: The key, option, argument or file that the sentence begins with; null where it is
            about none.
        run_id: The run that a signal interrupted; null otherwise.
        command: What goes on with it, as it is typed; null where nothing does.
    """

    error: str
    kind: str
    exit_code: int
    field: str | None = None
    run_id: str | None = None
    command: str | None = None


def end_with(command: Any, name: str | None = None) -> None:
    """Run a command line, and exit with what its errors say; heavy imports wait for one.

    Args:
        command: What typer makes of an application.
        name: By which usage calls it; None for its own.
    """
    arguments = sys.argv[1:]
    try:
        with interruptible():
            code = _run(command, name or command.name, arguments)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = error.exit_code
    except BrokenPipeError:
        code = _hung_up()
    except Exception as error:
        failure = failure_of(error)
        is_json = asks_for_json(arguments)
        if failure.kind == "internal":
            if not is_json:
                raise
            traceback.print_exc()
        _tell(failure, as_json=is_json)
        code = failure.exit_code
    sys.exit(code)


def asks_for_json(arguments: Sequence[str]) -> bool:
    """Whether a command line has `--json` among its options, also one that does not parse."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return JSON in options


def failure_of(error: Exception) -> Failure:
    """Return what is told of an error; kind `internal` is a programming mistake."""
    if isinstance(error, Ended):
        return Failure(
            error=str(error),
            kind="interrupted",
            exit_code=error.exit_code,
            run_id=error.run_id,
            command=error.command,
        )
    if isinstance(error, click.ClickException):
        field, sentence = usage_problem(error)
        return Failure(error=sentence, kind="usage", exit_code=exit_codes.BAD_INPUT, field=field)
    code = _exit_code(error)
    if code is None:
        return Failure(
            error=f"{type(error).__name__}: {error}", kind="internal", exit_code=exit_codes.FAILED
        )
    from platform.errors import field_of, readable

    sentence = readable(str(error))
    field = field_of(sentence) if code == exit_codes.BAD_INPUT else None
    return Failure(error=sentence, kind=_kind(error), exit_code=code, field=field)


def _run(command: Any, name: str, arguments: Sequence[str]) -> int:
    """Run a command line and return the exit code that it asks for.

    Not by typer's own loop, which would print errors its way and make any signal the same.
    """
    try:
        with command.make_context(name, list(arguments)) as context:
            command.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    return 0


def _tell(failure: Failure, *, as_json: bool) -> None:
    from platform.errors import printable

    if as_json:
        text = json.dumps(document_of(failure))
    else:
        begin = "" if failure.kind == "interrupted" else "error: "
        text = begin + printable(failure.error)
    try:
        typer.echo(text, err=True)
    except OSError:
        # After SIGHUP there may be no terminal left to write to.
        _hung_up()


def document_of(failure: Failure) -> dict[str, Any]:
    """Return the JSON object of a failure."""
    return asdict(failure)


def _hung_up() -> int:
    """Keep what nobody reads any more from being an error once more at the end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
    return exit_codes.FAILED


def _kind(error: Exception) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()


def _exit_code(error: Exception) -> int | None:
    """Return exit code of an error that is meant for the user; None for a programming mistake."""
    from methods import BrokenMethod, MethodError, UnknownMethod
    from platform.errors import ConfigError, PlatformError, UnknownRun
    from privacy import PrivacyError
    from storage import AuditChainBroken, ForeignFile, LogBroken, StorageError

    if isinstance(error, (ConfigError, UnknownRun, UnknownMethod, BrokenMethod, ForeignFile)):
        return exit_codes.BAD_INPUT
    if isinstance(error, (AuditChainBroken, LogBroken)):
        return exit_codes.AUDIT_BROKEN
    known = (PlatformError, MethodError, PrivacyError, StorageError)
    return exit_codes.FAILED if isinstance(error, known) else None
