"""Noised means of a run: calibration with more than the update, lost clients, secret cohorts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from methods import TensorSpec
from platform.experiment.evaluation import examine, over_clients
from platform.parties.scoring import VALIDATION as HELD
from platform.protection.extras import FLAG, VALIDATION, Extras
from platform.protection.sums import SumProtection
from platform.protection.uploads import Protection
from platform.wire.layout import Summed, build_layout
from privacy import (
    AdaptiveClipping,
    CentralNoise,
    DistributedNoise,
    IntegerUploadNoise,
    NoisedMetric,
    SeededNoise,
    default_scale,
)
from tests.trunk._audits import Auditor
from tests.trunk._runs import ADAPTIVE, NO_POOL, Storage, opened, warnings_of
from tests.trunk.conftest import MakeStorage
from tests.trunk.test_selection import BEST, CARVED, NOISED, POOL, QUIET

METRIC = (*CARVED, "evaluation.release=noised")
LAWS = {
    "discrete": ("privacy.mechanism=distributed_noise",),
    "skellam": ("privacy.mechanism=distributed_noise", "privacy.noise_distribution=skellam"),
    "upload": ("privacy.noise_distribution=discrete_gaussian",),
}
BESIDE = {"flag": ADAPTIVE, "both": (*METRIC, *ADAPTIVE)}


@pytest.fixture(scope="module")
def bare(make_storage: MakeStorage) -> Auditor:
    return Auditor(make_storage("without-pool").plan(*NO_POOL, *CARVED))


@pytest.fixture(scope="module")
def pooled(make_storage: MakeStorage) -> Auditor:
    return Auditor(make_storage("with-pool").plan(*CARVED))


@pytest.mark.parametrize("norm", [pytest.param(0.1, marks=pytest.mark.slow), 1.99])
@pytest.mark.parametrize("beside", [pytest.param("flag", marks=pytest.mark.slow), "both"])
@pytest.mark.parametrize("law", LAWS)
def test_calibration_starts_where_the_joint_norm_allows_it(bare, law, beside, norm):
    """The grid's step follows the joint norm: C may lie just below where it is halved."""
    given = (*LAWS[law], *BESIDE[beside], f"privacy.clipping_norm={norm}")
    mechanism = bare.plan(*NO_POOL, *given).terms.protection.mechanism
    assert isinstance(mechanism, DistributedNoise | IntegerUploadNoise)
    assert mechanism.noise_multiplier > 1.0


@pytest.mark.parametrize("law", LAWS)
def test_an_entry_with_noise_of_its_own_has_a_grid_of_its_own(pooled: Auditor, law: str) -> None:
    given = (*LAWS[law], *METRIC, *ADAPTIVE, POOL[0], "privacy.clipping_norm=1.5")
    protection = pooled.plan(*given).terms.protection
    assert isinstance(protection.entries.mechanism, IntegerUploadNoise)
    assert protection.entries.mechanism.clipping_norm == 1.5


C, RATIO, FLAG_RATIO = 2.0, 0.75, 0.3
CENTRAL = ("privacy.mechanism=central_noise", "secure_aggregation.enabled=false")
SECRET = (*CENTRAL, "cohort.size=3", "cohort.minimum=1", "cohort.retries=0")


def central(multiplier: float, *, hides_size: bool = False) -> Protection:
    adaptive, metric = AdaptiveClipping(flag_ratio=FLAG_RATIO), NoisedMetric(ratio=RATIO)
    extras = Extras(adaptive, metric, C)
    norm = extras.joint_norm(C)
    layout = build_layout({"a": TensorSpec((2,))}, weighs_examples=False, extras=extras.names)
    facts = {"scale": default_scale(norm), "relation": "replace_one"}
    mechanism = CentralNoise(clipping_norm=norm, noise_multiplier=multiplier, **facts)
    sizes = {"bits": 32, "masked": False, "clients": 5, "hides_size": hides_size}
    sums = SumProtection(mechanism=mechanism, layout=layout, extras=extras, **sizes)
    return Protection(sums=sums)


def averaged(how: Protection, survivors: int, seed: int = 0) -> Any:
    """Three are planned, each of those who came fitted and says 0.9: 0.6 and 1.5 x 0.8."""
    one = np.array([0.3, -0.6, FLAG_RATIO * C, RATIO * C * 0.8])
    noise, grid = SeededNoise(np.random.default_rng(seed)), how.sums.grid()
    steps = np.rint(survivors * one / grid.step).astype(np.int64).astype(np.uint64)
    noised = how.sums.noised(steps & np.uint64(grid.largest_level), survivors, noise)
    return how.sums.average(how.sums.open(noised), 3)


@pytest.mark.parametrize("survivors", [1, 2, 3, 5])
def test_lost_clients_do_not_count_as_one_half(survivors: int) -> None:
    """More than planned do not extrapolate either; the update is divided by the plan as before."""
    how = central(1e-4)
    summed = averaged(how, survivors)
    released = how.extras.noised_mean(summed, how.mechanism)
    assert released is not None
    assert released.mean == pytest.approx(0.9, abs=2e-3)
    assert how.extras.clipped_fraction(summed) == pytest.approx(0.0, abs=2e-3)
    np.testing.assert_allclose(summed.vector, [0.1 * survivors, -0.2 * survivors], atol=1e-3)
    assert summed.total_weight == 3.0
    assert summed.extras[VALIDATION] == pytest.approx(1.2 * survivors / 3, abs=1e-3)


