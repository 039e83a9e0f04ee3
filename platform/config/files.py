"""Finds configurations, and reads them as plain YAML.

PyYAML takes the last of two equal keys in silence, turns dates into objects, follows aliases to any
size, and lets Python's own errors through. This reader refuses all of that, and files that are
nested too deeply, with `yaml.YAMLError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, Self, cast

import yaml
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node, ScalarNode

from methods import Registry
from methods.errors import nearest, unknown
from methods.plugins import Plugins
from platform.errors import ConfigError
from platform.mechanisms import KNOWN, Mechanisms

DEEPEST: Final = 32
"""A configuration may have at most this many levels; the deepest section has four."""
_BEYOND: Final = 2**63
"""Numbers of configurations are smaller; Python itself reads any number of digits."""
_PLAIN: Final = ("null", "bool", "int", "float", "str", "seq", "map")
_TAGS: Final = frozenset(f"tag:yaml.org,2002:{kind}" for kind in _PLAIN)
_FLOAT: Final = re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
_OF_PYTHON: Final = (ValueError, ArithmeticError, LookupError, AttributeError)


class _Loader(yaml.SafeLoader):
    """Reads plain data only; 1e-5 is a number as in YAML 1.2, where PyYAML would read a text."""

    _depth = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """Count levels, and refuse aliases."""
        # PyYAML's stubs do not declare it.
        event = cast(Any, self).peek_event()
        if self.check_event(yaml.AliasEvent):
            raise ConstructorError(None, None, "an alias is not allowed", event.start_mark)
        if self._depth > DEEPEST:
            problem = f"it is nested more than {DEEPEST} levels deep"
            raise ConstructorError(None, None, problem, event.start_mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        """Refuse a node that is not plain data, or whose text does not fit its tag."""
        _require_plain(node)
        try:
            found = super().construct_object(node, deep)
            if isinstance(found, int) and abs(found) >= _BEYOND:
                raise OverflowError
            return found
        except _OF_PYTHON as error:
            text = str(node.value)[:40] if isinstance(node, ScalarNode) else ""
            kind = node.tag.rpartition(":")[2]
            problem = f"{text!r} cannot be read as {kind}"
            raise ConstructorError(None, None, problem, node.start_mark) from error

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a key that is given twice; PyYAML would take the last one."""
        # A tag may name another kind than the node has.
        if not isinstance(node, MappingNode):
            raise ConstructorError(None, None, "a value tagged !!map is no map", node.start_mark)
        seen = set()
        for key, _ in node.value:
            # PyYAML would merge by a key's tag before it constructs the key.
            _require_plain(key)
            # A section's keys are texts, so only texts are compared.
            if isinstance(key, ScalarNode) and key.value in seen:
                problem = f"the key {key.value!r} is given twice"
                raise ConstructorError(None, None, problem, key.start_mark)
            if isinstance(key, ScalarNode):
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _require_plain(node: Node) -> None:
    if node.tag not in _TAGS:
        problem = f"{node.tag!r} is not plain data"
        raise ConstructorError(None, None, problem, node.start_mark)


class _Dumper(yaml.SafeDumper):
    """Quotes a text that `_Loader` would read as a number, and writes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write a value in full each time."""
        return True


for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))
# A date is a text, as no key takes a date; `<<` and `=` are keys like others.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag in _TAGS]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def read_yaml(text: str) -> Any:
    """Return a YAML document as plain data."""
    return deepcopy(_read(text))


# Every cell of a sweep reads the same files, at some milliseconds each.
@lru_cache(maxsize=128)
def _read(text: str) -> Any:
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader


def dump_yaml(tree: Mapping[str, Any]) -> str:
    """Return plain data as YAML; reading it back gives the same."""
    text: str = yaml.dump(dict(tree), Dumper=_Dumper, sort_keys=False)
    return text


