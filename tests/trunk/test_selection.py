"""Validation, the best round by it, and validation accuracies that leave clients under noise."""

from __future__ import annotations

import csv
import dataclasses
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from methods import ClientView, LocalResult, TensorSpec
from platform.bootstrap import Surroundings, plan_run
from platform.config import parse_config
from platform.errors import ConfigError, ProtocolError
from platform.experiment.caveats import best_on_validation, evaluation_document
from platform.experiment.evaluation import examine, over_clients
from platform.experiment.finishing import execute
from platform.parties.client import KINDS, Client
from platform.parties.scoring import VALIDATION as HELD
from platform.parties.scoring import EvaluationSet, accuracy
from platform.protection.extras import FLAG, VALIDATION, Extras
from platform.protection.sums import SumProtection
from platform.protection.uploads import Protection
from platform.rounds.observing import SilentObserver
from platform.wire.codec import peek
from platform.wire.layout import Totals, UploadLayout, build_layout
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
    RECORDS,
    Command,
    Crash,
    Finished,
    Storage,
    comparable,
    crash_at,
    gaussian_epsilon,
    opened,
)
from tests.trunk.conftest import MakeStorage

CARVED = ("task.shots=4", "task.validation_share=0.25")
"""Four classes of four shots a client: three each to train on, one to validate with."""
BEST = "evaluation.selection=best_on_validation"
NOISED = (*CARVED, "evaluation.release=noised", "evaluation.metric_ratio=0.5")
QUIET = ("privacy.target_epsilon=null", "privacy.noise_multiplier=0.01", "cohort.dropout_rate=0")
"""Noise so small that the truth shows through it: 0.01 sqrt(1.25) on a coordinate."""

# --- the choice -----------------------------------------------------------------------------------


def round_of(number: int, validation: float | None, released: float | None = None) -> Any:
    measured = validation is not None
    return {
        "round": number,
        "accuracy": {"mean": 0.1 * number if measured else None},
        "validation": {"mean": validation},
        "released_validation": None
        if released is None
        else {"round": number - 1, "mean": released},
        "protocol": {"name": "client_mean", "of": number} if measured else None,
    }


@pytest.mark.parametrize(
    ("means", "best"),
    [
        ([0.2, 0.6, 0.5], 2),
        ([0.6, 0.2, 0.6], 1),
        ([None, 0.1, None], 2),
        ([0.0, 0.0], 1),
        ([None, None], None),
        ([], None),
    ],
)
def test_the_highest_mean_is_chosen_and_the_earlier_of_equal_ones(
    storage: Storage, means: list[float | None], best: int | None
) -> None:
    config = storage.config(NONE, *CARVED, BEST)
    documents = [round_of(number, mean) for number, mean in enumerate(means, start=1)]
    chosen = best_on_validation(config, documents)
    if best is None:
        assert chosen is None
        return
    assert chosen == {
        "round": best,
        "validation": means[best - 1],
        "accuracy": {"mean": pytest.approx(0.1 * best)},
        "protocol": {"name": "client_mean", "of": best},
    }


@pytest.mark.parametrize(
    ("released", "best"),
    [
        # What comes with round t is of the model after round t - 1; the start is no candidate.
        ([9.0, 0.4, 1.2, 0.3], 2),
        ([9.0, 0.7, 0.7, -0.3], 1),
        ([9.0, -0.7, -0.9, -0.3], 3),
        ([9.0], None),
    ],
)
def test_under_noise_only_what_was_released_chooses(
    storage: Storage, released: list[float], best: int | None
) -> None:
    config = storage.config(*NO_POOL, *NOISED, BEST)
    # The exact means would choose another round: the last.
    documents = [round_of(i, 0.1 * i, value) for i, value in enumerate(released, start=1)]
    chosen = best_on_validation(config, documents)
    assert (None if chosen is None else chosen["round"]) == best
    if best is not None and chosen is not None:
        assert chosen["validation"] == released[best]


def test_rounds_that_are_not_measured_are_not_chosen_under_noise(storage: Storage) -> None:
    config = storage.config(*NO_POOL, *NOISED, BEST)
    documents = [round_of(1, None, 0.5), round_of(2, 0.3, 0.9), round_of(3, None, 0.4)]
    chosen = best_on_validation(config, documents)
    assert chosen is not None and (chosen["round"], chosen["validation"]) == (2, 0.4)


