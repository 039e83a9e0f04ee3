"""How every command line ends: a signal or an error becomes one sentence and an exit code.

A signal never leaves work half-done and never shows a trace.

Under `--json` the sentence is a JSON object on one line, the last line of stderr. stdout holds
answers only, so that a program never takes an error for an answer. A command that prints to stdout
and ends with another code than 0 has given a bad answer: records that disagree, a failed check, a
refuted claim.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
import typer

from platform.cli.command_line import DEFAULT_STORAGE

if TYPE_CHECKING:
    from platform.experiment.planning import Surroundings

FAILED = 1
"""A run could not go on, its records do not agree, or a claim was refuted."""
BAD_INPUT = 2
AUDIT_BROKEN = 3
ABOVE_CLAIM = 4
"""A run finished, and its own canaries show more than it claims, as one right run in twenty does.
If they refute the claim, the code is 1."""
SIGNALLED = 128
"""The number of the signal is added: 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM."""


SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """A signal ended the command."""

    def __init__(self, number: int) -> None:
        """Take the signal's number."""
        super().__init__()
        self.number = number


class Ended(Exception):
    """A command has ended after a signal, with a run or without; the message says how to go on."""

    def __init__(
        self, number: int, text: str, *, run_id: str | None = None, command: str | None = None
    ) -> None:
        """Take the words without the command."""
        super().__init__(text if command is None else f"{text}; go on with: {command}")
        self.number, self.run_id, self.command = number, run_id, command

    @property
    def exit_code(self) -> int:
        """128 plus the signal."""
        return SIGNALLED + self.number


def ended_run(number: int, run_id: str | None, options: Sequence[str]) -> Ended:
    """Return the end of a run that a signal came to; it has no id before it exists."""
    if run_id is None:
        return Ended(number, "interrupted")
    command = f"{program()} {shlex.join(('run', '--resume', run_id, *options))}"
    return Ended(number, f"run {run_id} is interrupted", run_id=run_id, command=command)


def finding(storage: str, surroundings: Surroundings) -> tuple[str, ...]:
    """Return the options under which a later command finds a run and its plug-ins again."""
    found = () if storage == DEFAULT_STORAGE else ("--storage", storage)
    folder = surroundings.registry.plugins.folder
    return found if folder is None else (*found, "--plugins", str(folder))


def program() -> str:
    """Return the program as its user called it."""
    context = click.get_current_context(silent=True)
    return (context and context.find_root().info_name) or "python -m platform.coordinator"


def same_again() -> str:
    """Return the command line of this process, as it was typed."""
    return f"{program()} {shlex.join(sys.argv[1:])}"


def ending_at_once(telling: Callable[[int], Ended]) -> Callable[[int, FrameType | None], NoReturn]:
    """Return the handler of a second signal: the process ends where it is, as if killed."""

    def at_once(number: int, frame: FrameType | None) -> NoReturn:
        with contextlib.suppress(OSError):
            os.write(2, f"{telling(number)}\n".encode())
        # The interpreter's usual end would wait for threads and print traces.
        os._exit(SIGNALLED + number)

    return at_once


@contextlib.contextmanager
def interruptible(ended: Callable[[int], Ended] | None = None) -> Iterator[None]:
    """While it is entered, a first signal raises `Ended` and a second one ends the process at once.

    `ended` gives the words about a signal.
    """
    telling = ended or (lambda number: Ended(number, "interrupted"))
    before = {number: signal.getsignal(number) for number in SIGNALS}
    # A signal that is ignored, as SIGHUP under `nohup`, stays ignored.
    taken = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    came: list[int] = []

    def first(number: int, frame: FrameType | None) -> NoReturn:
        came.append(number)
        for each in taken:
            signal.signal(each, ending_at_once(telling))
        raise Interrupted(number)

    for number in taken:
        signal.signal(number, first)
    try:
        yield
    except KeyboardInterrupt as error:
        raise telling(getattr(error, "number", signal.SIGINT)) from None
    finally:
        # After a signal the process ends, and no handler may disturb that by a trace.
        for number in () if came else taken:
            signal.signal(number, before[number] or signal.SIG_DFL)


LONGEST: Final = 80
"""A sentence repeats at most this many characters of a value."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a command has no answer.

    Attributes:
        error: One sentence: the field, its value and what is valid, or what went wrong.
        kind: Which error it is: `usage`, `interrupted`, `internal` (a mistake of this program), or
            the error's own name, such as `config_error` or `unknown_run`.
        exit_code: Of the process.
        field: The key, option, argument or file that the sentence begins with; null without one.
        run_id: The run that a signal interrupted; null otherwise.
        command: The command line that goes on with the run; null if the run cannot go on.
    """

    error: str
    kind: str
    exit_code: int
    field: str | None = None
    run_id: str | None = None
    command: str | None = None


