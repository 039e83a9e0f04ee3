"""Sotto as an install brings it: its commands from any folder, whatever lies in that folder.

Whole runs, with what Alembic, configurations, the model and its tokens need, are of the wheel.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.repository._source import ROOT
from tests.repository.conftest import Environment, call, run

KINDS = ("wheel_environment", pytest.param("editable_environment", marks=pytest.mark.slow))
SMALL = (
    *("task.dataset=shapes", "task.domains=[real]", "task.clients=4", "task.shots=1"),
    *("task.test_per_class=2", "task.partition={kind: iid}", "rounds=1"),
    *("training.local_steps=1", "training.batch_size=2", "cohort.dropout_rate=0.0"),
    *("secure_aggregation={enabled: true, threshold: 3, corrupt: 1}",),
    *("evaluation.local_twins=false", "evaluation.worth_of_sharing=false"),
)
SETTINGS = ["--device", "cpu", *(word for setting in SMALL for word in ("--set", setting))]
COORDINATOR = ("-m", "platform.coordinator")
CLIENT = ("-m", "platform.client")
TAKEN = ("methods", "privacy", "storage", "configs", "torch", "yaml")


def fill(folder: Path, *, files: bool = False) -> Path:
    """A user's folder of the names, each as a package, or as a file and folders without code."""
    folder.mkdir()
    for name in TAKEN:
        (folder / name).mkdir()
        if files:
            (folder / name / "notes.txt").write_text("mine")
        else:
            (folder / name / "__init__.py").write_text(f"raise ImportError('the user\\'s {name}')")
    for name in ("platform", "random"):
        (folder / f"{name}.py").write_text(f"raise ImportError('the user\\'s {name}')")
    return folder


@pytest.fixture(params=KINDS)
def installed(request: pytest.FixtureRequest) -> Environment:
    found: Environment = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def script(installed: Environment) -> Path:
    return installed.python.with_name("sotto")


@pytest.mark.parametrize(
    ("command", "files"),
    [
        (COORDINATOR, False),
        pytest.param(COORDINATOR, True, marks=pytest.mark.slow),
        pytest.param(CLIENT, False, marks=pytest.mark.slow),
        pytest.param(CLIENT, True, marks=pytest.mark.slow),
    ],
)
def test_an_installed_command_finds_its_own_packages(installed, tmp_path, command, files):
    folder = fill(tmp_path / "mine", files=files)
    done = call(installed.python, *command, "--help", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip().startswith(f"Usage: python {' '.join(command)} [OPTIONS]")


@pytest.mark.slow
def test_the_data_holders_commands_are_the_same(script: Path, tmp_path: Path):
    example = (ROOT / "platform" / "holder" / "example.yaml").read_text("utf-8")
    assert run(script, "client", "example", cwd=tmp_path) == example.strip()
    made = run(script, "client", "keys", "create", "one.key", cwd=tmp_path)
    assert made.startswith("public key") and (tmp_path / "one.key").is_file()


@pytest.mark.slow
def test_the_version_says_whether_it_is_a_checkout(
    wheel_environment, editable_environment, tmp_path
):
    for environment, home in (
        (wheel_environment, f"installed in {wheel_environment.site_packages}"),
        (editable_environment, f"a checkout in {editable_environment.source}"),
    ):
        script = environment.python.with_name("sotto")
        for words in ((script,), (script, "client"), (environment.python, *COORDINATOR)):
            assert run(*words, "--version", cwd=tmp_path) == f"sotto 0.1.0, {home}"
    # Nobody installed this one.
    said = run(sys.executable, *COORDINATOR, "--version", cwd=ROOT)
    assert said.startswith(f"sotto 0.1.0, a checkout in {ROOT}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "among", "never"),
    [
        (("re",), {"report", "restore"}, {"runs"}),
        (("client", "receipts", ""), {"verify", "export"}, {"check"}),
        (("run", "--phase"), {"--phase-two-of"}, {"--seed"}),
    ],
)
def test_bash_is_told_what_a_word_may_become(script, tmp_path, words, among, never):
    told = {"_SOTTO_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(("sotto", *words))}
    done = call(script, cwd=tmp_path, **told, COMP_CWORD=str(len(words)))
    assert (done.returncode, done.stderr) == (0, "")
    assert among <= set(done.stdout.split()) and not never & set(done.stdout.split())


def test_another_programs_own_platform_stays_its_own(wheel_environment, tmp_path):
    """The hook is in every program of the environment, and takes nothing away from those."""
    (tmp_path / "platform.py").write_text("mine = 1\n")
    (tmp_path / "program.py").write_text("import platform\nprint(platform.mine)\n")
    done = call(wheel_environment.python, "program.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


@pytest.mark.parametrize("as_json", [False, True])
def test_what_pythonpath_puts_first_is_named(wheel_environment, tmp_path, as_json):
    place = tmp_path / "storage.py"
    place.write_text("raise ImportError('mine')")
    words, first = (("--json",), "PYTHONPATH") if as_json else ((), "error: PYTHONPATH: ")
    done = call(
        wheel_environment.python,
        *(*COORDINATOR, "runs", *words),
        cwd=tmp_path.parent,
        PYTHONPATH=str(tmp_path),
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and repr(str(place)) in done.stderr
    said = json.loads(done.stderr)["field"] if as_json else done.stderr
    assert said.startswith(first)


@pytest.mark.slow
def test_a_run_among_such_names_comes_back_from_a_backup(installed, tmp_path):
    python, folder = installed.run, fill(tmp_path / "mine")
    summary = json.loads(python(*COORDINATOR, "run", "quickstart", *SETTINGS, "--json", cwd=folder))
    assert [row["round"] for row in summary["rounds"]] == [1]
    assert summary["final"]["epsilon"]["peers"] == pytest.approx(8.0, rel=1e-2)
    assert "\nadvice: " in python(*COORDINATOR, "advise", "handwriting", cwd=folder)
    python(*COORDINATOR, "backup", "file", cwd=folder)
    back = ("--storage", "sqlite:///back/sotto.db")
    python(*COORDINATOR, "restore", "file", *back, cwd=folder)
    found = json.loads(python(*COORDINATOR, "audit", "verify", *back, "--json", cwd=folder))
    assert found["problems"] == []


@pytest.mark.slow
def test_a_sweeps_workers_run_the_wheel_among_such_names(wheel_environment, tmp_path):
    folder = fill(tmp_path / "mine")
    axis = ("--seed", "0,1", "--jobs", "2", "--output", "out")
    wheel_environment.run(*COORDINATOR, "sweep", "quickstart", *SETTINGS, *axis, cwd=folder)
    assert len((folder / "out" / "results.csv").read_text("utf-8").splitlines()) >= 3


@pytest.mark.slow
def test_a_method_of_ones_own_is_held_to_the_contract(wheel_environment, tmp_path):
    """Without any setting of ours: a fresh folder, and what the wheel brings."""
    wheel_environment.run(*COORDINATOR, "new", "method", "mine", cwd=tmp_path)
    few = ("-k", "test_interface", "-p", "no:cacheprovider", "-W", "error")
    suite = ("--pyargs", "platform.contract", "--plugins", ".")
    assert "20 passed" in wheel_environment.run("-m", "pytest", *suite, *few, cwd=tmp_path)
    assert {path.name for path in tmp_path.glob("*.*")} == {"mine.py", "mine.yaml", "test_mine.py"}
