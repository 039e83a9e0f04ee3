"""`methods`, and `configs`: those that are packaged, one in full, and which keys there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from methods import Registry
from platform.cli.output import console, print_json, table
from platform.config import RunConfig, Sources, dump_config, load_config
from platform.config.files import packaged_titles
from platform.config.run import known_keys
from platform.errors import ConfigError


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
