"""The lock is exact, covers what `pyproject.toml` asks for, and stays beside flwr 1.41."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, version

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.repository._source import ROOT

LINE = re.compile(r'^[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.!]*( ; sys_platform == "linux")?$')
# What flwr 1.41.0 requires, of the packages that are also ours (its metadata on PyPI). It is to
# become an extra, so nothing here may rule it out.
FLWR = {
    "alembic": ">=1.18.1,<2.0.0",
    "click": ">=8.0.0,<9.0.0",
    "cryptography": ">=50.0.0,<51.0.0",
    "dp-accounting": ">=0.6.0,<0.7.0",
    "numpy": ">=1.26.0,<3.0.0",
    "packaging": ">=24.0,<26.0",
    "pathspec": ">=1.0.4,<2.0.0",
    "pyyaml": ">=6.0.2,<7.0.0",
    "rich": ">=14.0.0,<15.0.0",
    "sqlalchemy": ">=2.0.45,<3.0.0",
    "typer": ">=0.13.0,<0.21.0",
}


ENGINES = ("requirements-flower.lock", "requirements-nvflare.lock")
"""Environments of their own, for what is beside this package."""


def lines(lock: str = "requirements.lock") -> list[str]:
    """The lines of a lock that are not comments."""
    text = (ROOT / lock).read_text("utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def locked(lock: str = "requirements.lock") -> dict[str, str]:
    """Version by normalised name."""
    requirements = [Requirement(line) for line in lines(lock)]
    return {canonicalize_name(r.name): next(iter(r.specifier)).version for r in requirements}


def declared() -> list[Requirement]:
    """What `pyproject.toml` asks for, at run time, for the page and for development."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    return [
        Requirement(text) for text in (*project["dependencies"], *extras["dev"], *extras["serve"])
    ]


@pytest.mark.parametrize("lock", ["requirements.lock", *ENGINES])
def test_every_line_is_one_exact_version_from_the_index(lock):
    assert [line for line in lines(lock) if not LINE.match(line)] == []
    assert len(locked(lock)) == len(lines(lock))


@pytest.mark.parametrize("lock", ["requirements.lock", *ENGINES])
def test_the_lock_is_sorted(lock):
    assert lines(lock) == sorted(lines(lock), key=str.lower)


@pytest.mark.parametrize("lock", ENGINES)
def test_an_engines_lock_has_the_same_versions(lock):
    engine, own = locked(lock), locked()
    shared = engine.keys() & own.keys()
    assert shared
    assert {name: engine[name] for name in shared} == {name: own[name] for name in shared}


@pytest.mark.parametrize("lock", ENGINES)
def test_an_engines_lock_covers_its_extra(lock):
    extra = lock.removeprefix("requirements-").removesuffix(".lock")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for text in project["optional-dependencies"][extra]:
        requirement = Requirement(text)
        assert locked(lock)[canonicalize_name(requirement.name)] in requirement.specifier


@pytest.mark.parametrize("requirement", declared(), ids=str)
def test_the_lock_covers_what_is_declared(requirement):
    assert locked()[canonicalize_name(requirement.name)] in requirement.specifier


@pytest.mark.parametrize("name", sorted(FLWR))
def test_flwr_could_be_installed_beside_it(name):
    assert locked()[name] in SpecifierSet(FLWR[name])


def test_the_environment_has_the_locked_versions():
    installed = {}
    for name in locked():
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue  # a CUDA part on a system that has none
    assert installed == {name: locked()[name] for name in installed}
