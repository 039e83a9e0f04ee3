"""`methods`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from methods import Registry
from platform.cli.output import console, print_json, table


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
