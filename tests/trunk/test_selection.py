"""Validation, the best round by it, and validation accuracies that leave clients under noise."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from methods import ClientView, LocalResult, TensorSpec
from platform.config import RunConfig
from platform.errors import ProtocolError
from platform.experiment.caveats import best_on_validation
from platform.experiment.evaluation import examine, over_clients
from platform.parties.client import KINDS, Client
from platform.parties.scoring import VALIDATION as HELD
from platform.parties.scoring import EvaluationSet, accuracy
from platform.protection.extras import FLAG, VALIDATION, Extras
from platform.protection.sums import SumProtection
from platform.protection.uploads import Protection
from platform.wire.codec import peek
from platform.wire.layout import Totals, build_layout
from privacy import (
    AdaptiveClipping,
    NoisedMetric,
    ReleaseKey,
    SeededNoise,
    UploadNoise,
    protect_upload,
)
from tests.trunk._audits import NOISE, Auditor
from tests.trunk._runs import (
    ADAPTIVE,
    FIXED,
    NO_POOL,
    NONE,
    Command,
    Finished,
    Storage,
    gaussian_epsilon,
    opened,
    warnings_of,
)
from tests.trunk.conftest import MakeStorage

CARVED = ("task.shots=4", "task.validation_share=0.25")
"""Four classes of four shots a client: three each to train on, one to validate with."""
BEST = "evaluation.selection=best_on_validation"
NOISED = (*CARVED, "evaluation.release=noised", "evaluation.metric_ratio=0.5")
QUIET = ("privacy.target_epsilon=null", "privacy.noise_multiplier=0.01", "cohort.dropout_rate=0")
"""Noise so small that the truth shows through it: 0.01 sqrt(1.25) on a coordinate."""


def round_of(number: int, validation: float | None, released: float | None = None) -> Any:
    return {
        "round": number,
        "accuracy": {"mean": None if validation is None else 0.1 * number},
        "validation": {"mean": validation},
        "released_validation": {"round": number - 1, "mean": released},
        "protocol": None if validation is None else {"name": "client_mean", "of": number},
    }


def choice(config: RunConfig, documents: list[Any]) -> tuple[int, float] | None:
    chosen = best_on_validation(config, documents)
    return None if chosen is None else (chosen["round"], chosen["validation"])


def test_the_highest_mean_is_chosen_and_the_earlier_of_equal_ones(storage: Storage) -> None:
    config = storage.config(NONE, *CARVED, BEST)
    for means, best in (
        ([0.2, 0.6, 0.5], (2, 0.6)),
        ([0.6, 0.2, 0.6], (1, 0.6)),
        ([None, 0.1, None], (2, 0.1)),
        ([None, None], None),
    ):
        documents = [round_of(number, mean) for number, mean in enumerate(means, start=1)]
        assert choice(config, documents) == best
    # The collection is of the last round's model, with personal parts that were trained further.
    collection = {**round_of(3, 0.9), "phase": "collection"}
    assert choice(config, [round_of(1, 0.4), round_of(2, 0.3), collection]) == (1, 0.4)


def test_under_noise_only_what_was_released_chooses(storage: Storage) -> None:
    """What comes with round t is of the model after round t - 1; the start is no candidate."""
    config = storage.config(*NO_POOL, *NOISED, BEST)
    for released, best in (
        ([9.0, 0.4, 1.2, 0.3], (2, 1.2)),
        ([9.0, 0.7, 0.7, -0.3], (1, 0.7)),
        ([9.0, -0.7, -0.9, -0.3], (3, -0.3)),
        ([9.0], None),
    ):
        # The exact means would choose another round: the last.
        documents = [round_of(i, 0.1 * i, value) for i, value in enumerate(released, start=1)]
        assert choice(config, documents) == best


EXACT = (NONE, *NO_POOL, *CARVED, BEST, "evaluation.protocol=base_to_novel")


@pytest.fixture(scope="module")
def chosen(make_storage: MakeStorage) -> Finished:
    return make_storage("chosen").run(*EXACT, "rounds=2", "cohort.dropout_rate=0")


def test_validation_accuracy_of_the_last_round_by_hand(chosen: Finished) -> None:
    """The method keeps nothing on clients, so the last state is all that they predict with."""
    with opened(chosen.storage.reopen(chosen.run_id)) as simulation:
        text = simulation.run.terms.method.broadcast(chosen.state())
        found = []
        for name in simulation.population.clients:
            held = simulation.learning.evaluation.validation[name]
            images = EvaluationSet(held, simulation.learning.classes)
            method, some = simulation.run.terms.method, held.num_examples
            found.append(accuracy(method, ClientView(text), images) if some else None)
    known = [one for one in found if one is not None]
    assert len(known) > 1
    for document in (chosen.summary["rounds"][-1], chosen.summary["final"]):
        assert document["validation"]["per_client"] == found
        assert document["validation"]["mean"] == pytest.approx(sum(known) / len(known))
        assert document["validation"]["worst"] == min(known)


def test_the_best_round_of_a_run(chosen: Finished, sotto: Command) -> None:
    summary = chosen.summary
    means = [document["validation"]["mean"] for document in summary["rounds"]]
    best = summary["best_on_validation"]
    assert best["round"] == 1 + means.index(max(means))
    assert best["validation"] == max(means)
    assert best["accuracy"] == summary["rounds"][best["round"] - 1]["accuracy"]
    assert set(best["protocol"]) == {"name", "local", "base", "novel", "harmonic_mean"}
    assert best["protocol"]["local"] == best["accuracy"]["mean"]
    shown = sotto("report", chosen.run_id, "--storage", chosen.storage.url).out
    assert f"{100 * best['validation']:.1f}% validation" in " ".join(shown.split())


SPEC = {"a": TensorSpec((6,))}
ZERO = {"a": np.zeros(6, np.float32)}
C, RATIO, MULTIPLIER = 2.0, 0.75, 3.0
JOINT = 2.5
"""sqrt(2^2 + 1.5^2)."""


def guard() -> Protection:
    extras = Extras(None, NoisedMetric(ratio=RATIO), C)
    layout = build_layout(SPEC, weighs_examples=False, extras=extras.names)
    mechanism = UploadNoise(extras.joint_norm(C), MULTIPLIER)
    sums = SumProtection(mechanism=mechanism, layout=layout, bits=32, masked=True, extras=extras)
    return Protection(sums=sums)


def sent(how: Protection, update: np.ndarray, validation: float | None, seed: int = 0):
    result = LocalResult({"a": update}, None, {})
    noise = SeededNoise(np.random.default_rng(seed))
    return how.prepare(result, ZERO, noise, validation).vector


@pytest.mark.parametrize("validation", [0.0, 0.3, 1.0])
def test_the_coordinate_is_added_after_the_clip_and_before_the_noise(validation: float) -> None:
    """An update of norm 6 is scaled to C = 2; the coordinate is b (2a - 1) with b = 1.5."""
    how, update = guard(), np.array([6.0, 0, 0, 0, 0, 0])
    vector, noise = sent(how, update, validation), sent(how, np.zeros(6), 0.5)
    step = how.sums.grid().step
    np.testing.assert_allclose(
        vector - noise, [2.0, 0, 0, 0, 0, 0, 1.5 * (2 * validation - 1)], rtol=0, atol=step
    )
    assert np.std(np.concatenate([sent(how, update * 0, 0.5, i) for i in range(300)])) == (
        pytest.approx(MULTIPLIER * JOINT, rel=0.05)
    )


def test_flag_and_metric_together() -> None:
    """C = 2 with b = 0.3 x 2 and 0.75 x 2: sqrt(4 + 0.36 + 2.25)."""
    extras = Extras(AdaptiveClipping(flag_ratio=0.3), NoisedMetric(ratio=RATIO), 2.0)
    assert extras.names == (FLAG, VALIDATION)
    assert extras.bounds(2.0) == pytest.approx((0.6, 1.5))
    assert extras.joint_norm(2.0) == pytest.approx(math.sqrt(6.61))
    vector = extras.append(np.array([3.0, 4.0]), 0.0)
    np.testing.assert_allclose(vector, [1.2, 1.6, -0.6, -1.5])
    assert np.linalg.norm(vector) == pytest.approx(math.sqrt(6.61))


def test_an_accuracy_that_is_missing_or_none_is_refused() -> None:
    with pytest.raises(ProtocolError, match="validation accuracy"):
        sent(guard(), np.zeros(6), None)
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        sent(guard(), np.zeros(6), 1.5)


def test_the_mean_is_decoded_by_hand() -> None:
    """Accuracies 1, 0.5 and 0: coordinates 1.5, 0 and -1.5; here with noise of 0.9 in their sum."""
    how = guard()
    totals = Totals(np.array([0, 0, 0, 0, 0, 0, 1.5 + 0.0 - 1.5 + 0.9]), 3, 3)
    summed = how.layout.average(totals)
    assert summed.extras == {VALIDATION: pytest.approx(0.3)}
    assert how.extras.released_validation(summed) == pytest.approx((1 + 0.3 / 1.5) / 2)
    assert summed.vector.shape == (6,)
    assert Extras().released_validation(summed) is None
    # Noise of 7.5 on a coordinate, half of it on the mean of four, and an accuracy is 3 long.
    assert how.extras.released_deviation(7.5 / 2.0) == pytest.approx(7.5 / 2.0 / 3.0)


CENTRE = "privacy.mechanism=central_noise"
SHARED = "privacy.mechanism=distributed_noise"
POOL = ("pool.noise=independent", "pool.minimum=2")


@pytest.mark.parametrize("mechanism", [SHARED, pytest.param(CENTRE, marks=pytest.mark.slow)])
def test_the_noised_mean_of_round_t_is_that_of_the_model_before(storage, mechanism):
    run = storage.run(*NO_POOL, *NOISED, *QUIET, BEST, mechanism)
    rounds = run.summary["rounds"]
    with opened(storage.reopen(run.run_id)) as simulation:
        again = simulation.run
        nobody = dict.fromkeys(again.roll.clients)
        scores = examine(again, again.terms.initial_state(), nobody, [HELD])
    start = over_clients([each.tallies[HELD] for each in scores.values()])
    exact = [start.mean, *(document["validation"]["mean"] for document in rounds)]
    for number, document in enumerate(rounds, start=1):
        released = document["released_validation"]
        assert released["round"] == number - 1
        # Of 1.12 C / 100 on a coordinate, over the root of five, an accuracy being one C long.
        assert released["mean"] == pytest.approx(exact[number - 1], abs=0.04)
        assert released["mean"] != exact[number - 1]
    best = run.summary["best_on_validation"]
    after = {d["released_validation"]["round"]: d["released_validation"]["mean"] for d in rounds}
    assert best["validation"] == max(after[1], after[2]) == after[best["round"]]
    assert any("noised validation" in text for text in warnings_of(run.summary))


def test_the_ledger_counts_the_coordinate(storage: Storage) -> None:
    """C = 1, b = 0.5: sqrt(1.25), in noise of 4 sqrt(1.25); with the flag's 0.2, sqrt(1.29)."""
    run = storage.run(*NO_POOL, *NOISED, *FIXED, "rounds=2")
    facts = "SELECT DISTINCT channel, clipping_norm, standard_deviation FROM ledger"
    assert storage.rows(facts) == [
        ("sum", pytest.approx(math.sqrt(1.25)), pytest.approx(4 * math.sqrt(1.25)))
    ]
    for number, document in enumerate(run.summary["rounds"], start=1):
        spent = document["epsilon"]["server"]
        # One charge for update and accuracy; without the coordinate the same noise would be less.
        assert spent == pytest.approx(gaussian_epsilon(4.0, number), rel=1e-6)
        assert spent > 1.1 * gaussian_epsilon(4.0 * math.sqrt(1.25), number)
    with opened(storage.create(*NO_POOL, *NOISED, *FIXED, *ADAPTIVE)) as simulation:
        protection = simulation.run.terms.protection.at(2.0)
        (row,) = protection.releases(
            ReleaseKey(run_id="r", round_number=1, attempt=1, pseudonym="p")
        )
        assert row.clipping_norm == pytest.approx(2.0 * math.sqrt(1.29))
        assert row.standard_deviation == pytest.approx(8.0 * math.sqrt(1.29))


