"""A configuration that takes another and changes keys: `extends: BASE`.

BASE is the name of a packaged configuration, or, ending in `.yaml` or `.yml`, a file below the
folder of the file that names it. Sections are merged key by key; whatever else a file gives, a list
or null as well, takes the place of what its base has. Two keys change more than themselves, as they
do on the command line, and before all others: another `method.name` brings its whole preset, which
drops the options of the base's method and is said, and `privacy.mechanism: none` drops the keys
that mean nothing then.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
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


def read_whole(path: Path, sources: Sources) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return what a file says together with everything that it extends, and what that drops.

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
    remarks: list[str] = []
    while changes:
        last = changes.pop()
        preset = _another_preset(tree, last, sources)
        if preset is not None:
            remarks += dropped_options(tree["method"], preset, last["method"])
        tree = change(tree, last, sources)
    return tree, tuple(remarks)


def dropped_options(
    before: Mapping[str, Any], preset: Mapping[str, Any], given: Container[str] = ()
) -> Iterator[str]:
    """Yield which options a method's preset takes the place of, if there are any.

    Args:
        before: The method's section so far.
        preset: The other method's.
        given: Options that are set anew beside its name, which are not lost.
    """
    gone = [
        f"{key}: {value}"
        for key, value in before.items()
        if key != "name" and key not in given and preset.get(key) != value
    ]
    if gone:
        yield (
            f"method.name: {preset['name']} takes the place of {before.get('name')} with the "
            f"options of its preset, so these of the configuration are dropped: {', '.join(gone)}"
        )


def change(tree: Mapping[str, Any], changes: Mapping[str, Any], sources: Sources) -> dict[str, Any]:
    """Return a tree with changes to it; neither argument is altered.

    Raises:
        ConfigError: If the changes name an unknown method.
    """
    changed, privacy = dict(tree), changes.get("privacy")
    preset = _another_preset(tree, changes, sources)
    if preset is not None:
        changed["method"] = preset
    if isinstance(privacy, dict) and sources.mechanisms.claims_nothing(privacy.get("mechanism")):
        changed = without_noise_keys(changed)
    return merged(changed, changes)


def _another_preset(
    tree: Mapping[str, Any], changes: Mapping[str, Any], sources: Sources
) -> dict[str, Any] | None:
    """Return the preset of the method that changes name, None where it is the tree's own."""
    before, method = tree.get("method"), changes.get("method")
    if not isinstance(before, dict) or not isinstance(method, dict):
        return None
    name = method.get("name", before.get("name"))
    return None if name == before.get("name") else read_preset(name, sources)


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
