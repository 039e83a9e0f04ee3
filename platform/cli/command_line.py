"""A command line whose help explains every argument, and the options that commands share.

Typer 0.20 and click 8.5 together lose what an argument's help said, and typer writes a backslash
before each bracket for rich, which does not lay this help out. The classes here put both right.

A completion that fails gives no answers, because users who press the key ask for no error.
"""

from __future__ import annotations

import functools
import inspect
import tomllib
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import click
import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo

from platform.errors import PlatformError

Function = TypeVar("Function", bound=Callable[..., Any])
ALL: Final = "sotto.all"
"""Where click's context keeps whether all lines are asked for."""
SUMMARY = 200
"""The list of commands shows this many characters of a command's help, wrapped to lines."""


# The types in here are of a package that only typer depends on.
class PlainCommand(TyperCommand):
    """A command whose arguments are explained as its function declares them.

    If it has an answer (`--json`), it also has `--all`, which `output.shows_all` reads.
    """

    def __init__(self, *given: Any, **options: Any) -> None:
        """Add `--all` unless the command has an own one."""
        super().__init__(*given, **options)
        known = {name for one in self.params for name in one.opts}
        if "--json" in known and "--all" not in known:
            every = click.Option(
                ["--all"],
                is_flag=True,
                expose_value=False,
                callback=lambda context, _, value: context.meta.update({ALL: value}),
                help="Print all, not only 25 lines, the newest runs and equal clients once.",
            )
            self.params.insert(-1, every)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the command's arguments and options."""
        _write_parameters(self, ctx, formatter)


class PlainGroup(TyperGroup):
    """A group of commands whose list names each in a whole sentence."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the group's own options, then its commands."""
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
    """A typer application with this help, which is the same on every terminal."""

    def __init__(self, **options: Any) -> None:
        """Take typer's options."""
        plain: dict[str, Any] = {
            "cls": PlainGroup,
            "pretty_exceptions_enable": False,
            "add_completion": False,
            "rich_markup_mode": None,
        }
        super().__init__(**{**plain, **options})

    def command(
        self, name: str | None = None, *, by: str | None = None, **options: Any
    ) -> Callable[[Function], Function]:
        """Return a decorator that makes a function a command.

        A function that only declares arguments and help is carried out `by` another one, such as
        `keeping.backup_command` of `platform.cli`, which takes the same arguments by their names.
        Its module is imported when the command runs, so that `--help` answers at once.
        """
        made = super().command(name, **{"cls": PlainCommand, **options})
        if by is None:
            return made
        module, _, function = by.rpartition(".")

        def declared(declaration: Function) -> Function:
            @functools.wraps(declaration)
            def command(**arguments: Any) -> None:
                getattr(import_module(f"platform.cli.{module}"), function)(**arguments)

            made(command)
            return declaration

        return declared


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    explained: dict[str, str] = {}
    if command.callback is not None:
        # Arguments keep the help of their function's annotations.
        declared = inspect.signature(inspect.unwrap(command.callback), eval_str=True).parameters
        explained = {
            name: info.help
            for name, one in declared.items()
            for info in getattr(one.annotation, "__metadata__", ())
            if isinstance(info, ArgumentInfo) and info.help
        }
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


ABOUT: Final = (
    "Sotto: private federated prompt learning. Without a command it runs the quickstart: "
    "fifty clients learn one prompt under noise and secure aggregation, in under a minute."
)
DEFAULT_STORAGE: Final = "sqlite:///runs/sotto.db"

ROOT: Final = Path(__file__).resolve().parents[2]
"""The folder of the packages: a checkout, or installed packages."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version_text())
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version",
        help="Print the version, and whether it is a checkout.",
        callback=_print_version,
        is_eager=True,
    ),
]


def run_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the runs of the database on the command line, newest first."""
    from platform.disk.opening import open_existing
    from platform.results.reading import LATEST
    from storage import StorageError

    # While the shell completes words, an option that was not given has no value.
    usual = {one.name: one.default for one in context.command.params}
    url = str(context.params.get("storage") or usual["storage"])
    try:
        with open_existing(url) as database, database.unit_of_work(read_only=True) as uow:
            known = [LATEST, *(run.run_id for run in reversed(uow.runs.list()))]
    except (PlatformError, StorageError, OSError):
        return []
    return [name for name in known if name.startswith(incomplete)]


def config_names(incomplete: str) -> list[str]:
    """Return the packaged configurations; the shell itself completes files."""
    from platform.config import Sources
    from platform.config.files import packaged_names

    return sorted(name for name in packaged_names(Sources()) if name.startswith(incomplete))


RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="A run's id, or `latest`.", autocompletion=run_names)
]
Config = Annotated[
    Path, typer.Argument(help="A YAML file, or a packaged name.", autocompletion=config_names)
]
Reference = Annotated[
    bool,
    typer.Option(
        "--reference",
        help="Take all settings of the published run of a paper's table (configs/references).",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else to stdout.")]
Storage = Annotated[
    str, typer.Option("--storage", help="The coordinator's database, as storage.url states it.")
]
PLUGINS: Any = typer.Option(
    "--plugins",
    metavar="DIR",
    help="A folder of your own methods, data sets, models and mechanisms; their code is run.",
)
"""Of `Path | None`."""


def version_text() -> str:
    """Return the version in one line, and whether it is a checkout."""
    from platform.experiment.environment import OWN, checkout_commit, sotto_version

    # A checkout states its own version; the installed version may be another.
    project: dict[str, Any] = {}
    with suppress(OSError, ValueError, KeyError):
        project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    if project.get("name") != OWN:
        return f"sotto {sotto_version() or 'of unknown version'}, installed in {ROOT}"
    commit = checkout_commit(ROOT)
    known = "" if commit is None else f" at commit {commit[:12]}"
    return f"sotto {project['version']}, a checkout in {ROOT}{known}"
