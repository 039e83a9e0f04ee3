"""Build the pages of the public interface from docstrings and signatures.

The site describes `sotto`, the modules that an author of a method, a mechanism or a transport
imports, and those that return results. All other modules are internal and have no page.

Sources are read and not imported, because `platform` is also the name of a standard module. A
package has one page and each of its modules one part of it. Sphinx' directives for Python make all
names searchable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import griffe
from griffe import (
    AliasResolutionError,
    Attribute,
    Class,
    Docstring,
    DocstringElement,
    DocstringSection,
    Expr,
    ExprName,
    Function,
    Module,
    Parameter,
    ParameterKind,
)

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("methods", "platform", "privacy", "sotto", "storage")
PUBLIC = (
    "sotto",
    "methods.interface",
    "methods.prompts",
    "methods.networks",
    "methods.clip",
    "platform.mechanisms",
    "platform.results",
    "platform.data.catalogue",
    "platform.data.dataset",
    "platform.wire.transport",
    "privacy.mechanisms",
    "privacy.randomness",
)
"""Packages and modules that have pages."""
FENCE = re.compile(r"(`+)")
CODE = re.compile(r"(`+[^`]*`+)")
ANGLE = re.compile(r"<(?=[a-zA-Z/!])")


def pages(root: Path = ROOT) -> dict[str, str]:
    """Return the text of every page by its name below `api/`.

    Raises:
        KeyError: If a module of `PUBLIC` does not exist.
    """
    packages = {each.name: each for each in load(root)}
    chosen = [_module(packages, name) for name in PUBLIC]
    found = {"index.md": _index(chosen)}
    for module in chosen:
        found |= {f"{each.path}.md": _page(each) for each in _folders(module)}
    return found


def load(root: Path) -> list[Module]:
    """Return the packages as their sources define them."""
    loader = griffe.GriffeLoader(search_paths=[str(root)], docstring_parser="google")
    loaded = [loader.load(name) for name in PACKAGES]
    return [each for each in loaded if isinstance(each, Module)]


def _module(packages: Mapping[str, Module], name: str) -> Module:
    package, *parts = name.split(".")
    found = packages[package]
    for part in parts:
        found = found.modules[part]
    return found


def _index(modules: Sequence[Module]) -> str:
    rows = "".join(f"- [`{m.path}`]({m.path}.md): {_first_line(m)}\n" for m in modules)
    words = (
        "These modules are for authors of methods, mechanisms, data loaders and transports, and "
        "for programs that read results. Other modules may change without notice."
    )
    return f"# Interface\n\n{words}\n\n{rows}\n{_toctree(m.path for m in modules)}"


def _first_line(module: Module) -> str:
    return module.docstring.value.splitlines()[0] if module.docstring else ""


def _toctree(names: Iterator[str]) -> str:
    listed = "".join(f"{name}\n" for name in names)
    return f"```{{toctree}}\n:hidden:\n\n{listed}```\n" if listed else ""


def _folders(package: Module) -> Iterator[Module]:
    yield package
    for module in _modules(package):
        if module.is_init_module:
            yield from _folders(module)


def _modules(package: Module) -> list[Module]:
    """Return a package's public modules, sorted."""
    found = [each for _, each in sorted(package.members.items()) if isinstance(each, Module)]
    return [each for each in found if not each.name.startswith("_")]


def _page(package: Module) -> str:
    modules = _modules(package)
    folders = [each for each in modules if each.is_init_module]
    files = [each for each in modules if not each.is_init_module]
    below = "".join(f"- [`{f.path}`]({f.path}.md): {_first_line(f)}\n" for f in folders)
    parts = [
        f"# `{package.path}`\n",
        *_module_body(package),
        f"{below}\n{_toctree(each.path for each in folders)}",
        *(_part(each) for each in files),
    ]
    return "\n".join(parts)


def _part(module: Module) -> str:
    return "\n".join((f"## `{module.path}`\n", *_module_body(module)))


def _module_body(module: Module) -> Iterator[str]:
    yield directive("py:module", module.path, "")
    if module.docstring:
        yield from _sections(module.docstring)
    yield from _exported(module)
    for name, member in module.members.items():
        if not member.is_alias and not name.startswith("_"):
            yield from _object(member)


def _exported(module: Module) -> Iterator[str]:
    """Yield links to the names that a package exports from its modules."""
    names = [str(name) for name in module.exports or ()]
    targets = {name: module.members[name] for name in names if name in module.members}
    links = [
        f"{{py:obj}}`{name} <{each.final_target.path}>`"
        for name, each in targets.items()
        if each.is_alias
    ]
    if links:
        yield f"Exports {', '.join(links)}.\n"


def _object(member: object) -> Iterator[str]:
    match member:
        case Class():
            yield _class(member)
        case Function():
            yield _function(member)
        case Attribute() if member.docstring:
            yield _attribute(member)


def _class(found: Class) -> str:
    bases = ", ".join(map(str, found.bases))
    body = [f"Bases: `{bases}`\n"] if bases else []
    described = set[str]()
    if found.docstring:
        described = _attributes_of(found.docstring)
        body += _sections(found.docstring)
    for name, member in found.members.items():
        if name.startswith("_") or member.is_alias or name in described:
            continue
        body += _object(member)
    return directive("py:class", _signature(found), "\n".join(body))


