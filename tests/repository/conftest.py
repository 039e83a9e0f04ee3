"""Fresh environments with Sotto installed in them, made in seconds and shared by the tests here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.repository._source import PACKAGES, ROOT

# What an install is made from.
INPUTS = (*PACKAGES, "configs", "pyproject.toml", "setup.py", "LICENSE", "README.md")


@dataclass(frozen=True)
class Environment:
    """A virtual environment that has Sotto installed."""

    python: Path
    site_packages: Path
    wheel: Path
    source: Path

    def run(self, *arguments: str, cwd: Path) -> str:
        """Runs the interpreter in a folder and returns what it printed."""
        return run(self.python, *arguments, cwd=cwd)


def call(
    python: Path | str, *arguments: str, cwd: Path, **more: str
) -> subprocess.CompletedProcess[str]:
    """What an interpreter answers without the caller's PYTHON variables, but for those given."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(
        [str(python), *arguments],
        cwd=cwd,
        env=clean | more,
        text=True,
        capture_output=True,
        timeout=240,
    )


def run(python: Path | str, *arguments: str, cwd: Path) -> str:
    """What an interpreter that must succeed prints."""
    done = call(python, *arguments, cwd=cwd)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def make_environment(folder: Path, hook: str) -> Environment:
    """Builds Sotto as pip would and installs it into a new environment.

    Dependencies are not installed again: a `.pth` shows it this interpreter's. The `.pth` files
    that lie there are not run, so no hook but its own is on.
    """
    source, home, out = folder / "source", folder / "home", folder / "out"
    copy_source(source)
    out.mkdir()
    build = f"from setuptools import build_meta; build_meta.{hook}({str(out)!r})"
    run(sys.executable, "-c", build, cwd=source)
    (wheel,) = out.glob("*.whl")
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    install = ["-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index"]
    run(sys.executable, *install, "--quiet", str(wheel), cwd=folder)
    (site_packages,) = home.glob("lib/python*/site-packages")
    # Sorts last, and is written last: pip must not take this interpreter's packages for its own.
    (site_packages / "zz_dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Environment(python, site_packages, wheel, source)


def copy_source(target: Path) -> None:
    """Copies what an install is made from, so that building leaves nothing in the repository."""
    target.mkdir()
    for name in INPUTS:
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, target / name, ignore=ignore)
        else:
            shutil.copy(ROOT / name, target / name)


@pytest.fixture(scope="session")
def wheel_environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel installed."""
    return make_environment(tmp_path_factory.mktemp("wheel"), "build_wheel")


@pytest.fixture(scope="session")
def editable_environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with an editable install of a copy of the repository."""
    return make_environment(tmp_path_factory.mktemp("editable"), "build_editable")
