"""The audits of hostile peers, failing clients, folders and offers: a right build passes each.

And each way to help a peer, to show a failure or to read too much is refuted.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import platform.data.loading
import platform.experiment.dealing
import platform.experiment.joining
import platform.parties.totality
import platform.protection.sums
from platform.experiment.planning import RunPlan
from platform.experiment.privacy_auditing.audit import AuditPlan, audit_failing, game_of
from platform.experiment.privacy_auditing.beginnings import FolderAudit, audit_folders
from platform.experiment.privacy_auditing.hostile_rounds import FailureAudit, PeerAudit, audit_peers
from platform.parties.client import Client
from platform.protection.sums import NoisedSum, SumProtection
from platform.protection.uploads import Protection
from platform.rounds.runner import RoundRunner
from privacy import ProtocolViolation
from tests.trunk._audits import DP_SGD, NOISE, cases
from tests.trunk._runs import ADAPTIVE, FIXED, GATHERING, NO_POOL, RECORDS, Storage

CENTRAL = ("privacy.mechanism=central_noise", *FIXED, *NO_POOL)
PLAIN = "secure_aggregation={enabled: false}"
GROUPS = "pool={kind: groups, experts: 2}"
EVERY = {
    "upload": FIXED,
    "distributed": (*FIXED, "privacy.mechanism=distributed_noise"),
    "central, adaptive": (*CENTRAL, *ADAPTIVE),
    "central, experts": (*CENTRAL, GROUPS),
    "distributed, experts": ("privacy.mechanism=distributed_noise", *FIXED, *NO_POOL, GROUPS),
    "steps, no masks": (*RECORDS, PLAIN),
    "discrete, no masks": (*FIXED, "privacy.noise_distribution=discrete_gaussian", PLAIN),
    "central, no masks": (*CENTRAL, PLAIN),
}


def audit(storage: Storage, *overrides: str) -> PeerAudit:
    return audit_peers(storage.plan(*overrides))


@cases(EVERY, "distributed", "central, experts", "central, no masks")
def test_the_right_build_is_not_refuted(storage: Storage, mechanism: tuple[str, ...]) -> None:
    verdict = audit(storage, *mechanism)
    assert verdict.passed, verdict.reasons
    assert verdict.rounds >= 12
    # Under masks a peer can spoil a round. Without them its upload is clipped, or refused alone.
    assert (verdict.lost > 0) == (PLAIN not in mechanism)


def test_a_check_before_the_noise_is_refuted(storage: Storage, monkeypatch: Any) -> None:
    noised = SumProtection.noised

    def checked(self: SumProtection, total: Any, clients: int, *noise: Any) -> NoisedSum:
        bare = self.layout.open_sum(total, clients, self.grid())
        if np.linalg.norm(bare.sums) > (clients + 0.01) * self.mechanism.clipping_norm:
            raise ProtocolViolation("the sum is too long")
        return noised(self, total, clients, *noise)

    monkeypatch.setattr(SumProtection, "noised", checked)
    verdict = audit(storage, *CENTRAL)
    assert any("just short" in reason for reason in verdict.reasons)


def test_noise_after_decoding_is_refuted_at_half_of_the_ring(storage, monkeypatch):
    """Though every check looks at the noised sum: the wrap is one of the bare sum."""
    kept: dict[int, Any] = {}

    def later(self: SumProtection, total: Any, clients: int, noise: Any, *state: Any) -> NoisedSum:
        bare = NoisedSum(total, clients)
        kept[id(bare)] = bare, self.mechanism.noise_for_sum(self.layout.protected, noise).steps
        return bare

    def opened(self: SumProtection, noised: NoisedSum) -> Any:
        added = kept.pop(id(noised))[1] if id(noised) in kept else 0
        totals = self.layout.open_sum(noised.levels, noised.clients, self.grid())
        totals.sums[:] += np.asarray(added) * self.grid().step
        self.require_plausible(totals)
        return totals

    monkeypatch.setattr(SumProtection, "noised", later)
    monkeypatch.setattr(SumProtection, "open", opened)
    monkeypatch.setattr("platform.rounds.runner.encode_noised", lambda noised: noised)
    monkeypatch.setattr("platform.rounds.runner.decode_noised", lambda noised: noised)
    monkeypatch.setattr("platform.rounds.runner.encode_stage", lambda result: result)
    verdict = audit(storage, *CENTRAL)
    assert any("half of the ring" in reason for reason in verdict.reasons)
    assert not any("just short" in reason for reason in verdict.reasons)


def test_a_number_in_a_reason_is_refuted(storage: Storage, monkeypatch: Any) -> None:
    def told(total: Any, bound: float) -> None:
        if np.linalg.norm(total) > bound:
            raise ProtocolViolation(f"the sum has norm {np.linalg.norm(total):.6g}")

    monkeypatch.setattr(platform.protection.sums, "require_plausible_norm", told)
    verdict = audit(storage, *CENTRAL)
    assert any("the reason for a lost round" in reason for reason in verdict.reasons)


def test_a_sum_in_floating_point_is_refuted(storage: Storage, monkeypatch: Any) -> None:
    """The last bits of a sum go where its size says, and noise comes too late for them."""

    def added(self: SumProtection, uploads: Any) -> Any:
        sums = sum(self.grid().dequantise(levels) for levels in uploads)
        steps = np.float64(np.asarray(sums, np.float16)) / self.grid().step
        return steps.astype(np.int64).astype(np.uint64) & self._modulus(len(uploads))

    monkeypatch.setattr(SumProtection, "add_up", added)
    assert not audit(storage, *CENTRAL, PLAIN).passed


def test_bare_uploads_in_a_methods_hands_are_refuted(storage: Storage, monkeypatch: Any) -> None:
    kept: list[Any] = []
    add_up, outcome = SumProtection.add_up, RoundRunner._outcome

    def added(self: SumProtection, uploads: Any) -> Any:
        kept.append(self.grid().dequantise(uploads[0]))
        return add_up(self, uploads)

    def shown(self: RoundRunner, *given: Any, individual: Any = None) -> Any:
        return outcome(self, *given, individual={"client-0": kept[-1]})

    monkeypatch.setattr(SumProtection, "add_up", added)
    monkeypatch.setattr(RoundRunner, "_outcome", shown)
    assert not audit(storage, *CENTRAL, PLAIN).passed


NETWORK = (
    "task={dataset: digits, clients: 4, shots: 3, model: null}",
    "method={name: fedavg, network: cnn, image_size: 16, channels: [2, 3], feature_width: 8}",
    "rounds=2",
    *FIXED,
)
FAILING = {
    "upload": NETWORK,
    "distributed": (*NETWORK, "privacy.mechanism=distributed_noise"),
    "central": (*NETWORK, "privacy.mechanism=central_noise"),
    "adaptive": (*NETWORK, "privacy.adaptive_clipping={}"),
    "hostile experts": (*FIXED, "pool.noise=independent"),
}


@pytest.fixture(scope="module")
def network(make_storage) -> RunPlan:
    return make_storage("network").plan(*NETWORK)


def audit_failures(run: RunPlan) -> FailureAudit:
    return audit_failing(AuditPlan(run, canaries=0))


@cases(FAILING, "upload")
def test_the_right_build_is_not_refuted_and_clients_did_fail(storage: Storage, mechanism):
    verdict = audit_failures(storage.plan(*mechanism))
    assert verdict.passed, verdict.reasons
    # One message a class, at least, on which some neighbours fail and others do not.
    assert verdict.split >= (2 if NETWORK[0] in mechanism else 0)
    assert 0 < verdict.failed


@pytest.mark.slow
def test_a_collection_is_played(storage: Storage):
    verdict = audit_failures(storage.gathering().plan(GATHERING, *FIXED, "pool.noise=null"))
    assert verdict.passed, verdict.reasons


def test_failures_that_raise_are_refuted(network: RunPlan, monkeypatch):
    """As it was: who errors holds the class, and no ledger knows."""
    monkeypatch.setattr(platform.parties.totality, "_hides_in_round", lambda *_: False)
    verdict = audit_failures(network)
    assert not verdict.passed
    assert any("against class" in reason for reason in verdict.reasons)


def change_nothing(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any, Any], Any]) -> None:
    """What a failed client sends in place of an update is something else."""
    original = Protection.prepare_nothing

    def changed(self: Protection, *arguments: Any) -> Any:
        prepared = original(self, *arguments)
        levels = change(prepared.levels, self.sums.grid())
        return dataclasses.replace(prepared, levels=levels)

    monkeypatch.setattr(Protection, "prepare_nothing", changed)


@pytest.mark.slow
def test_a_zero_without_noise_is_refuted(network: RunPlan, monkeypatch):
    change_nothing(monkeypatch, lambda levels, grid: np.full_like(levels, grid.largest_level // 2))
    verdict = audit_failures(network)
    assert not verdict.passed and "variance" in " ".join(verdict.reasons)


@pytest.mark.slow
def test_something_else_than_zero_is_refuted(storage: Storage, monkeypatch):
    """Under central noise the coordinator noises the sum, so a failed client sends zero itself."""
    run = storage.plan(*FAILING["central"])
    change_nothing(monkeypatch, lambda levels, grid: levels ^ np.uint64(1 << 12))
    assert audit_failures(run).reasons == ("the upload of a failed client is not zero",)


def test_a_failure_without_a_charge_is_refuted(network: RunPlan, monkeypatch):
    original = Client._reserve

    def unless_failed(self: Client, *arguments: Any) -> None:
        if not self._store.failures(self.profile.run.run_id):
            original(self, *arguments)

    monkeypatch.setattr(Client, "_reserve", unless_failed)
    assert not audit_failures(network).passed


STEPS = (*DP_SGD, *NO_POOL, "secure_aggregation={enabled: false}")
BEGINNINGS = {
    "a pool": NOISE,
    "records": STEPS,
    "validation": (*NOISE, *NO_POOL, "task.validation_share=0.3", "task.shots=4"),
    "novel classes": (*NOISE, *NO_POOL, "evaluation.protocol=base_to_novel"),
}


def audit_of_folders(storage: Storage, *overrides: str) -> FolderAudit:
    return audit_folders(game_of(AuditPlan(storage.plan(*overrides), canaries=0)))


@pytest.mark.slow
@pytest.mark.parametrize("name", BEGINNINGS)
def test_right_beginnings_are_not_refuted(storage: Storage, name: str):
    verdict = audit_of_folders(storage, *BEGINNINGS[name])
    assert verdict.reasons == ()
    assert verdict.folders == (7 if name == "records" else 4)


def test_shots_that_depend_on_how_many_images_others_have_are_refuted(storage, monkeypatch):
    def drawn(split: Any, rows: Any) -> list[bytes]:
        return [hashlib.sha256(f"{len(split.labels)} {row}".encode()).digest() for row in rows]

    monkeypatch.setattr(platform.data.loading, "content_digests", drawn)
    reasons = audit_of_folders(storage, *NOISE, *NO_POOL).reasons
    for words in ("another client has other records", "another client sends other numbers"):
        assert f"thrice the images: {words}" in reasons


@pytest.mark.slow
def test_a_split_that_permutes_all_records_is_refuted(storage, monkeypatch):
    def permuted(client: Any, split: Any, share: float, key: bytes) -> Any:
        order = np.random.default_rng(0).permutation(client.train)
        first = int(share * len(order))
        return type(client)(np.sort(order[first:]), client.test, np.sort(order[:first]))

    monkeypatch.setattr(platform.data.loading, "carve", permuted)
    reasons = audit_of_folders(storage, *STEPS, "task.validation_share=0.3").reasons
    assert "an image more: the side of another image changes" in reasons
