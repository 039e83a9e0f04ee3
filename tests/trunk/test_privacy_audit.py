"""The audit of a configuration: the right build passes, and each broken one is refuted by name."""

from __future__ import annotations

import json

import numpy as np
import pytest

import platform.privacy_audit
import platform.protection
from methods import TensorSpec
from platform.config import parse_config
from platform.errors import ConfigError
from platform.layout import build_layout
from platform.privacy_audit import AuditPlan, audit_protection
from platform.protection import Protection
from privacy import NoProtection, SeededNoise, UploadNoise, protect

SPEC = {"x": TensorSpec((16, 16))}
MECHANISM = UploadNoise(clipping_norm=0.5, noise_multiplier=1.5)


def plan(mechanism=MECHANISM, *, pool: bool = True, pool_noise: str = "same") -> AuditPlan:
    config = parse_config(
        {
            "name": "audited",
            "method": {"name": "pfedmoap"},
            "training": {"local_steps": 1},
            "privacy": {
                "mechanism": "upload_noise",
                "clipping_norm": 0.5,
                "noise_multiplier": 1.5,
                "noise_source": "seeded",
            },
        }
    )
    protection = Protection(
        mechanism=mechanism,
        layout=build_layout(SPEC, "upload_noise"),
        pool_spec=SPEC if pool else None,
        pool_noise=pool_noise,
        bits=20,
        masked=True,
    )
    return AuditPlan(config, protection, canaries=1000)


def verdicts(audited: AuditPlan) -> dict[str, tuple[bool, str]]:
    documents = audit_protection(audited, lambda what: None)
    return {d["channel"]: (d["passed"], " ".join(d["reasons"])) for d in documents}


@pytest.mark.parametrize("pool_noise", ["same", "independent"])
def test_the_right_build_is_not_refuted(pool_noise):
    assert verdicts(plan(pool_noise=pool_noise)) == {"sum": (True, ""), "pool": (True, "")}


def test_without_a_pool_there_is_one_channel():
    assert set(verdicts(plan(pool=False))) == {"sum"}


def broken(monkeypatch: pytest.MonkeyPatch, change) -> dict[str, tuple[bool, str]]:
    """The audit's verdicts where `change` stands in for what protects a vector."""
    monkeypatch.setattr(platform.protection, "protect", change)
    return verdicts(plan())


def test_halved_noise_is_refuted(monkeypatch):
    def halved(vector, mechanism, quantiser, noise):
        return protect(vector, UploadNoise(0.5, 0.75), quantiser, noise)

    outcome = broken(monkeypatch, halved)
    assert not outcome["sum"][0]
    assert not outcome["pool"][0]
    assert "variance" in outcome["sum"][1]


def test_noise_for_half_the_sensitivity_is_refuted(monkeypatch):
    """Calibrated for C where replace_one moves an upload by 2C."""

    def forgotten(vector, mechanism, quantiser, noise):
        return protect(vector, UploadNoise(0.5, 0.75), quantiser, noise)

    assert not broken(monkeypatch, forgotten)["sum"][0]


def test_a_skipped_clip_is_refuted(monkeypatch):
    def unclipped(vector, mechanism, quantiser, noise):
        noised = vector + mechanism.standard_deviation * noise.standard_normal(vector.size)
        return protect(noised, NoProtection(100.0), quantiser, None)

    monkeypatch.setattr(platform.protection, "value_bound", lambda mechanism, dimension: 100.0)
    assert not broken(monkeypatch, unclipped)["sum"][0]


def test_the_same_noise_each_time_is_refuted(monkeypatch):
    def repeated(vector, mechanism, quantiser, noise):
        again = SeededNoise(np.random.default_rng(0))
        return protect(vector, mechanism, quantiser, again)

    passed, reasons = broken(monkeypatch, repeated)["sum"]
    assert not passed
    assert "noise" in reasons


def test_a_pool_entry_without_noise_is_refuted(monkeypatch):
    def bare(vector, mechanism, quantiser, noise):
        bare.calls += 1
        if bare.calls % 2 == 0:
            return protect(vector, NoProtection(100.0), quantiser, None)
        return protect(vector, mechanism, quantiser, noise)

    # Under `independent` every second call protects the pool entry.
    bare.calls = 0
    monkeypatch.setattr(platform.protection, "protect", bare)
    outcome = verdicts(plan(pool_noise="independent"))
    assert outcome["sum"][0]
    assert not outcome["pool"][0]


def test_a_run_that_claims_nothing_is_not_audited():
    with pytest.raises(ConfigError, match="nothing to audit"):
        audit_protection(plan(NoProtection(8.0)), lambda what: None)


def test_the_command_prints_a_verdict_for_each_channel(sotto, tmp_path):
    url = f"storage.url=sqlite:///{tmp_path}/sotto.db"
    small = ["--set", "task.test_per_class=6", "--set", "task.shots=1", "--canaries", "500"]
    small += ["--set", url]
    outcome = sotto("audit-privacy", "quickstart", *small, "--json")
    assert outcome.code == 0, outcome.err
    documents = json.loads(outcome.out)
    assert [d["channel"] for d in documents] == ["sum", "pool"]
    assert all(d["passed"] for d in documents)
    shown = sotto("audit-privacy", "quickstart", *small)
    assert shown.code == 0
    assert "not refuted" in shown.out


def test_the_command_refuses_what_claims_nothing(sotto, tmp_path):
    url = f"storage.url=sqlite:///{tmp_path}/sotto.db"
    outcome = sotto("audit-privacy", "pathological", "--set", url)
    assert outcome.code == 2
    assert "nothing to audit" in outcome.err
