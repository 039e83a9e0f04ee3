"""CONTRIBUTING's walks, for the tests that follow them by their words in a copy.

What is tried in a copy is tried in forks of this process (`tests/_forking.py`).
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests._forking import exit_code, in_checkout
from tests.repository._source import ROOT
from tests.repository.conftest import copy_source


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


def run_command(copy: Path, *arguments: str) -> tuple[int, str]:
    """The exit code of `python -m platform.coordinator` in a copy, and what it printed."""

    def call() -> int:
        sys.argv = ["sotto", *arguments]
        return exit_code(importlib.import_module("platform.cli.app").main)

    return in_checkout(copy, call)
