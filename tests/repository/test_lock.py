"""Locks: exact, with hashes, cover what `pyproject.toml` asks for, and stay beside flwr 1.41."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.repository._source import ROOT

LINE = re.compile(r"^[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.!]*( ; [a-z_A-Z0-9.<>=!'() ]+)?$")
HASH = re.compile(r"^--hash=sha256:[0-9a-f]{64}$")
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
    "uv": ">=0.12.20,<0.13.0",
}
# What torch needs of CUDA, by how it is called.
CUDA = re.compile(r"^(torch|torchvision|triton|cuda-.*|nvidia-.*)$")
CPU = "requirements-cpu.lock"
RUN = "requirements-run.lock"
"""For machines on which nobody develops."""

ENGINES = ("requirements-flower.lock", "requirements-nvflare.lock")
"""Environments of their own, for what is beside this package."""


LOCKS = ("requirements.lock", CPU, RUN, *ENGINES)


@cache
def entries(lock: str = "requirements.lock") -> dict[str, list[str]]:
    """The hashes of each requirement of a lock, by its line."""
    text = (ROOT / lock).read_text("utf-8").replace("\\\n", " ")
    split = [line.split(" --hash=") for line in text.splitlines() if not line.startswith("#")]
    return {line.strip(): [f"--hash={each.strip()}" for each in hashes] for line, *hashes in split}


@cache
def locked(lock: str = "requirements.lock") -> dict[str, str]:
    """Version by normalised name."""
    requirements = [Requirement(line) for line in entries(lock)]
    return {canonicalize_name(r.name): next(iter(r.specifier)).version for r in requirements}


@pytest.mark.parametrize("lock", LOCKS)
def test_every_line_is_one_exact_version_with_the_hashes_of_its_files(lock):
    found = entries(lock)
    assert [line for line in found if not LINE.match(line)] == []
    assert [line for line, all_ in found.items() if not (all_ and all(map(HASH.match, all_)))] == []
    names = list(locked(lock))
    assert names == sorted(names) and len(names) == len(found)


def test_the_lock_without_cuda_is_the_other_one_but_for_torch_and_its_parts():
    whole, lean = entries(), entries(CPU)
    left_out = {line for line in whole if CUDA.match(Requirement(line).name)}
    assert {"torch", "torchvision"} < {Requirement(line).name for line in left_out}
    assert lean == {line: found for line, found in whole.items() if line not in left_out}


@pytest.mark.parametrize("lock", [RUN, *ENGINES])
def test_another_lock_has_the_same_versions(lock):
    other, own = locked(lock), locked()
    shared = other.keys() & own.keys()
    assert shared
    assert {name: other[name] for name in shared} == {name: own[name] for name in shared}


def test_each_lock_covers_what_is_declared_for_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = {
        name: [Requirement(text) for text in texts]
        for name, texts in project["optional-dependencies"].items()
    }
    needed = [Requirement(text) for text in project["dependencies"]]
    whole = "requirements.lock"
    asked = {whole: [*needed, *extras["dev"], *extras["serve"]], RUN: needed}
    asked |= {lock: extras[lock.split("-")[1].removesuffix(".lock")] for lock in ENGINES}
    for lock, requirements in asked.items():
        for one in requirements:
            assert locked(lock)[canonicalize_name(one.name)] in one.specifier
    names = {canonicalize_name(one.name) for one in needed}
    others = {canonicalize_name(one.name) for each in extras.values() for one in each} - names
    # These come with what is needed.
    assert locked(RUN).keys() & others == {"packaging", "setuptools"}


def test_flwr_could_be_installed_beside_it():
    own = locked()
    assert [name for name, valid in FLWR.items() if own[name] not in SpecifierSet(valid)] == []


@pytest.mark.slow
def test_the_environment_has_the_locked_versions():
    installed = {}
    for name in locked():
        try:
            # Without the local part: a torch without CUDA has the same version, and `+cpu`.
            installed[name] = Version(version(name)).public
        except PackageNotFoundError:
            continue  # a CUDA part on a system that has none
    assert installed == {name: locked()[name] for name in installed}
