"""Real deaths of the command line by kill -9, and what a resumed run makes of them."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from platform.experiment.finishing import execute
from platform.rounds.observing import SilentObserver
from storage import Database
from tests.trunk._dying import Plan, die
from tests.trunk._runs import (
    NONE,
    OS,
    SMALL,
    TWINS,
    Finished,
    Storage,
    comparable,
    gaussian_epsilon,
    interrupted_run,
    opened,
    slow,
    warnings_of,
)

# Where to die: the call, which one, and whether before or after its work. Four clients train a
# round, so the tenth training is the second client's of round 3: the first one's personal part is
# pending then, and what it goes back to was trained with experts.
POINTS: dict[str, tuple[str, int, bool]] = {
    "training": ("privacy.training:LocalTrainer.fit", 10, False),
    "training-early": ("privacy.training:LocalTrainer.fit", 6, False),
    "reserved": ("platform.rounds.attempts:Spending.reserve", 2, True),
    "opened": ("platform.rounds.runner:RoundRunner.run", 2, False),
    "joined": ("platform.rounds.runner:DatabaseJournal.keep", 5, False),
    "shared": ("platform.rounds.runner:DatabaseJournal.keep", 5, True),
    # Round 2 asks five clients twice and four once; before it come the roll call of five, round 1
    # that asks 18 times in 4 stages, and what five measure after it.
    "stage-written": ("platform.parties.client:Client.handle", 42, True),
    "stage-durable": ("platform.wire.transport:InProcessTransport.exchange", 9, True),
    "added-up": ("platform.rounds.runner:DatabaseJournal.keep", 6, True),
    "sum-opened": ("platform.rounds.runner:MaskedSum.finished", 2, True),
    "committed": ("platform.rounds.loop:Federation._commit", 2, True),
    "committing": ("platform.rounds.loop:Federation._commit_pool", 2, True),
    "before-summary": ("platform.experiment.finishing:personalise", 1, False),
    "personalising": ("platform.parties.client:Client._part", 3, False),
    "personalised": ("platform.parties.client:Client._part", 3, True),
    "joining": ("platform.parties.client:Client._introduce", 3, False),
    "measuring": ("platform.parties.client:Client._examine", 8, False),
    "measured": ("platform.parties.client:Client._examine", 10, True),
    "measuring-last": ("platform.parties.client:Client._examine", 18, True),
    "files-written": ("platform.experiment.finishing:write_run_files", 1, True),
}
SEEDED = "privacy.noise_source=seeded"
FIXTURES = {NONE: "plain_run", SEEDED: "noised_run"}
End = Callable[..., tuple[int, str]]


@pytest.fixture
def end(storage: Storage, tmp_path: Path) -> End:
    config = tmp_path / "small.yaml"
    config.write_text(SMALL)

    def run(plan: Plan, override: str = NONE, *more: str) -> tuple[int, str]:
        changes = ("--set", override, "--set", TWINS)
        return die(plan, "run", str(config), *changes, "--storage", storage.url, *more)

    return run


def reserved(storage: Storage) -> list[tuple[Any, ...]]:
    query = "SELECT round_number, attempt, count(*) FROM ledger GROUP BY 1, 2 ORDER BY 1, 2"
    return storage.rows(query)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "point"),
    [*((NONE, point) for point in POINTS), (SEEDED, "training"), (SEEDED, "committed")],
)
def test_killed_run_ends_as_if_nothing_had_happened(storage, end, sotto, request, override, point):
    code, output = end(Plan(*POINTS[point], signal.SIGKILL), override)
    assert code == -signal.SIGKILL, output
    reference: Finished = request.getfixturevalue(FIXTURES[override])
    in_clients = ("joined", "shared", "stage-written", "stage-durable", "added-up", "sum-opened")
    before_two = ("reserved", "opened", *in_clients, "committing", "measuring", "measured")
    committed = {"committed": 2, "joining": 0, **dict.fromkeys(before_two, 1)}
    committed |= {"training-early": 1, "training": 2}
    rounds = storage.rows("SELECT round_number FROM rounds")
    assert [n for (n,) in rounds] == list(range(1, committed.get(point, 3) + 1))
    # Also where its files are written already.
    told = sotto("report", "latest", "--storage", storage.url, "--json")
    assert told.document["finished"] is False
    resumed = storage.resume(storage.only_run())
    assert comparable(resumed.summary) == comparable(reference.summary)
    assert reserved(storage) == [(1, 1, 5), (2, 1, 5), (3, 1, 5)]
    assert resumed.survivors() == reference.survivors()
    # Accuracies are coarse; the arrays themselves are not.
    assert resumed.personal_parts() == reference.personal_parts()
    assert all(np.array_equal(a, reference.state()[n]) for n, a in resumed.state().items())
    verify = ("audit", "verify", "--run", resumed.run_id, "--head", resumed.head)
    assert sotto(*verify, "--storage", storage.url).code == 0
    # A run that had heard of no client begins; any other goes on.
    went_on = storage.rows("SELECT count(*) FROM audit WHERE action = 'run.resumed'")
    assert went_on == [(int(point != "joining"),)]


LEFT = ("training-early", "reserved", "opened", "stage-written", "stage-durable", "sum-opened")


@pytest.mark.parametrize("point", ["added-up", *map(slow, (*LEFT, "committed"))])
def test_killed_run_with_fresh_noise_pays_once(storage, end, point):
    code, output = end(Plan(*POINTS[point], signal.SIGKILL), OS)
    assert code == -signal.SIGKILL, output
    resumed = storage.resume(storage.only_run())
    assert reserved(storage) == [(1, 1, 5), (2, 1, 5), (3, 1, 5)]
    assert [r["round"] for r in resumed.summary["rounds"]] == [1, 2, 3]
    spent = resumed.summary["final"]["epsilon"]["server"]
    assert spent == pytest.approx(gaussian_epsilon(resumed.noise_multiplier, 3), rel=1e-6)
    assert 7.99 < spent <= 8.0
    assert not any("ended" in text or "charged" in text for text in warnings_of(resumed.summary))


TRAINING = POINTS["training"]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_it_names_the_run_and_how_to_go_on(storage, end, sotto, plain_run, number, code):
    found, output = end(Plan(*TRAINING, number))
    run_id = storage.only_run()
    assert found == code, output
    assert output.splitlines()[-1] == interrupted_run(run_id, storage)
    assert "Traceback" not in output
    assert storage.rows("SELECT status FROM runs") == [("interrupted",)]
    answer = sotto("run", "--resume", run_id, "--storage", storage.url, "--json")
    assert answer.code == 0, answer.err
    assert comparable(answer.document) == comparable(plain_run.summary)


def test_before_there_is_a_run_it_names_none(storage, end):
    dealing = ("platform.experiment.planning:load_task_data", 1, False)
    code, output = end(Plan(*dealing, signal.SIGTERM))
    assert (code, output) == (143, "interrupted\n")
    assert not storage.file.exists()


@pytest.mark.slow
def test_a_run_under_nohup_goes_on(storage, end):
    plan = Plan(*TRAINING, signal.SIGHUP, ignored=(signal.SIGHUP,))
    code, output = end(plan)
    assert code == 0, output
    assert storage.rows("SELECT status FROM runs") == [("finished",)]


@pytest.mark.slow
def test_a_second_signal_while_a_run_is_ended_prints_no_trace(storage, end):
    """It comes while the first one is written to the database, and what is durable is enough."""
    plan = Plan(*TRAINING, signal.SIGINT, again="platform.experiment.finishing:mark_interrupted")
    code, output = end(plan)
    assert code == 130
    assert output.splitlines()[-1] == interrupted_run(storage.only_run(), storage)
    assert "Traceback" not in output


@pytest.mark.slow
def test_a_signal_just_after_the_last_commit_leaves_a_finished_run(storage, sotto, monkeypatch):
    """Old pages are erased behind a commit, so the run has finished when this one comes."""
    erase = Database.checkpoint

    def interrupted(database: Database) -> None:
        erase(database)
        if storage.rows("SELECT status FROM runs") == [("finished",)]:
            raise KeyboardInterrupt

    simulation = storage.create(NONE, "rounds=1")
    with monkeypatch.context() as patch, opened(simulation), pytest.raises(KeyboardInterrupt):
        patch.setattr(Database, "checkpoint", interrupted)
        execute(simulation, SilentObserver())
    assert storage.rows("SELECT status FROM runs") == [("finished",)]
    answer = sotto("report", "latest", "--storage", storage.url, "--json")
    assert answer.code == 0 and answer.document["run_id"] == simulation.run_id
