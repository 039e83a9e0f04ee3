"""Every module imports, and importing a leaf is cheap."""

from __future__ import annotations

import importlib
import sys

import pytest

from tests.repository._source import ROOT, module_name, python_files
from tests.repository.conftest import run

# Alembic runs its migration scripts itself, with a context that does not exist otherwise;
# `__main__` modules are commands.
MODULES = [
    module_name(path)
    for path in python_files()
    if "migrations" not in path.parts and path.stem != "__main__"
]
HEAVY = {"open_clip", "opacus", "pandas", "sklearn", "torch", "torchvision"}


def test_every_module_imports():
    assert [name for name in MODULES if importlib.import_module(name).__name__ != name] == []


@pytest.mark.parametrize("package", ["methods", "platform", "privacy", "storage"])
def test_importing_a_package_loads_nothing_heavy(package):
    program = f"import sys, {package}; print(*sys.modules)"
    loaded = set(run(sys.executable, "-c", program, cwd=ROOT).split())
    assert loaded & HEAVY == set()


@pytest.mark.parametrize("package", ["methods", "privacy", "storage"])
def test_the_public_names_of_a_leaf_exist(package):
    module = importlib.import_module(package)
    assert module.__all__, f"{package} lists its public names in __all__"
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
