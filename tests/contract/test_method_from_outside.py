"""One file and one YAML are a whole method: the suite passes on a folder with nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests._forking import ROOT, run_tests
from tests.contract._momentum import write_momentum
from tests.contract.conftest import FOLDER

RunSuite = Callable[..., tuple[int, str]]
SUITE = ("test_contract.py", "test_rounds.py", "test_mechanisms.py")


@pytest.fixture
def run_suite(monkeypatch: pytest.MonkeyPatch) -> RunSuite:
    """Runs the suite on the methods of a folder: `run_suite(folder, *options)`."""

    def run(folder: Path, *options: str) -> tuple[int, str]:
        monkeypatch.setenv(FOLDER, str(folder))
        return run_tests(ROOT, *options, *(f"tests/contract/{name}" for name in SUITE))

    return run


def test_a_server_with_momentum_is_one_file_and_one_preset(tmp_path: Path, run_suite: RunSuite):
    code, said = run_suite(write_momentum(tmp_path / "mine"))
    assert code == 0, said[-4000:]
    assert " skipped" not in said
    # The preset and the variant, each in every test of the suite.
    assert int(said.split(" passed")[0].split()[-1]) > 150


def test_what_a_method_says_of_itself_falsely_is_found(tmp_path: Path, run_suite: RunSuite):
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
    code, said = run_suite(lies, "-k", " or ".join(found))
    assert code == 1
    assert all(f"{name}" in said.partition("short test summary")[2] for name in found)