def end_with(command: Any, name: str | None = None) -> None:
    """Run a command line as typer builds it, and exit with its code; only an error is slow."""
    arguments = sys.argv[1:]
    as_json = asks_for_json(arguments)
    try:
        # Typer's own loop would print errors its way, and treat all signals alike.
        with interruptible(), command.make_context(name or command.name, list(arguments)) as line:
            command.invoke(line)
        code = 0
    except click.exceptions.Exit as ended:
        code = ended.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = error.exit_code
    except BrokenPipeError:
        code = _hung_up()
    except Exception as error:
        failure = failure_of(error)
        if failure.kind == "internal":
            if not as_json:
                raise
            traceback.print_exc()
        from platform.errors import ConfigError, printable, readable

        begin = "" if failure.kind == "interrupted" else "error: "
        lines = [failure.error]
        if isinstance(error, ConfigError):
            # Each fault has its line; a line break within one is shown as an escape.
            lines = [readable(one) for one in error.lines]
        text = json.dumps(asdict(failure)) if as_json else begin + "\n".join(map(printable, lines))
        try:
            typer.echo(text, err=True)
        except OSError:
            # After SIGHUP there may be no terminal left to write to.
            _hung_up()
        code = failure.exit_code
    sys.exit(code)


def asks_for_json(arguments: Sequence[str]) -> bool:
    """Whether a command line has the option `--json`, even if it does not parse."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in options


def failure_of(error: Exception) -> Failure:
    """Return the failure that an error means; kind `internal` is a programming mistake."""
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
        return Failure(error=sentence, kind="usage", exit_code=BAD_INPUT, field=field)
    from methods import BrokenPlugin, MethodError, UnknownMethod
    from platform.errors import ConfigError, PlatformError, UnknownRun, field_of, readable
    from privacy import PrivacyError
    from storage import AuditChainBroken, ForeignFile, LogBroken, StorageError

    if isinstance(error, (ConfigError, UnknownRun, UnknownMethod, BrokenPlugin, ForeignFile)):
        code = BAD_INPUT
    elif isinstance(error, (AuditChainBroken, LogBroken)):
        code = AUDIT_BROKEN
    elif isinstance(error, (PlatformError, MethodError, PrivacyError, StorageError)):
        code = FAILED
    else:
        return Failure(error=f"{type(error).__name__}: {error}", kind="internal", exit_code=FAILED)
    sentence = readable(str(error))
    field = field_of(sentence) if code == BAD_INPUT else None
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()
    return Failure(error=sentence, kind=kind, exit_code=code, field=field)


def _hung_up() -> int:
    """Throw away the rest of stdout and stderr, so that the exit brings no second error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
    return FAILED


def usage_problem(error: click.ClickException) -> tuple[str | None, str]:
    """Return the option or argument (if any) of a usage error as users type it, and a sentence."""
    context = getattr(error, "ctx", None)
    field: str | None
    match error:
        case click.NoSuchOption():
            parameters = [] if context is None else context.command.get_params(context)
            valid = ", ".join(
                max(one.opts, key=len) for one in parameters if isinstance(one, click.Option)
            )
            field, problem = error.option_name, f"is not an option here; valid: {valid or '--help'}"
        case click.MissingParameter():
            field = _name(error.param, error.param_hint)
            problem = f"is missing; {_valid(error.param)}"
        case click.BadParameter():
            field = _name(error.param, error.param_hint)
            problem = _lower_first(_one_line(error.message))
            if "; valid" not in problem:
                problem = f"{problem}; {_valid(error.param)}"
        case click.BadOptionUsage():
            field, problem = error.option_name, "is not a switch, or has no value; see --help"
            if "requires an argument" in error.message:
                known = () if context is None else context.command.params
                named = (each for each in known if error.option_name in each.opts)
                problem = f"has no value; {_valid(next(named, None))}"
            elif "does not take a value" in error.message:
                problem = "takes no value; valid: the option alone"
        case _:
            message = _one_line(error.format_message())
            field, problem = None, _lower_first(message)
            if message.startswith("No such command") and context is not None:
                group = context.command
                names = group.list_commands(context) if isinstance(group, click.Group) else []
                name = message.removeprefix("No such command ").partition(". ")[0]
                field, problem = "COMMAND", f"{name} is unknown; valid: {', '.join(names)}"
            elif message.startswith("Got unexpected extra argument"):
                extra = message.partition("(")[2].rstrip(")")
                shown = extra if len(extra) <= LONGEST else f"{extra[:LONGEST]}..."
                declared = () if context is None else context.command.params
                arguments = (one for one in declared if isinstance(one, click.Argument))
                taken = ", ".join(_name(one, None) for one in arguments) or "none"
                field = "ARGUMENT"
                problem = f"{shown!r} is one argument too many; valid: {taken}"
    return field, problem if field is None else f"{field}: {problem}"


def _name(parameter: click.Parameter | None, hint: object) -> str:
    """Return an option as it is typed, or an argument as help calls it."""
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    if parameter is not None:
        return (parameter.metavar or parameter.name or "").upper().strip("[].")
    return str(hint or "").strip("'\" ") or "command line"


def _valid(parameter: click.Parameter | None) -> str:
    """Return the valid values of a parameter, in the words of its help."""
    text = _one_line(getattr(parameter, "help", None) or "")
    return f"valid: {text}" if text else "valid: what --help says"


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
