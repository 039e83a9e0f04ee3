"""`methods`, `configs` and `new`: lists of what can run, and a start for a new plug-in."""

from __future__ import annotations

import importlib.util
import keyword
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, Final

from methods import Registry
from methods.plugins import DOORS, Kind, Plugins, folder_of
from platform.cli.output import answer, brief, console, print_json, table
from platform.config import Sources, dump_config, load_config
from platform.config.files import packaged_titles
from platform.config.run import known_keys
from platform.disk.files import named
from platform.errors import ConfigError, printable


def configs_command(
    config: Path | None,
    overrides: Sequence[str] | None,
    folder: Path | None,
    *,
    keys: bool,
    papers: bool,
    as_published: bool,
    as_json: bool,
) -> None:
    """List configurations or keys, or show one configuration with all that it extends."""
    if config is not None and not keys:
        sources = Sources.of(Plugins(folder), as_published=as_published)
        found = load_config(config, overrides or (), sources)
        if as_json:
            print_json(found.model_dump(mode="json"))
        else:
            for remark in found.remarks:
                console().print(f"# {remark}", soft_wrap=True)
            console().out(dump_config(found), end="")
        return
    if as_published:
        raise ConfigError("--reference: needs a CONFIG, that of a paper's table")
    if config is not None or overrides:
        raise ConfigError("configs: --set needs a CONFIG, and --keys takes neither")
    documents: list[dict[str, Any]]
    columns: tuple[str, ...]
    if keys:
        documents = [asdict(key) for key in known_keys()]
        columns = ("key", "values", "default", "meaning")
    else:
        titles = packaged_titles(Sources())
        documents = [{"name": name, "title": title} for name, title in titles.items()]
        columns = ("configuration", "what it is")
    # Names in folders are of papers' tables.
    shown = [one for one in documents if keys or papers == ("/" in one["name"])]
    listed = table(None, columns, [tuple(one.values()) for one in shown])
    rest = len(documents) - len(shown)
    more = [f"{rest} tables of papers: --papers"] if rest and not papers else []
    answer(documents, listed, more, as_json=as_json)


def print_methods(folder: Path | None, *, as_json: bool) -> None:
    """List all methods with their options; the user's own methods come from a folder."""
    registry = Registry(plugins=Plugins(folder))
    infos = [registry.info(name) for name in registry.available()]
    rows = [(info.name, info.title, ", ".join(info.options)) for info in infos]
    listed = brief(("method", "what it is", "options"), rows)
    answer([asdict(info) for info in infos], listed, as_json=as_json)


NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
CHECKOUT: Final = ("methods/interface", "configs/methods", "tests/methods")
"""Folders by which a checkout of Sotto is known."""


def new_plugin_command(kind: Kind, name: str, into: Path | None, *, as_json: bool) -> None:
    """Write the files of a new plug-in, or none, and print the next command to type.

    They go `into` the user's folder or, for a method, a checkout of Sotto; None is the current
    folder.
    """
    folder = Path() if into is None else into
    in_checkout = kind == "method" and all((folder / part).is_dir() for part in CHECKOUT)
    module, test = folder_of(folder, kind), f"test_{name}.py"
    # The module comes last, as users look for this file.
    files = {
        f"{kind}_test.txt": (folder / "tests/methods" if in_checkout else module) / test,
        f"{kind}.txt": (folder / "methods" if in_checkout else module) / f"{name}.py",
    }
    if kind == "method":
        place = folder / "configs/methods" if in_checkout else module
        files = {"method_preset.txt": place / f"{name}.yaml", **files}
    if NAME.fullmatch(name) is None or keyword.iskeyword(name):
        raise ConfigError(
            f"NAME: {name[:60]!r} is not valid; it must be small letters, digits and _, begin with "
            "a letter, be at most 40 long, and no keyword of Python"
        )
    if name.startswith("test_") or name == "conftest":
        raise ConfigError(f"NAME: {name!r} is the name of a test; valid: one without test_")
    if name in _taken_names() or (in_checkout and (folder / "methods" / name).exists()):
        raise ConfigError(
            f"NAME: {name!r} is taken; valid: a name that no method, data set, model, mechanism or "
            "transport has, and no folder of methods/"
        )
    _require_new_files(name, folder, files.values())
    words = {
        "name": name,
        "title": name.replace("_", " ").strip().capitalize(),
        "module": f"methods.{name}" if in_checkout else name,
    }
    starts = resources.files("platform.cli").joinpath("start")
    made: list[Path] = []
    for path in files.values():
        with named(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
    try:
        for start, path in files.items():
            text = Template(starts.joinpath(start).read_text("utf-8")).substitute(words)
            with named(path), path.open("x", encoding="utf-8") as file:
                made.append(path)
                file.write(text)
    except BaseException:
        # All files are written, or none.
        for path in made:
            path.unlink(missing_ok=True)
        raise
    # This interpreter as a user types it: by its path below this folder, otherwise by its name.
    python = "python"
    with suppress(ValueError):
        python = str(Path(sys.executable).relative_to(Path.cwd()))
    command = shlex.join((python, "-m", "pytest", str(files[f"{kind}_test.txt"])))
    paths = [str(path) for path in reversed(files.values())]
    if as_json:
        print_json({"written": paths, "next": command})
        return
    out = console()
    out.print("wrote " + "\n      ".join(paths))
    out.print("It works as it is. Its test fails until you replace a number; next:")
    # A command stays on one line at every width, so that it can be copied.
    out.out(f"    {printable(command)}")


def _taken_names() -> Iterator[str]:
    """Yield the names of all plug-ins and of all that they stand beside, of any kind."""
    from platform.data.catalogue import dataset_infos

    plugins = Plugins()
    yield from Registry(plugins=plugins).available()
    yield from (info.name for info in dataset_infos())
    yield from Sources.of(plugins).mechanisms.names
    for kind in DOORS:
        yield from plugins.of(kind)


def _require_new_files(name: str, folder: Path, paths: Iterable[Path]) -> None:
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--into: {str(folder)!r} is no folder; valid: a folder, or a new one")
    for path in paths:
        if path.exists() or path.is_symlink():
            raise ConfigError(
                f"NAME: {str(path)!r} is there already and nothing was written; valid: a name "
                "without files"
            )
    # The test would import the wrong one of two modules with one name. A folder of this name, which
    # the command may be about to write into, is not a module.
    spec = None
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin is not None:
        raise ConfigError(
            f"NAME: {name!r} is a module that Python finds already; valid: another name"
        )
