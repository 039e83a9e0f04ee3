"""The empirical audit of a configuration: canaries through the very code that protects an upload.

What is audited is `Protection.prepare`, with the run's own mechanism, quantiser and noise source,
once for each channel on which a client releases. The game and its statistics are in
`privacy.auditing`; here are only the wiring and the direct tests of the noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from methods import LocalResult
from platform.config import RunConfig
from platform.errors import ConfigError
from platform.protection import Protection
from platform.randomness import stream
from platform.vectors import Spec, flatten, unflatten
from privacy import Channel, NoiseSource, SeededNoise, SystemNoise, UploadNoise
from privacy.auditing import (
    AuditError,
    audit_client_unit,
    verify_distribution,
    verify_independence,
    verify_noise_variance,
)

Vector = NDArray[np.float64]
FAMILY_WISE_ERROR = 1e-6
NOISE_VECTORS = 20


@dataclass(frozen=True)
class AuditPlan:
    """What is audited.

    Attributes:
        config: The configuration.
        protection: How it protects uploads.
        canaries: Guesses a channel.
    """

    config: RunConfig
    protection: Protection
    canaries: int


def audit_protection(plan: AuditPlan, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """Audits every channel of a configuration.

    Args:
        plan: What to audit.
        progress: Told which channel is at work.

    Returns:
        One document a channel: the game's result and the direct tests of the noise.

    Raises:
        ConfigError: If the configuration claims nothing that could be audited.
    """
    mechanism = plan.protection.mechanism
    if not isinstance(mechanism, UploadNoise) or not plan.protection.channels:
        raise ConfigError(
            f"privacy.mechanism: {plan.config.privacy.mechanism!r} with "
            f"{plan.config.method.name} claims no epsilon, so there is nothing to audit"
        )
    documents = []
    for channel in _released_vectors(plan.protection):
        progress(f"channel {channel}")
        documents.append(_audit_channel(plan, mechanism, channel))
    return documents


def _released_vectors(protection: Protection) -> tuple[Channel, ...]:
    """Where a vector leaves the client: under `same`, the pool entry is looked at as well."""
    return ("sum",) if protection.pool_spec is None else ("sum", "pool")


def _audit_channel(plan: AuditPlan, mechanism: UploadNoise, channel: Channel) -> dict[str, Any]:
    section, protection = plan.config.privacy, plan.protection
    spec = protection.layout.spec if channel == "sum" else protection.pool_spec or {}
    noise: NoiseSource = SystemNoise()
    if section.noise_source == "seeded":
        noise = SeededNoise(stream(plan.config.seed, "audit's noise", channel))
    release = _release_function(protection, spec, channel, noise)
    dimension = len(flatten(_zeros(spec), spec))
    result = audit_client_unit(
        release,
        clipping_norm=mechanism.clipping_norm,
        standard_deviation=mechanism.standard_deviation,
        dimension=dimension,
        canaries=plan.canaries,
        relation=mechanism.relation,
        delta=section.target_delta,
        rng=stream(plan.config.seed, "audit", channel),
        family_wise_error=FAMILY_WISE_ERROR,
    )
    samples = np.stack([release(np.zeros(dimension)) for _ in range(NOISE_VECTORS)])
    problems = _noise_problems(samples, mechanism.standard_deviation)
    document = {"channel": channel, **result.document()}
    document["reasons"] = [*document["reasons"], *problems]
    document["passed"] = bool(document["passed"]) and not problems
    return document


def _release_function(
    protection: Protection, spec: Spec, channel: Channel, noise: NoiseSource
) -> Callable[[Vector], Vector]:
    broadcast = _zeros(protection.layout.spec)

    def release(vector: Vector) -> Vector:
        arrays = unflatten(vector, spec)
        prepared = protection.prepare(LocalResult(arrays, arrays, {}), broadcast, noise)
        if channel == "sum":
            return prepared.vector
        return flatten(protection.open_entry(prepared.entry, broadcast), spec)

    return release


def _noise_problems(samples: NDArray[np.float64], standard_deviation: float) -> list[str]:
    """What the game cannot see: reused noise, another variance, another law."""
    alpha, problems = FAMILY_WISE_ERROR / 3, []
    checks: tuple[Callable[[], float], ...] = (
        lambda: verify_noise_variance(samples.ravel(), standard_deviation, alpha),
        lambda: verify_distribution(samples.ravel(), standard_deviation, alpha),
        lambda: verify_independence(samples, alpha),
    )
    for check in checks:
        try:
            check()
        except AuditError as error:
            problems.append(str(error))
    return problems


def _zeros(spec: Spec) -> dict[str, NDArray[np.float32]]:
    return {name: np.zeros(tensor.shape, np.float32) for name, tensor in spec.items()}
