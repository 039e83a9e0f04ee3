"""JSON Schemas (draft 2020-12) of what commands print under `--json`, and of what runs write.

They are made of `answers.yaml`, and of the program's own types that commands print as they are.
They are strict: an output that gains or loses a key fails a test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, Final

import yaml
from pydantic import TypeAdapter

from methods.interface.registry import MethodInfo
from platform.cli.ending import Failure
from platform.cli.output import answer, print_json, table
from platform.config import RunConfig
from platform.config.run import Key
from platform.data.catalogue import DatasetInfo
from platform.errors import ConfigError, listed
from platform.experiment.caveats import Caveat
from platform.holder.checking import Check
from platform.holder.store import Leaving

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
TYPES: Final = {
    f"py:{kind.__name__}": kind
    for kind in (Caveat, Check, DatasetInfo, Failure, Key, Leaving, MethodInfo, RunConfig)
}
SIMPLE: Final[Mapping[str, Any]] = {
    "text": {"type": "string"},
    "flag": {"type": "boolean"},
    "number": {"type": "number"},
    "integer": {"type": "integer"},
    "array": {"type": "array"},
    "object": {"type": "object"},
    "positive": {"type": "number", "minimum": 0},
    "share": {"type": "number", "minimum": 0, "maximum": 1},
    "count": {"type": "integer", "minimum": 0},
    "ordinal": {"type": "integer", "minimum": 1},
    "digest": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    "time": {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}"},
    "head": {
        "description": "The head of an audit log: number of entries, and digest of the last.",
        "type": "string",
        "pattern": "^[0-9]+:[0-9a-f]{64}$",
    },
    "spent": {
        "description": "An epsilon. Strict JSON has no infinity, which is the text `inf`.",
        "anyOf": [{"type": "number", "minimum": 0}, {"const": "inf"}],
    },
    "setting": {"description": "A setting's value, of the configuration's own type."},
    "schema": {"$ref": DIALECT},
}
TITLES: Final = {
    "error": "The last line of stderr of any command under --json that has no answer",
    "summary": "A run's `summary.json`, and what `run` prints under --json",
    "metrics-line": "A line of a run's `metrics.jsonl`",
    "privacy-report": "A run's privacy budget report, which `report` of the coordinator makes of "
    "it under --format json",
    "federation-line": "A line that `run` prints under --json if clients are separate processes",
}
ANSWERS: Final[Mapping[str, Any]] = yaml.safe_load(
    resources.files("platform.cli").joinpath("answers.yaml").read_text("utf-8")
)
SCHEMAS: Final[Mapping[str, str]] = {
    **TITLES,
    **{
        f"{program}.{command}": (
            f"What `{command.replace('.', ' ')}` of the {program} prints under --json"
        )
        for program in ("coordinator", "client")
        for command in ANSWERS[program]
    },
    "coordinator.run": "What `run` of the coordinator prints under --json; if clients are separate "
    "processes, each line is one object",
}
"""The title of each schema, by its name."""


def schema_of(name: str) -> dict[str, Any]:
    """Return a schema as a JSON document of its own; an unknown name is refused."""
    if name not in SCHEMAS:
        raise ConfigError(f"NAME: {name!r} is unknown; valid: {listed(sorted(SCHEMAS))}")
    program, _, command = name.partition(".")
    said = ANSWERS["files"][name] if name in TITLES else ANSWERS[program][command]
    about = {"$schema": DIALECT, "$id": f"urn:sotto:schema:{name}", "title": SCHEMAS[name]}
    return {**about, **_shape(said)}


def _shape(said: Any) -> dict[str, Any]:
    """Return the JSON Schema of an expression in the notation of `answers.yaml`."""
    if isinstance(said, list):
        return {"type": "array", "items": _shape(said[0])}
    if isinstance(said, Mapping):
        if "each" in said:
            return {"type": "object", "additionalProperties": _shape(said["each"])}
        fields = {key: value for key, value in said.items() if key != "about"}
        return {
            "type": "object",
            **({"description": said["about"]} if "about" in said else {}),
            "properties": {key.strip("()"): _shape(one) for key, one in fields.items()},
            "required": [key for key in fields if not key.startswith("(")],
            "additionalProperties": False,
        }
    if " | " in said:
        return {"anyOf": [_shape(one) for one in said.split(" | ")]}
    if said.endswith("~"):
        return {"anyOf": [_shape(said[:-1]), {"type": "null"}]}
    if said.startswith("["):
        return {"type": "array", "items": _shape(said[1:-1])}
    if said.startswith("="):
        return {"const": yaml.safe_load(said[1:])}
    if said in TYPES:
        return _derived(said)
    return SIMPLE[said] if said in SIMPLE else _shape(ANSWERS["pieces"][said])


@cache
def _derived(name: str) -> dict[str, Any]:
    """Return the strict schema of one of the program's own types."""
    document = TypeAdapter(TYPES[name]).json_schema(mode="serialization")
    found: dict[str, Any] = _strict(document, document.get("$defs", {}))
    return found


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


def schemas_command(name: str | None, *, as_json: bool) -> None:
    """Print one schema as JSON, or the names of all."""
    titles = sorted(SCHEMAS.items())
    if name is not None:
        print_json(schema_of(name))
        return
    document = [{"name": each, "title": title} for each, title in titles]
    answer(document, table(None, ("schema", "what it describes"), titles), as_json=as_json)
