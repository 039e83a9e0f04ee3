"""CONTRIBUTING's walks, for the tests that follow them by their words in a copy.

What is tried in a copy is tried in a fork of this process, in which torch and its like are loaded
already; of the repository nothing is, so the copy's own modules are what the child imports.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests._forking import exit_code, forked
from tests.repository._source import ROOT
from tests.repository.conftest import copy_source

UNPLUGGED = ("cacheprovider", "xdist", "cov")


def walk(title: str) -> str:
    """The section of this title."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def copy_with_tests(target: Path) -> None:
    """Copies the repository, tests included."""
    copy_source(target)
    shutil.copytree(ROOT / "tests", target / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "conftest.py", target / "conftest.py")


def require_house_style(copy: Path, files: Sequence[str]) -> None:
    """Fails where the linter finds something in these files."""
    for command in (("check",), ("format", "--check")):
        ruff = [sys.executable, "-m", "ruff", *command, "--no-cache", *files]
        subprocess.run(ruff, cwd=copy, check=True)


def run_tests(copy: Path, *arguments: str) -> tuple[int, str]:
    """The exit code of `python -m pytest` in a copy, and what it printed."""
    without = [word for name in UNPLUGGED for word in ("-p", f"no:{name}")]
    return _in(copy, lambda: int(pytest.main(["-q", *without, *arguments])))


def run_command(copy: Path, *arguments: str) -> tuple[int, str]:
    """The exit code of `python -m platform.coordinator` in a copy, and what it printed."""

    def call() -> int:
        sys.argv = ["sotto", *arguments]
        return exit_code(importlib.import_module("platform.cli.app").main)

    return _in(copy, call)


def _in(copy: Path, work: Callable[[], int]) -> tuple[int, str]:
    """What work returns in a child that imports the repository from a copy, and what it printed."""

    def there() -> int:
        os.chdir(copy)
        # What one test of a copy compiles, the next one finds.
        sys.dont_write_bytecode = False
        _forget_the_repository(copy)
        return work()

    return forked(there)


def _forget_the_repository(copy: Path) -> None:
    """Lets the child import whatever is the repository's from the copy, tests included."""
    own = {"conftest", "tests", "platform", *_packages()}
    for name in [name for name in sys.modules if name.partition(".")[0] in own]:
        del sys.modules[name]
    sys.path[:] = [str(copy), *(entry for entry in sys.path if Path(entry).resolve() != ROOT)]
    # The parent's rewriting of asserts knows the parent's session.
    hook = "AssertionRewritingHook"
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != hook]
    importlib.invalidate_caches()


def _packages() -> list[str]:
    return [path.name for path in ROOT.iterdir() if path.is_dir() and path.name.isidentifier()]
