"""A data holder's own limits: each at its boundary, and the less of both sides in every round."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from platform.config import MethodConfig, RunConfig, parse_config
from platform.errors import Declined
from platform.holder.settings import (
    DataSettings,
    HolderSettings,
    OwnLimits,
    own_limits,
    require_within,
)
from privacy import GAUSSIAN, NO_NOISE, UPLOAD_NOISE, BudgetExhausted, Release, RunningLedger
from tests.trunk._runs import gaussian_epsilon

RUN: dict[str, Any] = {
    "name": "offered",
    "task": {"clients": 10},
    "method": {"name": "promptfl"},
    "training": {"local_steps": 1},
    "cohort": {"size": 6, "minimum": 3},
    "privacy": {"mechanism": "upload_noise", "clipping_norm": 1.0, "target_epsilon": 8.0},
    "secure_aggregation": {"enabled": True, "threshold": 5},
}
DELTA = 1e-5


def run(*overrides: str) -> RunConfig:
    return parse_config(RUN, overrides)


def holder(*, identity: bool = False, **limits: Any) -> HolderSettings:
    key = Path("/holder/north.key") if identity else None
    return HolderSettings.model_construct(
        name="north",
        data=DataSettings.model_construct(root=Path("/holder/images"), classes=None),
        storage=Path("/holder/north"),
        identity=key,
        enrolment=key,
        limits=OwnLimits(**limits),
    )


def reasons(settings: HolderSettings, config: RunConfig) -> tuple[str, ...]:
    """Why a run is declined; nothing if it is not."""
    try:
        require_within(settings, config)
    except Declined as error:
        assert str(error) == error.reasons[0]
        return error.reasons
    return ()


ACTIVE = ("secure_aggregation.adversary=active", "secure_aggregation.enrolment=theirs.json")
DP_SGD = (
    "privacy.mechanism=dp_sgd",
    "privacy.clipping_norm=null",
    "privacy.per_sample_clipping_norm=1.0",
    "privacy.sampling_probability=0.1",
)
DISTRIBUTED = ("privacy.mechanism=distributed_noise",)
POISSON = (
    *("privacy.mechanism=central_noise", "secure_aggregation.enabled=false"),
    *("secure_aggregation.threshold=null", "cohort.sampling=poisson", "cohort.minimum=1"),
    "cohort.retries=0",
)
BARE = ("privacy.mechanism=none",)


UNMASKED = ("secure_aggregation.enabled=false", "secure_aggregation.threshold=null")


@pytest.mark.parametrize(
    ("limits", "within", "beyond", "sentence"),
    [
        (
            {"epsilon_per_run": 8.0},
            (),
            ("privacy.target_epsilon=8.000001",),
            "privacy.target_epsilon: 8 is above limits.epsilon_per_run = 8",
        ),
        ({}, (), ("privacy.noise_source=seeded",), "privacy.noise_source: seeded protects no data"),
        (
            # Shares that withstand nothing: 3 of 6 against a server that lies.
            {"identity": True},
            ACTIVE,
            (*ACTIVE, "secure_aggregation.threshold=3"),
            "secure_aggregation.threshold: 3 of 6 does not withstand an active",
        ),
        (
            {"epsilon_total": 5.0},
            ("privacy.target_epsilon=5.0",),
            ("privacy.target_epsilon=5.1",),
            "privacy.target_epsilon: 5.1 is above limits.epsilon_total = 5",
        ),
        (
            {"delta": 1e-6},
            ("privacy.target_delta=1e-6",),
            ("privacy.target_delta=2e-6",),
            "privacy.target_delta: 2e-06 is above limits.delta = 1e-06",
        ),
        ({"smallest_cohort": 6}, (), ("cohort.size=5",), "cohort.size: 5 is below limits.smallest"),
        (
            {"smallest_cohort": 10},
            ("cohort.size=null", "secure_aggregation.threshold=7"),
            ("cohort.size=9", "secure_aggregation.threshold=7"),
            "cohort.size: 9 is below limits.smallest_cohort = 10",
        ),
        (
            # Sums of fewer than `cohort.minimum` are not opened either.
            {"smallest_sum": 5},
            ("secure_aggregation.threshold=4", "cohort.minimum=5"),
            ("secure_aggregation.threshold=4", "cohort.minimum=4"),
            "secure_aggregation.threshold: opens sums of 4, fewer than limits.smallest_sum = 5",
        ),
        ({"smallest_sum": 2}, (), UNMASKED, "secure_aggregation.enabled: false shows"),
        (
            {"methods": ("promptfl", "coop")},
            (),
            ("method.name=pfedmoap",),
            "method.name: pfedmoap is not among limits.methods = promptfl, coop",
        ),
        (
            {"mechanisms": ("distributed_noise",)},
            DISTRIBUTED,
            (),
            "privacy.mechanism: upload_noise is not among limits.mechanisms = distributed_noise",
        ),
        (
            {"epsilon_total": None, "epsilon_per_run": None},
            DP_SGD,
            BARE,
            "privacy.mechanism: none is not among limits.mechanisms = dp_sgd, upload_noise, ",
        ),
    ],
)
def test_each_limit_at_its_boundary(limits, within, beyond, sentence):
    settings = holder(**limits)
    assert reasons(settings, run(*within)) == ()
    (reason,) = reasons(settings, run(*beyond))
    assert reason.startswith(sentence)


def test_a_relation_that_halves_the_noise_has_to_be_named():
    """At one epsilon `add_or_remove_one` takes half the noise: that would raise every limit."""
    half = run("privacy.relation=add_or_remove_one")
    (sentence,) = reasons(holder(), half)
    assert sentence == (
        "privacy.relation: add_or_remove_one is not among limits.relations = replace_one"
    )
    assert reasons(holder(relations=("add_or_remove_one",)), half) == ()
    # Where nothing is claimed a relation is about nothing.
    free = holder(mechanisms=("none",), epsilon_total=None, epsilon_per_run=None)
    assert reasons(free, run(*BARE, "privacy.relation=add_or_remove_one")) == ()
    # The usual one of `dp_sgd`, and the stronger one.
    assert reasons(holder(), run(*DP_SGD)) == ()
    assert reasons(holder(), run(*DP_SGD, "privacy.relation=replace_one")) == ()


def test_a_method_from_outside_has_to_be_named(monkeypatch):
    """Who installed a package did not mean to lend it data."""
    outside = SimpleNamespace(name="outside", where="of another package")
    monkeypatch.setattr("methods.interface.registry.installed_modules", lambda: iter([outside]))
    config = run().model_copy(update={"method": MethodConfig(name="outside")})
    (sentence,) = reasons(holder(), config)
    assert sentence.startswith("method.name: outside is not among limits.methods = ")
    assert reasons(holder(methods=("outside",)), config) == ()


def test_the_size_of_a_poisson_cohort_is_no_promise_and_central_noise_has_to_be_named():
    settings = holder(mechanisms=("central_noise",), smallest_sum=1)
    (sentence,) = reasons(settings, run(*POISSON))
    assert sentence == "cohort.minimum: 1 is below limits.smallest_cohort = 3"
    (sentence,) = reasons(holder(), run("privacy.mechanism=central_noise"))
    assert sentence.startswith("privacy.mechanism: central_noise is not among limits.mechanisms")


def test_an_active_adversary():
    honest, active = run(), run(*ACTIVE)
    wary = holder(identity=True, adversary="active")
    assert reasons(wary, active) == ()
    assert reasons(wary, honest) == (
        "secure_aggregation.adversary: semi_honest is less than limits.adversary = active",
    )
    assert reasons(holder(identity=True), active) == ()
    (sentence,) = reasons(holder(), active)
    assert sentence.startswith("secure_aggregation.adversary: active needs the holder's identity")
    alone = holder(identity=True, adversary="active", smallest_sum=1)
    (sentence,) = reasons(alone, run(*UNMASKED))
    assert sentence.endswith("is less than limits.adversary = active")


def test_a_thin_graph_opens_as_many_as_it_says():
    """On a k-regular graph the threshold is one of neighbours; sums are larger."""
    thin = run(
        *("task.clients=200", "cohort.size=200", "secure_aggregation.threshold=null"),
        *("secure_aggregation.graph=k_regular", "secure_aggregation.tolerated_dropout_rate=0.1"),
    )
    assert reasons(holder(smallest_sum=180), thin) == ()
    (sentence,) = reasons(holder(smallest_sum=181), thin)
    assert sentence.endswith("opens sums of 180, fewer than limits.smallest_sum = 181")


def test_all_reasons_are_told_and_the_price_comes_first():
    settings = holder(methods=("coop",), smallest_cohort=7, smallest_sum=6, epsilon_per_run=1.0)
    found = reasons(settings, run("privacy.noise_source=seeded", "privacy.target_delta=1e-4"))
    assert [sentence.partition(":")[0] for sentence in found] == [
        "privacy.target_epsilon",
        "privacy.target_delta",
        "privacy.noise_source",
        "method.name",
        "cohort.size",
        "secure_aggregation.threshold",
    ]


def test_no_coordinator_raises_a_limit():
    """Whatever a run's own budget says, the holder's is the least of both."""
    generous = run("privacy.lifetime_budget=1000.0")
    limits = own_limits(holder(epsilon_total=3.0, epsilon_per_run=2.0), generous)
    assert (limits.target_epsilon, limits.lifetime_budget) == (2.0, 3.0)
    assert (limits.target_key, limits.lifetime_key) == (
        "limits.epsilon_per_run",
        "limits.epsilon_total",
    )
    modest = run("privacy.lifetime_budget=9.0", "privacy.target_delta=1e-6")
    limits = own_limits(holder(), modest)
    assert (limits.target_epsilon, limits.lifetime_budget) == (8.0, 9.0)
    assert limits.lifetime_key == "privacy.lifetime_budget"
    assert limits.delta == 1e-6
    free = holder(epsilon_total=None, epsilon_per_run=None)
    limits = own_limits(free, run())
    assert (limits.target_epsilon, limits.lifetime_budget) == (8.0, None)
    assert limits.target_key == "privacy.target_epsilon"
    unbounded = run("privacy.target_epsilon=null", "privacy.noise_multiplier=0.5")
    assert not own_limits(free, unbounded).any


def release(round_number: int, noise_multiplier: float, run_id: str = "one") -> Release:
    return Release(
        mechanism=UPLOAD_NOISE,
        standard_deviation=noise_multiplier,
        law=GAUSSIAN,
        clipping_norm=1.0,
        relation="replace_one",
        channel="sum",
        run_id=run_id,
        round_number=round_number,
        attempt=1,
        pseudonym="own",
        status="released",
    )


def test_what_a_run_leaves_open_is_stopped_round_by_round():
    """A noise multiplier has no target: the run is taken, and ends where the holder's limit is.

    The number of rounds that fit is counted by the exact formula.
    """
    config = run("privacy.target_epsilon=null", "privacy.noise_multiplier=6.0", "rounds=1000")
    settings = holder(epsilon_per_run=4.0)
    assert reasons(settings, config) == ()
    fit = next(n for n in range(100) if gaussian_epsilon(6.0, n + 1, DELTA) > 4.0)
    assert fit > 2
    limits, spent = own_limits(settings, config), RunningLedger()
    for number in range(1, fit + 1):
        limits.require(spent, spent, [release(number, 6.0)])
        spent.add([release(number, 6.0)])
    with pytest.raises(BudgetExhausted, match=r"limits\.epsilon_per_run is 4"):
        limits.require(spent, spent, [release(fit + 1, 6.0)])


def test_many_small_runs_end_at_the_total():
    config = run("privacy.target_epsilon=null", "privacy.noise_multiplier=6.0")
    limits = own_limits(holder(epsilon_total=4.0), config)
    fit = next(n for n in range(100) if gaussian_epsilon(6.0, n + 1, DELTA) > 4.0)
    life = RunningLedger(release(1, 6.0, f"run-{i}") for i in range(fit))
    with pytest.raises(BudgetExhausted, match=r"limits\.epsilon_total is 4"):
        limits.require(RunningLedger(), life, [release(1, 6.0, "another")])


def test_no_noise_passes_no_bound():
    """Even where `none` slipped through: what it would spend is infinite."""
    bare = dataclasses.replace(release(1, 6.0), standard_deviation=0.0, law=NO_NOISE)
    with pytest.raises(BudgetExhausted):
        own_limits(holder(), run()).require(RunningLedger(), RunningLedger(), [bare])


FEDERATED = (
    "federation={clients: [north, east, south], classes: [cat, dog]}",
    "task={dataset: held_by_clients, clients: 3}",
    "cohort={size: 3, minimum: 3}",
    "secure_aggregation={enabled: true, threshold: 3}",
    "evaluation={local_twins: false, worth_of_sharing: false}",
)


@pytest.mark.parametrize(
    ("own", "is_declined"),
    [(None, False), (("cat", "dog"), False), (("dog", "cat"), True), (("cat",), True)],
)
def test_a_pinned_class_list_is_the_only_one(own, is_declined):
    """Its order too: labels count it."""
    settings = holder()
    pinned = settings.data.model_copy(update={"classes": own})
    found = reasons(settings.model_copy(update={"data": pinned}), run(*FEDERATED))
    assert bool(found) == is_declined
    assert not is_declined or found[0].startswith("federation.classes")
