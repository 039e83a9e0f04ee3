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
paper whose changes come first. A changed configuration has another name, so that tables mix no
runs of the two.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

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
from platform.config.run import RunConfig
from platform.config.sections import MECHANISMS
from platform.errors import ConfigError

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
_TABLE: Final = re.compile(r"(table-\d+)-\w+")


def read_whole(path: Path, sources: Sources) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a file merged with all that it extends, and remarks on options that this drops."""
    changes = [read_mapping(path)]
    chain = [path]
    while "extends" in changes[-1]:
        base = _base(changes[-1].pop("extends"), chain, sources)
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
    """Return the present section of a method, or another one's preset, and what that drops.

    Options that are set again beside the name (`given`) are kept.
    """
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


def _base(name: Any, chain: list[Path], sources: Sources) -> Path:
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
            f"{told} is no configuration; valid: the name of a packaged one "
            f"({what_is_packaged(sources)}), or a file below this one's folder such as base.yaml"
        )
    if base.resolve() in (path.resolve() for path in chain):
        raise ConfigError(f"{told} leads back to itself; valid: a base that does not extend this")
    if len(chain) == LONGEST_CHAIN:
        raise ConfigError(f"{told} makes too long a chain; valid: at most {LONGEST_CHAIN} files")
    return base


def with_published(tree: Mapping[str, Any], config: Path, sources: Sources) -> dict[str, Any]:
    """Return a table's configuration, in the file `config`, with its published settings."""
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
    return {**changed, "name": f"{tree['name']}{SUFFIX}"}


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
    named, said = _apply(tree, [_parse_override(text) for text in naming], where)
    rest = [text for text in overrides if text not in naming]
    config = parse_config(with_published(named, file, where), rest, where)
    return config.with_remarks((*remarks, *said))


def parse_config(
    tree: Mapping[str, Any], overrides: Sequence[str] = (), sources: Sources | None = None
) -> RunConfig:
    """Validate a configuration tree after applying overrides; errors are as in `load_config`."""
    where = sources or Sources()
    changed, remarks = _apply(dict(tree), [_parse_override(text) for text in overrides], where)
    return validated(RunConfig, changed, {MECHANISMS: where.mechanisms}).with_remarks(remarks)


def validated(kind: type[Tree], tree: Mapping[str, Any], context: Mapping[str, Any]) -> Tree:
    """Return plain data as a frozen tree of sections; an error states the first wrong field."""
    try:
        return kind.model_validate(_tuples(tree), context=dict(context))
    except ValidationError as error:
        raise ConfigError(sentence(error.errors()[0], kind=kind)) from error


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
    tree: dict[str, Any], overrides: Iterable[tuple[tuple[str, ...], Any]], sources: Sources
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a tree with overrides, and remarks on them."""
    rest: list[tuple[tuple[str, ...], Any]] = []
    remarks: list[str] = []
    overrides = list(overrides)
    given = {
        section: [path[1] for path, _ in overrides if path[0] == section and len(path) == 2]
        for section in ("method", "task")
    }
    for path, value in overrides:
        if path == ("method", "name"):
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
        for depth, key in enumerate(path[:-1]):
            section = inner.get(key)
            if section is not None and not isinstance(section, dict):
                raise ConfigError(f"--set: {'.'.join(path[: depth + 1])} is a value, not a section")
            # A copy, so that the caller's tree is never changed through a shared section.
            inner[key] = dict(section or {})
            inner = inner[key]
        inner[path[-1]] = value
    return tree, tuple(remarks)


def _tuples(value: Any) -> Any:
    """Return YAML lists as tuples, as strict frozen sections hold tuples."""
    if isinstance(value, Mapping):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(value) if isinstance(value, list) else value


def sentence(error: ErrorDetails, section: str = "", *, kind: type[BaseModel] = RunConfig) -> str:
    """Return a validation's error, within a section, in a sentence; `kind` knows valid keys."""
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
            message = message[:1].lower() + message[1:]
            return f"{field}: {shortened(error['input'])} is not valid; {message}"


def shortened(value: Any) -> str:
    """Return a value as Python writes it, cut to a length that fits into a sentence."""
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