@pytest.mark.parametrize("survivors", [1, 3])
def test_the_deviation_is_that_of_the_clients_who_came(survivors: int) -> None:
    """Noise of z x the joint norm in the sum, 2b = 3 to an accuracy of 1."""
    how, found = central(0.5), []
    for seed in range(800):
        released = how.extras.noised_mean(averaged(how, survivors, seed), how.mechanism)
        assert released is not None
        found.append(released.mean)
    expected = 0.5 * math.sqrt(4.0 + 0.36 + 2.25) / survivors / 3.0
    assert released.deviation == pytest.approx(expected, rel=1e-3)
    assert np.std(found) == pytest.approx(expected, rel=0.12)
    assert abs(np.mean(found) - 0.9) <= 4.5 * expected / math.sqrt(800)


@pytest.mark.parametrize(("survivors", "hides_size"), [(3, True), (2, True), (0, False), (0, True)])
def test_a_secret_number_and_noise_alone_tell_no_mean(survivors: int, hides_size: bool) -> None:
    how = central(1e-4, hides_size=hides_size)
    summed = averaged(how, survivors)
    assert how.extras.released_validation(summed) is None
    assert how.extras.noised_mean(summed, how.mechanism) is None
    # The flag goes by the plan there: each that is missing is half a clipped one.
    clipped = how.extras.clipped_fraction(summed)
    assert clipped == pytest.approx((3 - survivors) / 6, abs=2e-3)
    assert summed.extras[FLAG] == pytest.approx(0.2 * survivors, abs=1e-3)


def test_what_counts_on_a_secret_number(bare, pooled):
    for overrides, hides in (
        ((*CENTRAL, "cohort.size=3"), False),
        (SECRET, True),
        ((*CENTRAL, "privacy.relation=add_or_remove_one"), True),
        (("cohort.size=3", *LAWS["discrete"]), False),
    ):
        plan = bare.plan(*NO_POOL, *NOISED, *QUIET, *overrides)
        assert plan.terms.protection.sums.hides_size is hides
    # With a pool nothing amplifies, so the report states the number and nothing is withheld.
    given = (*NOISED, *QUIET, *SECRET, POOL[0], "pool.minimum=2")
    assert pooled.plan(*given).terms.protection.sums.hides_size is False


@pytest.mark.parametrize(
    "mechanism",
    [
        pytest.param(CENTRAL, id="central"),
        pytest.param((), id="upload", marks=pytest.mark.slow),
        pytest.param(LAWS["discrete"], id="distributed", marks=pytest.mark.slow),
    ],
)
def test_the_mean_of_those_who_came(storage: Storage, mechanism: tuple[str, ...]) -> None:
    lossy = ("cohort.dropout_rate=0.4", "cohort.minimum=2")
    run = storage.run(*NO_POOL, *NOISED, *QUIET, *mechanism, *lossy)
    with opened(storage.reopen(run.run_id)) as simulation:
        names, again = list(simulation.population.clients), simulation.run
        nobody = dict.fromkeys(again.roll.clients)
        scores = examine(again, again.terms.initial_state(), nobody, [HELD])
        start = over_clients([each.tallies[HELD] for each in scores.values()])
        documents = run.summary["rounds"]
        exact = [start.per_client, *(d["validation"]["per_client"] for d in documents)]
        for number, document in enumerate(documents, start=1):
            came = run.survivors()[number]
            assert len(came) == 3
            truth = np.mean([exact[number - 1][names.index(name)] for name in came])
            released = document["released_validation"]
            assert abs(released["mean"] - truth) <= 4.5 * released["std"] + 1e-3
            # The mechanism's noise, on a coordinate as long as C.
            assert 0.001 < released["std"] < 0.02
    largest = max(d["released_validation"]["std"] for d in documents)
    assert any(f"up to {largest:.3f};" in text for text in warnings_of(run.summary))


def test_a_secret_cohort_releases_no_mean_and_says_so(storage: Storage) -> None:
    run = storage.run(*NO_POOL, *NOISED, *QUIET, BEST, *SECRET, "rounds=2")
    assert [d["released_validation"] for d in run.summary["rounds"]] == [None, None]
    assert run.summary["best_on_validation"] is None
    assert any("are withheld" in words for words in warnings_of(run.summary))


def test_a_mean_of_nobody_is_none():
    extras = Extras(metric=NoisedMetric(ratio=1.0), clipping_norm=1.0)
    noise = CentralNoise(clipping_norm=1.0, noise_multiplier=1.0, scale=default_scale(1.0))
    nobody = Summed(np.zeros(2), 0.0, {VALIDATION: 0.0}, survivors=0)
    assert extras.noised_mean(nobody, noise) is None
