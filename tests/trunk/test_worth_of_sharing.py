"""What a run is compared with: silent runs and local twins."""

from __future__ import annotations

import math

import numpy as np
import pytest

from platform.experiment import comparisons
from platform.protection.uploads import Protection
from tests.trunk._runs import (
    GATHERING,
    NO_POOL,
    NONE,
    RECORDS,
    Finished,
    comparable,
)

ASKED = ("evaluation.worth_of_sharing=true", "evaluation.local_twins=false")
LEARNING = (
    "training.learning_rate=2.0",
    "training.local_steps=3",
    "task.domains=[infograph]",
)
"""Enough for predictions to change, on a style that the model has not seen."""
PLAIN = (NONE, "secure_aggregation.enabled=false")


def say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every client uploads zeros, as one whose round failed."""

    def prepare(self, result, broadcast, noise, validation=None, **state):
        return self.prepare_nothing(broadcast, noise)

    monkeypatch.setattr(Protection, "prepare", prepare)


@pytest.mark.parametrize(
    "method",
    [
        ("method={name: pfedmoap, context_tokens: 2, experts: 1}",),
        NO_POOL,
        pytest.param(("method={name: fedpgp, context_tokens: 2}",), marks=pytest.mark.slow),
    ],
    ids=["pool and personal part", "neither", "personal part"],
)
def test_a_run_whose_uploads_say_nothing_is_its_silent_run(storage, monkeypatch, method):
    """To the bit: the same clients, cohorts, batches, pool and server, all played by messages."""
    given = (*PLAIN, *method, *LEARNING, *ASKED)
    spoken = storage.run(*given).summary
    say_nothing(monkeypatch)
    silent = storage.run(*given).summary
    assert silent["worth_of_sharing"] == 0.0
    assert silent["silent"]["bare"] == silent["final"]["accuracy"]["mean"]
    # What silent runs are compared with is not them.
    assert spoken["silent"] == silent["silent"]
    assert spoken["final"]["accuracy"] != silent["final"]["accuracy"]


def test_the_noised_one_has_the_runs_noise(storage, monkeypatch):
    """Of prompts without a personal part nothing is left but the noise, of the run's size."""
    moved: dict[bool, list[float]] = {True: [], False: []}
    from platform.experiment import comparisons

    original = comparisons._Silent._measure

    def watching(self, state):
        start = self.simulation.run.terms.initial_state()
        moved[self.noised].append(float(np.linalg.norm(state["context"] - start["context"])))
        return original(self, state)

    monkeypatch.setattr(comparisons._Silent, "_measure", watching)
    for mechanism in ("upload_noise", "central_noise", "distributed_noise"):
        summary = storage.run(
            *NO_POOL,
            *ASKED,
            f"privacy.mechanism={mechanism}",
            "privacy.target_epsilon=null",
            "privacy.noise_multiplier=2.0",
        ).summary
        assert summary["silent"]["noised"] is not None
    assert moved[False] == [0.0, 0.0, 0.0]
    # Three rounds of C = 1 on 256 numbers, a mean over four of five clients: all noise of one sum
    # is 2 under `central_noise` (divided by the planned five), a client's own is 2 each
    # under `upload_noise`, and shares add up to at least 2 under `distributed_noise`.
    size = math.sqrt(3 * 256)
    upload, central, distributed = (norm / size for norm in moved[True])
    assert upload == pytest.approx(2 / math.sqrt(4), rel=0.15)
    assert central == pytest.approx(2 / 5, rel=0.15)
    assert 2 / 4 * 0.85 < distributed < 2 / 4 * 1.5


@pytest.mark.parametrize(
    "overrides",
    [
        ("evaluation.worth_of_sharing=false",),
        ("method={name: coop, context_tokens: 2}", *PLAIN, *ASKED),
    ],
    ids=["nobody asks", "nothing is shared"],
)
def test_without_a_silent_run_it_is_null(storage, overrides):
    summary = storage.run("evaluation.local_twins=false", *overrides).summary
    assert summary["worth_of_sharing"] is None and summary["silent"] is None


def test_a_pool_that_is_made_once_has_no_silent_run(storage):
    summary = storage.gathering().run(*GATHERING, "evaluation.worth_of_sharing=true").summary
    assert summary["worth_of_sharing"] is None


def test_under_noised_steps_there_is_one_silent_run(storage):
    given = (*RECORDS, *NO_POOL, *ASKED, "secure_aggregation.enabled=false")
    summary = storage.run(*given).summary
    assert summary["silent"]["noised"] is None and summary["worth_of_sharing"] is not None


def test_nothing_is_charged_for_it(storage):
    without = storage.run(*NO_POOL, "evaluation.local_twins=false")
    having = storage.run(*NO_POOL, *ASKED)
    rows = "SELECT count(*) FROM ledger WHERE run_id = ?"
    assert storage.rows(rows, having.run_id) == storage.rows(rows, without.run_id)
    assert having.summary["final"]["epsilon"] == without.summary["final"]["epsilon"]
    silent, final = having.summary["silent"], having.summary["final"]["accuracy"]["mean"]
    best = max(silent["bare"], silent["noised"])
    assert having.summary["worth_of_sharing"] == pytest.approx(final - best)


# --- local twins ----------------------------------------------------------------------------------

WITHOUT = "evaluation.local_twins=false"
SCORES = ("mean", "weighted", "std", "worst", "per_client")


@pytest.fixture(scope="module")
def without(make_storage) -> Finished:
    """Reading only."""
    return make_storage("without").run(NONE, WITHOUT)


def test_no_twin_is_trained(sotto, storage, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("trained a twin")

    monkeypatch.setattr(comparisons, "train_twin", refuse)
    with pytest.raises(AssertionError, match="trained a twin"):
        storage.run(NONE)
    # A protocol of more numbers leaves them out, too.
    storage.run(NONE, WITHOUT, "method.name=zero_shot", "evaluation.protocol=base_to_novel")
    answer = sotto("report", "latest", "--storage", storage.url)
    assert answer.code == 0 and "local twins" not in answer.out and "base to novel" in answer.out


def test_its_numbers_are_null_and_all_others_as_ever(plain_run, without):
    assert without.summary["local"] == {"accuracy": dict.fromkeys(SCORES), "protocol": None}
    assert without.summary["gain_over_local"] is None
    ours, theirs = comparable(without.summary), comparable(plain_run.summary)
    assert list(ours) == list(theirs)
    for name in ("local", "gain_over_local"):
        assert ours.pop(name) != theirs.pop(name)
    assert ours == theirs


def test_the_report_has_a_dash(sotto, without):
    answer = sotto("report", "latest", "--storage", without.storage.url)
    assert answer.code == 0
    (line,) = (line for line in answer.out.splitlines() if "gain over local" in line)
    assert line.replace("│", " ").split() == ["gain", "over", "local", "-"]
    assert "local twins" not in answer.out
