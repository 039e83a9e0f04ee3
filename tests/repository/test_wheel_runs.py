"""A wheel in an environment of its own does the work, from a folder that knows no checkout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.repository._source import ROOT
from tests.repository.conftest import Environment

pytestmark = pytest.mark.slow

SMALL = (
    *("task.dataset=shapes", "task.domains=[real]", "task.clients=4", "task.shots=1"),
    *("task.test_per_class=2", "task.partition={kind: iid}", "rounds=1"),
    *("training.local_steps=1", "training.batch_size=2", "cohort.dropout_rate=0.0"),
    *("secure_aggregation={enabled: true, threshold: 3, corrupt: 1}",),
    *("evaluation.local_twins=false", "evaluation.worth_of_sharing=false"),
)
SETTINGS = ["--device", "cpu", *(word for setting in SMALL for word in ("--set", setting))]
COORDINATOR = ("-m", "platform.coordinator")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that is in no checkout."""
    assert ROOT not in tmp_path.parents
    return tmp_path


def test_the_quickstart_runs_and_comes_back_from_a_backup(
    wheel_environment: Environment, folder: Path
) -> None:
    """With what Alembic, configurations, the model and its tokens need from the wheel."""
    run = wheel_environment.run
    summary = json.loads(run(*COORDINATOR, "run", "quickstart", *SETTINGS, "--json", cwd=folder))
    assert [row["round"] for row in summary["rounds"]] == [1]
    assert summary["final"]["epsilon"]["peers"] == pytest.approx(8.0, rel=1e-2)
    run(*COORDINATOR, "backup", "file", cwd=folder)
    back = ("--storage", "sqlite:///back/sotto.db")
    run(*COORDINATOR, "restore", "file", *back, cwd=folder)
    found = json.loads(run(*COORDINATOR, "audit", "verify", *back, "--json", cwd=folder))
    assert found["problems"] == []


def test_a_sweeps_workers_run_the_wheel(wheel_environment: Environment, folder: Path) -> None:
    axis = ("--seed", "0,1", "--jobs", "2", "--set", "privacy.mechanism=upload_noise")
    wheel_environment.run(
        *(*COORDINATOR, "sweep", "quickstart", *SETTINGS, *axis, "--output", "out"), cwd=folder
    )
    rows = (folder / "out" / "results.csv").read_text("utf-8").splitlines()
    assert len(rows) >= 3


def test_a_method_of_ones_own_is_held_to_the_contract(
    wheel_environment: Environment, folder: Path
) -> None:
    """Without any setting of ours: a fresh folder, and what the wheel brings."""
    run = wheel_environment.run
    run(*COORDINATOR, "new", "method", "mine", cwd=folder)
    few = ("-k", "test_interface", "-p", "no:cacheprovider", "-W", "error")
    suite = ("--pyargs", "platform.contract", "--methods", ".")
    said = run("-m", "pytest", *suite, *few, cwd=folder)
    assert "20 passed" in said
    assert {path.name for path in folder.glob("*.*")} == {"mine.py", "mine.yaml", "test_mine.py"}


def test_configurations_and_the_data_holders_example_are_in_it(
    wheel_environment: Environment, folder: Path
) -> None:
    run = wheel_environment.run
    listed = json.loads(run(*COORDINATOR, "configs", "--json", cwd=folder))
    names = {
        path.relative_to(ROOT / "configs").with_suffix("").as_posix()
        for path in (ROOT / "configs").rglob("*.yaml")
    }
    assert "quickstart" in (shown := {row["name"] for row in listed})
    assert shown <= names
    assert "Usage: python -m platform.client" in run("-m", "platform.client", "--help", cwd=folder)
    example = run("-m", "platform.client", "example", cwd=folder)
    assert example == (ROOT / "platform" / "holder" / "example.yaml").read_text("utf-8").strip()
    where = "import platform.relay.hub as hub; print(hub.__file__)"
    assert run("-c", where, cwd=folder).startswith(str(wheel_environment.site_packages))