def _attributes_of(docstring: Docstring) -> set[str]:
    """Return the attributes that the docstring of a class describes."""
    found = [section.value for section in docstring.parsed if section.kind.value == "attributes"]
    return {each.name for section in found for each in section}


def _signature(found: Class) -> str:
    """Return the name of a class with the parameters of its own `__init__`, if it has one."""
    made = found.members.get("__init__")
    if not isinstance(made, Function):
        return found.name
    return f"{found.name}({_parameters(made)})"


def _function(found: Function) -> str:
    kind = "py:method" if isinstance(found.parent, Class) else "py:function"
    result = f" -> {typed(found.returns)}" if found.returns is not None else ""
    options = [
        f":{label}:\n"
        for label in ("async", "classmethod", "staticmethod")
        if label in found.labels
    ]
    body = "\n".join(_sections(found.docstring)) if found.docstring else ""
    signature = f"{found.name}({_parameters(found)}){result}"
    return directive(kind, signature, body, "".join(options))


def _parameters(found: Function) -> str:
    """Return parameters as they are written, without `self`."""
    shown, before = [], None
    for parameter in found.parameters:
        kind = parameter.kind
        if before is ParameterKind.positional_only is not kind:
            shown.append("/")
        if kind is ParameterKind.keyword_only and before not in (
            ParameterKind.keyword_only,
            ParameterKind.var_positional,
        ):
            shown.append("*")
        if before is not None or not _is_bound(found):
            shown.append(_parameter(parameter))
        before = kind
    return ", ".join(shown)


def _is_bound(found: Function) -> bool:
    """Whether the first parameter is the object or the class."""
    return isinstance(found.parent, Class) and "staticmethod" not in found.labels


def _parameter(parameter: Parameter) -> str:
    kind = parameter.kind
    stars = {ParameterKind.var_positional: "*", ParameterKind.var_keyword: "**"}.get(kind, "")
    annotated = f": {typed(parameter.annotation)}" if parameter.annotation is not None else ""
    default = "" if stars or parameter.default is None else f" = {parameter.default}"
    return f"{stars}{parameter.name}{annotated}{default}"


def typed(annotation: Expr | str) -> str:
    """Return an annotation in which each name has its full path."""
    if isinstance(annotation, str):
        return annotation
    return "".join(
        each if isinstance(each, str) else _whole(each) for each in annotation.iterate(flat=True)
    )


def _whole(name: Expr) -> str:
    """Return the full path of a name; a name of ours leads to its definition."""
    path = name.canonical_path
    if path.partition(".")[0] not in PACKAGES or not isinstance(name, ExprName):
        return path
    try:
        return str(_root(name).modules_collection[path].canonical_path)
    except (KeyError, AliasResolutionError):
        return path


def _root(name: ExprName) -> Module:
    """Return the module where a name is written."""
    parent = name.parent
    while isinstance(parent, ExprName):
        parent = parent.parent
    if not isinstance(parent, Module):
        parent = parent.module
    return parent


def _attribute(found: Attribute) -> str:
    kind = "py:attribute" if isinstance(found.parent, Class) else "py:data"
    if "property" in found.labels:
        kind = "py:property"
    options = f":type: {typed(found.annotation)}\n" if found.annotation is not None else ""
    body = "\n".join(_sections(found.docstring)) if found.docstring else ""
    return directive(kind, found.name, body, options)


def directive(kind: str, argument: str, body: str, options: str = "") -> str:
    """Return a directive with a fence longer than any fence in its body."""
    longest = max((len(each) for each in FENCE.findall(body)), default=2)
    fence = "`" * max(3, longest + 1)
    one_line = " ".join(argument.split())
    return f"{fence}{{{kind}}} {one_line}\n{options}\n{body.rstrip()}\n{fence}\n"


def _sections(docstring: Docstring) -> Iterator[str]:
    for section in docstring.parsed:
        yield _section(section)


def _section(section: DocstringSection) -> str:
    kind, value = section.kind.value, section.value
    if kind == "text":
        return f"{prose(value)}\n"
    if kind == "admonition":
        return f"**{value.kind.capitalize()}**: {prose(value.contents)}\n"
    if kind == "examples":
        return "".join(_example(each.value, text) for each, text in value)
    title = {"parameters": "Arguments", "other parameters": "Options"}.get(kind, kind.capitalize())
    named = {"raises": _raised, "returns": _nothing, "yields": _nothing}.get(kind, _named)
    rows = "".join(f"- {named(each)}{_hanging(each.description)}\n" for each in value)
    return f"**{title}**\n\n{rows}"


def _example(kind: str, text: str) -> str:
    return f"```python\n{text}\n```\n" if kind == "examples" else f"{prose(text)}\n"


def _raised(item: DocstringElement) -> str:
    return f"`{item.annotation}`: "


def _nothing(item: DocstringElement) -> str:
    """Return nothing, because the signature shows the type."""
    return ""


def _named(item: DocstringElement) -> str:
    name = getattr(item, "name", "")
    return f"`{name}`: " if item.annotation is None else f"`{name}` (`{item.annotation}`): "


def _hanging(description: str) -> str:
    return prose(description).replace("\n", "\n  ")


def prose(text: str) -> str:
    """Return the text of a docstring with `<` escaped where it could start HTML."""
    pieces = CODE.split(text)
    pieces[::2] = [ANGLE.sub("&lt;", piece) for piece in pieces[::2]]
    return "".join(pieces)