@pytest.fixture(scope="module")
def audit(make_storage: MakeStorage) -> Auditor:
    return Auditor(make_storage("audit-selection").plan(*NO_POOL, *CARVED))


@pytest.mark.parametrize(
    "mechanism",
    [ADAPTIVE, *(pytest.param((name,), marks=pytest.mark.slow) for name in (SHARED, CENTRE))],
    ids=str,
)
def test_an_audit_reaches_all_of_what_is_claimed(audit, mechanism):
    verdict = audit(*NO_POOL, *NOISE, *NOISED, *mechanism)["sum"]
    assert verdict.passed, verdict.reasons
    assert verdict.result.is_tight
    assert verdict.result.claimed_mu == pytest.approx(2.0 / 1.5, rel=1e-3)


def test_a_coordinate_that_the_norm_does_not_count_is_refuted(audit, monkeypatch):
    """Noise and ledger go by C = 1 alone, and an accuracy of b = 1 is added after the clip."""

    def uncut(vector: Any, mechanism: Any, grid: Any, noise: Any, **state: Any) -> Any:
        wide = dataclasses.replace(mechanism, clipping_norm=100.0, noise_multiplier=0.015)
        return protect_upload(vector, wide, grid, noise, **state)

    monkeypatch.setattr(Extras, "joint_norm", lambda self, clipping_norm: clipping_norm)
    monkeypatch.setattr("platform.protection.sums.protect_upload", uncut)
    whole = (*NOISED[:-1], "evaluation.metric_ratio=1.0")
    verdict = audit(*NO_POOL, *NOISE, *whole, canaries=1500)["sum"]
    assert not verdict.result.passed


def test_accuracies_leave_in_the_vector_only(storage, monkeypatch):
    seen: list[bytes] = []
    original = Client.handle

    def listening(self: Client, message: bytes) -> bytes:
        answer = original(self, message)
        # What clients count for the experimenter is no part of a round, nor of a federation.
        if peek(message)[0] not in KINDS:
            examination = ("examination", "scores")
            seen.extend(one for one in (message, answer) if peek(one)[0] not in examination)
        return answer

    monkeypatch.setattr(Client, "handle", listening)
    storage.run(*NO_POOL, *NOISED, *FIXED, "rounds=1")
    assert len(seen) >= 2 * 2 * 5
    assert not any(b"validation" in message for message in seen)
