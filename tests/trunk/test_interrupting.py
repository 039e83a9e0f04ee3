"""SIGTERM and SIGHUP end a run as Ctrl-C does: real signals in the middle of real runs."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from platform.cli.interrupting import Interrupted, interruptible
from platform.experiment.finishing import execute
from platform.rounds.observing import SilentObserver
from storage import Database
from tests.trunk._dying import Plan, die
from tests.trunk._runs import NONE, SMALL, Command, Finished, Storage, comparable, opened

TRAINING = ("privacy.training:LocalTrainer.fit", 10, False)
DEALING = ("platform.bootstrap.planning:load_task_data", 1, False)


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return str(path)


def end(plan: Plan, config: str, storage: Storage) -> tuple[int, str]:
    """The exit code of a run that gets a signal, and what it printed."""
    return die(plan, "run", config, "--set", NONE, "--storage", storage.url)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_it_names_the_run_and_how_to_go_on(
    storage: Storage, config: str, sotto: Command, plain_run: Finished, number: int, code: int
) -> None:
    found, output = end(Plan(*TRAINING, number), config, storage)
    run_id = storage.only_run()
    assert found == code, output
    assert output.splitlines()[-1] == f"interrupted; resume with --resume {run_id}"
    assert "Traceback" not in output
    assert storage.rows("SELECT status FROM runs") == [("interrupted",)]
    answer = sotto("run", "--resume", run_id, "--storage", storage.url, "--json")
    assert answer.code == 0, answer.err
    assert comparable(answer.document) == comparable(plain_run.summary)


def test_before_there_is_a_run_it_names_none(storage: Storage, config: str) -> None:
    code, output = end(Plan(*DEALING, signal.SIGTERM), config, storage)
    assert (code, output) == (143, "interrupted\n")
    assert not storage.file.exists()


def test_a_run_under_nohup_goes_on(storage: Storage, config: str) -> None:
    plan = Plan(*TRAINING, signal.SIGHUP, ignored=(signal.SIGHUP,))
    code, output = end(plan, config, storage)
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
