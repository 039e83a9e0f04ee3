"""Reading a configuration: files that extend others, overrides, and errors in one sentence.

`extends: BASE` takes another configuration and changes keys. BASE is the name of a packaged
configuration, or, ending in `.yaml` or `.yml`, a file below the folder of the file that names it.
Sections are merged key by key; any other value, a list or null as well, replaces that of the base.

Dotted overrides come after all files. Three keys change more than themselves, before all other
changes: another `method.name` brings its whole preset, and another `task.dataset` drops what is
said of the former data set; the program names what is dropped before the run.
`privacy.mechanism: none` drops the keys that mean nothing without noise.

`configs/references` holds the settings of published runs whose code differs from the paper. In a
paper's folder, `table-N.yaml` belongs to the configurations `table-N-DATA` of that table, and
`table-N-DATA.yaml` to a single one. `all` changes keys for every method; `methods` lists each of
the table's methods with its own changes, perhaps {}; `same_as` names a table of the same
paper whose changes come first. `left_out.yaml` says, by method or under `all`, what of the
published code is not built; remarks repeat it. A changed configuration has another name, so that
tables mix no runs of the two.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast, get_args

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from methods import MethodError, OptionsOf, Registry
from methods.errors import nearest, unknown
from methods.interface.method import marks_of
from methods.interface.server_optimizers import SERVER_OPTIMIZERS, ServerOptimizer
from platform.config.files import (
    DEEPEST,
    Sources,
    dump_yaml,
    find_config,
    is_below,
    is_file,
    packaged_file,
    read_mapping,
    read_preset,
    read_yaml,
    what_is_packaged,
    yaml_problem,
)
from platform.config.privacy_rules import NOISE_KEYS
from platform.config.run import RunConfig, known_keys
from platform.config.sections import MECHANISMS, MethodConfig
from platform.errors import ConfigError, Faults

Tree = TypeVar("Tree", bound=BaseModel)
LONGEST: Final = 200
"""An error message repeats at most this many characters of a value."""
LONGEST_CHAIN: Final = 8
"""A configuration may consist of at most this many files."""
_FILES: Final = (".yaml", ".yml")
_WITHOUT_NOISE: Final = {
    "privacy": (*NOISE_KEYS, "relation", "spare_attempts", "personal"),
    "evaluation": ("release", "metric_ratio"),
    "pool": ("clipping_norm",),
}
"""Keys that mean nothing without a mechanism, by section."""
_OF_A_DATASET: Final = frozenset(
    {"layout", "class_names", "domains", "test_per_class", "senses", "held_out_domain"}
)
"""Keys of `task` that speak of one data set."""
KEYS: Final = ("same_as", "all", "methods")
SUFFIX: Final = "-published"
LEFT_OUT: Final = "--reference leaves out of the published code"
_TABLE: Final = re.compile(r"(table-\d+)-\w+")


def read_whole(path: Path, sources: Sources) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a file merged with all that it extends, and remarks on options that this drops."""
    changes = [read_mapping(path)]
    chain = [path]
    while "extends" in changes[-1]:
        name = changes[-1].pop("extends")
        told = f"extends: {name!r} in {str(chain[-1])!r}"
        folder, base = chain[-1].parent, None
        if isinstance(name, str) and not name.endswith(_FILES):
            base = packaged_file(name, sources)
        elif isinstance(name, str) and is_below(Path(name)) and is_file(folder / name):
            # A configuration from another machine must not read files outside its own folder, by an
            # absolute path, by `..` or by a link.
            if (folder / name).resolve().is_relative_to(folder.resolve()):
                base = folder / name
        if base is None:
            raise ConfigError(
                f"{told} is no configuration; valid: the name of a packaged one ("
                f"{what_is_packaged(sources)}), or a file below this one's folder such as base.yaml"
            )
        if base.resolve() in (path.resolve() for path in chain):
            raise ConfigError(
                f"{told} leads back to itself; valid: a base that does not extend this"
            )
        if len(chain) == LONGEST_CHAIN:
            raise ConfigError(f"{told}: too long a chain; valid: at most {LONGEST_CHAIN} files")
        chain.append(base)
        changes.append(read_mapping(base))
    tree = changes.pop()
    remarks: list[str] = []
    while changes:
        tree, dropped = _changed(tree, changes.pop(), sources)
        remarks += dropped
    return tree, tuple(remarks)


