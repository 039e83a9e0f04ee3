"""Every benchmark at its smallest size: `make bench-smallest`; fails for one without such a size.

Each runs in a process forked from this one, which has already loaded torch and other libraries.
Otherwise it runs as people start it. Not among the other tests, because it takes minutes.
"""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import opacus  # noqa: F401
import open_clip  # noqa: F401 - loaded for all benchmarks
import pytest

from tests._forking import ROOT, exit_code, in_checkout

HERE = Path(__file__).resolve().parent
ELSEWHERE = {"federation": "`make federation`, which CI runs, holds one as small as it can be"}
"""Benchmarks that do not run here, each with its place."""
LONGEST = 240
"""Seconds after which a benchmark is ended; its smallest size takes only a few."""
NAMES = sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith(("_", "test_")))


def tracked() -> str:
    """The changes in the checkout."""
    command = ["git", "status", "--porcelain"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module", autouse=True)
def nothing_is_written() -> Iterator[None]:
    """Results at the smallest size mean nothing, so they must not reach the repository."""
    before = tracked()
    yield
    assert tracked() == before


def start(name: str, folder: Path) -> int:
    """Run a benchmark as its first lines say: as a file, or as a module of the package."""
    os.environ |= {"SMALLEST": str(folder), "OMP_NUM_THREADS": "1"}
    signal.alarm(LONGEST)
    path = HERE / f"{name}.py"
    sys.argv = [str(path)]
    if re.search(r"^from benchmarks\.", path.read_text("utf-8"), re.MULTILINE):
        module = partial(runpy.run_module, f"benchmarks.{name}", alter_sys=True)
        return exit_code(partial(module, run_name="__main__"))
    sys.path.insert(0, str(HERE))
    return exit_code(partial(runpy.run_path, str(path), run_name="__main__"))


@pytest.mark.timeout(2 * LONGEST)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ELSEWHERE])
def test_it_runs(name: str, tmp_path: Path) -> None:
    code, said = in_checkout(ROOT, partial(start, name, tmp_path / "results"))
    assert code == 0, said
    assert said.strip() or any((tmp_path / "results").rglob("*")), "it printed and wrote nothing"


def test_what_is_not_run_here_is_a_benchmark() -> None:
    assert set(ELSEWHERE) < set(NAMES)
