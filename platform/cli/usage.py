"""A command line that does not parse, as one sentence: the option, its value and what is valid."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import click

LONGEST: Final = 80
"""Characters of a value that a sentence repeats."""


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
