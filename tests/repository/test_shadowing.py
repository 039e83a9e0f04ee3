"""A folder with packages and modules of our names, or of any library's, breaks no command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository._source import ROOT
from tests.repository.conftest import Environment
from tests.repository.test_wheel_runs import SETTINGS

pytestmark = pytest.mark.slow

KINDS = ("wheel_environment", "editable_environment")
TAKEN = ("methods", "privacy", "storage", "configs", "torch", "yaml")
COORDINATOR = ("-m", "platform.coordinator")
CLIENT = ("-m", "platform.client")


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


def fill(folder: Path, *, files: bool) -> Path:
    """A user's folder of the names, each as a package, or as a file and folders without code."""
    folder.mkdir()
    for name in TAKEN:
        if files:
            (folder / name).mkdir()
            (folder / name / "notes.txt").write_text("mine")
        else:
            (folder / name).mkdir()
            (folder / name / "__init__.py").write_text(f"raise ImportError('the user\\'s {name}')")
    (folder / "platform.py").write_text("raise ImportError('the user\\'s platform')")
    (folder / "random.py").write_text("raise ImportError('the user\\'s random')")
    return folder


@pytest.fixture(params=KINDS)
def installed(request: pytest.FixtureRequest) -> Environment:
    found: Environment = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("files", [False, True], ids=["packages", "folders"])
@pytest.mark.parametrize("command", [COORDINATOR, CLIENT, ("-mplatform.coordinator",)])
def test_an_installed_command_finds_its_own_packages(
    installed: Environment, tmp_path: Path, command: tuple[str, ...], files: bool
) -> None:
    folder = fill(tmp_path / "mine", files=files)
    done = call(installed.python, *command, "--help", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "") and "Usage" in done.stdout


def test_a_run_works_in_such_a_folder(installed: Environment, tmp_path: Path) -> None:
    folder = fill(tmp_path / "mine", files=False)
    done = call(
        installed.python, *COORDINATOR, "run", "quickstart", *SETTINGS, "--json", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    assert [row["round"] for row in json.loads(done.stdout)["rounds"]] == [1]


def test_a_sweeps_workers_work_in_such_a_folder(
    wheel_environment: Environment, tmp_path: Path
) -> None:
    folder = fill(tmp_path / "mine", files=False)
    axis = ("--seed", "0,1", "--jobs", "2", "--output", "out")
    done = call(
        wheel_environment.python,
        *(*COORDINATOR, "sweep", "quickstart", *SETTINGS, *axis),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    assert len((folder / "out" / "results.csv").read_text().splitlines()) >= 3


def test_another_programs_own_platform_stays_its_own(
    wheel_environment: Environment, tmp_path: Path
) -> None:
    """The hook is in every program of the environment, and takes nothing away from those."""
    (tmp_path / "platform.py").write_text("mine = 1\n")
    (tmp_path / "storage.py").write_text("mine = 2\n")
    (tmp_path / "program.py").write_text("import platform, storage\nprint(platform.mine)\n")
    done = call(wheel_environment.python, "program.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


@pytest.mark.parametrize("files", [False, True], ids=["package", "module"])
@pytest.mark.parametrize("as_json", [False, True])
def test_what_pythonpath_puts_first_is_named(
    wheel_environment: Environment, tmp_path: Path, files: bool, as_json: bool
) -> None:
    place = tmp_path / ("storage.py" if files else "storage")
    code = place if files else place / "__init__.py"
    code.parent.mkdir(exist_ok=True)
    code.write_text("raise ImportError('mine')")
    options = ("--json",) if as_json else ()
    done = call(
        wheel_environment.python,
        *(*COORDINATOR, "runs", *options),
        cwd=tmp_path.parent,
        PYTHONPATH=str(tmp_path),
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and repr(str(place)) in done.stderr
    assert "valid: " in done.stderr and "Traceback" not in done.stderr
    if as_json:
        told = json.loads(done.stderr)
        assert (told["field"], told["exit_code"], told["kind"]) == (
            *("PYTHONPATH", 2),
            "config_error",
        )
    else:
        assert done.stderr.startswith("error: PYTHONPATH: ")


def test_a_checkout_without_an_install_works_from_its_root(tmp_path: Path) -> None:
    """And nothing is taken off its path, on which its own packages are."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("platform", "methods", "privacy", "storage", "configs"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, checkout / name, ignore=ignored)
    # Without `site` no installed hook can help; libraries are shown by hand.
    libraries = str(Path(pytest.__file__).parents[1])
    done = call(
        sys.executable, "-S", *COORDINATOR, "configs", "--json", cwd=checkout, PYTHONPATH=libraries
    )
    assert done.returncode == 0, done.stderr
    assert "quickstart" in {row["name"] for row in json.loads(done.stdout)}


def test_a_folder_that_is_gone_breaks_nothing(installed: Environment, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    program = f"import os, sys; os.mkdir({str(folder)!r}); os.chdir({str(folder)!r}); "
    program += f"os.rmdir({str(folder)!r}); "
    program += f"os.execv({str(installed.python)!r}, ['python', '-m', 'platform.client', '--help'])"
    done = call(sys.executable, "-c", program, cwd=tmp_path)
    assert "Traceback" not in done.stderr, done.stderr
