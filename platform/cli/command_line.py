"""A command line whose help explains every argument, and shows text as it was written.

What typer 0.20 and click 8.5 make of it together is not that: click forgets what an argument's help
said, and typer writes a backslash before each bracket, for rich, which does not lay this help out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo

Function = TypeVar("Function", bound=Callable[..., Any])
SUMMARY = 200
"""Cells of a command's line in the list of commands, which are wrapped; none is cut short."""


# The types in here are of a package that only typer depends on.
class PlainCommand(TyperCommand):
    """A command whose arguments are explained as its function declares them."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write what the command takes."""
        _write_parameters(self, ctx, formatter)


class PlainGroup(TyperGroup):
    """A group of commands whose list names each in a whole sentence."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write what the group itself takes, then its commands."""
        _write_parameters(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, one below the other."""
        named = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        shown = [
            (name, found.get_short_help_str(SUMMARY))
            for name, found in named
            if found is not None and not found.hidden
        ]
        _write_section(formatter, "Commands", shown)


class CommandLine(typer.Typer):
    """A typer application with this help, and none of what depends on a terminal's colours."""

    def __init__(self, **options: Any) -> None:
        """Take typer's options."""
        plain: dict[str, Any] = {
            "cls": PlainGroup,
            "pretty_exceptions_enable": False,
            "add_completion": False,
            "rich_markup_mode": None,
        }
        super().__init__(**{**plain, **options})

    def command(self, name: str | None = None, **options: Any) -> Callable[[Function], Function]:
        """Return what makes a function a command."""
        return super().command(name, **{"cls": PlainCommand, **options})


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    explained = _arguments(command.callback)
    arguments, options = [], []
    for one in command.get_params(ctx):
        record = one.get_help_record(ctx)
        if record is None:
            continue
        name, text = record[0], record[1].replace("\\[", "[")
        if one.param_type_name == "argument":
            known = None if one.help else explained.get(one.name)
            arguments.append((name, f"{known}  {text}".strip() if known else text))
        else:
            options.append((name, text))
    _write_section(formatter, "Arguments", arguments)
    _write_section(formatter, "Options", options)


def _write_section(formatter: Any, title: str, rows: list[tuple[str, str]]) -> None:
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows)


def _arguments(callback: Any) -> dict[str, str]:
    """Return what a command's function says of its arguments, by their names."""
    if callback is None:
        return {}
    declared = inspect.signature(inspect.unwrap(callback), eval_str=True).parameters
    return {
        name: info.help
        for name, one in declared.items()
        for info in getattr(one.annotation, "__metadata__", ())
        if isinstance(info, ArgumentInfo) and info.help
    }
