"""Mutants: small faults in central lines, drawn by a seed, each with the tests that find it.

    python -m tests._mutants draw --seed 15 --count 160     # writes mutants.yaml, without tests
    python -m tests._mutants assign --coverage .coverage    # names the tests that find each
    python -m tests._mutants survey --seed 16 --count 50 --coverage .coverage
                                                            # fresh ones: how many are found

`tests/repository/test_mutants.py` plays the kept ones. Play is in a copy of the checkout, in a
forked process, so that nothing of a fault can stay behind.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Self

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
KEPT = Path(__file__).with_name("mutants.yaml")
CENTRAL = (
    "methods/interface",
    "platform/agreement",
    "platform/disk",
    "platform/holder",
    "platform/mechanisms",
    "platform/parties",
    "platform/protection",
    "platform/rounds",
    "platform/wire",
    "privacy",
    "storage",
)
"""Folders whose lines carry the promises: design.md's core."""
LONGEST_TEXT = 160
TRIES = 60
"""How many of the tests that run a line are played, until one finds the fault in it."""
LIBRARIES = ("torch", "open_clip", "opacus", "scipy.stats", "sqlalchemy", "typer", "jsonschema")
OPTIONS = (
    *("-x", "-q", "--timeout=60", "-Wignore::pytest.PytestAssertRewriteWarning"),
    *"-p no:cacheprovider -p no:xdist -p no:cov".split(),
)
"""Of pytest; libraries that are loaded before it, and are plugins of it, are no error."""
LONGEST = 300.0
"""Seconds that a play may take; one that takes longer has found its fault."""
TOO_LONG = -1
COMPARED = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
COMPUTED = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*", ast.FloorDiv: "*"}


@dataclass(frozen=True)
class Mutant:
    """A fault, and the tests of which at least one fails by it.

    Attributes:
        file: Where the lines were when the fault was drawn. They are found elsewhere as well.
        function: Qualified name of the function that holds them.
        text: The statement, or the condition of one, as it is; white space counts as one space.
        becomes: The same with the fault.
        tests: Node ids of tests.
        equivalent: Why no test can find it, where none can.
    """

    file: str
    function: str
    text: str
    becomes: str
    tests: tuple[str, ...] = field(default=())
    equivalent: str = ""

    @property
    def name(self) -> str:
        """A short name, for a test's case."""
        return f"{self.file.removesuffix('.py').replace('/', '.')}.{self.function}"


def kept(path: Path = KEPT) -> list[Mutant]:
    """Returns the mutants on the list."""
    tree = yaml.safe_load(path.read_text("utf-8"))
    return [Mutant(**{**entry, "tests": tuple(entry.get("tests", ()))}) for entry in tree]


def keep(mutants: Sequence[Mutant], path: Path = KEPT) -> None:
    """Writes the list."""
    head = path.read_text("utf-8") if path.exists() else ""
    comment = "".join(line for line in head.splitlines(True) if line.startswith("#"))
    entries = [
        {key: list(v) if key == "tests" else v for key, v in asdict(mutant).items() if v}
        for mutant in mutants
    ]
    shown = yaml.safe_dump(entries, sort_keys=False, width=96, allow_unicode=True)
    path.write_text(comment + shown, "utf-8")


def found(mutant: Mutant, root: Path = ROOT) -> tuple[Path, int, int] | None:
    """Returns the file that holds a mutant's text, and where the text begins and ends in it.

    The text is looked for in the file where it was drawn, within the function of that name first;
    then in every file of the packages, where it may occur once only. None where it is gone.
    """
    pattern = re.compile(r"\s+".join(map(re.escape, mutant.text.split())))
    path = root / mutant.file
    if path.exists():
        source = path.read_text("utf-8")
        for start, end in _spans(source, mutant.function):
            places = list(pattern.finditer(source, start, end))
            if len(places) == 1:
                return path, *places[0].span()
    places = []
    for package in sorted({folder.partition("/")[0] for folder in CENTRAL}):
        for other in sorted((root / package).rglob("*.py")):
            spans = (match.span() for match in pattern.finditer(other.read_text("utf-8")))
            places += [(other, *span) for span in spans]
    return places[0] if len(places) == 1 else None


