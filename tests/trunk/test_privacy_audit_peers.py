"""The audit of hostile peers: a right build passes, and each way to help a peer is refuted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import platform.protection.sums
from platform.bootstrap import plan_run
from platform.privacy_auditing.hostile_rounds import PeerAudit, audit_peers
from platform.protection.sums import NoisedSum, SumProtection
from platform.rounds.observing import SilentObserver
from platform.rounds.runner import RoundRunner
from privacy import ProtocolViolation
from tests.trunk._runs import ADAPTIVE, FIXED, NO_POOL, RECORDS, Storage

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
    return audit_peers(plan_run(storage.config(*overrides), SilentObserver(), storage.surroundings))


@pytest.mark.parametrize("mechanism", EVERY.values(), ids=EVERY.keys())
def test_the_right_build_is_not_refuted(storage: Storage, mechanism: tuple[str, ...]) -> None:
    verdict = audit(storage, *mechanism)
    assert verdict.passed, verdict.reasons
    assert verdict.rounds >= 12
    # Under masks a peer can spoil a round. Without them its upload is clipped, or refused alone.
    assert (verdict.lost > 0) == (PLAIN not in mechanism)


# --- mutants --------------------------------------------------------------------------------------


def test_a_check_before_the_noise_is_refuted(storage: Storage, monkeypatch: Any) -> None:
    noised = SumProtection.noised

    def checked(self: SumProtection, total: Any, clients: int, *noise: Any) -> NoisedSum:
        bare = self.layout.open_sum(total, clients, self.grid())
        if np.linalg.norm(bare.sums) > (clients + 0.01) * self.mechanism.clipping_norm:
            raise ProtocolViolation("the sum is too long")
        return noised(self, total, clients, *noise)

    monkeypatch.setattr(SumProtection, "noised", checked)
    verdict = audit(storage, *CENTRAL)
    assert any("just short of the longest bare sum" in reason for reason in verdict.reasons)


def test_noise_after_decoding_is_refuted_at_half_of_the_ring(
    storage: Storage, monkeypatch: Any
) -> None:
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
    monkeypatch.setattr("platform.rounds.exchange.encode_stage", lambda result: result)
    verdict = audit(storage, *CENTRAL)
    assert any("half of the ring" in reason for reason in verdict.reasons)
    assert not any("just short" in reason for reason in verdict.reasons)


def test_a_number_in_a_reason_is_refuted(storage: Storage, monkeypatch: Any) -> None:
    def told(total: Any, bound: float) -> None:
        if np.linalg.norm(total) > bound:
            raise ProtocolViolation(f"the sum has norm {np.linalg.norm(total):.6g}")

    monkeypatch.setattr(platform.protection.sums, "require_plausible_norm", told)
    verdict = audit(storage, *CENTRAL)
    assert any("the reason for a lost round depends on the data" in r for r in verdict.reasons)


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
