"""SIGTERM and SIGHUP end a run as Ctrl-C does: real signals in the middle of real runs."""

from __future__ import annotations

import json
import shlex
import signal
import threading
import time
from pathlib import Path

import pytest

from platform.bootstrap import Surroundings
from platform.cli.command_line import DEFAULT_STORAGE
from platform.cli.ending import SIGNALS, Ended, ended_run, finding, interruptible
from platform.experiment.finishing import execute
from platform.rounds.observing import SilentObserver
from storage import Database
from tests._forking import forked
from tests.trunk._dying import Plan, die
from tests.trunk._runs import (
    NONE,
    SMALL,
    Command,
    Finished,
    Storage,
    comparable,
    interrupted_run,
    opened,
)

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
    assert output.splitlines()[-1] == interrupted_run(run_id, storage)
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
    before = [signal.getsignal(number) for number in SIGNALS]
    with interruptible():
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
def test_a_second_signal_ends_the_process_at_once_with_the_same_words(number: int) -> None:
    """Also while the first one is being told, or a thread keeps the interpreter from ending."""

    def work() -> int:
        for each in SIGNALS:
            signal.signal(each, signal.default_int_handler)
        try:
            with interruptible(lambda number: Ended(number, "run 1 is interrupted")):
                signal.raise_signal(signal.SIGINT)
        except Ended as error:
            print(error, error.exit_code, flush=True)
        threading.Thread(target=lambda: signal.raise_signal(number)).start()
        time.sleep(20)
        return 0

    code, output = forked(work)
    assert (code, output) == (128 + number, "run 1 is interrupted 130\nrun 1 is interrupted\n")


def test_a_second_signal_while_a_run_is_ended_prints_no_trace(
    storage: Storage, config: str, sotto: Command
) -> None:
    """It comes while the first one is written to the database, and what is durable is enough."""
    plan = Plan(*TRAINING, signal.SIGINT, again="platform.experiment.finishing:mark_interrupted")
    code, output = end(plan, config, storage)
    run_id = storage.only_run()
    assert code == 130
    assert output.splitlines()[-1] == interrupted_run(run_id, storage)
    assert "Traceback" not in output
    answer = sotto("run", "--resume", run_id, "--storage", storage.url, "--json")
    assert answer.code == 0, answer.err


def test_under_json_the_run_and_the_command_are_fields(storage: Storage, config: str) -> None:
    plan = Plan(*TRAINING, signal.SIGINT)
    code, output = die(plan, "run", config, "--set", NONE, "--storage", storage.url, "--json")
    run_id = storage.only_run()
    assert code == 130
    told = json.loads(output.splitlines()[-1])
    assert (told["kind"], told["exit_code"], told["run_id"]) == ("interrupted", 130, run_id)
    assert told["command"] == interrupted_run(run_id, storage).partition("go on with: ")[2]


def test_what_is_typed_to_go_on_names_where_the_run_and_its_method_are(tmp_path: Path) -> None:
    surroundings = Surroundings.with_methods(tmp_path / "my methods")
    assert finding(DEFAULT_STORAGE, Surroundings()) == ()
    ended = ended_run(2, "small-1", finding("sqlite:///x/y.db", surroundings))
    assert shlex.split(str(ended).partition("go on with: ")[2]) == [
        *("python", "-m", "platform.coordinator", "run", "--resume", "small-1"),
        *("--storage", "sqlite:///x/y.db", "--methods", str(tmp_path / "my methods")),
    ]


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
