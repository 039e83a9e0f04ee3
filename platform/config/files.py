"""Where configurations lie, and reading one file of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from platform.config.plain_yaml import read_yaml, yaml_problem
from platform.errors import ConfigError
from platform.mechanisms import BUILT_IN, Mechanisms

PACKAGED_CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@dataclass(frozen=True)
class Sources:
    """What a configuration is read with.

    Attributes:
        configs: Where packaged configurations lie.
        presets: Where method presets lie.
        mechanisms: The privacy mechanisms that there are.
    """

    configs: Path = PACKAGED_CONFIGS
    presets: Path = PACKAGED_CONFIGS / "methods"
    mechanisms: Mechanisms = BUILT_IN


def packaged_names(sources: Sources) -> Iterator[str]:
    """Yield the name of every packaged configuration, in order; presets of methods are none."""
    for path in sorted(sources.configs.rglob("*.yaml")):
        if not path.is_relative_to(sources.presets):
            yield path.relative_to(sources.configs).with_suffix("").as_posix()


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
        raise ConfigError(f"CONFIG: {str(path)!r} is not readable YAML: {reason}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"CONFIG: {str(path)!r} holds no mapping; valid: sections with keys")
    return tree


def read_preset(name: Any, sources: Sources) -> dict[str, Any]:
    """Return the method section that a method's name alone stands for.

    Raises:
        ConfigError: If there is no such method.
    """
    path = sources.presets / f"{name}.yaml"
    if not isinstance(name, str) or "/" in name or not is_file(path):
        valid = ", ".join(sorted(p.stem for p in sources.presets.glob("*.yaml")))
        raise ConfigError(f"method.name: {name!r} is unknown; valid: {valid}")
    return read_mapping(path)
