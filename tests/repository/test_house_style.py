"""The countable part of the house style, over the four packages."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repository._source import ROOT, functions, parse, python_files

LONGEST_FILE = 900
LONGEST_BODY = 80
MOST_ARGUMENTS = 4
COMMANDS = ROOT / "platform" / "cli" / "app.py"
"""Arguments of its functions are the commands' options, which users give by name."""
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
SUITE = ROOT / "platform" / "contract"
"""Tests that ship: pytest is built on `assert`, and there it is the only way to say what holds."""
FORBIDDEN_CALLS = {"print", "eval", "exec", "breakpoint"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}


def forbidden(node: ast.AST) -> str | None:
    """What is wrong with one node of a syntax tree, if anything."""
    match node:
        case ast.Assert():
            return "assert (raise an error of the package)"
        case ast.Global():
            return "global (pass the value)"
        case ast.ExceptHandler(type=None):
            return "bare except (name the error)"
        case ast.Call(func=ast.Name(id=name)) if name in FORBIDDEN_CALLS:
            return f"{name}()"
        case ast.Import(names=names) if {n.name.split(".")[0] for n in names} & FORBIDDEN_MODULES:
            return "an import that unpickles"
        case ast.ImportFrom(module=str(module)) if module.split(".")[0] in FORBIDDEN_MODULES:
            return "an import that unpickles"
        case _:
            return None


def offences(path: Path) -> list[str]:
    """One line for each forbidden construct in a file."""
    return [
        f"{path}:{getattr(node, 'lineno', 0)}: {what}"
        for node in ast.walk(parse(path))
        if (what := forbidden(node)) and not (isinstance(node, ast.Assert) and path.parent == SUITE)
    ]


def body_length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function's body, without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def positional(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many arguments may be given by their place, `self` and `cls` not counted."""
    arguments = [*function.args.posonlyargs, *function.args.args]
    return len([one for one in arguments if one.arg not in {"self", "cls"}])


def against_the_style(path: Path) -> Iterator[str]:
    """One line for each way in which a file leaves the house style."""
    tree = parse(path)
    yield from offences(path)
    if (lines := len(path.read_text("utf-8").splitlines())) > LONGEST_FILE:
        yield f"{path} has {lines} lines"
    if path.stem in VAGUE_NAMES:
        yield f"{path} is vaguely named"
    if tree.body and not ast.get_docstring(tree):
        yield f"{path} has no docstring"
    for function in functions(tree):
        where = f"{path}:{function.lineno} {function.name}"
        if (length := body_length(function)) > LONGEST_BODY:
            yield f"{where} has a body of {length} lines"
        if path != COMMANDS and (count := positional(function)) > MOST_ARGUMENTS:
            yield f"{where} takes {count} arguments by their place"


def test_every_file_keeps_to_the_house_style() -> None:
    files = python_files()
    assert len(files) > 100
    assert [line for path in files for line in against_the_style(path)] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("long.py", '"""One."""\n' + "x = 1\n" * LONGEST_FILE),
        ("utils.py", '"""One."""\n'),
        ("bare.py", "x = 1\n"),
        ("body.py", '"""One."""\n\n\ndef f():\n' + "    x = 1\n" * (LONGEST_BODY + 1)),
        ("many.py", '"""One."""\n\n\ndef f(a, b, c, d, e):\n    return a\n'),
    ],
)
def test_a_file_that_leaves_the_house_style_is_named(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    (line,) = against_the_style(path)
    assert name in line


@pytest.mark.parametrize(
    "line",
    [
        "assert x",
        "print(x)",
        "def f():\n    global x",
        "import pickle",
        "from pickle import loads",
        "import os, cloudpickle.compat",
        "eval('x')",
        "try:\n    x\nexcept:\n    x",
    ],
)
def test_an_offence_is_found(tmp_path, line):
    path = tmp_path / "one.py"
    path.write_text(f"{line}\n")
    assert len(offences(path)) == 1


def test_only_asserts_are_allowed_and_only_in_the_suite_that_ships():
    asserting = {path.parent for path in python_files() if has_assert(path)}
    assert asserting == {SUITE}
    assert all(offences(path) == [] for path in SUITE.glob("*.py"))


def has_assert(path: Path) -> bool:
    return any(isinstance(node, ast.Assert) for node in ast.walk(parse(path)))


def test_what_only_looks_like_an_offence_passes(tmp_path):
    path = tmp_path / "one.py"
    path.write_text("console.print(x)\nmodel.eval()\ntry:\n    x\nexcept OSError:\n    x\n")
    assert offences(path) == []


def test_body_length_leaves_the_docstring_out():
    source = 'def f():\n    """One.\n\n    Two.\n    """\n    x = 1\n    return x\n'
    (function,) = functions(ast.parse(source))
    assert body_length(function) == 2
