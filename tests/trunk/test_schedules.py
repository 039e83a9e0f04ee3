"""Rates over rounds: factors by hand, runs against runs of single rounds, resuming, refusals."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from platform.config import ScheduleConfig
from platform.errors import ConfigError
from platform.rounds.loop import Federation
from platform.wire.codec import decode_arrays
from privacy.training import LocalTrainer
from tests.trunk._networks import PIXELS
from tests.trunk._runs import (
    FIXED,
    NO_POOL,
    NONE,
    RECORDS,
    TWINS,
    Storage,
    comparable,
    crashed,
    gaussian_epsilon,
)

FALLING = "training.schedule={kind: exponential, gamma: 0.5}"
SCAFFOLD = (
    *PIXELS,
    "method={name: scaffold, network: cnn, image_size: 16, channels: [2, 3], feature_width: 8}",
    "training={local_steps: 2, batch_size: 4, learning_rate: 0.05}",
)
MASKLESS = ("secure_aggregation.enabled=false", "cohort.dropout_rate=0")
PLAIN = (*NO_POOL, NONE, *MASKLESS)


def factors(count: int, section: dict[str, Any]) -> list[float]:
    schedule = ScheduleConfig(**section)
    return [schedule.factor(number, count) for number in range(1, count + 1)]


@pytest.mark.parametrize(
    ("section", "wanted"),
    [
        ({}, [1.0, 1.0, 1.0, 1.0]),
        # 0.8^round, the first round being number 0 (TRIP's code).
        ({"kind": "exponential", "gamma": 0.8}, [1.0, 0.8, 0.64, 0.512]),
        ({"kind": "cosine", "final": 0.2}, [1.0, 0.882843, 0.6, 0.317157]),
        # Half of eight rounds: t / 8
        ({"kind": "cosine", "rounds": 8}, [1.0, 0.961940, 0.853553, 0.691342]),
        ({"warm_up_rounds": 3}, [0.25, 0.5, 0.75, 1.0]),
        # The cosine has the two rounds after warm-up: (1 + cos 0) / 2 and (1 + cos(pi / 2)) / 2
        ({"kind": "cosine", "warm_up_rounds": 2, "warm_up_factor": 0.1}, [0.1, 0.1, 1.0, 0.5]),
        ({"kind": "exponential", "gamma": 0.5, "warm_up_rounds": 1}, [0.5, 1.0, 0.5, 0.25]),
    ],
)
def test_factors_by_hand(section: dict[str, Any], wanted: list[float]) -> None:
    assert factors(4, section) == pytest.approx(wanted, abs=1e-6)


def test_the_cosine_is_torchs() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10, eta_min=0.1)
    for mine in factors(10, {"kind": "cosine", "final": 0.1}):
        assert mine == pytest.approx(theirs.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        theirs.step()


def rates_of(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seen, original = [], LocalTrainer.fit

    def watching(self: LocalTrainer, *arguments: Any, **named: Any) -> Any:
        seen.append(self.learning_rate)
        return original(self, *arguments, **named)

    monkeypatch.setattr(LocalTrainer, "fit", watching)
    return seen


def test_every_round_twins_and_silence_follow_it_and_what_comes_after_does_not(
    storage, monkeypatch
):
    rates = rates_of(monkeypatch)
    tuned = ("method.name=promptfl_ft", "method.context_tokens=2", "method.finetune_steps=1")
    storage.run(*PLAIN, TWINS, *tuned, FALLING)
    rounds = [0.05] * 5 + [0.025] * 5 + [0.0125] * 5
    # Five clients personalise, then five twins have three rounds and their own personalising; each
    # five train side by side.
    assert rates[:15] == pytest.approx(rounds)
    assert rates[15:20] == [0.05] * 5
    assert rates[20:] == pytest.approx([*rounds, *[0.05] * 5])


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [PLAIN, (*NO_POOL, *RECORDS)], ids=["none", "dp_sgd"])
def test_a_resumed_run_is_the_same(storage, monkeypatch, overrides):
    whole = storage.run(*overrides, FALLING)
    begun = storage.create(*overrides, FALLING)
    resumed = storage.resume(crashed(monkeypatch, begun, Federation, "_commit", 2, after=True))
    assert np.array_equal(resumed.state()["context"], whole.state()["context"])
    assert comparable(resumed.summary)["final"] == comparable(whole.summary)["final"]


def test_noise_is_charged_as_without(storage: Storage) -> None:
    """The rates are a function of the round's number, which everybody knows."""
    spent = storage.run(*NO_POOL, *FIXED, FALLING, *MASKLESS).summary["final"]["epsilon"]
    assert spent["server"] == pytest.approx(gaussian_epsilon(4.0, 3), rel=1e-6)


def test_scaffolds_first_round_is_that_of_its_own_rate(storage: Storage) -> None:
    """Half the rate by warm-up, or by itself: the same bits, also of its (x - y) / (K rate)."""
    both = (*SCAFFOLD, *MASKLESS, "rounds=2")
    halved = ("training.schedule={warm_up_rounds: 1}", "training.learning_rate=0.1")
    whole = storage.run(*both, *halved).run_id
    itself = storage.run(*both, "training.learning_rate=0.05").run_id
    query = "SELECT blob FROM states WHERE run_id = ? AND round_number = 1"
    ((blob,),) = storage.rows(query, whole)
    assert storage.rows(query, itself) == [(blob,)]
    last = query.replace("= 1", "= 2")
    assert storage.rows(last, whole) != storage.rows(last, itself)
    variates = {name: v for name, v in decode_arrays(blob).items() if "control" in name}
    assert any(np.abs(array).max() > 0.0 for array in variates.values())


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("betas=[0.9, 0.98]", "betas: (0.9, 0.98)"),
        ("eps=1.0e-7", "eps: 1e-07"),
        ("schedule={kind: exponential}", "schedule.gamma: null"),
        ("schedule={gamma: 0.5}", "schedule.gamma: 0.5"),
        ("schedule={kind: cosine, rounds: 2}", "schedule.rounds: 2"),
        ("schedule={warm_up_rounds: 3}", "schedule.warm_up_rounds: 3"),
        ("schedule={warm_up_factor: 0.5}", "schedule.warm_up_factor: 0.5"),
        ("schedule={kind: exponential, gamma: 1.0e-20}", "schedule.gamma: 1e-20"),
    ],
)
def test_what_has_no_meaning_is_refused(storage, override, sentence):
    with pytest.raises(ConfigError, match=f"^training.{re.escape(sentence)}"):
        storage.config(f"training.{override}")
