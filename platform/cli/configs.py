"""`methods`, `configs` and `new method`: what can be run, and a start for a method of one's own."""

from __future__ import annotations

import importlib.util
import keyword
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Final

from methods import Registry
from platform.cli.output import console, print_json, table
from platform.config import RunConfig, Sources, dump_config, load_config
from platform.config.files import packaged_titles
from platform.config.run import known_keys
from platform.disk.files import named
from platform.errors import ConfigError, printable


def configs_command(
    config: Path | None,
    overrides: Sequence[str],
    folder: Path | None,
    *,
    keys: bool,
    as_published: bool,
    as_json: bool,
) -> None:
    """List configurations or keys, or show one configuration with all that it extends.

    Args:
        config: The one to show, if any.
        overrides: Of its keys.
        folder: Where the user's own methods lie, if anywhere.
        keys: Whether to list the keys.
        as_published: Whether to show it with the settings of a published run.
        as_json: Whether a program reads it.

    Raises:
        ConfigError: If options do not go together, or the configuration is none.
    """
    if config is not None and not keys:
        sources = Sources(registry=Registry(folder=folder), as_published=as_published)
        _show(load_config(config, overrides, sources), as_json=as_json)
        return
    if as_published:
        raise ConfigError("--reference: needs a CONFIG, that of a paper's table")
    if config is not None or overrides:
        raise ConfigError("configs: --set needs a CONFIG, and --keys takes neither")
    if keys:
        _print_keys(as_json=as_json)
    else:
        _print_titles(as_json=as_json)


def _show(config: RunConfig, *, as_json: bool) -> None:
    if as_json:
        print_json(config.model_dump(mode="json"))
    else:
        console().out(dump_config(config), end="")


def _print_keys(*, as_json: bool) -> None:
    keys = known_keys()
    if as_json:
        print_json([asdict(key) for key in keys])
        return
    rows = [(key.name, key.values, key.default, key.meaning) for key in keys]
    console().print(table(None, ("key", "values", "default", "meaning"), rows))


def _print_titles(*, as_json: bool) -> None:
    titles = packaged_titles(Sources())
    if as_json:
        print_json([{"name": name, "title": title} for name, title in titles.items()])
        return
    console().print(table(None, ("configuration", "what it is"), list(titles.items())))


def print_methods(folder: Path | None, *, as_json: bool) -> None:
    """List all methods with their options, those of a folder included.

    Raises:
        BrokenMethod: If one from outside cannot be used.
    """
    registry = Registry(folder=folder)
    infos = [registry.info(name) for name in registry.available()]
    if as_json:
        print_json([asdict(info) for info in infos])
        return
    rows = [(info.name, info.title, ", ".join(info.options)) for info in infos]
    console().print(table(None, ("method", "what it is", "options"), rows))


NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
CHECKOUT: Final = ("methods/interface", "configs/methods", "tests/methods")
"""Folders by which a checkout of Sotto is known."""


@dataclass(frozen=True)
class Start:
    """Where the files of a method go.

    Attributes:
        name: The method's.
        folder: The user's own, or a checkout of Sotto.
        in_checkout: Which of the two.
    """

    name: str
    folder: Path
    in_checkout: bool

    def files(self) -> dict[str, Path]:
        """Return the path of each file; the method is last, as it is what others look for."""
        folders = ("tests/methods", "configs/methods", "methods")
        test, preset, method = folders if self.in_checkout else (".", ".", ".")
        return {
            "test.txt": self.folder / test / f"test_{self.name}.py",
            "preset.txt": self.folder / preset / f"{self.name}.yaml",
            "method.txt": self.folder / method / f"{self.name}.py",
        }

    def texts(self) -> dict[Path, str]:
        """Return the text of each file."""
        words = {
            "name": self.name,
            "title": self.name.replace("_", " ").strip().capitalize(),
            "module": f"methods.{self.name}" if self.in_checkout else self.name,
        }
        return {path: _filled(start, words) for start, path in self.files().items()}

    def next_command(self) -> str:
        """Return what to type now."""
        return shlex.join((_interpreter(), "-m", "pytest", str(self.files()["test.txt"])))


def new_method_command(name: str, into: Path | None, *, as_json: bool) -> None:
    """Write the three files and say what to type next.

    Args:
        name: The method's.
        into: The user's folder; None for this one.
        as_json: Whether a program reads it.

    Raises:
        ConfigError: If the name cannot be a new method's, or a file is there already.
        Unwritable: If a file cannot be written; none is left then.
    """
    folder = Path() if into is None else into
    in_checkout = all((folder / part).is_dir() for part in CHECKOUT)
    start = Start(name, folder, in_checkout)
    _require_new_name(start)
    _require_new_files(start)
    _write_all(folder, start.texts())
    paths = [str(path) for path in reversed(start.files().values())]
    if as_json:
        print_json({"written": paths, "next": start.next_command()})
        return
    out = console()
    out.print("wrote " + "\n      ".join(paths))
    out.print("It trains as it is. Its test fails until you replace a number; next:")
    # As it is to be typed: whole, whatever the width.
    out.out(f"    {printable(start.next_command())}")


def _require_new_name(start: Start) -> None:
    name = start.name
    if NAME.fullmatch(name) is None or keyword.iskeyword(name):
        raise ConfigError(
            f"NAME: {name[:60]!r} is not valid; it must be small letters, digits and _, begin with "
            "a letter, be at most 40 long, and no keyword of Python"
        )
    if name.startswith("test_") or name == "conftest":
        raise ConfigError(f"NAME: {name!r} is the name of a test; valid: one without test_")
    known = Registry().available()
    if name in known or (start.in_checkout and (start.folder / "methods" / name).exists()):
        raise ConfigError(
            f"NAME: {name!r} is taken; valid: a name that `methods` does not list, and no folder "
            "of methods/"
        )


def _require_new_files(start: Start) -> None:
    if start.folder.exists() and not start.folder.is_dir():
        where = str(start.folder)
        raise ConfigError(f"--into: {where!r} is no folder; valid: a folder, or a new one")
    for path in start.files().values():
        if path.exists() or path.is_symlink():
            raise ConfigError(
                f"NAME: {str(path)!r} is there already and nothing was written; valid: a name "
                "whose files are not there"
            )
    # Beside its test it would be imported in place of the other, or the other in place of it.
    if _is_module(start.name):
        raise ConfigError(
            f"NAME: {start.name!r} is a module that Python finds already; valid: a name that is "
            "none"
        )


def _is_module(name: str) -> bool:
    # A folder of this name, in which the method may be about to be written, is none.
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(name)
        return spec is not None and spec.origin is not None
    return False


def _write_all(folder: Path, texts: Mapping[Path, str]) -> None:
    """Write new files, all or none."""
    made: list[Path] = []
    with named(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        for path, text in texts.items():
            with named(path), path.open("x", encoding="utf-8") as file:
                made.append(path)
                file.write(text)
    except BaseException:
        for path in made:
            path.unlink(missing_ok=True)
        raise


def _filled(start: str, words: Mapping[str, str]) -> str:
    text = resources.files("platform.cli").joinpath("start", start).read_text("utf-8")
    return Template(text).substitute(words)


def _interpreter() -> str:
    """Return this interpreter as one types it: below this folder by its path, else by its name."""
    with suppress(ValueError):
        return str(Path(sys.executable).relative_to(Path.cwd()))
    return "python"
