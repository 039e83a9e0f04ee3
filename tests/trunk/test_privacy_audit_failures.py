"""The audit of failing clients: a right build passes, and each way to show a failure is refuted."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import platform.parties.totality
from platform.bootstrap import RunPlan, plan_run
from platform.parties.client import Client
from platform.privacy_auditing.audit import AuditPlan, audit_failing
from platform.privacy_auditing.hostile_rounds import FailureAudit
from platform.protection.uploads import Protection
from platform.rounds.observing import SilentObserver
from tests.trunk._runs import FIXED, GATHERING, SMALL, Storage, command_line

NETWORK = (
    "task={dataset: digits, clients: 4, shots: 3, model: null}",
    "method={name: fedavg, network: cnn, image_size: 16, channels: [2, 3], feature_width: 8}",
    "rounds=2",
    *FIXED,
)
MECHANISMS = {
    "upload": NETWORK,
    "distributed": (*NETWORK, "privacy.mechanism=distributed_noise"),
    "central": (*NETWORK, "privacy.mechanism=central_noise"),
    "adaptive": (*NETWORK, "privacy.adaptive_clipping={}"),
    "hostile experts": (*FIXED, "pool.noise=independent"),
}


def plan(storage: Storage, *overrides: str) -> RunPlan:
    return plan_run(storage.config(*overrides), SilentObserver(), storage.surroundings)


def audit(run: RunPlan) -> FailureAudit:
    return audit_failing(AuditPlan(run, canaries=0))


@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=MECHANISMS.keys())
def test_the_right_build_is_not_refuted_and_clients_did_fail(storage: Storage, mechanism):
    verdict = audit(plan(storage, *mechanism))
    assert verdict.passed, verdict.reasons
    # One message a class, at least, on which some neighbours fail and others do not.
    assert verdict.split >= (2 if NETWORK[0] in mechanism else 0)
    assert 0 < verdict.failed


def test_a_collection_is_played(storage: Storage):
    verdict = audit(plan(storage.gathering(), *GATHERING, *FIXED, "pool.noise=null"))
    assert verdict.passed, verdict.reasons


# --- mutants --------------------------------------------------------------------------------------


def test_failures_that_raise_are_refuted(storage: Storage, monkeypatch):
    """As it was: who errors holds the class, and no ledger knows."""
    run = plan(storage, *NETWORK)
    monkeypatch.setattr(platform.parties.totality, "_hides_in_round", lambda *_: False)
    verdict = audit(run)
    assert not verdict.passed
    assert any("against class" in reason for reason in verdict.reasons)


def test_a_zero_without_noise_is_refuted(storage: Storage, monkeypatch):
    run = plan(storage, *NETWORK)
    original = Protection.prepare_nothing

    def bare(self: Protection, *arguments: Any) -> Any:
        prepared = original(self, *arguments)
        middle = np.full_like(prepared.levels, self.sums.grid().largest_level // 2)
        return dataclasses.replace(prepared, levels=middle)

    monkeypatch.setattr(Protection, "prepare_nothing", bare)
    verdict = audit(run)
    assert not verdict.passed
    assert "variance" in " ".join(verdict.reasons)


def test_something_else_than_zero_is_refuted(storage: Storage, monkeypatch):
    """Under central noise the coordinator noises the sum, so a failed client sends zero itself."""
    run = plan(storage, *MECHANISMS["central"])
    original = Protection.prepare_nothing

    def shifted(self: Protection, *arguments: Any) -> Any:
        prepared = original(self, *arguments)
        return dataclasses.replace(prepared, levels=prepared.levels ^ np.uint64(1 << 12))

    monkeypatch.setattr(Protection, "prepare_nothing", shifted)
    assert audit(run).reasons == ("the upload of a failed client is not zero",)


def test_a_failure_without_a_charge_is_refuted(storage: Storage, monkeypatch):
    run = plan(storage, *NETWORK)
    original = Client._reserve

    def unless_failed(self: Client, *arguments: Any) -> None:
        if not self._store.failures(self.profile.run.run_id):
            original(self, *arguments)

    monkeypatch.setattr(Client, "_reserve", unless_failed)
    assert not audit(run).passed


def test_the_command_shows_the_channel(storage: Storage, tmp_path, monkeypatch, capsys):
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    call = command_line(monkeypatch, capsys)
    arguments = ("audit-privacy", str(path), "--canaries", "100")
    settings = [part for key in NETWORK for part in ("--set", key)]
    monkeypatch.setattr(platform.parties.totality, "_hides_in_round", lambda *_: False)
    answer = call(*arguments, *settings)
    assert answer.code == 1
    assert "failures" in answer.out and "told apart" in answer.out
