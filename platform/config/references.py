"""All settings of a published run at once, where its code does otherwise than its paper says.

In a paper's folder of `configs/references`, `table-N.yaml` belongs to the configurations of that
paper's table, `table-N-DATA`, and `table-N-DATA.yaml` to one of them alone. `all` is what changes
for every method; `methods` is what changes for each that the table has, also where nothing does;
`same_as` names a table of the same paper whose changes come first. Changes are made as `extends`
makes them, after the method's preset and before overrides. A configuration so changed has another
name, as no table should mix both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from platform.config.extending import change, merged
from platform.config.files import Sources, is_file, read_mapping
from platform.errors import ConfigError

KEYS: Final = ("same_as", "all", "methods")
SUFFIX: Final = "-published"
_TABLE: Final = re.compile(r"(table-\d+)-\w+")


def with_published(tree: Mapping[str, Any], config: Path, sources: Sources) -> dict[str, Any]:
    """Return a table's configuration with the settings of its published run.

    Args:
        tree: The configuration, with the section of the method that is to run.
        config: The file that it is from.
        sources: Where packaged files lie.

    Raises:
        ConfigError: If there are no published settings of this file, or none of this method.
    """
    path = _reference(config, sources)
    shared, methods = _read(path)
    name = tree.get("method", {}).get("name")
    if name not in methods:
        raise ConfigError(
            f"--reference: {_named(path, sources)} has no published settings of {name!r}; valid "
            f"methods: {', '.join(methods)}"
        )
    changed = change(change(tree, shared, sources), methods[name], sources)
    return {**changed, "name": f"{tree['name']}{SUFFIX}"}


def _reference(config: Path, sources: Sources) -> Path:
    """Return the file of published settings that belongs to a configuration."""
    papers, file = (sources.configs / "papers").resolve(), config.resolve()
    table = _TABLE.fullmatch(file.stem)
    if table is not None and file.parent.parent == papers:
        for name in (file.stem, table[1]):
            path = sources.references / file.parent.name / f"{name}.yaml"
            if is_file(path):
                return path
    raise ConfigError(
        f"--reference: CONFIG {str(config)!r} has no published settings; valid: a packaged "
        "configuration of a paper's table, such as papers/trip/table-1-pacs"
    )


def _read(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return what changes for all methods, and for each."""
    tree = read_mapping(path)
    for key in tree:
        if key not in KEYS:
            raise ConfigError(
                f"--reference: {str(path)!r} has {key!r}; valid keys: {', '.join(KEYS)}"
            )
    shared, methods = tree.get("all", {}), tree.get("methods", {})
    if "same_as" not in tree:
        return shared, methods
    first, own = _read(path.with_name(f"{tree['same_as']}.yaml"))
    known = {**own, **{name: {} for name in methods if name not in own}}
    return merged(first, shared), {n: merged(known[n], methods.get(n, {})) for n in known}


def _named(path: Path, sources: Sources) -> str:
    return path.relative_to(sources.references).with_suffix("").as_posix()
