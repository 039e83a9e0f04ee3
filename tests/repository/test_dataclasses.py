"""Dataclasses of the trunk are small, and named where they are made once they have many fields.

A type with more fields than nine is a bag: it is handed to whoever needs three of them. What the
user writes and what is stored are as wide as they are.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repository._source import ROOT, parse

MOST, MOST_BY_POSITION = 13, 4
STORED = {
    # A row of a table that sweeps write.
    "platform.sweeping.tidy.Record": "a stored row",
    # What is signed and kept for life.
    "platform.wire.receipt_messages.Receipt": "a stored document",
}


def dataclasses_of(path: Path, root: Path) -> Iterator[tuple[str, int, int]]:
    """Name, number of fields and how many of them have a position, of each dataclass of a file."""
    module = ".".join(path.relative_to(root).with_suffix("").parts)
    for node in ast.walk(parse(path)):
        if not isinstance(node, ast.ClassDef):
            continue
        made = [ast.unparse(d) for d in node.decorator_list if is_dataclass(d)]
        if made:
            fields = [ast.unparse(part) for part in node.body if isinstance(part, ast.AnnAssign)]
            named = [True for each in fields if "kw_only=True" in (each + made[0])]
            yield f"{module}.{node.name}", len(fields), len(fields) - len(named)


def is_dataclass(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)
    return name == "dataclass"


def offences(root: Path) -> dict[str, str]:
    """What is wrong with each dataclass under a root's `platform/`."""
    found: dict[str, str] = {}
    for path in sorted((root / "platform").rglob("*.py")):
        for name, fields, positional in dataclasses_of(path, root):
            if fields > MOST and name not in STORED:
                found[name] = f"it has {fields} fields; at most {MOST}"
            elif positional > MOST_BY_POSITION:
                found[name] = (
                    f"{positional} of its fields have a position; at most {MOST_BY_POSITION}"
                )
    return found


def test_dataclasses_are_small_and_named():
    assert offences(ROOT) == {}


@pytest.mark.parametrize(
    ("decorator", "fields", "is_one"),
    [
        ("@dataclass", 4, False),
        ("@dataclass(frozen=True)", 5, True),
        ("@dataclass(frozen=True, kw_only=True)", 13, False),
        ("@dataclass(kw_only=True)", 14, True),
        ("@dataclasses.dataclass(frozen=True)", 5, True),
        ("@final", 20, False),
    ],
)
def test_an_offence_is_found(tmp_path, decorator, fields, is_one):
    path = tmp_path / "platform" / "one.py"
    path.parent.mkdir()
    body = "\n".join(f"    f{i}: int" for i in range(fields))
    path.write_text(f"{decorator}\nclass One:\n{body}\n")
    assert bool(offences(tmp_path)) is is_one
