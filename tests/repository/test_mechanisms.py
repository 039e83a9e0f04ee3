"""Nothing asks what class a mechanism has: what follows from one is read from what it declares."""

from __future__ import annotations

import ast

import pytest

import privacy
from privacy import ClientMechanism
from tests.repository._source import ROOT, parse, python_files

PACKAGES = ("platform", "privacy")
CLASSES = {
    name
    for name in privacy.__all__
    if isinstance(getattr(privacy, name), type) and hasattr(getattr(privacy, name), "protected")
} - {ClientMechanism.__name__}


def names_in(node: ast.AST) -> set[str]:
    """Every name and attribute within an expression."""
    found = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return found | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def questions(tree: ast.AST, classes: set[str]) -> list[int]:
    """The lines on which code asks whether something is of one of these classes."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kinds]):
                asked = names_in(kinds)
            case ast.Compare(left=left, comparators=others):
                # `type(x) is C`, written either way round.
                sides = [left, *others]
                is_type = any(
                    isinstance(s, ast.Call) and names_in(s.func) == {"type"} for s in sides
                )
                asked = set().union(*map(names_in, sides)) if is_type else set()
            case ast.MatchClass(cls=kind):
                asked = names_in(kind)
            case _:
                continue
        if asked & classes:
            found.append(node.lineno)
    return found


def test_these_are_the_mechanisms() -> None:
    expected = {"CentralNoise", "DistributedNoise", "IntegerUploadNoise", "UploadNoise"}
    assert expected | {"DpSgd", "NoProtection"} == CLASSES


@pytest.mark.parametrize("package", PACKAGES)
def test_no_code_asks_for_the_class_of_a_mechanism(package: str) -> None:
    asking = [
        f"{path}:{line}"
        for path in python_files()
        if path.is_relative_to(ROOT / package)
        for line in questions(parse(path), CLASSES)
    ]
    assert asking == []


@pytest.mark.parametrize(
    "code",
    [
        "isinstance(x, DistributedNoise)",
        "isinstance(x, (int, privacy.DpSgd))",
        "isinstance(x, UploadNoise | None)",
        "issubclass(kind, CentralNoise)",
        "type(x) is NoProtection",
        "IntegerUploadNoise is type(x)",
        "match x:\n    case UploadNoise(): pass",
        "match x:\n    case privacy.CentralNoise(scale=1.0): pass",
    ],
)
def test_each_way_of_asking_is_seen(code: str) -> None:
    assert len(questions(ast.parse(code), CLASSES)) == 1


@pytest.mark.parametrize("code", ["isinstance(x, Quantiser)", "UploadNoise(1.0, 2.0)", "type(x)"])
def test_other_code_is_not(code: str) -> None:
    assert questions(ast.parse(code), CLASSES) == []
