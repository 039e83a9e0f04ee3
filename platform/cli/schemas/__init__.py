"""JSON Schemas of all that the command lines print as JSON, and of what runs write.

They are strict: what an output gains without its schema fails a test. The pieces that they are made
of (draft 2020-12) are here: strict records, and what types say.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from pydantic import TypeAdapter

Shape = Mapping[str, Any]

TEXT: Final[Shape] = {"type": "string"}
BOOLEAN: Final[Shape] = {"type": "boolean"}
NUMBER: Final[Shape] = {"type": "number"}
NOT_NEGATIVE: Final[Shape] = {"type": "number", "minimum": 0}
COUNT: Final[Shape] = {"type": "integer", "minimum": 0}
SHARE: Final[Shape] = {"type": "number", "minimum": 0, "maximum": 1}
NOTHING: Final[Shape] = {"type": "null"}
DIGEST: Final[Shape] = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
TIME: Final[Shape] = {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}"}
SPENT: Final[Shape] = {
    "description": "An epsilon; infinity is the text `inf`, which strict JSON has no number for.",
    "anyOf": [NOT_NEGATIVE, {"const": "inf"}],
}


def record(
    fields: Mapping[str, Shape], optional: Collection[str] = (), *, about: str | None = None
) -> Shape:
    """Return an object that has these keys and no others.

    Args:
        fields: Shapes by key.
        optional: Keys that may be absent; all others are there.
        about: What it is, None where its keys say so.
    """
    required = [name for name in fields if name not in optional]
    said = {} if about is None else {"description": about}
    return {
        "type": "object",
        **said,
        "properties": dict(fields),
        "required": required,
        "additionalProperties": False,
    }


def listing(of: Shape) -> Shape:
    """Return a list of any length."""
    return {"type": "array", "items": of}


def mapping(of: Shape) -> Shape:
    """Return an object whose keys are names of the user's, of classes say."""
    return {"type": "object", "additionalProperties": of}


def nullable(of: Shape) -> Shape:
    """Return a value or null."""
    return {"anyOf": [of, NOTHING]}


def either(*shapes: Shape) -> Shape:
    """Return one of several."""
    return {"anyOf": list(shapes)}


def choice(*values: str | int | None) -> Shape:
    """Return one of these values."""
    return {"enum": list(values)}


def derived(kind: Any) -> Shape:
    """Return what a dataclass or a section of a configuration is written as."""
    document = TypeAdapter(kind).json_schema(mode="serialization")
    shape: Shape = _strict(document, document.get("$defs", {}))
    return shape


def _strict(part: Any, definitions: Mapping[str, Any]) -> Any:
    """Return a schema with its definitions in place, whose records have no further keys."""
    if isinstance(part, Sequence) and not isinstance(part, str):
        return [_strict(each, definitions) for each in part]
    if not isinstance(part, Mapping):
        return part
    if "$ref" in part:
        named = definitions[part["$ref"].rpartition("/")[2]]
        return _strict({**named, **{k: v for k, v in part.items() if k != "$ref"}}, definitions)
    found: dict[str, Any] = {}
    for key, value in part.items():
        if key == "properties":
            found[key] = {name: _strict(each, definitions) for name, each in value.items()}
        elif key not in ("$defs", "default") and not (key == "title" and isinstance(value, str)):
            found[key] = _strict(value, definitions)
    if "properties" in found:
        found.setdefault("additionalProperties", False)
    return found
