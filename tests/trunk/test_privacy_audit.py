"""The audit of a run's client unit: right builds pass, and each broken one is refuted by name.

Everything from the configuration to what an adversary sees is the real code; a mutant is one
function of it that does something else. Noise comes from seeds, so every verdict is the same in
every run of the tests.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pytest

import platform.mechanisms.distributed_noise
import platform.parties.profile
import platform.parties.totality
import platform.protection.sums
import platform.protection.uploads
from methods import LocalResult, ParameterGroup
from methods.pfedmoap import PFedMoAP
from methods.prompts.prompt import CONTEXT
from platform.cli.trying import draw
from platform.errors import ConfigError
from platform.experiment.planning import RunPlan
from platform.experiment.privacy_auditing.outcome import ChannelAudit, standardise
from platform.wire.layout import UploadLayout
from privacy import SensitivityViolation
from privacy.training import LocalTrainer, TrainingPlan
from tests.trunk._audits import (
    DP_SGD,
    NOISE,
    Auditor,
    audited,
    bare_entry,
    cases,
    halve_noise,
    reasons,
    repeat_noise,
    skip_clip,
)
from tests.trunk._runs import NONE

INDEPENDENT = "pool.noise=independent"
ADAPTIVE = (INDEPENDENT, "privacy.adaptive_clipping={}")
DISTRIBUTED = "privacy.mechanism=distributed_noise"
COMES = "privacy.relation=add_or_remove_one"
SKELLAM = "privacy.noise_distribution=skellam"
# What is refuted at the lowest layer is in `tests/privacy/auditing/test_games.py`.
EVERY = {
    "upload": (),
    "upload, discrete": ("privacy.noise_distribution=discrete_gaussian",),
    "upload, independent": (INDEPENDENT,),
    "distributed": (DISTRIBUTED,),
    "central": ("privacy.mechanism=central_noise",),
    "upload, add or remove": (COMES, "privacy.noise_multiplier=0.75"),
    "upload, adaptive": ADAPTIVE,
    "distributed, skellam, adaptive": (DISTRIBUTED, SKELLAM, *ADAPTIVE),
    "distributed, colluders": (DISTRIBUTED, "secure_aggregation.corrupt=2"),
    "central, adaptive, no masks": (
        "privacy.mechanism=central_noise",
        "secure_aggregation.enabled=false",
        *ADAPTIVE,
    ),
}
FEW = {name: EVERY[name] for name in ("upload, independent", "distributed", "central")}


@pytest.fixture(scope="module")
def audit(make_storage) -> Auditor:
    return Auditor(make_storage("audit").plan())


@cases(EVERY, "upload")
def test_the_right_build_is_not_refuted_and_is_seen_in_full(audit, mechanism):
    verdicts = audit(*NOISE, *mechanism)
    assert set(verdicts) == {"sum", "pool"}
    for verdict in verdicts.values():
        result, bound = verdict.result, verdict.result.gaussian
        assert verdict.passed, verdict.reasons
        assert result.is_tight and result.clip_respected and result.power > 0.9
        assert result.claimed_mu == pytest.approx(2.0 / 1.5, rel=1e-4)
        assert bound is not None
        # Four deviations of what so many canaries show, either way.
        assert 0.7 * bound.ceiling < bound.epsilon < 1.3 * bound.ceiling


CONES = {
    "class_statistics": ("method.name=class_statistics", "method.counts=true"),
    "word_table": ("method.name=word_table",),
    "groups": (
        *("method.name=word_table", "pool.kind=groups", "pool.experts=2"),
        *("pool.noise=null", "pool.count_ratio=0.25"),
    ),
}


@cases(CONES, "class_statistics", "word_table", "groups")
def test_uploads_in_cones_are_as_far_apart_as_the_ledger_says(make_storage, mechanism):
    """What is charged is sqrt(2) C, and neighbours that far apart are told apart just so well."""
    overrides = (*NOISE, "privacy.mechanism=central_noise", *mechanism)
    base = make_storage("cones").plan(*overrides)
    for verdict in Auditor(base)(*overrides).values():
        result, bound = verdict.result, verdict.result.gaussian
        assert verdict.passed, verdict.reasons
        assert result.is_tight and result.clip_respected and bound is not None
        assert result.claimed_mu == pytest.approx(2.0**0.5 / 1.5, rel=0.04)
        assert 0.7 * bound.ceiling < bound.epsilon < 1.35 * bound.ceiling


@cases(FEW, "central")
def test_noise_halved_is_refuted(audit, monkeypatch, mechanism):
    halve_noise(monkeypatch)
    for verdict in audit(*NOISE, *mechanism, canaries=200).values():
        assert not verdict.result.passed
        assert verdict.result.clip_respected
        assert "variance" in reasons(verdict)


@cases(FEW, "upload, independent")
def test_clip_skipped_is_refuted(audit, monkeypatch, mechanism):
    skip_clip(monkeypatch)
    for verdict in audit(*NOISE, *mechanism, canaries=200).values():
        assert not verdict.result.clip_respected


@cases(FEW, "distributed")
def test_same_noise_each_round_is_refuted(audit, monkeypatch, mechanism):
    repeat_noise(monkeypatch)
    for verdict in audit(*NOISE, *mechanism, canaries=100).values():
        assert "correlated" in reasons(verdict)


def test_same_noise_in_sum_and_pool_with_two_charges_is_refuted(audit, monkeypatch):
    """The charge for two independent releases is less than the same noise twice is worth."""

    def same(self, result, broadcast, carried, noise, *, state):
        return {platform.protection.uploads.LEVELS: carried.levels.astype("<u4")}, state

    monkeypatch.setattr(platform.protection.uploads.Protection, "_protect_entry", same)
    verdicts = audit(*NOISE, INDEPENDENT, canaries=100)
    assert verdicts["sum"].passed
    assert "correlated" in reasons(verdicts["pool"])


@cases(FEW, "upload, independent")
def test_pool_entry_un_noised_is_refuted(audit, monkeypatch, mechanism):
    bare_entry(monkeypatch)
    verdicts = audit(*NOISE, *mechanism, canaries=200)
    assert verdicts["sum"].passed
    assert not verdicts["pool"].result.passed


def test_a_weight_under_a_mechanism_is_refuted(audit, monkeypatch):
    """A client that counts seven times moves the sum seven times as far."""
    weigh = lambda self, levels, weight: levels * type(levels[0])(weight)  # noqa: E731
    monkeypatch.setattr(UploadLayout, "weigh", weigh)
    assert not audit(*NOISE, "privacy.mechanism=central_noise", canaries=100)["sum"].passed


def test_what_claims_nothing_is_not_audited(audit):
    with pytest.raises(ConfigError, match="nothing to audit"):
        audit(NONE)


def test_every_channel_is_drawn_and_a_refuted_one_is_named(audit, tmp_path):
    path, (one, other) = tmp_path / "audit.svg", audit(*NOISE, canaries=100).values()
    refuted = dataclasses.replace(other, problems=("it is",))
    draw([dataclasses.replace(one, problems=()), refuted], path, ["channel-0", "channel-1"])
    text = path.read_text("utf-8")
    assert "<!-- channel-1: REFUTED" in text and "<!-- channel-0: REFUTED" not in text
    assert "<!-- channel-0" in text


def test_scores_are_brought_to_the_claims_scale():
    """Canaries 2C = 2 apart under a claimed mu of 3: one deviation is 2/3."""
    scaled = standardise(np.array([1.0, 2.0, 0.0]), threshold=1.0, distance=2.0, mu=3.0)
    assert scaled.tolist() == [0.0, 1.5, -1.5]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pfedmoap", "promptfl"])
@pytest.mark.parametrize("target", [2.0, 8.0])
@pytest.mark.parametrize("mechanism", EVERY.values(), ids=EVERY.keys())
def test_calibrated_builds_of_every_method(make_storage, method, target, mechanism):
    name = f"method.name={method}"
    chosen = (name, "method.context_tokens=2") if method == "promptfl" else ()
    mechanism = [o for o in mechanism if method == "pfedmoap" or o != INDEPENDENT]
    calibrated = ["privacy.noise_multiplier=null", f"privacy.target_epsilon={target}"]
    overrides = [*chosen, *mechanism, *calibrated]
    base = make_storage("calibrated").plan(*overrides)
    for verdict in Auditor(base)(*overrides, canaries=6000).values():
        assert verdict.passed, verdict.reasons
        assert verdict.result.is_tight


PROMPT_FL = ("method.name=promptfl", "method.context_tokens=1")
REPLACE = ("privacy.relation=replace_one", "privacy.noise_multiplier=0.7")
# Under a smaller claim few canaries refute a build that hides nothing.
GATED = ("privacy.noise_multiplier=1.0",)


@pytest.fixture(scope="module")
def plan(make_storage) -> Callable[..., RunPlan]:
    return cache(partial(make_storage("records").plan, *DP_SGD))


def audit_of(plan: RunPlan, canaries: int) -> ChannelAudit:
    (audit,) = audited(plan, canaries)
    return audit


@pytest.mark.slow
@pytest.mark.parametrize(("overrides", "mu"), [((*PROMPT_FL, *REPLACE), 2 / 0.7), (GATED, 1.0)])
def test_the_right_training_is_not_refuted(plan, overrides, mu):
    audit = audit_of(plan(*overrides), 40)
    assert audit.passed, audit.reasons
    assert (audit.channel, audit.result.unit) == ("training", "record")
    assert audit.result.claimed_mu == pytest.approx(mu)
    assert audit.result.is_tight


def test_same_noise_in_each_training_is_refuted(plan, monkeypatch):
    repeat_noise(monkeypatch)
    assert "correlated" in reasons(audit_of(plan(*PROMPT_FL), 10))


def raw_gate(self, view, data, trainer, rng) -> LocalResult:
    start, personal = view.broadcast[CONTEXT], view.personal
    context = self.train_prompt(start, data, trainer, rng)
    if not data.num_examples:
        return LocalResult({CONTEXT: context - start}, {CONTEXT: context}, personal)
    gate = {name: value for name, value in personal.items() if name != CONTEXT}
    plain = LocalTrainer(TrainingPlan(local_steps=1, batch_size=64, learning_rate=0.1))
    groups = (ParameterGroup(tuple(gate)),)
    objective = self._objective(view.experts, self.classes)
    parts = plain.fit(objective, {CONTEXT: start, **gate}, data.arrays, groups=groups, rng=rng)
    return LocalResult({CONTEXT: context - start}, {CONTEXT: context}, {**parts, CONTEXT: context})


def test_personal_part_not_privatised_is_refused_by_the_joint_rule(plan, monkeypatch):
    monkeypatch.setattr(PFedMoAP, "client_update", raw_gate)
    with pytest.raises(SensitivityViolation):
        audit_of(plan(*GATED), 10)


@pytest.mark.slow
def test_personal_part_not_privatised_under_dp_sgd_is_refuted(plan, monkeypatch):
    """The same with the rule switched off: the audit does not rely on it."""
    monkeypatch.setattr(PFedMoAP, "client_update", raw_gate)
    monkeypatch.setattr(platform.parties.totality, "seal", lambda examples: examples)
    monkeypatch.setattr(platform.parties.totality, "require_released", lambda *_, **__: None)
    audit = audit_of(plan(*GATED), 70)
    assert not audit.result.passed
    found = reasons(audit)
    assert "'personal state'" in found
    assert "'update'" not in found


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("method", [(), PROMPT_FL], ids=["pfedmoap", "promptfl"])
@pytest.mark.parametrize(
    "overrides",
    [
        ("training.local_steps=3", "privacy.noise_multiplier=1.0"),
        ("training.local_steps=3", "privacy.sampling_probability=0.5"),
        REPLACE,
    ],
    ids=["three steps", "sampled", "replaced"],
)
def test_every_method_under_dp_sgd(plan, method, overrides):
    audit = audit_of(plan(*method, *overrides), 1000)
    assert audit.passed, audit.reasons