def _method_section(
    before: Any, name: Any, given: Container[str], sources: Sources
) -> tuple[dict[str, Any], list[str]]:
    """Return a method's present section, or another's preset, and what that drops; keep `given`."""
    if not isinstance(before, dict):
        return read_preset(name, sources), []
    if before.get("name") == name:
        return before, []
    preset = read_preset(name, sources)
    gone = [
        f"{key}: {value}"
        for key, value in before.items()
        if key != "name" and key not in given and preset.get(key) != value
    ]
    if not gone:
        return preset, []
    remark = (
        f"method.name: {preset['name']} takes the place of {before.get('name')} with the "
        f"options of its preset, so these of the configuration are dropped: {', '.join(gone)}"
    )
    return preset, [remark]


def _task_section(before: Any, name: Any, given: Container[str]) -> tuple[Any, list[str]]:
    """Return the section of a task with another data set, and what that drops; keep `given`."""
    former = before.get("dataset") if isinstance(before, dict) else None
    if former in (None, name):
        return before, []
    gone = {k: v for k, v in before.items() if k in _OF_A_DATASET and k not in given}
    kept = {key: value for key, value in before.items() if key not in gone}
    told = ", ".join(f"{key}: {value}" for key, value in gone.items())
    remark = f"task.dataset: {name} takes the place of {former}, so these keys are dropped: {told}"
    return kept, [remark] if gone else []


def change(tree: Mapping[str, Any], changes: Mapping[str, Any], sources: Sources) -> dict[str, Any]:
    """Return a tree with changes to it; neither argument is altered."""
    return _changed(tree, changes, sources)[0]


def _changed(
    tree: Mapping[str, Any], changes: Mapping[str, Any], sources: Sources
) -> tuple[dict[str, Any], list[str]]:
    """Return a tree with changes to it, and a remark on the options that a preset drops."""
    changed, remarks = dict(tree), list[str]()
    before, method, privacy = tree.get("method"), changes.get("method"), changes.get("privacy")
    if isinstance(before, dict) and isinstance(method, dict):
        name = method.get("name", before.get("name"))
        changed["method"], remarks = _method_section(before, name, method, sources)
    if isinstance(privacy, dict) and sources.mechanisms.claims_nothing(privacy.get("mechanism")):
        changed = without_noise_keys(changed)
    return merged(changed, changes), remarks


def needs_noise(key: str) -> bool:
    """Return whether a dotted key means nothing under `privacy.mechanism: none`."""
    section, name, *_ = (*key.split("."), "")
    return name in _WITHOUT_NOISE.get(section, ())


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


def flat(tree: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a configuration by their dotted keys."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def with_published(
    tree: Mapping[str, Any], config: Path, sources: Sources
) -> tuple[dict[str, Any], list[str]]:
    """Return a table's configuration, in the file `config`, as published, and what is left out."""
    papers, file = (sources.configs / "papers").resolve(), config.resolve()
    table, paths = _TABLE.fullmatch(file.stem), list[Path]()
    if table is not None and file.parent.parent == papers:
        folder = sources.references / file.parent.name
        paths = [folder / f"{stem}.yaml" for stem in (file.stem, table[1])]
    path = next(filter(is_file, paths), None)
    if path is None:
        raise ConfigError(
            f"--reference: CONFIG {str(config)!r} has no published settings; valid: a packaged "
            "configuration of a paper's table, such as papers/trip/table-1-pacs"
        )
    shared, methods = _read(path)
    name = tree.get("method", {}).get("name")
    if name not in methods:
        named = path.relative_to(sources.references).with_suffix("").as_posix()
        raise ConfigError(
            f"--reference: {named} has no published settings of {name!r}; valid "
            f"methods: {', '.join(methods)}"
        )
    changed = change(change(tree, shared, sources), methods[name], sources)
    told = path.with_name("left_out.yaml")
    left_out = read_mapping(told) if is_file(told) else {}
    said = [f"{LEFT_OUT} ({key}): {left_out[key]}" for key in ("all", name) if key in left_out]
    return {**changed, "name": f"{tree['name']}{SUFFIX}"}, said