def yaml_problem(error: Exception) -> str:
    """Return the problem on one line, with the number of its line."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None)
    if mark is None or not problem:
        return " ".join(str(error).split())
    context = getattr(error, "context", None)
    return " ".join(f"{context or ''} {problem}, line {mark.line + 1}".split())


PACKAGED_CONFIGS = Path(__file__).resolve().parents[2] / "configs"
_SENTENCE_END: Final = re.compile(r"\.\s+(?=[A-Z`])")


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The folders, methods and mechanisms with which a configuration is read.

    Attributes:
        presets: Folder of the presets of this package's methods.
        registry: Finds the presets of the user's own methods.
        references: Folder of the settings of published runs, for tables of papers.
        as_published: Whether files are read with these settings.
    """

    configs: Path = PACKAGED_CONFIGS
    presets: Path = PACKAGED_CONFIGS / "methods"
    registry: Registry = field(default_factory=Registry)
    mechanisms: Mechanisms = KNOWN
    references: Path = PACKAGED_CONFIGS / "references"
    as_published: bool = False

    @classmethod
    def of(cls, plugins: Plugins, *, as_published: bool = False) -> Self:
        """Return the usual sources with these plug-ins; see `as_published`."""
        registry, mechanisms = Registry(plugins=plugins), Mechanisms(KNOWN.all, plugins)
        return cls(registry=registry, mechanisms=mechanisms, as_published=as_published)


def packaged_names(sources: Sources) -> Iterator[str]:
    """Yield the name of every packaged configuration, without presets and published settings."""
    parts = (sources.presets, sources.references)
    for path in sorted(sources.configs.rglob("*.yaml")):
        if not any(map(path.is_relative_to, parts)):
            yield path.relative_to(sources.configs).with_suffix("").as_posix()


def packaged_titles(sources: Sources) -> dict[str, str]:
    """Return the first sentence of every packaged configuration, by name."""
    titles = {}
    for name in packaged_names(sources):
        lines = (sources.configs / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
        comment = takewhile(lambda line: line.startswith("#"), lines)
        text = " ".join(line.removeprefix("#").strip() for line in comment)
        titles[name] = _SENTENCE_END.split(text, maxsplit=1)[0].removesuffix(".")
    return titles


def packaged_file(name: str | Path, sources: Sources) -> Path | None:
    """Return the file of a packaged configuration, or None if the name is unknown."""
    # A name must stay below `configs/`: an absolute path or `..` would leave it.
    if not is_below(Path(name)):
        return None
    path = sources.configs / f"{name}.yaml"
    return path if is_file(path) else None


def is_below(path: Path) -> bool:
    """Whether a path stays below the folder that it is relative to."""
    return not path.is_absolute() and ".." not in path.parts


def is_file(path: Path) -> bool:
    """Whether there is such a file; a path that is too long is not a file."""
    try:
        return path.is_file()
    except OSError:
        return False


def what_is_packaged(sources: Sources) -> str:
    """Return the packaged names that fit into a sentence."""
    names = ", ".join(name for name in packaged_names(sources) if "/" not in name)
    return f"{names}, or a table of a paper such as papers/pfedmoap/table-1-flowers102"


def find_config(path: Path, sources: Sources, others: Iterable[str] = ()) -> Path:
    """Return the file that a user means by a path or a packaged name; the caller takes `others`."""
    if is_file(path):
        return path
    packaged = packaged_file(path, sources)
    if packaged is None:
        hint = nearest(path, (*packaged_names(sources), *others))
        raise ConfigError(
            f"CONFIG: {str(path)!r} is no file{hint}; valid: a path to a YAML file, or a packaged "
            f"configuration ({what_is_packaged(sources)})"
        )
    return packaged


def read_mapping(path: Path) -> dict[str, Any]:
    """Return a file of keys and values as plain data."""
    try:
        tree = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = yaml_problem(error)
        raise ConfigError(
            f"CONFIG: {str(path)!r} is not readable YAML: {reason}; "
            "valid: sections with keys, in UTF-8"
        ) from error
    if not isinstance(tree, dict):
        raise ConfigError(f"CONFIG: {str(path)!r} holds no mapping; valid: sections with keys")
    return tree


def read_preset(name: Any, sources: Sources) -> dict[str, Any]:
    """Return the preset of a method: the section that its name alone stands for."""
    objects = sources.registry.plugins.objects
    if any(known.name == name and known.kind == "method" for known in objects):
        # An object of the program has its defaults in its own `Config`.
        return {"name": name}
    path: Path | None = None
    if isinstance(name, str) and "/" not in name:
        path = sources.presets / f"{name}.yaml"
        if not is_file(path):
            path = sources.registry.preset(name)
            if path is not None and not is_file(path):
                raise ConfigError(
                    f"method.name: {name!r} has no preset; valid is one in {str(path)!r}"
                )
    if path is None:
        known = {each.stem for each in sources.presets.glob("*.yaml")}
        valid = sorted(known | set(sources.registry.available()))
        raise ConfigError(unknown("method.name", name, valid))
    return read_mapping(path)
