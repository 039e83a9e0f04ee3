"""What a run is compared with: silent runs and local twins."""

from __future__ import annotations

import math

import numpy as np
import pytest

from platform.experiment import comparisons
from platform.protection.uploads import Protection
from tests.trunk._runs import EVERY_RECORD, GATHERING, NO_POOL, NONE, comparable, gaussian_epsilon

ASKED = "evaluation.worth_of_sharing=true"
LEARNING = ("training.learning_rate=2.0", "training.local_steps=3", "task.domains=[infograph]")
"""Enough for predictions to change, on a style that the model has not seen."""
PLAIN = (NONE, "secure_aggregation.enabled=false")


def say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every client uploads zeros, as one whose round failed."""

    def prepare(self, result, broadcast, noise, validation=None, **state):
        return self.prepare_nothing(broadcast, noise)

    monkeypatch.setattr(Protection, "prepare", prepare)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [(), NO_POOL, ("method={name: fedpgp, context_tokens: 2}",)],
    ids=["pool and personal part", "neither", "personal part"],
)
def test_a_run_whose_uploads_say_nothing_is_its_silent_run(storage, monkeypatch, method):
    """To the bit: the same clients, cohorts, batches, pool and server, all played by messages."""
    given = (*PLAIN, *method, *LEARNING, ASKED, "rounds=2")
    spoken = storage.run(*given).summary
    say_nothing(monkeypatch)
    silent = storage.run(*given).summary
    assert silent["worth_of_sharing"] == 0.0
    assert silent["silent"]["bare"] == silent["final"]["accuracy"]["mean"]
    # What silent runs are compared with is not them.
    assert spoken["silent"] == silent["silent"]
    assert spoken["final"]["accuracy"] != silent["final"]["accuracy"]


# Two rounds of C = 1 on 256 numbers, a mean over four of five clients.
@pytest.mark.parametrize(
    ("mechanism", "lowest", "highest"),
    [
        # A client's own noise is 2 each.
        ("upload_noise", 2 / 2 * 0.85, 2 / 2 * 1.15),
        # All noise of one sum is 2, divided by the planned five.
        pytest.param("central_noise", 2 / 5 * 0.85, 2 / 5 * 1.15, marks=pytest.mark.slow),
        # Shares add up to at least 2.
        pytest.param("distributed_noise", 2 / 4 * 0.85, 2 / 4 * 1.5, marks=pytest.mark.slow),
    ],
)
def test_the_noised_one_has_the_runs_noise_and_nothing_is_charged_for_it(
    storage, monkeypatch, mechanism, lowest, highest
):
    """Of prompts without a personal part nothing is left but the noise, of the run's size."""
    moved: dict[bool, list[float]] = {True: [], False: []}
    original = comparisons._Silent._measure

    def watching(self, state):
        start = self.simulation.run.terms.initial_state()
        moved[self.noised].append(float(np.linalg.norm(state["context"] - start["context"])))
        return original(self, state)

    monkeypatch.setattr(comparisons._Silent, "_measure", watching)
    noise = ("privacy.target_epsilon=null", "privacy.noise_multiplier=2.0")
    given = (*NO_POOL, ASKED, f"privacy.mechanism={mechanism}", "rounds=2")
    summary = storage.run(*given, *noise).summary
    assert moved[False] == [0.0]
    (norm,) = moved[True]
    assert lowest < norm / math.sqrt(2 * 256) < highest
    best = max(summary["silent"]["bare"], summary["silent"]["noised"])
    gained = summary["final"]["accuracy"]["mean"] - best
    assert summary["worth_of_sharing"] == pytest.approx(gained)
    assert storage.rows("SELECT count(*) FROM ledger") == [(10,)]
    if mechanism == "upload_noise":
        spent = gaussian_epsilon(2.0, 2)
        assert summary["final"]["epsilon"]["server"] == pytest.approx(spent, rel=1e-6)


def test_where_nobody_asks_or_nothing_is_shared_or_a_pool_is_made_once_it_is_null(
    storage, plain_run
):
    alone = ("method={name: coop, context_tokens: 2}", *PLAIN, ASKED, "rounds=1")
    once = (GATHERING, *PLAIN, "evaluation.worth_of_sharing=true", "rounds=1")
    for run in (plain_run, storage.run(*alone), storage.gathering().run(*once)):
        assert run.summary["worth_of_sharing"] is None and run.summary["silent"] is None


def test_under_noised_steps_there_is_one_silent_run(storage):
    given = (*EVERY_RECORD, *NO_POOL, ASKED, "secure_aggregation.enabled=false", "rounds=1")
    summary = storage.run(*given).summary
    assert summary["silent"]["noised"] is None and summary["worth_of_sharing"] is not None


SCORES = ("mean", "weighted", "std", "worst", "per_client")


def test_one_seed_gives_one_run_and_its_noise_and_twins_change_no_other_number(
    noised_run, storage, monkeypatch
):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("trained a twin")

    monkeypatch.setattr(comparisons, "train_twin", refuse)
    without = storage.run()
    assert without.run_id != noised_run.run_id
    assert without.summary["local"] == {"accuracy": dict.fromkeys(SCORES), "protocol": None}
    assert without.summary["gain_over_local"] is None
    ours, theirs = comparable(without.summary), comparable(noised_run.summary)
    assert list(ours) == list(theirs)
    for name in ("local", "gain_over_local"):
        assert ours.pop(name) != theirs.pop(name)
    assert ours == theirs
    assert without.state().keys() == noised_run.state().keys()
    for name, array in noised_run.state().items():
        np.testing.assert_array_equal(array, without.state()[name])
