"""Reading a configuration: files, dotted overrides, and errors in one sentence.

Overrides are applied to what a file and all that it extends say together, in two passes.
Setting `method.name` to another name replaces the whole method section by that method's preset, and
setting `privacy.mechanism` to one without noise drops the keys that mean nothing then; both happen
before any other override, whatever the order on the command line. What a new name drops is said
before the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from platform.config.extending import dropped_options, read_whole, without_noise_keys
from platform.config.files import Sources, find_config, read_preset
from platform.config.plain_yaml import DEEPEST, dump_yaml, read_yaml, yaml_problem
from platform.config.references import with_published
from platform.config.run import RunConfig
from platform.config.schema import MECHANISMS
from platform.errors import ConfigError

Tree = TypeVar("Tree", bound=BaseModel)
LONGEST: Final = 200
"""Characters of a value that a sentence repeats."""


def load_config(
    path: Path, overrides: Sequence[str] = (), sources: Sources | None = None
) -> RunConfig:
    """Read a configuration file.

    Args:
        path: A file, or the name of a packaged configuration such as `quickstart` or
            `papers/trip/table-1-pacs`.
        overrides: `dotted.key=value` with the value in YAML.
        sources: Where packaged files lie.

    Raises:
        ConfigError: Naming the field, its value and what is valid.
    """
    where = sources or Sources()
    file = find_config(path, where)
    tree, remarks = read_whole(file, where)
    if not where.as_published:
        return parse_config(tree, overrides, where).with_remarks(remarks)
    # Which settings are the published run's depends on the method; overrides are of what they give.
    naming = [text for text in overrides if text.startswith("method.name=")]
    named, said = _apply(tree, [_parse_override(text) for text in naming], where)
    rest = [text for text in overrides if text not in naming]
    config = parse_config(with_published(named, file, where), rest, where)
    return config.with_remarks((*remarks, *said))


def parse_config(
    tree: Mapping[str, Any], overrides: Sequence[str] = (), sources: Sources | None = None
) -> RunConfig:
    """Validate a configuration tree after applying overrides.

    Raises:
        ConfigError: Naming the field, its value and what is valid.
    """
    where = sources or Sources()
    merged, remarks = _apply(dict(tree), [_parse_override(text) for text in overrides], where)
    return validated(RunConfig, merged, {MECHANISMS: where.mechanisms}).with_remarks(remarks)


def validated(kind: type[Tree], tree: Mapping[str, Any], context: Mapping[str, Any]) -> Tree:
    """Return plain data as a frozen tree of sections.

    Args:
        kind: What it is the tree of.
        tree: As YAML gives it.
        context: What the tree's own checks are given.

    Raises:
        ConfigError: Naming the first field that is wrong, its value and what is valid.
    """
    try:
        return kind.model_validate(_tuples(tree), context=dict(context))
    except ValidationError as error:
        raise ConfigError(sentence(error.errors()[0], kind=kind)) from error


def dump_config(config: RunConfig) -> str:
    """Return the effective configuration as YAML; reading it back gives the same configuration."""
    return dump_tree(config.model_dump(mode="json"))


def dump_tree(tree: Mapping[str, Any]) -> str:
    """Return configuration that was stored as plain data, as the YAML that it was started with."""
    return dump_yaml(tree)


def _parse_override(text: str) -> tuple[tuple[str, ...], Any]:
    key, separator, value = text.partition("=")
    parts = tuple(key.split("."))
    if not separator or not all(parts) or len(parts) > DEEPEST:
        raise ConfigError(f"--set: {text!r} is not valid; it must be section.key=value")
    try:
        return parts, read_yaml(value)
    except yaml.YAMLError as error:
        problem = yaml_problem(error)
        raise ConfigError(f"--set: {text!r} has no valid YAML value: {problem}") from error


def _apply(
    tree: dict[str, Any], overrides: Iterable[tuple[tuple[str, ...], Any]], sources: Sources
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a tree with overrides, and what is to be said of them."""
    rest: list[tuple[tuple[str, ...], Any]] = []
    remarks: list[str] = []
    overrides = list(overrides)
    given = [path[1] for path, _ in overrides if path[0] == "method" and len(path) == 2]
    for path, value in overrides:
        if path == ("method", "name"):
            before = tree.get("method")
            if isinstance(before, dict) and before.get("name") == value:
                # What it has is the method's already.
                continue
            tree["method"] = read_preset(value, sources)
            if isinstance(before, dict):
                remarks += dropped_options(before, tree["method"], given)
        else:
            if path == ("privacy", "mechanism") and sources.mechanisms.claims_nothing(value):
                tree = without_noise_keys(tree)
            rest.append((path, value))
    for path, value in rest:
        _set(tree, path, value)
    return tree, tuple(remarks)


def _set(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for depth, key in enumerate(path[:-1]):
        section = tree.get(key)
        if section is not None and not isinstance(section, dict):
            raise ConfigError(f"--set: {'.'.join(path[: depth + 1])} is a value, not a section")
        # A copy, so that the caller's tree is never changed through a shared section.
        tree[key] = dict(section or {})
        tree = tree[key]
    tree[path[-1]] = value


def _tuples(value: Any) -> Any:
    """Return YAML lists as tuples, which is what strict frozen sections hold."""
    if isinstance(value, Mapping):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(value) if isinstance(value, list) else value


def sentence(error: ErrorDetails, section: str = "", *, kind: type[BaseModel] = RunConfig) -> str:
    """Return a validation error as one sentence naming the field, the value and what is valid.

    Args:
        error: The first error of a validation.
        section: Name of the section that was validated, if it was not the whole tree.
        kind: The whole tree, for the keys that it knows.
    """
    field = ".".join(str(part) for part in (section, *error["loc"]) if part != "")
    field = field or "configuration"
    message = error["msg"].removeprefix("Value error, ")
    match error["type"]:
        case "value_error" if not error["loc"]:
            return message
        case "missing":
            return f"{field}: is missing; it must be given"
        case "extra_forbidden":
            return f"{field}: is not a known key; valid keys: {_known_keys(error['loc'], kind)}"
        case "value_error":
            return f"{field}: {message}"
        case _:
            return f"{field}: {shortened(error['input'])} is not valid; {_lower_first(message)}"


def shortened(value: Any) -> str:
    """Return a value as Python writes it, in so far as it fits into a sentence."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"


def _known_keys(path: tuple[int | str, ...], whole: type[BaseModel]) -> str:
    fields = whole.model_fields
    for part in path[:-1]:
        annotation = fields[str(part)].annotation
        # A section that may be null is a union of types.
        for kind in get_args(annotation) or (annotation,):
            fields = getattr(kind, "model_fields", fields)
    return ", ".join(fields)


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
