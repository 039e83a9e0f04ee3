"""Installing: what `make install` runs, with CUDA and without, and what lives beside it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.repository._source import ROOT
from tests.repository.conftest import Environment, run
from tests.repository.test_lock import LOCKS, entries, locked

INDEX = "file:///an/index"


def planned(folder: Path, *arguments: str, target: str = "install") -> list[str]:
    """What make would run for an environment that is not there."""
    command = ["make", "--dry-run", "--no-print-directory", target, f"VENV={folder}", *arguments]
    # A make that runs these tests says by MAKE_TERMOUT whether it has a terminal.
    told = {"TORCH_INDEX", "MAKE_TERMOUT"}
    clean = {key: value for key, value in os.environ.items() if key not in told}
    done = subprocess.run(command, cwd=ROOT, env=clean, text=True, capture_output=True, check=True)
    return done.stdout.splitlines()


def pip_lines(lines: list[str]) -> list[str]:
    return [line.split(" --quiet ")[1] for line in lines if " -m pip install " in line]


@pytest.mark.parametrize(
    ("target", "variable", "lock"),
    [
        ("install", "VENV", "requirements.lock"),
        ("flower", "FLOWER", "requirements-flower.lock"),
        ("nvflare", "FLARE", "requirements-nvflare.lock"),
    ],
)
def test_all_that_is_locked_is_installed_with_hashes(tmp_path, target, variable, lock):
    lines = pip_lines(planned(tmp_path / "v", f"{variable}={tmp_path / 'v'}", target=target))
    assert lines[0] == f"--no-deps --require-hashes -r {lock}"


def test_a_terminal_sees_sizes_and_progress_and_a_pipe_one_line_a_step(tmp_path: Path):
    seen = planned(tmp_path / "venv", "MAKE_TERMOUT=/dev/tty")
    assert not any("--quiet" in line for line in seen if " -m pip install " in line)
    quiet = planned(tmp_path / "venv")
    assert all("--quiet" in line for line in quiet if " -m pip install " in line)
    for lines, size in ((seen, "7 GB"), (planned(tmp_path, f"TORCH_INDEX={INDEX}"), "2.5 GB")):
        assert lines[0].startswith("echo ") and f"about {size}" in lines[0]


def test_an_index_gives_torch_alone_and_the_lock_the_rest(tmp_path: Path):
    versions = locked()
    assert pip_lines(planned(tmp_path / "venv", f"TORCH_INDEX={INDEX}")) == [
        f'--no-deps --index-url "{INDEX}" torch=={versions["torch"]} '
        f"torchvision=={versions['torchvision']}",
        "--no-deps --require-hashes -r requirements-cpu.lock",
        "--no-deps --no-build-isolation --editable .",
    ]


def test_an_index_is_remembered_until_another_is_named(tmp_path: Path):
    venv = tmp_path / "venv"
    venv.mkdir()
    (venv / "torch-index").write_text(f"{INDEX}\n")
    remembered = planned(venv)
    assert any(INDEX in line for line in pip_lines(remembered))
    assert not any("requirements.lock" in line for line in pip_lines(remembered))
    back = planned(venv, "TORCH_INDEX=")
    assert "--no-deps --require-hashes -r requirements.lock" in pip_lines(back)


@pytest.mark.parametrize(("told", "kept"), [("", True), (INDEX, False)])
def test_an_environment_with_another_torch_is_made_anew(tmp_path: Path, told: str, kept: bool):
    venv = tmp_path / "venv"
    venv.mkdir()
    lines = planned(venv, f"TORCH_INDEX={told}")
    (first,) = [line for line in lines if line.endswith(f"rm -rf {venv}")]
    subprocess.run(["sh", "-c", first], check=True)
    assert venv.exists() is kept


@pytest.mark.slow
@pytest.mark.parametrize("lock", LOCKS)
def test_the_list_of_parts_has_every_version_and_every_hash(lock: str, tmp_path: Path):
    out = tmp_path / "parts.json"
    make = (ROOT / "Makefile").read_text("utf-8")
    # As `make sbom` does, for one lock.
    options = re.search(r"cyclonedx-py (.*?) \\\n", make)[1].split()
    command = [str(Path(sys.executable).with_name("cyclonedx-py")), *options]
    subprocess.run([*command, "--output-file", str(out), lock], cwd=ROOT, check=True)
    document = json.loads(out.read_text("utf-8"))
    assert document["bomFormat"] == "CycloneDX"
    found = {
        canonicalize_name(part["name"]): (
            part["version"],
            {one["content"] for each in part["externalReferences"] for one in each["hashes"]},
        )
        for part in document["components"]
    }
    hashes = (
        {one.removeprefix("--hash=sha256:") for one in each} for each in entries(lock).values()
    )
    expected = zip(locked(lock).items(), hashes, strict=True)
    assert found == {name: (version, each) for (name, version), each in expected}
    assert str(ROOT) not in out.read_text("utf-8")


def test_nothing_that_is_installed_misses_anything():
    assert "No broken requirements" in run(sys.executable, "-m", "pip", "check", cwd=ROOT)


CELERY = """
import celery, platform
app = celery.Celery(broker="memory://", backend="cache+memory://")
app.conf.task_always_eager = True
@app.task(name="node")
def node(): return platform.node() or "nameless"
print(node.delay().get())
"""
NEIGHBOURS_START = (
    ("-c", "import platform; print(platform.system())"),
    ("-c", CELERY),
    ("-m", "celery", "--version"),
    ("-m", "IPython", "-c", "import platform; print(platform.machine())"),
    ("-m", "pytest", "--version"),
    ("-m", "uv", "--version"),
    ("-m", "uvicorn", "--version"),
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel_environment", "editable_environment"])
def test_neighbours_start_with_our_hook_in_place(request, tmp_path, kind):
    environment: Environment = request.getfixturevalue(kind)
    seen = "import platform, sys; sys.exit(not hasattr(platform, '__path__'))"
    environment.run("-c", seen, cwd=tmp_path)
    for command in NEIGHBOURS_START:
        assert environment.run(*command, cwd=tmp_path)
    environment.run("-m", "virtualenv", "--no-download", "made", cwd=tmp_path)
    assert run(tmp_path / "made" / "bin" / "python", "-c", "import platform", cwd=tmp_path) == ""
