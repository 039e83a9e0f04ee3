"""One file and one YAML are a whole method: the suite passes on a folder with nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.contract._momentum import write_momentum
from tests.contract.conftest import FOLDER

ROOT = Path(__file__).resolve().parents[2]
SUITE = ("test_contract.py", "test_rounds.py", "test_mechanisms.py")


def run_suite(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    return subprocess.run(
        [*command, *options, *(f"tests/contract/{name}" for name in SUITE)],
        cwd=ROOT,
        env={**os.environ, FOLDER: str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_server_with_momentum_is_one_file_and_one_preset(tmp_path: Path):
    done = run_suite(write_momentum(tmp_path / "mine"))
    assert done.returncode == 0, done.stdout[-4000:]
    assert " skipped" not in done.stdout
    # The preset and the variant, each in every test of the suite.
    assert int(done.stdout.split(" passed")[0].split()[-1]) > 150


def test_what_a_method_says_of_itself_falsely_is_found(tmp_path: Path):
    """Each change is one declared property that is not so."""
    averaged = '"""Nothing: the step has momentum."""\n        return frozenset()'
    closed = "def closed_classes(self):\n        return True"
    learns = "    def learns(self):\n        return False"
    lies = write_momentum(
        tmp_path / "mine",
        (averaged, 'return frozenset(("weight",))'),
        (closed, f"{closed[:-4]}False\n\n    @property\n{learns}"),
    )
    found = ("averaged_moves", "moves_something", "prediction_for_any_classes")
    done = run_suite(lies, "-k", " or ".join(found))
    assert done.returncode == 1
    assert all(f"{name}" in done.stdout.partition("short test summary")[2] for name in found)
