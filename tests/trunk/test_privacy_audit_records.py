"""The audit of `dp_sgd`: one record against everything that a client's training hands on.

Ten classes and a prompt of two tokens keep a training at some ten milliseconds. The right build
and its mutants go through the run's own method, trainer and accounting.
"""

from __future__ import annotations

from types import MappingProxyType

import pytest

import platform.parties.profile
import platform.parties.totality
import platform.protection.uploads
from methods import LocalResult, ParameterGroup
from methods.pfedmoap import PFedMoAP
from methods.prompts.prompt import CONTEXT
from platform.bootstrap import RunPlan, Surroundings, plan_run
from platform.privacy_auditing.audit import AuditPlan, audit_run
from platform.privacy_auditing.outcome import ChannelAudit
from platform.rounds.observing import SilentObserver
from privacy import SensitivityViolation
from privacy.training import LocalTrainer, TrainingPlan
from tests.trunk._audits import DP_SGD, reasons, repeat_noise

PROMPT_FL = ("method.name=promptfl", "method.context_tokens=1")
REPLACE = ("privacy.relation=replace_one", "privacy.noise_multiplier=0.7")
# Under a smaller claim few canaries refute a build that hides nothing.
NOISY = "privacy.noise_multiplier=1.0"
PLANS: MappingProxyType[str, tuple[str, ...]] = MappingProxyType(
    {
        "plain": PROMPT_FL,
        "replaced": (*PROMPT_FL, *REPLACE),
        "gated": (NOISY,),
    }
)


@pytest.fixture(scope="module")
def plans(make_storage) -> dict[str, RunPlan]:
    storage = make_storage("records")

    def plan(*overrides: str) -> RunPlan:
        config = storage.config(*DP_SGD, *overrides)
        return plan_run(config, SilentObserver(), Surroundings())

    return {name: plan(*overrides) for name, overrides in PLANS.items()}


def audited(plan: RunPlan, canaries: int) -> ChannelAudit:
    (audit,) = audit_run(AuditPlan(plan, canaries), lambda *_, **__: None)
    return audit


@pytest.mark.parametrize(
    ("name", "mu", "canaries"), [("replaced", 2 / 0.7, 40), ("gated", 1.0, 40)]
)
def test_the_right_build_is_not_refuted(plans, name, mu, canaries):
    audit = audited(plans[name], canaries)
    assert audit.passed, audit.reasons
    assert (audit.channel, audit.result.unit) == ("training", "record")
    assert audit.result.claimed_mu == pytest.approx(mu)
    assert audit.result.is_tight


def test_same_noise_each_round_is_refuted(plans, monkeypatch):
    repeat_noise(monkeypatch)
    assert "correlated" in reasons(audited(plans["plain"], 10))


def raw_gate(self, view, data, trainer, rng) -> LocalResult:
    """pFedMoAP whose prompt is trained privately and whose gate is not."""
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


def trust_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switches the joint rule off: the audit does not rely on it."""
    monkeypatch.setattr(platform.parties.totality, "seal", lambda examples: examples)
    monkeypatch.setattr(platform.parties.totality, "require_released", lambda *_, **__: None)


def test_personal_part_not_privatised_is_refused_by_the_joint_rule(plans, monkeypatch):
    monkeypatch.setattr(PFedMoAP, "client_update", raw_gate)
    with pytest.raises(SensitivityViolation):
        audited(plans["gated"], 10)


def test_personal_part_not_privatised_under_dp_sgd_is_refuted(plans, monkeypatch):
    monkeypatch.setattr(PFedMoAP, "client_update", raw_gate)
    trust_methods(monkeypatch)
    audit = audited(plans["gated"], 70)
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
def test_every_method_under_dp_sgd(make_storage, method, overrides):
    config = make_storage("methods").config(*DP_SGD, *method, *overrides)
    plan = plan_run(config, SilentObserver(), Surroundings())
    audit = audited(plan, 1000)
    assert audit.passed, audit.reasons