def test_the_collection_is_no_round_to_choose(storage: Storage) -> None:
    """What it measures is the last round's model, with personal parts that were trained further."""
    config = storage.config(NONE, *CARVED, BEST)
    documents = [round_of(1, 0.4), round_of(2, 0.3), {**round_of(3, 0.9), "phase": "collection"}]
    chosen = best_on_validation(config, documents)
    assert chosen is not None and (chosen["round"], chosen["validation"]) == (1, 0.4)


def test_nothing_is_chosen_under_last(storage: Storage) -> None:
    assert best_on_validation(storage.config(NONE, *CARVED), [round_of(1, 0.5)]) is None


def test_protocol_and_selection_in_words(storage: Storage) -> None:
    plain = evaluation_document(storage.config(NONE))
    assert plain["protocol"].startswith("client mean") and "beside" not in plain["selection"]
    exact = evaluation_document(storage.config(NONE, *CARVED, BEST))["selection"]
    noised = evaluation_document(storage.config(*NO_POOL, *NOISED, BEST))["selection"]
    for words in (exact, noised):
        assert "before personalising; never chosen by test examples" in words
    assert "noised" in noised and "noised" not in exact


# --- validation in a run --------------------------------------------------------------------------

EXACT = (NONE, *NO_POOL, *CARVED, BEST, "evaluation.protocol=base_to_novel", "task.clients=5")


@pytest.fixture(scope="module")
def chosen(make_storage: MakeStorage) -> Finished:
    return make_storage("chosen").run(*EXACT, "cohort.dropout_rate=0")


def test_validation_images_are_neither_trained_on_nor_dealt_twice(chosen: Finished) -> None:
    counts: list[int] = []
    with opened(chosen.storage.reopen(chosen.run_id)) as simulation:
        for name, client in simulation.population.clients.items():
            train, held = client.profile.data, simulation.learning.evaluation.validation[name]
            assert client.profile.measured.own[HELD].examples is held
            # Two base classes a client, of four images each, one in four for validation.
            assert train.num_examples + held.num_examples == 8
            counts.append(held.num_examples)
            rows = {row.tobytes() for row in train.arrays["features"]}
            assert not rows & {row.tobytes() for row in held.arrays["features"]}
    # Of 40 coins of 0.25 within five deviations (2.7) of 10.
    assert 0 < sum(counts) < 24


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


def test_the_best_round_of_a_run(chosen: Finished) -> None:
    summary = chosen.summary
    means = [document["validation"]["mean"] for document in summary["rounds"]]
    best = summary["best_on_validation"]
    assert best["round"] == 1 + means.index(max(means))
    assert best["validation"] == max(means)
    assert best["accuracy"] == summary["rounds"][best["round"] - 1]["accuracy"]
    assert set(best["protocol"]) == {"name", "local", "base", "novel", "harmonic_mean"}
    assert best["protocol"]["local"] == best["accuracy"]["mean"]
    assert "protocol" not in summary["rounds"][0]
    assert summary["final"]["accuracy"] == summary["rounds"][-1]["accuracy"]
    assert summary["evaluation"] == evaluation_document(chosen.storage.config(*EXACT))


def test_reports_show_validation_and_the_choice(chosen: Finished, sotto: Command) -> None:
    lines = list(csv.DictReader((chosen.folder / "metrics.csv").read_text().splitlines()))
    for line, document in zip(lines, chosen.summary["rounds"], strict=True):
        assert float(line["validation"]) == document["validation"]["mean"]
        assert float(line["accuracy_weighted"]) == document["accuracy"]["weighted"]
        assert line["released_validation"] == ""
    shown = sotto("report", chosen.run_id, "--storage", chosen.storage.url).out
    words = " ".join(shown.replace("│", " ").split())
    best = chosen.summary["best_on_validation"]
    assert f"round {best['round']}, chosen at {100 * best['validation']:.1f}% validation" in words
    assert "best on validation, base to novel" in words
    assert "weighted by test examples" in words and "never chosen by test examples" in words
    assert f" val {100 * best['validation']:.1f}%" in shown


