"""Real deaths of the command line, by kill -9 and Ctrl-C, and what a resumed run makes of them."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trunk._dying import Plan, die
from tests.trunk._runs import (
    NONE,
    OS,
    SMALL,
    Answer,
    Command,
    Finished,
    Storage,
    comparable,
    gaussian_epsilon,
    interrupted_run,
)

# Where to die: the call, which one, and whether before or after its work. Four clients train a
# round, so the tenth training is the second client's of round 3: the first one's personal part is
# pending then, and what it goes back to was trained with experts.
POINTS: dict[str, tuple[str, int, bool]] = {
    "training": ("privacy.training:LocalTrainer.fit", 10, False),
    "reserved": ("platform.rounds.spending:Spending.reserve", 2, True),
    "opened": ("platform.rounds.runner:RoundRunner.run", 2, False),
    "joined": ("platform.rounds.exchange:DatabaseJournal.keep", 5, False),
    "shared": ("platform.rounds.exchange:DatabaseJournal.keep", 5, True),
    # Round 2 asks five clients twice and four once; before it come the roll call of five, round 1
    # that asks 18 times in 4 stages, and what five measure after it.
    "stage-written": ("platform.parties.client:Client.handle", 42, True),
    "stage-durable": ("platform.wire.transport:InProcessTransport.exchange", 9, True),
    "added-up": ("platform.rounds.exchange:DatabaseJournal.keep", 6, True),
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
EARLY = "training-early"
PLACES = {**POINTS, EARLY: ("privacy.training:LocalTrainer.fit", 6, False)}
SEEDED = "privacy.noise_source=seeded"
KILLS = {
    NONE: tuple(POINTS),
    SEEDED: ("training", "committed"),
    OS: (
        *(EARLY, "reserved", "opened", "stage-written", "stage-durable", "added-up"),
        *("sum-opened", "committed"),
    ),
}
LATER = {
    NONE: (
        *("reserved", "joined", "stage-durable", "sum-opened", "before-summary", "personalised"),
        *("measured", "measuring-last"),
    ),
    SEEDED: ("committed",),
    OS: ("reserved", "opened", "stage-written", "sum-opened"),
}
"""Points at which only the slow tests die; a quick run dies at their neighbours."""


def points(override: str) -> list[Any]:
    """Where to die under this override, some of it with the slow tests only."""
    return [
        pytest.param(point, marks=pytest.mark.slow) if point in LATER[override] else point
        for point in KILLS[override]
    ]


@dataclass(frozen=True)
class Death:
    """A run that died."""

    storage: Storage
    code: int
    output: str


MakeDeath = Callable[..., Death]


@pytest.fixture
def end_at(storage: Storage, tmp_path: Path) -> MakeDeath:
    """Runs the small configuration in a process that dies: `end_at(override, point)`."""
    config = tmp_path / "small.yaml"
    config.write_text(SMALL)

    def run(override: str, point: str, number: int = signal.SIGKILL) -> Death:
        arguments = ("run", str(config), "--set", override, "--storage", storage.url)
        return Death(storage, *die(Plan(*PLACES[point], number), *arguments))

    return run


def reserved(storage: Storage) -> list[tuple[Any, ...]]:
    query = "SELECT round_number, attempt, count(*) FROM ledger GROUP BY 1, 2 ORDER BY 1, 2"
    return storage.rows(query)


@pytest.mark.parametrize("point", points(NONE))
def test_killed_run_without_noise_ends_as_if_nothing_had_happened(
    end_at: MakeDeath, point: str, plain_run: Finished
) -> None:
    require_identical(end_at(NONE, point), point, plain_run)


@pytest.mark.parametrize("point", points(SEEDED))
def test_killed_run_with_seeded_noise_ends_as_if_nothing_had_happened(
    end_at: MakeDeath, point: str, noised_run: Finished
) -> None:
    require_identical(end_at(SEEDED, point), point, noised_run)


def require_identical(death: Death, point: str, reference: Finished) -> None:
    """Killed for real; at most the round in progress was lost; the same results and charges."""
    assert death.code == -signal.SIGKILL, death.output
    assert "Traceback" not in death.output
    in_clients = ("joined", "shared", "stage-written", "stage-durable", "added-up", "sum-opened")
    before_two = ("reserved", "opened", *in_clients, "committing", "measuring", "measured")
    committed = {"training": 2, "committed": 2, "joining": 0, **dict.fromkeys(before_two, 1)}
    rounds = death.storage.rows("SELECT round_number FROM rounds")
    expected = committed.get(point, 3)
    assert [n for (n,) in rounds] == list(range(1, expected + 1))
    resumed = death.storage.resume(death.storage.only_run())
    assert comparable(resumed.summary) == comparable(reference.summary)
    assert reserved(death.storage) == [(1, 1, 5), (2, 1, 5), (3, 1, 5)]
    assert resumed.survivors() == reference.survivors()
    # Accuracies are coarse; the arrays themselves are not.
    assert resumed.personal_parts() == reference.personal_parts()
    assert all(np.array_equal(a, reference.state()[n]) for n, a in resumed.state().items())


@pytest.mark.parametrize("point", points(OS))
def test_killed_run_with_fresh_noise_pays_once(end_at: MakeDeath, point: str) -> None:
    """What left a client before the kill is sent again, byte for byte; nothing is drawn anew."""
    died = end_at(OS, point)
    assert died.code == -signal.SIGKILL
    resumed = died.storage.resume(died.storage.only_run())
    assert reserved(died.storage) == [(1, 1, 5), (2, 1, 5), (3, 1, 5)]
    assert [r["round"] for r in resumed.summary["rounds"]] == [1, 2, 3]
    spent = resumed.summary["final"]["epsilon"]["server"]
    assert spent == pytest.approx(gaussian_epsilon(resumed.noise_multiplier, 3), rel=1e-6)
    assert 7.99 < spent <= 8.0
    assert not any("ended" in text or "charged" in text for text in resumed.summary["warnings"])


def test_resumed_run_has_one_unbroken_audit_log(end_at: MakeDeath, sotto: Command) -> None:
    storage = end_at(NONE, "files-written").storage
    run_id = storage.only_run()
    storage.resume(run_id)
    summary = json.loads((storage.folder / run_id / "summary.json").read_text())
    head = f"{summary['audit_head']['count']}:{summary['audit_head']['hash']}"
    answer = sotto("audit", "verify", "--run", run_id, "--head", head, "--storage", storage.url)
    assert answer.code == 0, answer.err
    actions = [a for (a,) in storage.rows("SELECT action FROM audit ORDER BY sequence")]
    assert actions.count("run.resumed") == 1 and actions[-1] == "run.finished"


def test_ctrl_c_names_the_run_and_how_to_go_on(
    end_at: MakeDeath, sotto: Command, plain_run: Finished
) -> None:
    death = end_at(NONE, "training", signal.SIGINT)
    run_id = death.storage.only_run()
    assert death.code == 130
    assert death.output.splitlines()[-1] == interrupted_run(run_id, death.storage)
    assert "Traceback" not in death.output
    listed: Answer = sotto("runs", "--storage", death.storage.url, "--json")
    assert [r["status"] for r in listed.document] == ["interrupted"]
    answer = sotto("run", "--resume", run_id, "--storage", death.storage.url, "--json")
    assert answer.code == 0, answer.err
    assert comparable(answer.document) == comparable(plain_run.summary)


def test_ctrl_c_before_the_first_round_names_the_run_as_well(
    end_at: MakeDeath, plain_run: Finished
) -> None:
    """The run is in the database, so whoever ends it is told how to go on."""
    death = end_at(NONE, "joining", signal.SIGINT)
    run_id = death.storage.only_run()
    assert death.code == 130
    assert death.output.splitlines()[-1] == interrupted_run(run_id, death.storage)
    assert comparable(death.storage.resume(run_id).summary) == comparable(plain_run.summary)
