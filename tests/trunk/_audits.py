"""What the tests of the audit share: a run's plan under a mechanism, and mistakes to make in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import yaml

import platform.parties.profile
import platform.protection.sums
import privacy.central
import privacy.mechanisms
import privacy.rounding
from platform.config import parse_config
from platform.config.randomness import stream
from platform.experiment.planning import RunPlan
from platform.experiment.privacy_auditing.audit import AuditPlan, audit_run
from platform.experiment.privacy_auditing.outcome import ChannelAudit
from platform.protection.building import protect_run
from platform.protection.uploads import LEVELS, Protection
from platform.wire.layout import flatten
from privacy import clip, protect_upload
from privacy.central import noise_for_sum
from tests.trunk._runs import SMALL

Verdicts = dict[str, ChannelAudit]
NOISE = ("privacy.target_epsilon=null", "privacy.noise_multiplier=1.5")
DP_SGD = (
    "privacy.mechanism=dp_sgd",
    "privacy.clipping_norm=null",
    "privacy.per_sample_clipping_norm=1.0",
    "privacy.sampling_probability=1.0",
    "privacy.target_epsilon=null",
    "privacy.noise_multiplier=0.5",
)


@dataclass(frozen=True)
class Auditor:
    """Audits the small run under any mechanism; a base run loads once what takes long to load."""

    base: RunPlan

    def plan(self, *overrides: str) -> RunPlan:
        """The run, its protection built by the code as it is now."""
        config = parse_config(yaml.safe_load(SMALL), overrides)
        protection, _ = protect_run(config, self.base.learning.method)
        terms = dataclasses.replace(self.base.terms, config=config, protection=protection)
        return dataclasses.replace(self.base, terms=terms)

    def __call__(self, *overrides: str, canaries: int = 300) -> Verdicts:
        return {audit.channel: audit for audit in audited(self.plan(*overrides), canaries)}


def audited(plan: RunPlan, canaries: int = 300) -> tuple[ChannelAudit, ...]:
    return tuple(audit_run(AuditPlan(plan, canaries), lambda *_, **__: None))


def cases(every: Mapping[str, tuple[str, ...]], *quick: str) -> pytest.MarkDecorator:
    """All mechanisms of a table, slow but for those that are quick enough and differ in kind."""
    found = [
        pytest.param(overrides, id=name, marks=() if name in quick else pytest.mark.slow)
        for name, overrides in every.items()
    ]
    return pytest.mark.parametrize("mechanism", found)


def reasons(audit: ChannelAudit) -> str:
    return " ".join(audit.reasons)


def halve_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the noise that the ledger says, wherever noise is drawn."""

    def less(mechanism: Any) -> Any:
        return dataclasses.replace(mechanism, noise_multiplier=mechanism.noise_multiplier / 2)

    monkeypatch.setattr(
        platform.protection.sums,
        "protect_upload",
        lambda vector, mechanism, grid, noise, **state: protect_upload(
            vector, less(mechanism), grid, noise, **state
        ),
    )
    monkeypatch.setattr(
        privacy.central,
        "noise_for_sum",
        lambda mechanism, dimension, noise: noise_for_sum(less(mechanism), dimension, noise),
    )


def skip_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms are measured, and nothing is scaled."""

    def unclipped(update: Any, clipping_norm: float) -> Any:
        clipped = clip(update, clipping_norm)
        return dataclasses.replace(clipped, vector=np.array(update, np.float64))

    def rounded(entropy: Any, vector: Any, norm: float) -> Any:
        # The real rounding repeats until the norm is bounded, which would never be.
        return np.rint(vector).astype(np.int64)

    for module in (privacy.mechanisms, privacy.rounding):
        monkeypatch.setattr(module, "clip", unclipped)
    monkeypatch.setattr(privacy.rounding, "round_conditionally", rounded)


def repeat_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The streams of noise forget the number of the round."""

    def forgetful(seed: int, *purpose: Any) -> np.random.Generator:
        return stream(seed, *(purpose[:-1] if purpose[0] == "noise" else purpose))

    def always(mechanism: Any, dimension: int, noise: Any) -> Any:
        steps = mechanism.standard_deviation * mechanism.scale
        return np.rint(steps * np.random.default_rng(0).standard_normal(dimension)).astype(np.int64)

    monkeypatch.setattr(platform.parties.profile, "stream", forgetful)
    monkeypatch.setattr(privacy.central, "noise_for_sum", always)


def bare_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool gets what is clipped, all but without noise."""

    def protect_entry(self: Protection, result: Any, *others: Any, state: Any) -> Any:
        grid, noise = self._entry_grid(), others[-1]
        # Integer noise has a smallest deviation; a thousandth of C is as good as none.
        quiet = dataclasses.replace(self.entry_mechanism, noise_multiplier=1e-3)
        vector = flatten(result.pool_entry, self.pool_spec or {})
        levels = protect_upload(vector, quiet, grid, noise).levels
        word = np.uint32 if grid.largest_level < 1 << 32 else np.uint64
        return {LEVELS: levels.astype(word)}, state

    monkeypatch.setattr(Protection, "_protect_entry", protect_entry)