def test_nothing_is_measured_on_validation_images_that_are_not_there(
    plain_run: Finished, sotto: Command
) -> None:
    for document in (*plain_run.summary["rounds"], plain_run.summary["final"]):
        assert set(document["validation"].values()) == {None}
        assert document["released_validation"] is None
    assert plain_run.summary["best_on_validation"] is None
    shown = sotto("report", plain_run.run_id, "--storage", plain_run.storage.url).out
    assert "validation" not in shown and "selection" in shown and "protocol" in shown


@pytest.mark.slow
def test_a_choice_changes_nothing_in_the_training(
    chosen: Finished, make_storage: MakeStorage
) -> None:
    plain = [key for key in EXACT if key != BEST]
    other = make_storage("unchosen").run(*plain, "cohort.dropout_rate=0")
    for name, array in other.state().items():
        np.testing.assert_array_equal(array, chosen.state()[name])
    assert other.summary["best_on_validation"] is None
    assert other.summary["rounds"][-1]["validation"] == chosen.summary["rounds"][-1]["validation"]


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(EXACT, id="exact", marks=pytest.mark.slow),
        pytest.param((*NO_POOL, *NOISED, BEST), id="noised"),
    ],
)
def test_an_interrupted_run_chooses_alike(
    overrides: tuple[str, ...],
    storage: Storage,
    make_storage: MakeStorage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = make_storage("whole").run(*overrides)
    with monkeypatch.context() as patch, opened(storage.create(*overrides)) as simulation:
        crash_at(patch, Client, "_train", 6, after=True)
        with pytest.raises(Crash):
            execute(simulation, SilentObserver())
    resumed = storage.resume(simulation.run_id)
    assert comparable(resumed.summary) == comparable(whole.summary)
    assert resumed.summary["best_on_validation"] is not None


# --- what an upload carries -----------------------------------------------------------------------

SPEC = {"a": TensorSpec((6,))}
ZERO = {"a": np.zeros(6, np.float32)}
C, RATIO, MULTIPLIER = 2.0, 0.75, 3.0
JOINT = 2.5
"""sqrt(2^2 + 1.5^2)."""


def guard(adaptive: AdaptiveClipping | None = None, **changes: Any) -> Protection:
    extras = Extras(adaptive, NoisedMetric(ratio=RATIO), C)
    layout = build_layout(SPEC, weighs_examples=False, extras=extras.names)
    return protection_of(UploadNoise(extras.joint_norm(C), MULTIPLIER), layout, extras, **changes)


def protection_of(
    mechanism: UploadNoise, layout: UploadLayout, extras: Extras, **changes: Any
) -> Protection:
    sums = SumProtection(mechanism=mechanism, layout=layout, bits=32, masked=True, extras=extras)
    return Protection(sums=sums, **changes)


def bare() -> Protection:
    layout = build_layout(SPEC, weighs_examples=False)
    return protection_of(guard().mechanism, layout, Extras())


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


def test_an_upload_without_the_option_is_the_same_to_the_bit() -> None:
    update = np.arange(6.0) - 2.0
    np.testing.assert_array_equal(sent(bare(), update, None), sent(bare(), update, 0.7))
    vector = np.array([3.0, 4.0])
    assert Extras().append(vector, None) is vector
    assert Extras().names == () and Extras().joint_norm(1.7) == 1.7
    adaptive = AdaptiveClipping(flag_ratio=0.3)
    flagged = Extras(adaptive, None, 2.0)
    np.testing.assert_array_equal(
        flagged.append(vector, None), adaptive.append_flag(vector, 2.0).vector
    )
    assert flagged.joint_norm(1.7) == adaptive.joint_norm(1.7)


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
    with pytest.raises(ProtocolError, match="needs a validation accuracy"):
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
    assert bare().extras.released_validation(summed) is None


def test_the_noised_means_lie_around_the_truth() -> None:
    how, accuracies, rounds = guard(), (0.2, 0.9, 1.0, 0.6), 1500
    found = []
    for number in range(rounds):
        vectors = [
            sent(how, np.ones(6), a, 10 * number + i) for i, a in enumerate(accuracies, start=1)
        ]
        summed = how.layout.average(how.layout.sum_plain(vectors, [1] * 4))
        found.append(how.extras.released_validation(summed))
    # Noise 3 x 2.5 on a coordinate, half of it on four, and an accuracy is 3 coordinates long.
    deviation = 7.5 / 2.0 / 3.0
    assert how.extras.released_deviation(7.5 / 2.0) == pytest.approx(deviation)
    assert np.std(found) == pytest.approx(deviation, rel=0.1)
    assert abs(np.mean(found) - 0.675) <= 4.5 * deviation / math.sqrt(rounds)


# --- noised means of a run ------------------------------------------------------------------------

MECHANISMS = {
    "upload": (),
    "upload, integers": ("privacy.noise_distribution=discrete_gaussian",),
    "upload, in the clear": ("secure_aggregation.enabled=false",),
    "distributed": ("privacy.mechanism=distributed_noise",),
    "central": ("privacy.mechanism=central_noise",),
    "upload, adaptive": ADAPTIVE,
}
QUICK_FIRST = [
    name if name == "distributed" else pytest.param(name, marks=pytest.mark.slow)
    for name in MECHANISMS
]
POOL = ("pool.noise=independent", "pool.minimum=2")


@pytest.mark.parametrize("mechanism", QUICK_FIRST)
def test_the_noised_mean_of_round_t_is_that_of_the_model_before(
    storage: Storage, mechanism: str
) -> None:
    run = storage.run(*NO_POOL, *NOISED, *QUIET, BEST, *MECHANISMS[mechanism])
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
    assert any("noised validation means" in text for text in run.summary["warnings"])


def test_experts_and_personal_parts_are_those_of_the_round_before(storage: Storage) -> None:
    run = storage.run(*NOISED, *QUIET, *POOL)
    rounds = run.summary["rounds"]
    for before, document in pairwise(rounds):
        released = document["released_validation"]
        assert released["mean"] == pytest.approx(before["validation"]["mean"], abs=0.04)
    assert run.summary["best_on_validation"] is None
    pool = storage.rows("SELECT DISTINCT clipping_norm FROM ledger WHERE channel = 'pool'")
    assert pool == [(1.0,)]


@pytest.mark.slow
def test_masks_change_nothing(make_storage: MakeStorage) -> None:
    runs = [
        make_storage(f"masks-{on}").run(
            *NO_POOL, *NOISED, *FIXED, "rounds=1", f"secure_aggregation.enabled={on}"
        )
        for on in ("true", "false")
    ]
    masked, clear = (run.summary["rounds"][0]["released_validation"]["mean"] for run in runs)
    assert masked == pytest.approx(clear, abs=1e-12)
    for name, array in runs[0].state().items():
        np.testing.assert_allclose(array, runs[1].state()[name], rtol=0, atol=1e-6)


def test_the_ledger_counts_the_coordinate(storage: Storage) -> None:
    """C = 1, b = 0.5: sqrt(1.25), in noise of 4 sqrt(1.25); with the flag's 0.2, sqrt(1.29)."""
    run = storage.run(*NO_POOL, *NOISED, *FIXED)
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


def test_a_target_pays_for_the_coordinate(storage: Storage) -> None:
    """The multiplier that meets a target is the same; the noise is larger by sqrt(1.25)."""
    with opened(storage.create(*NO_POOL, *NOISED)) as with_metric:
        pass
    with opened(storage.create(*NO_POOL)) as without:
        pass
    first, second = (made.run.terms.budget.noise_multiplier for made in (with_metric, without))
    assert first == pytest.approx(second)
    one, other = (made.run.terms.protection.mechanism for made in (with_metric, without))
    assert isinstance(one, UploadNoise) and isinstance(other, UploadNoise)
    ratio = one.standard_deviation / other.standard_deviation
    assert ratio == pytest.approx(math.sqrt(1.25))


# --- the audit ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def audit(make_storage: MakeStorage) -> Auditor:
    config = make_storage("audit-selection").config(*CARVED)
    return Auditor(plan_run(config, SilentObserver(), Surroundings()))


@pytest.mark.parametrize(
    "mechanism",
    [
        "upload, adaptive",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("upload", "distributed", "central")),
    ],
)
def test_an_audit_reaches_all_of_what_is_claimed(audit: Auditor, mechanism: str) -> None:
    verdict = audit(*NOISE, *NOISED, POOL[0], *MECHANISMS[mechanism])["sum"]
    assert verdict.passed, verdict.reasons
    assert verdict.result.is_tight
    assert verdict.result.claimed_mu == pytest.approx(2.0 / 1.5, rel=1e-3)


