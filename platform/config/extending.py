"""A configuration that takes another and changes keys: `extends: BASE`.

BASE is the name of a packaged configuration, or, ending in `.yaml` or `.yml`, a file below the
folder of the file that names it. Sections are merged key by key; whatever else a file gives, a list
or null as well, takes the place of what its base has. Two keys change more than themselves, as they
do on the command line, and before all others: another `method.name` brings its whole preset, and
`privacy.mechanism: none` drops the keys that mean nothing then.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from platform.config.files import (
    Sources,
    is_below,
    is_file,
    packaged_file,
    read_mapping,
    read_preset,
    what_is_packaged,
)
from platform.config.privacy_rules import NOISE_KEYS
from platform.errors import ConfigError

LONGEST_CHAIN: Final = 8
"""Files that one configuration may be made of."""
_FILES: Final = (".yaml", ".yml")
_WITHOUT_NOISE: Final = {
    "privacy": (*NOISE_KEYS, "relation", "spare_attempts", "personal"),
    "evaluation": ("release", "metric_ratio"),
    "pool": ("clipping_norm",),
}
"""Keys that mean nothing without a mechanism, by section."""


def read_whole(path: Path, sources: Sources) -> dict[str, Any]:
    """Return what a file says together with everything that it extends.

    Raises:
        ConfigError: If a file cannot be read, or `extends` does not lead to an end.
    """
    changes = [read_mapping(path)]
    chain = [path]
    while "extends" in changes[-1]:
        base = _base(changes[-1].pop("extends"), chain, sources)
        chain.append(base)
        changes.append(read_mapping(base))
    tree = changes.pop()
    while changes:
        tree = change(tree, changes.pop(), sources)
    return tree


def change(tree: Mapping[str, Any], changes: Mapping[str, Any], sources: Sources) -> dict[str, Any]:
    """Return a tree with changes to it; neither argument is altered.

    Raises:
        ConfigError: If the changes name an unknown method.
    """
    changed = dict(tree)
    method, privacy = changes.get("method"), changes.get("privacy")
    if isinstance(method, dict) and isinstance(before := changed.get("method"), dict):
        name = method.get("name", before.get("name"))
        if name != before.get("name"):
            changed["method"] = read_preset(name, sources)
    if isinstance(privacy, dict) and sources.mechanisms.claims_nothing(privacy.get("mechanism")):
        changed = without_noise_keys(changed)
    return merged(changed, changes)


def without_noise_keys(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree without the keys that mean nothing under `privacy.mechanism: none`."""
    kept = dict(tree)
    for section, keys in _WITHOUT_NOISE.items():
        if isinstance(kept.get(section), dict):
            kept[section] = {k: v for k, v in kept[section].items() if k not in keys}
    return kept


def merged(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree with changes merged into its sections, key by key."""
    result = dict(tree)
    for key, value in changes.items():
        before = result.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            value = merged(before, value)
        result[key] = value
    return result


def _base(name: Any, chain: list[Path], sources: Sources) -> Path:
    told = f"extends: {name!r} in {str(chain[-1])!r}"
    base = _find(name, chain[-1].parent, sources) if isinstance(name, str) else None
    if base is None:
        raise ConfigError(
            f"{told} is no configuration; valid: the name of a packaged one "
            f"({what_is_packaged(sources)}), or a file below this one's folder such as base.yaml"
        )
    if base.resolve() in (path.resolve() for path in chain):
        raise ConfigError(f"{told} leads back to itself; valid: a base that does not extend this")
    if len(chain) == LONGEST_CHAIN:
        raise ConfigError(f"{told} makes too long a chain; valid: at most {LONGEST_CHAIN} files")
    return base


def _find(name: str, folder: Path, sources: Sources) -> Path | None:
    """Return the file, or None where there is none that may be named.

    A configuration that came from elsewhere reads nothing outside its own folder: no absolute path,
    no `..`, and no link that leads out.
    """
    if not name.endswith(_FILES):
        return packaged_file(name, sources)
    path = folder / name
    inside = is_below(Path(name)) and is_file(path)
    return path if inside and path.resolve().is_relative_to(folder.resolve()) else None
