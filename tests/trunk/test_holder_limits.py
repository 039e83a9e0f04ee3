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
THRESHOLD = "secure_aggregation.threshold"
UNMASKED = ("secure_aggregation.enabled=false", "secure_aggregation.threshold=null")


@pytest.mark.parametrize(
    ("limits", "within", "beyond", "said"),
    [
        ({"epsilon_per_run": 8.0}, (), ("privacy.target_epsilon=8.000001",), "target_epsilon: 8 "),
        ({}, (), ("privacy.noise_source=seeded",), "privacy.noise_source: seeded"),
        # Shares that withstand nothing: 3 of 6 against a server that lies.
        ({"identity": True}, ACTIVE, (*ACTIVE, f"{THRESHOLD}=3"), f"{THRESHOLD}: 3 of 6"),
        (
            {"epsilon_total": 5.0},
            ("privacy.target_epsilon=5.0",),
            ("privacy.target_epsilon=5.1",),
            "above limits.epsilon_total = 5",
        ),
        (
            {"delta": 1e-6},
            ("privacy.target_delta=1e-6",),
            ("privacy.target_delta=2e-6",),
            "above limits.delta = 1e-06",
        ),
        ({"smallest_cohort": 6}, (), ("cohort.size=5",), "cohort.size: 5"),
        (
            {"smallest_cohort": 10},
            ("cohort.size=null", f"{THRESHOLD}=7"),
            ("cohort.size=9", f"{THRESHOLD}=7"),
            "limits.smallest_cohort = 10",
        ),
        (
            # Sums of fewer than `cohort.minimum` are not opened either.
            {"smallest_sum": 5},
            (f"{THRESHOLD}=4", "cohort.minimum=5"),
            (f"{THRESHOLD}=4", "cohort.minimum=4"),
            "limits.smallest_sum = 5",
        ),
        ({"smallest_sum": 2}, (), UNMASKED, "secure_aggregation.enabled: false"),
        ({"methods": ("promptfl", "coop")}, (), ("method.name=pfedmoap",), "limits.methods"),
        ({"mechanisms": ("distributed_noise",)}, DISTRIBUTED, (), "limits.mechanisms"),
        ({"epsilon_total": None, "epsilon_per_run": None}, DP_SGD, BARE, "privacy.mechanism: none"),
    ],
)
def test_each_limit_at_its_boundary(limits, within, beyond, said):
    settings = holder(**limits)
    assert reasons(settings, run(*within)) == ()
    (reason,) = reasons(settings, run(*beyond))
    assert said in reason


def test_a_relation_that_halves_the_noise_has_to_be_named():
    """At one epsilon `add_or_remove_one` takes half the noise: that would raise every limit."""
    half = run("privacy.relation=add_or_remove_one")
    (sentence,) = reasons(holder(), half)
    assert sentence.startswith("privacy.relation: add_or_remove_one")
    assert reasons(holder(relations=("add_or_remove_one",)), half) == ()
    # Where nothing is claimed a relation is about nothing.
    free = holder(mechanisms=("none",), epsilon_total=None, epsilon_per_run=None)
    assert reasons(free, run(*BARE, "privacy.relation=add_or_remove_one")) == ()
    # The usual one of `dp_sgd`, and the stronger one.
    assert reasons(holder(), run(*DP_SGD)) == ()
    assert reasons(holder(), run(*DP_SGD, "privacy.relation=replace_one")) == ()


def test_a_method_from_outside_has_to_be_named(monkeypatch):
    outside = SimpleNamespace(name="outside", where="of another package", kind="method")
    monkeypatch.setattr("methods.plugins.installed_modules", lambda kind: iter([outside]))
    config = run().model_copy(update={"method": MethodConfig(name="outside")})
    (sentence,) = reasons(holder(), config)
    assert sentence.startswith("method.name: outside")
    assert reasons(holder(methods=("outside",)), config) == ()


