"""SIGTERM and SIGHUP end a run as Ctrl-C does: real signals in the middle of real runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from platform.cli.interrupting import Interrupted, interruptible
from platform.experiment.finishing import execute
from platform.rounds.observing import SilentObserver
from storage import Database
from tests.trunk._runs import NONE, SMALL, Command, Finished, Storage, comparable, opened

TRAINING = {"target": "privacy.training:LocalTrainer.fit", "nth": 10, "after": False}
DEALING = {"target": "platform.bootstrap:load_task_data", "nth": 1, "after": False}
CASES: dict[str, dict[str, Any]] = {
    "SIGTERM": {**TRAINING, "signal": int(signal.SIGTERM)},
    "SIGHUP": {**TRAINING, "signal": int(signal.SIGHUP)},
    "early": {**DEALING, "signal": int(signal.SIGTERM)},
    "nohup": {**TRAINING, "signal": int(signal.SIGHUP), "ignored": [int(signal.SIGHUP)]},
}


@pytest.fixture(scope="module")
def endings(
    make_storage: Any, tmp_path_factory: pytest.TempPathFactory, child_environment: dict[str, str]
) -> dict[str, tuple[Storage, int, str]]:
    """Where each run lay, its exit code, and what it printed."""
    folder = tmp_path_factory.mktemp("endings")
    (folder / "small.yaml").write_text(SMALL)
    places = {name: make_storage(f"ended-{name}") for name in CASES}
    plans = [
        {
            **plan,
            "log": str(folder / f"{name}.log"),
            "arguments": [
                *("run", str(folder / "small.yaml"), "--set", NONE),
                *("--storage", places[name].url),
            ],
        }
        for name, plan in CASES.items()
    ]
    (folder / "plan.json").write_text(json.dumps(plans))
    command = [sys.executable, str(Path(__file__).with_name("_dying.py")), folder / "plan.json"]
    done = subprocess.check_output(command, env=child_environment, cwd=folder, text=True)
    return {
        name: (places[name], code, (folder / f"{name}.log").read_text())
        for name, code in zip(CASES, json.loads(done), strict=True)
    }


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_it_names_the_run_and_how_to_go_on(
    endings: dict[str, tuple[Storage, int, str]],
    sotto: Command,
    plain_run: Finished,
    name: str,
    code: int,
) -> None:
    storage, found, output = endings[name]
    run_id = storage.only_run()
    assert found == code, output
    assert output.splitlines()[-1] == f"interrupted; resume with --resume {run_id}"
    assert "Traceback" not in output
    assert storage.rows("SELECT status FROM runs") == [("interrupted",)]
    answer = sotto("run", "--resume", run_id, "--storage", storage.url, "--json")
    assert answer.code == 0, answer.err
    assert comparable(answer.document) == comparable(plain_run.summary)


def test_before_there_is_a_run_it_names_none(
    endings: dict[str, tuple[Storage, int, str]],
) -> None:
    storage, code, output = endings["early"]
    assert (code, output) == (143, "interrupted\n")
    assert not storage.file.exists()


def test_a_run_under_nohup_goes_on(endings: dict[str, tuple[Storage, int, str]]) -> None:
    storage, code, output = endings["nohup"]
    assert code == 0, output
    assert storage.rows("SELECT status FROM runs") == [("finished",)]


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    with pytest.raises(Interrupted) as ended, interruptible():
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.number == signal.SIGTERM
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before


def test_a_signal_just_after_the_last_commit_leaves_a_finished_run(
    storage: Storage, sotto: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old pages are erased behind a commit, so the run has finished when this one comes."""
    erase = Database.checkpoint

    def interrupted(database: Database) -> None:
        erase(database)
        if storage.rows("SELECT status FROM runs") == [("finished",)]:
            raise KeyboardInterrupt

    simulation = storage.create(NONE, "rounds=1", "evaluation.local_twins=false")
    with monkeypatch.context() as patch, opened(simulation), pytest.raises(KeyboardInterrupt):
        patch.setattr(Database, "checkpoint", interrupted)
        execute(simulation, SilentObserver())
    assert storage.rows("SELECT status FROM runs") == [("finished",)]
    answer = sotto("report", "latest", "--storage", storage.url, "--json")
    assert answer.code == 0 and answer.document["run_id"] == simulation.run_id
