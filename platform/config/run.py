"""A run's configuration: all sections, all keys as users read them, and the run's identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from pydantic import PrivateAttr, model_validator

from methods.plugins import Kind, Plugins
from platform.config.rules import require_consistent
from platform.config.sections import RunSections


class RunConfig(RunSections):
    """A whole run."""

    _remarks: tuple[str, ...] = PrivateAttr(default=())

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences on how the configuration was read; they are not a part of it."""
        return self._remarks

    def with_remarks(self, remarks: tuple[str, ...]) -> Self:
        """Return the same configuration with more remarks."""
        told = self.model_copy()
        told._remarks = (*remarks, *self._remarks)
        return told

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        require_consistent(self)
        return self


_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}
_TYPES = {"array": "list", "object": "mapping"}


@dataclass(frozen=True)
class Key:
    """A key of a configuration: its dotted name, values in words, default as YAML, and meaning.

    The default may be `required`.
    """

    name: str
    values: str
    default: str
    meaning: str


def known_keys() -> tuple[Key, ...]:
    """Return every key in the order of the sections, without methods' own options."""
    document = RunConfig.model_json_schema()
    return tuple(_keys(document, document["$defs"], ""))


def _keys(section: Mapping[str, Any], sections: Mapping[str, Any], prefix: str) -> Iterator[Key]:
    for name, field in section["properties"].items():
        kinds: list[Mapping[str, Any]] = [
            sections[kind["$ref"].rpartition("/")[2]] if "$ref" in kind else kind
            for kind in field.get("anyOf", [field])
        ]
        inner = next((kind for kind in kinds if "properties" in kind), None)
        # A section that may be null is a key itself.
        if inner is None or len(kinds) > 1:
            default = field.get("default")
            if name in section.get("required", ()):
                default = "required"
            elif isinstance(default, dict):
                default = "section"
            yield Key(
                prefix + name,
                values=" or ".join(map(_values, kinds)),
                default=default if isinstance(default, str) else json.dumps(default),
                meaning=" ".join(field["description"].split()),
            )
        if inner is not None:
            yield from _keys(inner, sections, f"{prefix}{name}.")


def _values(kind: Mapping[str, Any]) -> str:
    if "properties" in kind:
        return "section"
    if "enum" in kind or "const" in kind:
        return ", ".join(kind.get("enum", [kind.get("const")]))
    bounds = []
    for name, word in _BOUNDS.items():
        if name in kind:
            bound = kind[name]
            bounds.append(f"{word} {bound if isinstance(bound, int) else format(bound, 'g')}")
    return " ".join([_TYPES.get(kind["type"], kind["type"]), " and ".join(bounds)]).strip()


LATER: Final = (
    "training.betas",
    "training.eps",
    "training.schedule",
    "task.partition.fewest_classes",
    "task.partition.minimum_test",
    "task.partition.slices",
)
"""Keys that are newer than identities: a key that is null is not part of the identity."""


def identity(tree: Mapping[str, Any], code: str | None = None) -> str:
    """Return SHA-256 of a configuration without its storage, in hexadecimal.

    Storage is left out, so that a database that was moved keeps its runs. A key of `LATER` that is
    null is left out too, so that older runs, and folders named by identities, are found. The code
    is the digest of the run's plug-ins, if any.
    """
    kept: Mapping[str, Any] = {name: part for name, part in tree.items() if name != "storage"}
    for key in LATER:
        kept = _without_null(kept, key.split("."))
    text = json.dumps(kept, sort_keys=True) + (code or "")
    return hashlib.sha256(text.encode()).hexdigest()


def _without_null(tree: Mapping[str, Any], path: Sequence[str]) -> Mapping[str, Any]:
    """Return a tree without the value at a path, if the value is null."""
    first, *rest = path
    inner = tree.get(first)
    if rest and isinstance(inner, Mapping):
        return {**tree, first: _without_null(inner, rest)}
    return tree if rest or inner is not None else {k: v for k, v in tree.items() if k != first}


ROLES: Final[Mapping[str, tuple[Kind, tuple[str, ...]]]] = {
    "method": ("method", ("method", "name")),
    "dataset": ("dataset", ("task", "dataset")),
    "public_dataset": ("dataset", ("public_data", "dataset")),
    "model": ("model", ("task", "model", "name")),
    "mechanism": ("mechanism", ("privacy", "mechanism")),
}
"""What a configuration names that may be a plug-in: its kind, and the key with its name."""


def origins_of(tree: Mapping[str, Any], plugins: Plugins) -> dict[str, dict[str, str]]:
    """Return kind, place and digest of each plug-in of a configuration, by its role, for records.

    No plug-in's code runs for this, except the module of an installed package.
    """
    found = {}
    for role, (kind, _) in ROLES.items():
        name = name_in(tree, role)
        origin = None if name is None else plugins.origin(kind, name)
        if origin is not None:
            found[role] = asdict(origin)
    return found


def name_in(tree: Mapping[str, Any], role: str) -> str | None:
    """Return the name that a configuration has for a role; None without one."""
    value: Any = tree
    for part in ROLES[role][1]:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) else None


def recorded_origins(detail: Mapping[str, Any]) -> dict[str, Any]:
    """Return the origins that the audit entry of a run's start states, by role."""
    method = detail.get("method")
    return {**({} if method is None else {"method": method}), **detail.get("plugins", {})}


def code_of(origins: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return one digest of a run's plug-ins (its method's file, if that is all), or None."""
    digests = {role: str(origin.get("sha256")) for role, origin in origins.items()}
    if digests.keys() <= {"method"}:
        return digests.get("method")
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()
