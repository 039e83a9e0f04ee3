"""CONTRIBUTING's walks, for the tests that follow them by their words in a copy."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

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
