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
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import click
import typer

from platform.cli import exit_codes
from platform.cli.interrupting import Ended, interruptible

JSON: Final = "--json"

LONGEST: Final = 80
"""Characters of a value that a sentence repeats."""


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


def usage_problem(error: click.ClickException) -> tuple[str | None, str]:
    """Return what a command line's error is about, and one sentence about it.

    Args:
        error: As the parser raises it.

    Returns:
        The option or argument as it is typed, None where it is none; the sentence.
    """
    context = getattr(error, "ctx", None)
    field: str | None
    match error:
        case click.NoSuchOption():
            valid = ", ".join(_options(context))
            field, problem = error.option_name, f"is no option here; valid: {valid or '--help'}"
        case click.MissingParameter():
            field = _name(error.param, error.param_hint)
            problem = f"is missing; {_valid(error.param)}"
        case click.BadParameter():
            field = _name(error.param, error.param_hint)
            problem = _lower_first(_one_line(error.message))
            if "; valid" not in problem:
                problem = f"{problem}; {_valid(error.param)}"
        case click.BadOptionUsage():
            field, problem = error.option_name, "is no switch or has no value; see --help"
            if "requires an argument" in error.message:
                problem = f"has no value; {_valid(_parameter(context, error.option_name))}"
            elif "does not take a value" in error.message:
                problem = "takes no value; valid: the option alone"
        case _:
            field, problem = _other(error, context)
    return field, problem if field is None else f"{field}: {problem}"


def _other(error: click.ClickException, context: click.Context | None) -> tuple[str | None, str]:
    """Return field and problem of what the parser has no kind of its own for."""
    message = _one_line(error.format_message())
    if message.startswith("No such command") and context is not None:
        group = context.command
        names = group.list_commands(context) if isinstance(group, click.Group) else []
        name = message.removeprefix("No such command ").partition(". ")[0]
        return "COMMAND", f"{name} is unknown; valid: {', '.join(names)}"
    if message.startswith("Got unexpected extra argument"):
        extra = message.partition("(")[2].rstrip(")")
        taken = ", ".join(_arguments(context)) or "none"
        return "ARGUMENT", f"{_shortened(extra)!r} is too much; valid: {taken}"
    return None, _lower_first(message)


def _options(context: click.Context | None) -> Iterable[str]:
    """Yield the long names of a command's options."""
    for parameter in () if context is None else context.command.get_params(context):
        if isinstance(parameter, click.Option):
            yield max(parameter.opts, key=len)


def _arguments(context: click.Context | None) -> Iterable[str]:
    for parameter in () if context is None else context.command.params:
        if isinstance(parameter, click.Argument):
            yield _name(parameter, None)


def _parameter(context: click.Context | None, name: str) -> click.Parameter | None:
    parameters = () if context is None else context.command.params
    return next((each for each in parameters if name in each.opts), None)


def _name(parameter: click.Parameter | None, hint: object) -> str:
    """Return an option as it is typed, or an argument as help calls it."""
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    if parameter is not None:
        return (parameter.metavar or parameter.name or "").upper().strip("[].")
    return str(hint or "").strip("'\" ") or "command line"


def _valid(parameter: click.Parameter | None) -> str:
    """Return what a parameter takes, in the words of its help."""
    text = _one_line(getattr(parameter, "help", None) or "")
    return f"valid: {text}" if text else "valid: what --help says"


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
