"""The countable part of the house style, over the four packages, beyond what ruff checks."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import privacy
from tests.repository._source import ROOT, module_name, nodes, python_files
from tests.repository.conftest import run

pytestmark = pytest.mark.lint

LONGEST_FILE = 900
LONGEST_BODY = 80
MOST_ARGUMENTS = 4
MOST_FIELDS, MOST_BY_POSITION = 13, 4
COMMANDS = ROOT / "platform" / "cli" / "app.py"
"""Arguments of its functions are the commands' options, which users give by name."""
STORED = {"Record", "Receipt"}
"""A row of a table that sweeps write, and what is signed and kept: as wide as they are."""
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
FORBIDDEN_CALLS = {"print", "breakpoint"}
JUDGED = (ast.Call, ast.ClassDef, ast.Compare, ast.Global, ast.MatchClass)
"""Nodes that can leave the style."""
HEAVY = {"open_clip", "opacus", "pandas", "sklearn", "torch", "torchvision"}
MECHANISMS = {
    name
    for name in privacy.__all__
    if isinstance(getattr(privacy, name), type) and hasattr(getattr(privacy, name), "protected")
} - {"ClientMechanism"}
"""What follows from a mechanism's class is read from what it declares, so nothing asks for it."""


def body_length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function's body, without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def positional(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many arguments may be given by their place, `self` and `cls` not counted."""
    arguments = [*function.args.posonlyargs, *function.args.args]
    return len([one for one in arguments if one.arg not in {"self", "cls"}])


def names_in(node: ast.AST) -> set[str]:
    """Every name and attribute within an expression."""
    found = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return found | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def asked_classes(node: ast.AST) -> set[str]:
    """The classes of which a node asks whether something is of one of them."""
    match node:
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kinds]):
            return names_in(kinds)
        case ast.Compare(left=left, comparators=others):
            # `type(x) is C`, written either way round.
            sides = [left, *others]
            calls = [names_in(side.func) for side in sides if isinstance(side, ast.Call)]
            return set().union(*map(names_in, sides)) if {"type"} in calls else set()
        case ast.MatchClass(cls=kind):
            return names_in(kind)
    return set()


def wide_dataclass(node: ast.AST) -> str | None:
    """What is wrong with a dataclass: too many fields, or too many that have a position."""
    if not isinstance(node, ast.ClassDef) or node.name in STORED:
        return None
    made = [ast.unparse(one) for one in node.decorator_list if "dataclass" in names_in(one)]
    if not made:
        return None
    fields = [ast.unparse(part) for part in node.body if isinstance(part, ast.AnnAssign)]
    by_position = [each for each in fields if "kw_only=True" not in each + made[0]]
    if len(fields) > MOST_FIELDS:
        return f"a dataclass of {len(fields)} fields"
    return "fields with a position" if len(by_position) > MOST_BY_POSITION else None


def forbidden(node: ast.AST) -> str | None:
    """What is wrong with one node of a syntax tree, if anything."""
    match node:
        case ast.Global():
            return "global (pass the value)"
        case ast.Call(func=ast.Name(id=name)) if name in FORBIDDEN_CALLS:
            return f"{name}()"
    return None


def against_the_style(path: Path) -> Iterator[str]:
    """One line for each way in which a file leaves the house style."""
    package = path.relative_to(ROOT).parts[0] if path.is_relative_to(ROOT) else "platform"
    text = path.read_text("utf-8")
    may_ask = package != "methods" and any(name in text for name in MECHANISMS)
    for node in nodes(path):
        if not isinstance(node, JUDGED):
            continue
        found = [forbidden(node)]
        if package == "platform":
            found.append(wide_dataclass(node))
        if may_ask and asked_classes(node) & MECHANISMS:
            found.append("asks for the class of a mechanism")
        yield from (f"{path}:{getattr(node, 'lineno', 0)}: {what}" for what in found if what)
    if (lines := len(text.splitlines())) > LONGEST_FILE:
        yield f"{path} has {lines} lines"
    if path.stem in VAGUE_NAMES:
        yield f"{path} is vaguely named"
    for node in nodes(path):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        where = f"{path}:{node.lineno} {node.name}"
        if (length := body_length(node)) > LONGEST_BODY:
            yield f"{where} has a body of {length} lines"
        if path != COMMANDS and (count := positional(node)) > MOST_ARGUMENTS:
            yield f"{where} takes {count} arguments by their place"


def test_every_file_keeps_to_the_house_style() -> None:
    files = python_files()
    assert len(files) > 100
    assert [line for path in files for line in against_the_style(path)] == []


FIELDS = "".join(f"    f{number}: int\n" for number in range(5))


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\n" * (LONGEST_FILE + 1),
        "def f():\n" + "    x = 1\n" * (LONGEST_BODY + 1),
        "def f(a, b, c, d, e):\n    return a\n",
        "print(x)",
        "def f():\n    global x",
        "isinstance(x, (int, privacy.DpSgd))",
        "IntegerUploadNoise is type(x)",
        "match x:\n    case privacy.CentralNoise(scale=1.0): pass",
        f"@dataclass(frozen=True)\nclass One:\n{FIELDS}",
        f"@dataclasses.dataclass(kw_only=True)\nclass One:\n{FIELDS * 3}",
    ],
)
def test_a_file_that_leaves_the_house_style_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "one.py"
    path.write_text(text)
    (line,) = against_the_style(path)
    assert "one.py" in line


def test_what_only_looks_like_an_offence_passes(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text(
        'console.print(x)\nisinstance(x, Quantiser)\nUploadNoise(1.0)\ndef f():\n    """One.\n'
        + "\n" * LONGEST_BODY
        + f'    """\n@dataclass(kw_only=True)\nclass One:\n{FIELDS}'
    )
    assert list(against_the_style(path)) == []


def test_every_module_imports():
    """Alembic runs its migrations itself; `__main__` modules are commands."""
    names = [
        module_name(path)
        for path in python_files()
        if "migrations" not in path.parts and path.stem != "__main__"
    ]
    assert [name for name in names if importlib.import_module(name).__name__ != name] == []


@pytest.mark.slow
@pytest.mark.parametrize("package", ["methods", "platform", "privacy", "storage"])
def test_importing_a_package_loads_nothing_heavy(package):
    program = f"import sys, {package}; print(*sys.modules)"
    loaded = set(run(sys.executable, "-c", program, cwd=ROOT).split())
    assert loaded & HEAVY == set()
