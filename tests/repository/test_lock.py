"""Locks: exact, with hashes, cover what `pyproject.toml` asks for, and stay beside flwr 1.41."""

from __future__ import annotations

import re
import tomllib
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


def entries(lock: str = "requirements.lock") -> dict[str, list[str]]:
    """The hashes of each requirement of a lock, by its line."""
    text = (ROOT / lock).read_text("utf-8").replace("\\\n", " ")
    split = [line.split(" --hash=") for line in text.splitlines() if not line.startswith("#")]
    return {line.strip(): [f"--hash={each.strip()}" for each in hashes] for line, *hashes in split}


def lines(lock: str = "requirements.lock") -> list[str]:
    """The requirements of a lock, without hashes."""
    return list(entries(lock))


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


@pytest.mark.parametrize("lock", LOCKS)
def test_every_line_is_one_exact_version_from_the_index(lock):
    assert [line for line in lines(lock) if not LINE.match(line)] == []
    assert len(locked(lock)) == len(lines(lock))


@pytest.mark.parametrize("lock", LOCKS)
def test_every_line_has_the_hashes_of_its_files(lock):
    spoilt = {line: found for line, found in entries(lock).items() if not all_hashes(found)}
    assert spoilt == {}


def all_hashes(found: list[str]) -> bool:
    """Whether there are hashes, all of them SHA-256."""
    return bool(found) and all(map(HASH.match, found))


@pytest.mark.parametrize("found", [[], ["--hash=md5:" + 32 * "0"], ["--hash=sha256:abc"]])
def test_what_is_no_hash_is_found(found):
    assert not all_hashes(found)


@pytest.mark.parametrize("lock", LOCKS)
def test_the_lock_is_sorted(lock):
    names = list(locked(lock))
    assert names == sorted(names)


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


def test_what_a_run_needs_is_locked_without_what_development_needs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = {canonicalize_name(Requirement(text).name) for text in project["dependencies"]}
    others = {
        canonicalize_name(Requirement(text).name)
        for extra in project["optional-dependencies"].values()
        for text in extra
    }
    assert needed <= locked(RUN).keys() <= locked().keys()
    # These come with what is needed.
    assert locked(RUN).keys() & (others - needed) == {"packaging", "setuptools"}


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
            # Without the local part: a torch without CUDA has the same version, and `+cpu`.
            installed[name] = Version(version(name)).public
        except PackageNotFoundError:
            continue  # a CUDA part on a system that has none
    assert installed == {name: locked()[name] for name in installed}
