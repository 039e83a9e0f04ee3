"""Reading the repository's own source, for the tests in this folder."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("methods", "platform", "privacy", "sotto", "storage")


def python_files(root: Path = ROOT) -> list[Path]:
    """Every Python file of the packages, sorted."""
    return sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))


@functools.cache
def parse(path: Path) -> ast.Module:
    """The syntax tree of one file."""
    return ast.parse(path.read_text("utf-8"), filename=str(path))


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of the syntax tree of one file."""
    return tuple(ast.walk(parse(path)))


def module_name(path: Path, root: Path = ROOT) -> str:
    """The dotted name under which a file is imported."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
