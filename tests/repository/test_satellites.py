"""The core carries the promises; all else can be deleted, and the core's tests still pass."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests._mutants import copied
from tests.repository._source import ROOT, module_name, python_files
from tests.repository.test_layering import imported

# Engines' adapters, loaders of published data sets, studies, views, the audit by attack, the Python
# interface, and the methods that the core's own are compared with.
SATELLITES = (
    "benchmarks",
    "platform/cli/advising.py",
    "platform/cli/datasets.py",
    "platform/cli/page_records.py",
    "platform/cli/sweep.py",
    "platform/cli/trying.py",
    "platform/data/loaders/domain_folders.py",
    "platform/data/loaders/published.py",
    "platform/experiment/privacy_auditing",
    "platform/relay/flower",
    "platform/relay/nvflare",
    "platform/results/advice.py",
    "platform/results/charts.py",
    "platform/results/page",
    "platform/results/pictures.py",
    "platform/results/sweeping",
    "sotto",
)
# The four that the platform is for, what they are made of, and what the core's tests run.
METHODS = {
    *("__init__", "fedavg", "fedpgp", "pfedmoap", "pm_moe", "promptfl", "trip"),
    *("coop", "scaffold", "zero_shot"),
    *("dbe", "fedbabu", "fedcp", "fedgh", "fedper", "fedrep", "fedrod", "gpfl", "lg_fedavg"),
}
CORE_TESTS = (
    "tests/privacy/test_accounting.py",
    "tests/storage/test_ledger.py",
    "tests/trunk/test_client_cli.py",
    "tests/trunk/test_codec.py",
    "tests/trunk/test_ledger_of_a_run.py",
    "tests/trunk/test_protection.py",
    "tests/trunk/test_retries.py",
    "tests/trunk/test_round.py",
    "tests/trunk/test_run.py",
)
COMMANDS = (
    *("coordinator run", "coordinator report latest", "coordinator budget latest"),
    *("coordinator audit verify", "client --help"),
)


def satellites(root: Path) -> list[Path]:
    """Every folder and file that is not core."""
    compared = [
        path for path in sorted((root / "methods").glob("*.py")) if path.stem not in METHODS
    ]
    return [*(root / name for name in SATELLITES), *compared]


def core_files(root: Path) -> list[Path]:
    """Every Python file of the packages that is in no satellite."""
    apart = set(satellites(root))
    return [path for path in python_files(root) if apart.isdisjoint((path, *path.parents))]


def test_every_satellite_is_there_and_the_core_imports_none():
    gone = satellites(ROOT)
    assert [path for path in gone if not path.exists()] == []
    core = core_files(ROOT)
    assert len(core) > 200
    names = {module_name(path / "x.py" if path.is_dir() else path, ROOT) for path in gone}
    names = {name.removesuffix(".x") for name in names}
    # It lists the commands, and imports each in the function that is called for it.
    core.remove(ROOT / "platform/cli/app.py")
    starts = tuple(f"{name}." for name in names)
    asked = [
        (str(path.relative_to(ROOT)), name)
        for path in core
        for _, target, parts in imported(path, ROOT)
        for name in (target, *(f"{target}.{part}" for part in parts))
    ]
    assert [pair for pair in asked if f"{pair[1]}.".startswith(starts)] == []


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_the_core_works_without_them(tmp_path):
    copy = copied(tmp_path / "copy")
    for path in satellites(copy):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    alone = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}

    def python(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=copy, env=alone, capture_output=True, text=True)
        assert done.returncode == 0, f"{arguments}: {done.stdout[-3000:]}{done.stderr[-1000:]}"
        return done.stdout

    told = [python("-m", *f"platform.{command}".split()) for command in COMMANDS]
    assert "epsilon" in told[1] and "epsilon" in told[2]
    assert "passed" in python("-m", "pytest", "-q", "-m", "not slow", "-p", "no:cov", *CORE_TESTS)
