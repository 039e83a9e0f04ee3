"""All keys of a configuration, as users read them: from the sections, and from nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from platform.config.run import RunConfig

_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}
_TYPES = {"array": "list", "object": "mapping"}


@dataclass(frozen=True)
class Key:
    """A key of a configuration.

    Attributes:
        name: With its sections, between dots.
        values: Which it takes, in words.
        default: As YAML, or `required`.
        meaning: One or more sentences.
    """

    name: str
    values: str
    default: str
    meaning: str


def known_keys() -> tuple[Key, ...]:
    """Return every key, in the order of the sections; a method's own options are not among them."""
    document = RunConfig.model_json_schema()
    return tuple(_keys(document, document["$defs"], ""))


def _keys(section: Mapping[str, Any], sections: Mapping[str, Any], prefix: str) -> Iterator[Key]:
    for name, field in section["properties"].items():
        kinds = [_resolved(kind, sections) for kind in field.get("anyOf", [field])]
        inner = next((kind for kind in kinds if "properties" in kind), None)
        # A section that may be null is a key itself.
        if inner is None or len(kinds) > 1:
            required = name in section.get("required", ())
            yield Key(
                prefix + name,
                values=" or ".join(map(_values, kinds)),
                default="required" if required else _default(field["default"]),
                meaning=" ".join(field["description"].split()),
            )
        if inner is not None:
            yield from _keys(inner, sections, f"{prefix}{name}.")


def _resolved(kind: Mapping[str, Any], sections: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = sections[kind["$ref"].rpartition("/")[2]] if "$ref" in kind else kind
    return found


def _values(kind: Mapping[str, Any]) -> str:
    if "properties" in kind:
        return "section"
    if "enum" in kind or "const" in kind:
        return ", ".join(kind.get("enum", [kind.get("const")]))
    bounds = [f"{word} {_number(kind[name])}" for name, word in _BOUNDS.items() if name in kind]
    return " ".join([_TYPES.get(kind["type"], kind["type"]), " and ".join(bounds)]).strip()


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _default(value: Any) -> str:
    if isinstance(value, dict):
        return "section"
    return value if isinstance(value, str) else json.dumps(value)
