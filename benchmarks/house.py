"""Count what a person has to read: files, lines, code, dataclasses, rooms, tests, words.

`python benchmarks/house.py` counts this repository. With paths it counts the Python files below
each path by the same rules, to compare with another project's checkout. A line of code holds a
token that is neither a comment nor part of a docstring.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("methods", "platform", "privacy", "sotto", "storage")
LAYOUT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT),
    *(tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER),
}
PINNED_WORDS = 4
"""A test pins a sentence if it compares with at least this many words in a row."""


@dataclass(frozen=True)
class Size:
    """The amount of Python.

    Attributes:
        files: Number of files.
        lines: All lines.
        code: Lines that hold code.
        dataclasses: Classes decorated as dataclasses.
    """

    files: int
    lines: int
    code: int
    dataclasses: int

    def __add__(self, other: Size) -> Size:
        """Return the size of both."""
        return Size(
            self.files + other.files,
            self.lines + other.lines,
            self.code + other.code,
            self.dataclasses + other.dataclasses,
        )


def python_below(path: Path) -> Iterator[Path]:
    """Yield every Python file below a folder, except those of environments and caches."""
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        hidden = (part.startswith(".") for part in file.relative_to(path).parts)
        if "build" not in file.parts and not any(hidden):
            yield file


def size_of(files: Iterable[Path]) -> Size:
    """Return the total size of all files."""
    return sum((_size_of(file) for file in files), Size(0, 0, 0, 0))


@cache
def _size_of(file: Path) -> Size:
    text = file.read_text("utf-8")
    tree = ast.parse(text)
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    marked = 0
    for node in ast.walk(tree):
        match node:
            # Docstrings, and the strings under attributes that serve as docstrings.
            case ast.Expr(value=ast.Constant(value=str())):
                code.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            case ast.ClassDef(decorator_list=marks):
                marked += any("dataclass" in ast.unparse(mark) for mark in marks)
    return Size(1, len(text.splitlines()), len(code), marked)


def used_once(files: Sequence[Path]) -> tuple[int, int]:
    """Return the number of private functions and classes, and of those that are named only once."""
    defined, named = 0, 0
    for file in files:
        tree = ast.parse(file.read_text("utf-8"))
        names = Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Name | ast.Attribute)
        )
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and re.match("_[a-z]", node.name):
                defined += 1
                named += names[node.name] == 1
    return defined, named


def pinned(files: Iterable[Path]) -> int:
    """Return the number of asserts in tests that compare with a string of several words."""
    found = 0
    for file in files:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            asks = isinstance(node, ast.Assert) or (
                isinstance(node, ast.keyword) and node.arg == "match"
            )
            if asks:
                texts = (
                    part.value
                    for part in ast.walk(node)
                    if isinstance(part, ast.Constant) and isinstance(part.value, str)
                )
                found += any(len(text.split()) >= PINNED_WORDS for text in texts)
    return found


def words(files: Iterable[Path]) -> int:
    """Return the number of words in the files."""
    return sum(len(file.read_text("utf-8").split()) for file in files)


def house() -> Iterator[tuple[str, object]]:
    """Yield every number about this repository, with its name."""
    sys.path.insert(0, str(ROOT))
    from tests.repository.test_rooms import FLOORS, arrows, climbing, within
    from tests.repository.test_satellites import core_files

    for package in PACKAGES:
        yield package, size_of(python_below(ROOT / package))
    packages = [file for package in PACKAGES for file in python_below(ROOT / package)]
    yield "packages", size_of(packages)
    yield "core", size_of(core_files(ROOT))
    for folder in sorted((ROOT / "platform").iterdir()):
        if folder.is_dir() and any(folder.glob("*.py")):
            yield f"platform/{folder.name}", size_of(python_below(folder))
    yield "tests", size_of(python_below(ROOT / "tests"))
    yield "benchmarks", size_of(python_below(ROOT / "benchmarks"))
    yield "private definitions, used once", used_once(packages)
    yield "rooms", len(set().union(*FLOORS))
    # The contract is a suite of tests that ships. It looks into every room, but no run uses it.
    yield "arrows", len({arrow for arrow in arrows(ROOT) if arrow[0] != "contract"})
    yield "climbing arrows", len(climbing(ROOT))
    yield "most arrows inside a room", within(ROOT).most_common(3)
    yield "asserts that pin a sentence", pinned(python_below(ROOT / "tests"))
    yield "words of README", words([ROOT / "README.md"])
    manual = [*(ROOT / "docs").glob("*.md")]
    apart = {"adr", "papers", "results"}
    reference = [p for p in (ROOT / "docs").glob("*/*.md") if p.parent.name not in apart]
    yield "words of the manual", words(manual)
    yield "words of the manual and of its reference pages", words([*manual, *reference])
    yield "ADRs", len(list((ROOT / "docs" / "adr").glob("0*.md")))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the numbers, one per line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, help="folders of other projects")
    asked = parser.parse_args(arguments).paths
    for name, value in ((str(path), size_of(python_below(path))) for path in asked):
        print(f"{name:32s} {value}")
    for name, value in house() if not asked else ():
        print(f"{name:32s} {value}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