def test_the_size_of_a_poisson_cohort_is_no_promise_and_central_noise_has_to_be_named():
    settings = holder(mechanisms=("central_noise",), smallest_sum=1)
    (sentence,) = reasons(settings, run(*POISSON))
    assert "limits.smallest_cohort = 3" in sentence
    (sentence,) = reasons(holder(), run("privacy.mechanism=central_noise"))
    assert sentence.startswith("privacy.mechanism: central_noise")


def test_an_active_adversary():
    honest, active = run(), run(*ACTIVE)
    wary = holder(identity=True, adversary="active")
    assert reasons(wary, active) == ()
    (sentence,) = reasons(wary, honest)
    assert "limits.adversary = active" in sentence
    assert reasons(holder(identity=True), active) == ()
    (sentence,) = reasons(holder(), active)
    assert sentence.startswith("secure_aggregation.adversary: active")
    alone = holder(identity=True, adversary="active", smallest_sum=1)
    (sentence,) = reasons(alone, run(*UNMASKED))
    assert sentence.endswith("limits.adversary = active")


def test_a_thin_graph_opens_as_many_as_it_says():
    """On a k-regular graph the threshold is one of neighbours; sums are larger."""
    thin = run(
        *("task.clients=200", "cohort.size=200", "secure_aggregation.threshold=null"),
        *("secure_aggregation.graph=k_regular", "secure_aggregation.tolerated_dropout_rate=0.1"),
    )
    assert reasons(holder(smallest_sum=180), thin) == ()
    (sentence,) = reasons(holder(smallest_sum=181), thin)
    assert "sums of 180" in sentence


def test_no_coordinator_raises_a_limit():
    generous = run("privacy.lifetime_budget=1000.0")
    limits = own_limits(holder(epsilon_total=3.0, epsilon_per_run=2.0), generous)
    assert (limits.target_epsilon, limits.lifetime_budget) == (2.0, 3.0)
    assert limits.target_key == "limits.epsilon_per_run"
    assert limits.lifetime_key == "limits.epsilon_total"
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


FIT = next(n for n in range(100) if gaussian_epsilon(6.0, n + 1, DELTA) > 4.0)
"""Rounds that epsilon 4 pays for, by the exact formula."""


def test_what_a_run_leaves_open_is_stopped_round_by_round():
    """A noise multiplier has no target: the run is taken, and ends where the limit is."""
    config = run("privacy.target_epsilon=null", "privacy.noise_multiplier=6.0", "rounds=1000")
    settings = holder(epsilon_per_run=4.0)
    assert reasons(settings, config) == ()
    assert FIT > 2
    limits, spent = own_limits(settings, config), RunningLedger()
    for number in range(1, FIT + 1):
        limits.require(spent, spent, [release(number, 6.0)])
        spent.add([release(number, 6.0)])
    with pytest.raises(BudgetExhausted, match=r"limits\.epsilon_per_run is 4"):
        limits.require(spent, spent, [release(FIT + 1, 6.0)])


def test_many_small_runs_end_at_the_total_and_no_noise_passes_no_bound():
    config = run("privacy.target_epsilon=null", "privacy.noise_multiplier=6.0")
    limits = own_limits(holder(epsilon_total=4.0), config)
    life = RunningLedger(release(1, 6.0, f"run-{i}") for i in range(FIT))
    with pytest.raises(BudgetExhausted, match=r"limits\.epsilon_total is 4"):
        limits.require(RunningLedger(), life, [release(1, 6.0, "another")])
    # Even where `none` slipped through: what it would spend is infinite.
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


def test_a_pinned_class_list_is_the_only_one():
    """Its order too: labels count it."""
    settings = holder()
    for own in (None, ("cat", "dog"), ("dog", "cat"), ("cat",)):
        pinned = settings.data.model_copy(update={"classes": own})
        found = reasons(settings.model_copy(update={"data": pinned}), run(*FEDERATED))
        assert bool(found) == (own not in (None, ("cat", "dog")))
        assert not found or found[0].startswith("federation.classes")
