"""YAML as configurations use it: plain data, each key once, no deeper than anybody would write.

PyYAML takes the last of two equal keys in silence, turns dates into objects, follows aliases to any
size, and lets errors of Python's own through. Here all of that is one `yaml.YAMLError`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

import yaml
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node, ScalarNode

DEEPEST: Final = 32
"""Levels of a configuration; the deepest section has four."""
_BEYOND: Final = 2**63
"""No number of a configuration is as large, and hexadecimal digits have no limit in Python."""
_PLAIN: Final = ("null", "bool", "int", "float", "str", "seq", "map")
_TAGS: Final = frozenset(f"tag:yaml.org,2002:{kind}" for kind in _PLAIN)
_FLOAT: Final = re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
_OF_PYTHON: Final = (ValueError, ArithmeticError, LookupError, AttributeError)


class _Loader(yaml.SafeLoader):
    """Plain data only, and 1e-5 is a number as in YAML 1.2; PyYAML would make it a text."""

    _depth = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """Count levels; names no node that another node is."""
        # Of no type in PyYAML's stubs.
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
        """Refuse what is no plain data, and what is none of what it says it is."""
        _require_plain(node)
        try:
            found = super().construct_object(node, deep)
            if isinstance(found, int) and abs(found) >= _BEYOND:
                raise OverflowError
            return found
        except _OF_PYTHON as error:
            text = str(node.value)[:40] if isinstance(node, ScalarNode) else ""
            kind = node.tag.rpartition(":")[2]
            problem = f"{text!r} is no {kind} that can be read"
            raise ConstructorError(None, None, problem, node.start_mark) from error

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a key that is given twice, of which PyYAML takes the last."""
        # What a tag says of a node need not be what the node is.
        if not isinstance(node, MappingNode):
            raise ConstructorError(None, None, "what is tagged a map is none", node.start_mark)
        seen = set()
        for key, _ in node.value:
            # PyYAML would merge by a key's tag before it constructs the key.
            _require_plain(key)
            # Only texts can be equal here: a section's keys are nothing else.
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
    """Quotes a text that `_Loader` would take for a number; writes everything out."""

    def ignore_aliases(self, data: Any) -> bool:
        """Say that there are none to keep."""
        return True


for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))
# A date is a text, as no key takes a date; `<<` and `=` are keys like others.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag in _TAGS]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def read_yaml(text: str) -> Any:
    """Return a YAML document as plain data.

    Raises:
        yaml.YAMLError: If it does not parse, asks for anything but plain data, gives a key twice,
            or is nested too deeply.
    """
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader


def dump_yaml(tree: Mapping[str, Any]) -> str:
    """Return plain data as YAML; reading it back gives the same."""
    text: str = yaml.dump(dict(tree), Dumper=_Dumper, sort_keys=False)
    return text


def yaml_problem(error: Exception) -> str:
    """Return what is wrong, on one line, with the line where it is."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None)
    if mark is None or not problem:
        return " ".join(str(error).split())
    context = getattr(error, "context", None)
    return " ".join(f"{context or ''} {problem}, line {mark.line + 1}".split())
