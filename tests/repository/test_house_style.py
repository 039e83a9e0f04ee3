"""The countable part of the house style, over the four packages."""

from __future__ import annotations

import ast
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


def name_of(path: Path) -> str:
    """The path of a file as a test's name."""
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", python_files(), ids=name_of)
def test_a_file_keeps_to_the_house_style(path):
    text = path.read_text("utf-8")
    assert offences(path) == []
    assert len(text.splitlines()) <= LONGEST_FILE
    assert path.stem not in VAGUE_NAMES
    too_long = {
        f"{path}:{function.lineno} {function.name}": body_length(function)
        for function in functions(parse(path))
        if body_length(function) > LONGEST_BODY
    }
    assert too_long == {}
    has_code = bool(parse(path).body)
    assert not has_code or ast.get_docstring(parse(path)), f"{path} has no docstring"


@pytest.mark.parametrize("path", [p for p in python_files() if p != COMMANDS], ids=name_of)
def test_arguments_beyond_the_fourth_are_named(path):
    many = {f.name: positional(f) for f in functions(parse(path)) if positional(f) > MOST_ARGUMENTS}
    assert many == {}


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
