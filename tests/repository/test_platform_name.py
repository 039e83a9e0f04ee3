"""The package `platform` is a superset of the standard library's module, however it is reached.

Each way of reaching it runs in its own interpreter: a checkout without install, worker
processes, an editable install and a wheel from another folder, bare `pytest`, and CPython's own
tests. The decision and its reasons: `docs/adr/0001-the-name-platform.md`.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import pkgutil
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import platform
from platform._startup_hook import PlatformFinder, install
from tests.repository._source import ROOT, python_files
from tests.repository.conftest import Environment, run

# Without `site` no installed hook can help: the package is found through the folder alone.
BARE = "-S"
WHERE = "import platform; platform.uname(); print(platform.__path__[0])"
WORKER = """
import multiprocessing
with multiprocessing.get_context({method!r}).Pool(1) as pool:
    print(pool.apply(eval, ("__import__('platform').__path__[0]",)))
"""
METHODS = ("fork", "spawn", "forkserver")
KINDS = ("wheel_environment", pytest.param("editable_environment", marks=pytest.mark.slow))
# Names of the standard library's `platform` in newer versions than the one that runs the tests.
NEWER_NAMES = {"android_ver", "ios_ver", "AndroidVer", "IOSVersionInfo", "invalidate_caches"}


def load_standard() -> dict[str, object]:
    """The namespace of the standard library's own module."""
    file = Path(sysconfig.get_path("stdlib"), "platform.py")
    spec = importlib.util.spec_from_file_location("standard_platform", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


def test_it_is_a_package_with_every_name_and_answer_of_the_standard_module():
    standard = load_standard()
    assert list(platform.__path__) == [str(ROOT / "platform")]
    assert standard.keys() - vars(platform).keys() == set()
    for name in ("system", "machine", "python_version", "platform", "libc_ver", "architecture"):
        assert getattr(platform, name)() == standard[name](), name


def test_no_submodule_takes_a_name_of_the_standard_module():
    submodules = {module.name for module in pkgutil.iter_modules(platform.__path__)}
    taken = {name for name in load_standard() if not name.startswith("__")} | NEWER_NAMES
    assert submodules & taken == set()


def test_a_checkout_needs_no_install():
    assert run(sys.executable, BARE, "-c", WHERE, cwd=ROOT) == str(ROOT / "platform")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uuid", "pytest", "numpy", "open_clip"])
def test_others_that_import_it_work_in_a_checkout(name):
    program = f"import {name}, platform; print(platform.__path__[0])"
    assert run(sys.executable, "-W", "ignore", "-c", program, cwd=ROOT) == str(ROOT / "platform")


def test_the_command_of_the_standard_module_is_kept():
    theirs = run(sys.executable, str(Path(sysconfig.get_path("stdlib"), "platform.py")), cwd=ROOT)
    assert run(sys.executable, "-m", "platform", cwd=ROOT) == theirs


@pytest.mark.slow
def test_cpythons_own_suite_passes():
    if importlib.util.find_spec("test") is None or not (
        Path(sysconfig.get_path("stdlib"), "test", "test_platform.py").is_file()
    ):
        pytest.skip("this Python comes without CPython's test suite (as Debian's does)")
    out = run(sys.executable, "-m", "test", "-v", "test_platform", cwd=ROOT)
    assert "Result: SUCCESS" in out or "Tests result: SUCCESS" in out


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_worker_processes_get_the_package_in_a_checkout(method):
    found = run(sys.executable, BARE, "-c", WORKER.format(method=method), cwd=ROOT)
    assert found == str(ROOT / "platform")


@pytest.mark.slow
def test_bare_pytest_gets_the_package():
    # As under the `pytest` script: the repository is not on the path, and the standard module
    # is loaded before pytest reads any configuration.
    program = """
import sys
sys.path[:1] = []
sys.path.append(sys.argv.pop(1))
import platform, pytest
assert not hasattr(platform, "__path__")
sys.exit(pytest.main(sys.argv[1:]))
"""
    test = (
        f"{Path(__file__).relative_to(ROOT)}::test_no_submodule_takes_a_name_of_the_standard_module"
    )
    # Without the start-up hook an install's `platform` cannot be imported, nor the plugin in it.
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:sotto_contract", test]
    library = sysconfig.get_path("purelib")
    out = run(sys.executable, BARE, "-c", program, library, *arguments, cwd=ROOT)
    assert "1 passed" in out


@pytest.fixture(params=KINDS)
def installed(request: pytest.FixtureRequest) -> tuple[Environment, Path]:
    """An environment and the folder from which its packages should come."""
    environment: Environment = request.getfixturevalue(request.param)
    is_wheel = request.param == "wheel_environment"
    return environment, environment.site_packages if is_wheel else environment.source


def test_an_install_is_found_from_any_folder(installed, tmp_path):
    environment, home = installed
    found = [environment.run("-I", "-c", WHERE, cwd=tmp_path)]
    found += [environment.run("-c", WORKER.format(method=m), cwd=tmp_path) for m in METHODS]
    assert found == [str(home / "platform")] * 4
    assert (home / "configs" / "quickstart.yaml").is_file()


def test_a_checkout_in_the_current_folder_goes_before_an_install(installed):
    environment, _ = installed
    program = "import platform, privacy; print(platform.__path__[0], privacy.__path__[0])"
    expected = f"{ROOT / 'platform'} {ROOT / 'privacy'}"
    assert environment.run("-c", program, cwd=ROOT) == expected


def test_other_start_up_hooks_already_get_the_package(installed, tmp_path):
    environment, home = installed
    probe = environment.site_packages / "a0_probe.pth"
    probe.write_text("import platform, sys; sys.probe = getattr(platform, '__path__', None)\n")
    try:
        found = environment.run("-c", "import sys; print(sys.probe[0])", cwd=tmp_path)
    finally:
        probe.unlink()
    assert found == str(home / "platform")


def test_the_finder_is_for_this_package_only_while_it_is_there(tmp_path, monkeypatch):
    assert PlatformFinder(str(ROOT)).find_spec("uuid") is None
    assert PlatformFinder(str(ROOT)).find_spec("platform.coordinator") is None
    monkeypatch.setattr(sys, "path", [sysconfig.get_path("stdlib")])
    assert PlatformFinder(str(ROOT)).find_spec("platform").origin == platform.__file__
    assert PlatformFinder(str(tmp_path)).find_spec("platform") is None


def test_a_hook_installs_its_finder_once(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [])
    install(str(ROOT))
    install(str(ROOT))
    assert [finder.folder for finder in sys.meta_path] == [str(ROOT)]


def test_the_wheel_holds_everything_and_names_it_in_its_record(wheel_environment: Environment):
    with zipfile.ZipFile(wheel_environment.wheel) as archive:
        names = set(archive.namelist())
        (record,) = [name for name in names if name.endswith("RECORD")]
        rows = list(csv.reader(archive.read(record).decode().splitlines()))
        assert sorted(name for name, _, _ in rows) == sorted(archive.namelist())
        for name, digest, _ in rows:
            content = hashlib.sha256(archive.read(name)).digest()
            expected = base64.urlsafe_b64encode(content).decode().rstrip("=")
            assert name == record or digest == f"sha256={expected}", name
    data = [
        path.relative_to(ROOT).as_posix()
        for folder, pattern in (
            ("configs", "*.yaml"),
            ("methods/clip/weights", "*"),
            ("storage", "*"),
        )
        for path in (ROOT / folder).rglob(pattern)
        if path.is_file() and "__pycache__" not in path.parts
    ]
    modules = [path.relative_to(ROOT).as_posix() for path in python_files()]
    assert {*data, *modules, "_sotto_startup.py", "_sotto_startup.pth"} <= names
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "docs"))]