def test_a_coordinate_that_the_norm_does_not_count_is_refuted(
    audit: Auditor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise and ledger go by C = 1 alone, and an accuracy of b = 1 is added after the clip."""

    def uncut(vector: Any, mechanism: Any, grid: Any, noise: Any, **state: Any) -> Any:
        wide = dataclasses.replace(mechanism, clipping_norm=100.0, noise_multiplier=0.015)
        return protect_upload(vector, wide, grid, noise, **state)

    monkeypatch.setattr(Extras, "joint_norm", lambda self, clipping_norm: clipping_norm)
    monkeypatch.setattr("platform.protection.sums.protect_upload", uncut)
    whole = (*NOISED[:-1], "evaluation.metric_ratio=1.0", POOL[0])
    verdict = audit(*NOISE, *whole, canaries=2000)["sum"]
    assert not verdict.result.passed


# --- refused --------------------------------------------------------------------------------------

REFUSED = {
    "exact under noise": (
        [*CARVED, BEST],
        "best_on_validation would choose the model by accuracies that carry no noise",
    ),
    "exact under records": ([*RECORDS, *CARVED, BEST], "dp_sgd does not cover; valid: last"),
    "best without images": ([NONE, BEST], "task.validation_share is 0"),
    "noised without images": (["evaluation.release=noised"], "task.validation_share is 0"),
    "noised records": (
        [*RECORDS, *CARVED, "evaluation.release=noised"],
        "evaluation.release: noised is not available under dp_sgd",
    ),
    "a ratio of nothing": (
        ["evaluation.metric_ratio=0.5"],
        "evaluation.metric_ratio: 0.5 has no meaning with evaluation.release = none",
    ),
    "no ratio": ([*NOISED, "evaluation.metric_ratio=0"], "evaluation.metric_ratio: 0"),
    "the accuracy in the pool": (
        [*NOISED],
        "evaluation.release: a pool entry that is the upload itself would carry",
    ),
    "nothing to come with": (
        [*NOISED, "method.name=zero_shot", "secure_aggregation.enabled=false"],
        "evaluation.release: zero_shot uploads nothing",
    ),
    "one round": ([*NO_POOL, *NOISED, BEST, "rounds=1"], "evaluation.every: 1 measures no round"),
    "one measurement": (
        [*NO_POOL, *NOISED, BEST, "evaluation.every=3"],
        "evaluation.every: 3 measures no round before the last of 3",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_sentence_before_anything_is_written(storage: Storage, case: str) -> None:
    overrides, words = REFUSED[case]
    with pytest.raises(ConfigError) as refused:
        storage.create(*overrides)
    message = str(refused.value)
    assert words in message and "\n" not in message
    assert not storage.file.exists()


def test_noise_has_no_meaning_without_a_mechanism(storage: Storage) -> None:
    tree = storage.config(NONE).model_dump(mode="json")
    tree["task"] |= {"validation_share": 0.25}
    tree["evaluation"] |= {"release": "noised", "metric_ratio": 0.5}
    with pytest.raises(ConfigError, match=r"noised has no meaning under privacy\.mechanism"):
        parse_config(tree)
    # Asked for on the command line, the mechanism takes with it what means nothing without noise.
    section = parse_config(tree, [NONE]).evaluation
    assert (section.release, section.metric_ratio) == ("none", None)


EXAMINATION = ("examination", "scores")
"""The experimenter's view, which clients of a simulation alone give."""


def test_accuracies_leave_in_the_vector_only(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []
    original = Client.handle

    def listening(self: Client, message: bytes) -> bytes:
        answer = original(self, message)
        # What clients count for the experimenter is no part of a round, nor of a federation.
        if peek(message)[0] not in KINDS:
            seen.extend((message, answer))
        return answer

    monkeypatch.setattr(Client, "handle", listening)
    storage.run(*NO_POOL, *NOISED, *FIXED, "rounds=1")
    in_rounds = [m for m in seen if peek(m)[0] not in EXAMINATION]
    assert len(in_rounds) >= 2 * 2 * 5
    assert not any(b"validation" in message for message in in_rounds)
