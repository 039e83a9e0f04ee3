"""Where configurations lie, and reading one file of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import yaml

from methods import Registry
from platform.config.plain_yaml import read_yaml, yaml_problem
from platform.errors import ConfigError
from platform.mechanisms import BUILT_IN, Mechanisms

PACKAGED_CONFIGS = Path(__file__).resolve().parents[2] / "configs"
_SENTENCE_END: Final = re.compile(r"\.\s+(?=[A-Z`])")


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What a configuration is read with.

    Attributes:
        configs: Packaged configurations.
        presets: Those of this package's methods.
        registry: Knows where the presets of methods from outside lie.
        mechanisms: The privacy mechanisms that there are.
        references: Settings of published runs, of the tables among the packaged configurations.
        as_published: Whether files are read with these settings.
    """

    configs: Path = PACKAGED_CONFIGS
    presets: Path = PACKAGED_CONFIGS / "methods"
    registry: Registry = field(default_factory=Registry)
    mechanisms: Mechanisms = BUILT_IN
    references: Path = PACKAGED_CONFIGS / "references"
    as_published: bool = False


def packaged_names(sources: Sources) -> Iterator[str]:
    """Yield the name of every packaged configuration, in order.

    Presets of methods are none, nor are settings of published runs.
    """
    parts = (sources.presets, sources.references)
    for path in sorted(sources.configs.rglob("*.yaml")):
        if not any(map(path.is_relative_to, parts)):
            yield path.relative_to(sources.configs).with_suffix("").as_posix()


def packaged_titles(sources: Sources) -> dict[str, str]:
    """Return the first sentence of every packaged configuration, by name."""
    return {name: _title(sources.configs / f"{name}.yaml") for name in packaged_names(sources)}


def _title(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("#"), lines)
    text = " ".join(line.removeprefix("#").strip() for line in comment)
    return _SENTENCE_END.split(text, maxsplit=1)[0].removesuffix(".")


def packaged_file(name: str | Path, sources: Sources) -> Path | None:
    """Return the file of a packaged configuration, or None where there is none of this name."""
    # A name stays below `configs/`: an absolute one would replace that folder, `..` leave it.
    if not is_below(Path(name)):
        return None
    path = sources.configs / f"{name}.yaml"
    return path if is_file(path) else None


def is_below(path: Path) -> bool:
    """Whether a path names something below the folder that it is relative to."""
    return not path.is_absolute() and ".." not in path.parts


def is_file(path: Path) -> bool:
    """Whether there is such a file; no text is too long to ask about."""
    try:
        return path.is_file()
    except OSError:
        return False


def what_is_packaged(sources: Sources) -> str:
    """Return the packaged names, in so far as they fit into a sentence."""
    names = ", ".join(name for name in packaged_names(sources) if "/" not in name)
    return f"{names}, or a table of a paper such as papers/pfedmoap/table-1-flowers102"


def find_config(path: Path, sources: Sources) -> Path:
    """Return the file that a user means by a path or a packaged name.

    Raises:
        ConfigError: If it is neither.
    """
    if is_file(path):
        return path
    packaged = packaged_file(path, sources)
    if packaged is None:
        raise ConfigError(
            f"CONFIG: {str(path)!r} is no file; valid: a path to a YAML file, or a packaged "
            f"configuration ({what_is_packaged(sources)})"
        )
    return packaged


def read_mapping(path: Path) -> dict[str, Any]:
    """Return a file of keys and values as plain data.

    Raises:
        ConfigError: If it cannot be read, or is no mapping.
    """
    try:
        tree = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = yaml_problem(error)
        raise ConfigError(
            f"CONFIG: {str(path)!r} is not readable YAML: {reason}; "
            "valid: sections with keys, in UTF-8"
        ) from error
    if not isinstance(tree, dict):
        raise ConfigError(f"CONFIG: {str(path)!r} holds no mapping; valid: sections with keys")
    return tree


def read_preset(name: Any, sources: Sources) -> dict[str, Any]:
    """Return the method section that a method's name alone stands for.

    Raises:
        ConfigError: If there is no such method, or it has no preset.
        BrokenMethod: If methods from outside cannot be listed.
    """
    path = None
    if isinstance(name, str) and "/" not in name:
        own = sources.presets / f"{name}.yaml"
        path = own if is_file(own) else _outside(name, sources.registry)
    if path is None:
        known = {each.stem for each in sources.presets.glob("*.yaml")}
        valid = ", ".join(sorted(known | set(sources.registry.available())))
        raise ConfigError(f"method.name: {name!r} is unknown; valid: {valid}")
    return read_mapping(path)


def _outside(name: str, registry: Registry) -> Path | None:
    path = registry.preset(name)
    if path is not None and not is_file(path):
        raise ConfigError(f"method.name: {name!r} has no preset; valid is one in {str(path)!r}")
    return path
