"""The audit of folders and of offers: a right build passes, and what reads too much is refuted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import platform.bootstrap.joining
import platform.data.loading
import platform.experiment.dealing
from platform.bootstrap import Surroundings, plan_run
from platform.errors import Declined
from platform.privacy_auditing import beginnings
from platform.privacy_auditing.audit import AuditPlan, game_of
from platform.privacy_auditing.beginnings import FolderAudit, audit_folders, audit_holders
from platform.rounds.observing import SilentObserver
from tests.trunk._audits import DP_SGD, NOISE
from tests.trunk._runs import NO_POOL, Storage

RECORDS = (*DP_SGD, *NO_POOL, "secure_aggregation={enabled: false}")
RUNS = {
    "a pool": NOISE,
    "records": RECORDS,
    "validation": (*NOISE, *NO_POOL, "task.validation_share=0.3", "task.shots=4"),
    "novel classes": (*NOISE, *NO_POOL, "evaluation.protocol=base_to_novel"),
}


def audit(storage: Storage, *overrides: str) -> FolderAudit:
    run = plan_run(storage.config(*overrides), SilentObserver(), storage.surroundings)
    return audit_folders(game_of(AuditPlan(run, canaries=0)))


@pytest.mark.parametrize("name", RUNS)
def test_the_right_build_is_not_refuted(storage: Storage, name: str):
    verdict = audit(storage, *RUNS[name])
    assert verdict.reasons == ()
    assert verdict.folders == (7 if name == "records" else 4)


def test_shots_that_depend_on_how_many_images_others_have_are_refuted(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
):
    def drawn(train: Any, own: Any, shots: int, key: bytes) -> Any:
        rng = np.random.default_rng(len(train.labels))
        return np.sort(rng.choice(own, min(shots, len(own)), replace=False))

    monkeypatch.setattr(platform.data.loading, "_few_shots", drawn)
    reasons = audit(storage, *NOISE, *NO_POOL).reasons
    assert "thrice the images: another client has other records" in reasons
    assert "thrice the images: another client sends other numbers" in reasons


def test_a_split_that_permutes_all_records_is_refuted(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
):
    def permuted(client: Any, split: Any, share: float, key: bytes) -> Any:
        order = np.random.default_rng(0).permutation(client.train)
        first = int(share * len(order))
        return type(client)(np.sort(order[first:]), client.test, np.sort(order[:first]))

    monkeypatch.setattr(platform.data.loading, "carve", permuted)
    reasons = audit(storage, *RECORDS, "task.validation_share=0.3").reasons
    assert "an image more: the side of another image changes" in reasons


def test_holders_that_look_into_their_folder_before_they_answer_are_refuted(
    monkeypatch: pytest.MonkeyPatch,
):
    admit = platform.bootstrap.joining.admit

    def looking(settings: Any, *arguments: Any, **options: Any) -> Any:
        if not any(settings.data.root.rglob("*.png")):
            raise Declined(("there is no image",))
        return admit(settings, *arguments, **options)

    monkeypatch.setattr(beginnings, "hostile_offers", few(beginnings.hostile_offers))
    assert audit_holders(Surroundings()).passed
    monkeypatch.setattr(platform.bootstrap.joining, "admit", looking)
    verdict = audit_holders(Surroundings())
    assert verdict.split == verdict.offers and verdict.accepted > 0
    assert all("'no image', 'no folder' is not answered as" in text for text in verdict.reasons)


def few(all_offers: Any) -> Any:
    """Every ninth offer: the command makes all of them."""
    return lambda offer: dict(list(all_offers(offer).items())[::9])
