"""A run that begins with enough clients, and those that come between rounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform.errors import ConfigError, RunStopped
from platform.wire.codec import peek
from platform.wire.transport import Dropout, InProcessTransport
from tests.trunk._federations import NAMES, OPEN, Holders, federation, go_on, hold
from tests.trunk._leaving import MASKED, Doing, agrees, audit, crash, doing, ledger, runs_of
from tests.trunk._runs import Crash

THREE = (*MASKED, "federation.start_with=3")


@pytest.fixture
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("joining")


class Away(InProcessTransport):
    """One client is not there before its n-th question; what is asked of whom is remembered."""

    def __init__(self, handlers, name: str, comes_at: int) -> None:
        super().__init__(handlers=handlers, losses=lambda *_: frozenset())
        self.__dict__.update(name=name, comes_at=comes_at, asked=[])

    def exchange(self, stage, messages, deadline):
        answered = dict(messages)
        if self.name in messages:
            self.asked.append((stage, deadline, peek(messages[self.name])[0]))
            if len(self.asked) < self.comes_at:
                del answered[self.name]
        found = dict(super().exchange(stage, answered, deadline))
        lost = dict.fromkeys(messages.keys() - answered.keys(), Dropout("nobody is there"))
        return {**found, **lost}


def test_a_client_joins_between_rounds_and_is_charged_for_those_only(folder):
    holders = Holders.written(folder)
    # Not there for the first offer, nor the one before round 1.
    transport = Away(holders.handlers(), "south", 3)
    summary = hold(federation(folder, *THREE), doing(transport))
    assert [r["dropped"] for r in summary["rounds"]] == [1, 0, 0]
    assert [r["cohort"] for r in summary["rounds"]] == [4, 4, 4]
    offers = [entry for entry in transport.asked if entry[2] == "offer"]
    assert [deadline for _, deadline, _ in offers] == [None, 60.0, 60.0]
    assert len(ledger(folder, "south")) == 2
    assert len(ledger(folder, "east")) == 3
    run_id = summary["run_id"]
    joined = audit(folder, run_id, "client.joined")
    assert [detail["client"] for detail in joined] == [1, 2, 4, 3]
    agrees(folder, run_id)


def test_a_client_that_never_comes_is_lost_in_every_round_and_holds_up_nobody(folder):
    holders = Holders.written(folder)
    summary = hold(federation(folder, *THREE), doing(Away(holders.handlers(), "west", 99)))
    assert [r["dropped"] for r in summary["rounds"]] == [1, 1, 1]
    assert ledger(folder, "west") == []
    (said,) = [w for w in summary["warnings"] if "never joined" in w]
    assert said.endswith(": 4")
    agrees(folder, summary["run_id"])


def test_a_client_that_comes_while_a_round_is_open_is_asked_from_the_next_one_on(folder):
    """It was not charged for the open one, so nothing of it may leave it there."""
    holders = Holders.written(folder)

    class Dies(Away):
        def exchange(self, stage, messages, deadline):
            return crash() if stage == "share" else super().exchange(stage, messages, deadline)

    with pytest.raises(Crash):
        hold(federation(folder, *THREE), doing(Dies(holders.handlers(), "north", 99)))
    (run_id,) = runs_of(folder)
    transport = Doing(holders.handlers(), ("join", 99), lambda: None, after=False)
    summary = go_on(run_id, f"sqlite:///{folder}/sotto.db", doing(transport))
    rounds = [who for stage, who in transport.asked if stage == "train"]
    assert ["north" in who for who in rounds] == [False, True, True]
    assert [r["dropped"] for r in summary["rounds"]] == [1, 0, 0]
    assert len(ledger(folder, "north")) == 2
    agrees(folder, run_id)


def test_with_too_few_at_the_start_nothing_is_asked(folder):
    """Those that decline count as little as those that are silent, and are named with why."""
    strict = {**OPEN, "mechanisms": ["upload_noise"]}
    holders = Holders.written(folder, of={"east": {"limits": strict}})
    transport = Away(holders.handlers(), "west", 99)
    with pytest.raises(RunStopped, match=r"2 of 4 clients take part, and .*start_with is 3"):
        hold(federation(folder, *THREE), doing(transport))
    assert all(ledger(folder, name) == [] for name in NAMES)
    assert audit(folder, runs_of(folder)[0], "client.joined") == []


def test_by_default_nothing_begins_without_all(folder):
    holders = Holders.written(folder)
    with pytest.raises(RunStopped, match="west cannot be heard at stage join"):
        hold(federation(folder, *MASKED), doing(Away(holders.handlers(), "west", 99)))


def test_one_that_declines_later_is_not_asked_again(folder):
    strict = {**OPEN, "mechanisms": ["upload_noise"]}
    holders = Holders.written(folder, of={"west": {"limits": strict}})
    transport = Doing(holders.handlers(), ("join", 99), lambda: None, after=False)
    summary = hold(federation(folder, *THREE), doing(transport))
    assert [who for stage, who in transport.asked if "west" in who] == [list(NAMES)]
    assert [r["dropped"] for r in summary["rounds"]] == [1, 1, 1]


def test_a_number_that_no_round_can_be_held_with_is_refused(folder):
    for number in (2, 5):
        with pytest.raises(ConfigError, match=f"start_with: {number} .* valid: null, or 3 to 4"):
            federation(folder, *MASKED, f"federation.start_with={number}")
    secret = (
        "privacy={mechanism: central_noise, clipping_norm: 0.1, noise_multiplier: 1.0}",
        "secure_aggregation.largest_weight=null",
        "cohort={size: 2, sampling: poisson, minimum: 1, retries: 0}",
    )
    federation(folder, *secret)
    with pytest.raises(ConfigError, match="start_with: 3 does not go with cohorts"):
        federation(folder, *secret, "federation.start_with=3")