def _spans(source: str, function: str) -> Iterator[tuple[int, int]]:
    """Yields where each function of a qualified name begins and ends, in characters."""
    starts = [0]
    for line in source.splitlines(True):
        starts.append(starts[-1] + len(line))
    for name, node in _functions(ast.parse(source)):
        if name == function and node.end_lineno is not None:
            yield starts[node.lineno - 1], starts[node.end_lineno]


def _functions(
    tree: ast.AST, prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}{node.name}"
            if not isinstance(node, ast.ClassDef):
                yield name, node
            yield from _functions(node, f"{name}.")
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.For):
            yield from _functions(node, prefix)


def drawn(seed: int, count: int, root: Path = ROOT) -> list[Mutant]:
    """Draws mutants, at most one a function, so that long functions are not all of the list."""
    by_function: dict[tuple[str, str], list[Mutant]] = {}
    for folder in CENTRAL:
        for path in sorted((root / folder).rglob("*.py")):
            if "versions" in path.parts:
                continue
            for mutant in _possible(path, root):
                by_function.setdefault((mutant.file, mutant.function), []).append(mutant)
    generator = random.Random(seed)
    places = sorted(by_function)
    generator.shuffle(places)
    picked = (generator.choice(by_function[place]) for place in places)
    usable = (mutant for mutant in picked if _is_usable(mutant, root))
    return sorted(islice(usable, count), key=lambda mutant: (mutant.file, mutant.function))


def _is_usable(mutant: Mutant, root: Path) -> bool:
    """Whether the text is found again, and the file with the fault is still Python."""
    place = found(mutant, root)
    if place is None:
        return False
    path, start, end = place
    source = path.read_text("utf-8")
    try:
        ast.parse(source[:start] + mutant.becomes + source[end:])
    except SyntaxError:
        return False
    return True


def _possible(path: Path, root: Path) -> Iterator[Mutant]:
    """Yields every mutant of a file whose text is short, and occurs once in its function."""
    source = path.read_text("utf-8")
    for name, function in _functions(ast.parse(source)):
        body = " ".join((ast.get_source_segment(source, function) or "").split())
        for holder in _holders(function):
            text = " ".join((ast.get_source_segment(source, holder) or "#").split())
            if len(text) > LONGEST_TEXT or "#" in text or body.count(text) != 1:
                continue
            for becomes in dict.fromkeys(_faults(holder, text)):
                yield Mutant(str(path.relative_to(root)), name, text, becomes)


def _holders(function: ast.AST) -> Iterator[ast.stmt | ast.expr]:
    """Yields simple statements, and the conditions of compound ones."""
    for node in ast.walk(function):
        if isinstance(node, ast.If | ast.While):
            yield node.test
        elif isinstance(node, ast.Return | ast.Assign | ast.AugAssign | ast.Raise):
            yield node
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield node


def _faults(holder: ast.stmt | ast.expr, text: str) -> Iterator[str]:
    """Yields the source of a statement with one fault each."""
    if isinstance(holder, ast.Raise | ast.Expr):
        yield "pass"
        if isinstance(holder, ast.Raise):
            return
    source = text if isinstance(holder, ast.stmt) else f"({text})"
    for place, node in enumerate(ast.walk(ast.parse(source))):
        for other in _other(node):
            # A tree is changed in place, so each fault has one of its own.
            tree = ast.parse(source)
            twin = next(islice(ast.walk(tree), place, None))
            yield ast.unparse(_Swapped(twin, other).visit(tree))


