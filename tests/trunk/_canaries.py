"""Small runs with canary clients, and how their mechanisms are broken on purpose."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from privacy import CentralNoise, DistributedNoise, NoiseSource, SumNoise
from tests.trunk._runs import Finished, Storage

CLIENTS, CANARIES, ROUNDS = 5, 32, 3
PLAIN = (
    "method={name: promptfl, context_tokens: 2}",
    "cohort.dropout_rate=0",
    "task.test_per_class=1",
    "privacy.target_epsilon=3.12",
)
CENTRAL = (
    *PLAIN,
    "privacy.mechanism=central_noise",
    "secure_aggregation={enabled: false}",
)
SHARED = (
    *PLAIN,
    "privacy.mechanism=distributed_noise",
    "secure_aggregation={enabled: true, threshold: 5, corrupt: 1}",
)
MECHANISMS = {"central_noise": CENTRAL, "distributed_noise": SHARED}
AUDIT = f"audit={{canaries: {CANARIES}, directions: 1}}"
"""All in one direction, which shows most."""
KEY = bytes(range(32))
"""Of runs that are compared: which way canaries go is then alike."""
NAMES = [f"canary-{i:05d}" for i in range(CANARIES)]


def fix_key(monkeypatch: pytest.MonkeyPatch, key: bytes = KEY) -> None:
    """Every run that is set up from now on has this key."""
    monkeypatch.setattr("platform.experiment.simulation.new_key", lambda: key)


def shown(run: Finished) -> dict[str, Any]:
    """What canaries showed, without what differs between two runs of one key."""
    found = dict(run.summary["canaries"])
    del found["pseudonyms"]
    return found


def details(storage: Storage, action: str) -> list[dict[str, Any]]:
    """The details of a run's audit entries of one action."""
    query = "SELECT detail FROM audit WHERE action = ? ORDER BY sequence"
    return [json.loads(text) for (text,) in storage.rows(query, action)]


def halve_central_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator draws what it should, and adds half of it."""
    real = CentralNoise.noise_for_sum

    def half(self: CentralNoise, dimension: int, noise: NoiseSource, state: Any) -> SumNoise:
        return SumNoise(real(self, dimension, noise, state).steps // 2)

    monkeypatch.setattr(CentralNoise, "noise_for_sum", half)


def halve_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client adds half of its share, and states the whole."""
    real = DistributedNoise.protect

    def half(self: DistributedNoise, vector: Any, grid: Any, noise: Any, state: Any) -> Any:
        less = dataclasses.replace(self, noise_multiplier=self.noise_multiplier / 2.0)
        return real(less, vector, grid, noise, state)

    monkeypatch.setattr(DistributedNoise, "protect", half)