def _read(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the changes for all methods, and for each method by its name."""
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


def load_config(
    path: Path, overrides: Sequence[str] = (), sources: Sources | None = None
) -> RunConfig:
    """Read a configuration file, or the packaged one of a name such as `papers/trip/table-1-pacs`.

    Overrides are `dotted.key=value` with the value in YAML. An error states the field, its value
    and what is valid.
    """
    where = sources or Sources()
    file = find_config(path, where)
    tree, remarks = read_whole(file, where)
    if not where.as_published:
        return parse_config(tree, overrides, where).with_remarks(remarks)
    # The published settings depend on the method, and all other overrides come after them.
    naming = [text for text in overrides if text.startswith("method.name=")]
    named, said = _apply(tree, naming, where, faults := Faults())
    faults.require_none(ConfigError)
    rest = [text for text in overrides if text not in naming]
    published, left_out = with_published(named, file, where)
    return parse_config(published, rest, where).with_remarks((*remarks, *said, *left_out))


def parse_config(
    tree: Mapping[str, Any], overrides: Sequence[str] = (), sources: Sources | None = None
) -> RunConfig:
    """Validate a configuration tree after applying overrides; errors are as in `load_config`."""
    where, faults = sources or Sources(), Faults()
    changed, remarks = _apply(dict(tree), overrides, where, faults)
    with faults:
        config = validated(RunConfig, changed, {MECHANISMS: where.mechanisms})
    if not faults:
        return config.with_remarks(remarks)
    section = changed.get("method")
    # Options are checked against the method itself, which takes a while to import.
    if section and not any(one.startswith("method") for one in faults):
        with faults:
            validate_options(where.registry, MethodConfig.model_validate(_tuples(section)))
    raise ConfigError(*faults)


def validated(kind: type[Tree], tree: Mapping[str, Any], context: Mapping[str, Any]) -> Tree:
    """Return plain data as a frozen tree of sections; an error states all wrong fields."""
    try:
        return kind.model_validate(_tuples(tree), context=dict(context))
    except ValidationError as error:
        raise ConfigError(*_sentences(error, kind=kind)) from error


def dump_config(config: RunConfig) -> str:
    """Return the effective configuration as YAML; reading it back gives the same configuration."""
    return dump_yaml(config.model_dump(mode="json"))


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
    tree: dict[str, Any], texts: Iterable[str], sources: Sources, faults: Faults
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a tree with overrides, and remarks on them; wrong ones are kept in `faults`."""
    rest: list[tuple[tuple[str, ...], Any]] = []
    remarks: list[str] = []
    overrides: list[tuple[tuple[str, ...], Any]] = []
    for text in texts:
        with faults:
            overrides.append(_parse_override(text))
    given = {
        section: [path[1] for path, _ in overrides if path[0] == section and len(path) == 2]
        for section in ("method", "task")
    }
    for path, value in overrides:
        if path == ("method", "name"):
            with faults:
                tree["method"], dropped = _method_section(
                    tree.get("method"), value, given["method"], sources
                )
                remarks += dropped
        else:
            if path == ("task", "dataset"):
                tree["task"], dropped = _task_section(tree.get("task"), value, given["task"])
                remarks += dropped
            if path == ("privacy", "mechanism") and sources.mechanisms.claims_nothing(value):
                tree = without_noise_keys(tree)
            rest.append((path, value))
    for path, value in rest:
        inner = tree
        with faults:
            for depth, key in enumerate(path[:-1]):
                section = inner.get(key)
                if section is not None and not isinstance(section, dict):
                    named = ".".join(path[: depth + 1])
                    raise ConfigError(f"--set: {named} is a value, not a section")
                # A copy, so that the caller's tree is never changed through a shared section.
                inner[key] = dict(section or {})
                inner = inner[key]
            inner[path[-1]] = value
    return tree, tuple(remarks)


def validate_options(registry: Registry, config: MethodConfig) -> object:
    """Return the method's options as its own frozen dataclass, and check its server optimiser's."""
    server_optimizer_of(config)
    return _validated_options(registry, config.name, config.options, "method")


def server_optimizer_of(config: MethodConfig) -> ServerOptimizer | None:
    """Return the configured server optimiser; None for the method's own step."""
    given = config.server_optimizer
    if given is None:
        return None
    section, name = "method.server_optimizer", given.get("name")
    if not isinstance(name, str) or name not in SERVER_OPTIMIZERS:
        raise ConfigError(unknown(f"{section}.name", name, SERVER_OPTIMIZERS))
    return cast("ServerOptimizer", _validated(SERVER_OPTIMIZERS[name], name, given, section))


def _validated_options(
    registry: Registry, name: str, given: Mapping[str, Any], section: str
) -> object:
    try:
        config_type = registry.config_type(name)
    except MethodError as error:
        raise ConfigError(str(error)) from error
    options = _validated(config_type, name, given, section)
    # Options that are another method's, each as that method's own dataclass.
    nested = {}
    for key, mark in options_of(options):
        other, value = getattr(options, mark.option), getattr(options, key)
        if not isinstance(value, dict):
            raise ConfigError(
                f"{section}.{key}: {value!r} is not valid; it must be a section of {other}'s "
                "options"
            )
        nested[key] = _validated_options(registry, other, value, f"{section}.{key}")
    return dataclasses.replace(options, **nested) if nested else options


def _validated(config_type: type[Any], name: str, given: Mapping[str, Any], section: str) -> Any:
    known, faults, plain = [f.name for f in dataclasses.fields(config_type)], list[str](), {}
    valid = ", ".join(known) or "none, it has no options"
    for key, value in given.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            faults.append(
                f"{section}.{key}: {value!r} is not valid; it must be a finite number, a text, a "
                "list or null"
            )
            continue
        if key in known:
            plain[key] = value
        else:
            hint = nearest(key, known)
            faults.append(f"{section}.{key}: is not a known option of {name}{hint}; valid: {valid}")
    try:
        # JSON, because strict validation builds a dataclass from nothing else.
        made = TypeAdapter(config_type).validate_json(json.dumps(plain), strict=True)
    except ValidationError as error:
        faults += _sentences(error, section)
    if faults:
        raise ConfigError(*faults)
    return made


def options_of(options: object) -> Iterator[tuple[str, OptionsOf]]:
    """Yield the names of options that hold another method's options, each with its mark."""
    for key, mark in marks_of(type(options)):
        if isinstance(mark, OptionsOf):
            yield key, mark


def _tuples(value: Any) -> Any:
    """Return YAML lists as tuples, as strict frozen sections hold tuples."""
    if isinstance(value, Mapping):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _sentences(
    error: ValidationError, section: str = "", *, kind: type[BaseModel] = RunConfig
) -> list[str]:
    """Return the errors of a validation, within a section; `kind` knows valid keys."""
    found = error.errors()
    # A list with a wrong item is also called too short.
    above = {one["loc"][:length] for one in found for length in range(len(one["loc"]))}
    told: list[str] = []
    for one in found:
        if one["type"] == "value_error" and not one["loc"]:
            told += one["ctx"]["error"].args
        elif one["loc"] not in above:
            told.append(_sentence(one, section, kind))
    return told


def _sentence(error: ErrorDetails, section: str, kind: type[BaseModel]) -> str:
    field = ".".join(str(part) for part in (section, *error["loc"]) if part != "")
    field = field or "configuration"
    message = error["msg"].removeprefix("Value error, ")
    match error["type"]:
        case "missing":
            return f"{field}: is missing; it must be given"
        case "extra_forbidden":
            return f"{field}: is not a known key{_known_keys(error['loc'], kind)}"
        case "value_error":
            return f"{field}: {message}"
        case _:
            message = message[:1].lower() + message[1:]
            return f"{field}: {shortened(error['input'])} is not valid; {message}"


def shortened(value: Any) -> str:
    """Return a value as Python writes it, cut to a length that fits into a sentence."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"


def _known_keys(path: tuple[int | str, ...], whole: type[BaseModel]) -> str:
    """Return the keys that are valid in place of the last one, after the nearest key of all."""
    fields = whole.model_fields
    for part in path[:-1]:
        annotation = fields[str(part)].annotation
        # A section that may be null is a union of types.
        for kind in get_args(annotation) or (annotation,):
            fields = getattr(kind, "model_fields", fields)
    *section, _ = dotted = [str(part) for part in path]
    keys = [".".join([*section, name]) for name in fields]
    keys += [key.name for key in known_keys()] if whole is RunConfig else []
    return f"{nearest('.'.join(dotted), keys)}; valid keys: {', '.join(fields)}"
