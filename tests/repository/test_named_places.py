"""Paths and dotted names in documents and docstrings lead to what exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest

from tests.repository._source import ROOT
from tests.repository.test_docs import name_of, repository_files

PACKAGES = ("methods", "platform", "privacy", "storage")
FOLDERS = (*PACKAGES, "benchmarks", "configs", "docs", "tests")
PATH = re.compile(rf"(?<![\w./-])((?:{'|'.join(FOLDERS)})/(?:[\w.-]+/)*[\w.-]*\w)(?![\w/]*[*{{<])")
MODULE = re.compile(rf"(?<![\w./-])((?:{'|'.join(PACKAGES)})(?:\.\w+)+)\b(?!/)")
# Sections of a configuration have the names of two packages.
KEY = re.compile(r"^(?:privacy|storage)\.\w+$")
# What a walk-through asks to write is not there yet.
ADDED = re.compile(r"^\d+\. Write `([\w./]+)`", re.MULTILINE)
# Decisions tell of their time; the change log of all of them.
TELL_OF_THE_PAST = {"CHANGELOG.md"}


def named_paths(text: str) -> Iterator[str]:
    """Yield paths that do not exist and that the text does not ask to write."""
    added = set(ADDED.findall(text))
    for name in PATH.findall(text):
        known = (ROOT / name).exists() or any((ROOT / name).parent.glob(f"{Path(name).name}.*"))
        if name not in added and not known:
            yield name


def named_modules(text: str) -> Iterator[str]:
    """Yield dotted names that are neither a module nor a name within one."""
    added = {name.removesuffix(".py").replace("/", ".") for name in ADDED.findall(text)}
    for name in MODULE.findall(text):
        if name.endswith((".py", ".md")) or KEY.match(name) or name in added:
            continue
        try:
            resolve_name(name)
        except (ImportError, AttributeError):
            yield name


def documents() -> list[Path]:
    return [
        path
        for path in repository_files()
        if path.suffix == ".md" and path.name not in TELL_OF_THE_PAST and path.parent.name != "adr"
    ]


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


@pytest.mark.parametrize("path", documents(), ids=name_of)
def test_what_a_document_names_is_there(path: Path) -> None:
    text = path.read_text("utf-8")
    assert [*named_paths(text), *named_modules(text)] == []


def test_paths_that_sources_name_are_there() -> None:
    found = [
        f"{name_of(path)}: {name}"
        for path in sources()
        for name in named_paths(path.read_text("utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see `platform/gone.py`", ["platform/gone.py"]),
        ("see platform/wire/gone/there.py.", ["platform/wire/gone/there.py"]),
        ("see `methods/_clip/tiny.py`", ["methods/_clip/tiny.py"]),
        ("see `platform/wire/codec.py`, `platform/wire` and platform/wire/messages", []),
        ("1. Write `platform/wire/mailbox.py`. Then `platform/wire/mailbox.py` is there.", []),
        ("a note, build/docs/gone.md and platform/data/loaders/*.py", []),
    ],
)
def test_a_path_that_leads_nowhere_is_found(text: str, expected: list[str]) -> None:
    assert list(named_paths(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`platform.gone.Thing`", ["platform.gone.Thing"]),
        ("python -m platform.gone.away", ["platform.gone.away"]),
        ("`platform.wire.codec.encode_frame` of `platform.wire`", []),
        ("`privacy.mechanism` is a key, `platform.system` is of the standard library", []),
        (
            "`privacy.gone.audit`, `platform.wire.codec.gone`",
            ["privacy.gone.audit", "platform.wire.codec.gone"],
        ),
    ],
)
def test_a_module_that_is_not_there_is_found(text: str, expected: list[str]) -> None:
    assert list(named_modules(text)) == expected