class _Swapped(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else super().visit(node)


def _other(node: ast.AST) -> Iterator[ast.AST]:
    """Yields what a node is mistaken for."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARED:
            sign = COMPARED[type(op)]
            yield ast.parse(
                f"({ast.unparse(left)}) {sign} ({ast.unparse(right)})", mode="eval"
            ).body
        case ast.BinOp(left=left, op=op, right=right) if type(op) in COMPUTED:
            if not _is_text(left) and not _is_text(right):
                sign = COMPUTED[type(op)]
                shown = f"({ast.unparse(left)}) {sign} ({ast.unparse(right)})"
                yield ast.parse(shown, mode="eval").body
        case ast.BoolOp(op=ast.And(), values=values):
            yield ast.BoolOp(ast.Or(), values)
        case ast.BoolOp(op=ast.Or(), values=values):
            yield ast.BoolOp(ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def copied(target: Path) -> Path:
    """Copies all tracked files of the checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


class Stage:
    """A copy of the checkout, and a process in it that plays tests.

    The process has loaded the libraries and nothing of ours, and forks for each play.
    """

    def __init__(self, copy: Path) -> None:
        """Copy all tracked files and start the process."""
        self.copy = copied(copy)
        self._process = subprocess.Popen(
            [sys.executable, "-B", "-m", "tests._mutants", "play"],
            cwd=copy,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        """Return the stage."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self._process.communicate()

    def failed(self, tests: Sequence[str], mutant: Mutant | None = None) -> str:
        """Return the test that fails first, with the fault if one is given; nothing if all pass.

        Raises:
            LookupError: The mutant's text is gone.
            RuntimeError: pytest could not run the tests.
        """
        if mutant is None:
            return self._play(tests)
        place = found(mutant, self.copy)
        if place is None:
            raise LookupError(f"{mutant.name}: the text is gone: {mutant.text}")
        path, start, end = place
        source = path.read_text("utf-8")
        # What is compiled knows its source by second and size: it may not be taken for the fault's.
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()
        path.write_text(source[:start] + mutant.becomes + source[end:], "utf-8")
        try:
            return self._play(tests)
        finally:
            path.write_text(source, "utf-8")

    def _play(self, tests: Sequence[str]) -> str:
        """Return the test that fails first; one that takes too long counts as the first."""
        pipes = self._process.stdin, self._process.stdout
        if pipes[0] is None or pipes[1] is None:
            raise RuntimeError("the process has no pipes")
        pipes[0].write(json.dumps(list(tests)) + "\n")
        pipes[0].flush()
        code, said = json.loads(pipes[1].readline())
        if code == 0:
            return ""
        if code == TOO_LONG:
            return tests[0]
        for shown in re.findall(r"^(?:FAILED|ERROR) (.+)", said, re.MULTILINE):
            # A file that cannot be imported fails as a whole.
            file = shown.partition(" - ")[0]
            named = [test for test in tests if shown.startswith(test)]
            named += [test for test in tests if test.partition("::")[0] == file]
            if named:
                return max(named, key=len)
        raise RuntimeError(f"pytest ended with {code}: {said[-2000:]}")


def play() -> None:
    """Run the tests that each line names in a fork; answer with the exit code and the output."""
    for name in LIBRARIES:
        import_module(name)
    for line in sys.stdin:
        with tempfile.TemporaryFile() as output:
            child = os.fork()
            if child == 0:
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                os._exit(_tests_end(json.loads(line)))
            code = _waited(child)
            output.seek(0)
            answer = json.dumps([code, output.read().decode(errors="replace")])
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()


def _tests_end(tests: Sequence[str]) -> int:
    """Return pytest's exit code; an error of pytest's own is no failed test."""
    try:
        code = int(pytest.main([*OPTIONS, *tests]))
    except BaseException:
        traceback.print_exc()
        code = pytest.ExitCode.INTERNAL_ERROR
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _waited(child: int) -> int:
    end = time.monotonic() + LONGEST
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return TOO_LONG


def covering(mutant: Mutant, coverage: Path) -> list[str]:
    """Returns the tests that ran a mutant's lines, by coverage's contexts: cheap ones first.

    One test of each file comes first, since the tests of one file tend to see the same.
    """
    place = found(mutant)
    if place is None:
        return []
    path, start, _ = place
    line = path.read_text("utf-8")[:start].count("\n") + 1
    with closing(sqlite3.connect(f"file:{coverage}?mode=ro", uri=True)) as reader:
        rows = reader.execute(
            "SELECT DISTINCT context.id, context.context FROM arc "
            "JOIN file ON file.id = arc.file_id JOIN context ON context.id = arc.context_id "
            "WHERE file.path LIKE ? AND (arc.fromno = ? OR arc.tono = ?)",
            (f"%/{path.relative_to(ROOT)}", line, line),
        ).fetchall()
    sizes = _steps_of_tests(coverage)
    by_file: dict[str, list[tuple[int, str]]] = {}
    for number, context in rows:
        # A context ends with the phase, and a test's own name may hold the separator too.
        test = context.rpartition("|")[0]
        if test:
            by_file.setdefault(test.partition("::")[0], []).append((sizes[number], test))
    stem = path.stem
    ranked = []
    for file, tests in by_file.items():
        for rank, (size, test) in enumerate(sorted(tests)):
            ranked.append((rank, stem not in file, size, test))
    return [test for *_, test in sorted(ranked)]


@cache
def _steps_of_tests(coverage: Path) -> dict[int, int]:
    """Returns how many steps from line to line each context has."""
    with closing(sqlite3.connect(f"file:{coverage}?mode=ro", uri=True)) as reader:
        counted = "SELECT context_id, count(*) FROM arc GROUP BY context_id"
        return dict(reader.execute(counted).fetchall())


def assigned(mutants: Sequence[Mutant], coverage: Path, jobs: int = 2) -> list[Mutant]:
    """Returns mutants with the first test found that fails by each; none where none of some did."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stages = [stack.enter_context(Stage(folder / str(number))) for number in range(jobs)]
        pool = stack.enter_context(ThreadPoolExecutor(jobs))

        def work(number: int) -> list[tuple[int, Mutant]]:
            done = []
            for index in range(number, len(mutants), jobs):
                mutant = mutants[index]
                killer = _killer(mutant, stages[number], covering(mutant, coverage))
                shown = killer or "NOT FOUND"
                sys.stdout.write(f"{index + 1}/{len(mutants)} {mutant.name}: {shown}\n")
                sys.stdout.flush()
                done.append((index, replace(mutant, tests=(killer,) if killer else ())))
            return done

        results = [pair for part in pool.map(work, range(jobs)) for pair in part]
    return [mutant for _, mutant in sorted(results, key=lambda pair: pair[0])]


def _killer(mutant: Mutant, stage: Stage, tests: Sequence[str]) -> str:
    """Returns a test that fails by a mutant, and by it alone."""
    test = stage.failed(tests[:TRIES], mutant) if tests else ""
    alone = test and stage.failed([test], mutant) and not stage.failed([test])
    return test if alone else ""


def main() -> None:
    """Runs one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("draw", "assign", "survey", "play"))
    parser.add_argument("--seed", type=int, default=15)
    parser.add_argument("--count", type=int, default=160)
    parser.add_argument("--coverage", type=Path, default=ROOT / ".coverage")
    given = parser.parse_args()
    if given.command == "play":
        play()
    elif given.command == "draw":
        keep(drawn(given.seed, given.count))
    elif given.command == "assign":
        keep(assigned(kept(), given.coverage))
    else:
        fresh = assigned(drawn(given.seed, given.count), given.coverage)
        for mutant in fresh:
            if not mutant.tests:
                sys.stdout.write(f"{mutant.name}: {mutant.text}  ->  {mutant.becomes}\n")
        dead = sum(bool(mutant.tests) for mutant in fresh)
        sys.stdout.write(f"{dead} of {len(fresh)} were found\n")


if __name__ == "__main__":
    main()
