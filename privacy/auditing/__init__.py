"""Empirical audits: play the distinguishing game against the real code and count right guesses.

An audit cannot prove privacy. It can refute a claim: `play_client_unit` and `play_record_unit`
hide canaries behind the mechanism, guess them from what is released, and compare the errors with
the fewest that the claim allows. What no such game sees (noise that is reused, noise of another
law) is tested directly by the `verify_` functions.
"""

from __future__ import annotations

from privacy.auditing.bounds import (
    GaussianBound,
    epsilon_ceiling,
    epsilon_lower_bound,
    gaussian_bound,
    one_run_p_value,
    planned_guesses,
)
from privacy.auditing.canary_clients import (
    Canaries,
    CanaryBound,
    canary_bound,
    canary_ceiling,
    commitment_to,
    new_key,
)
from privacy.auditing.claims import (
    AuditResult,
    Claim,
    claim_of,
    gaussian_claim,
    mu_of,
    sampled_claim,
)
from privacy.auditing.client_unit import (
    ClientScores,
    judge_client_unit,
    oversized_needed,
    play_client_unit,
)
from privacy.auditing.error_rates import (
    ErrorCounts,
    canaries_needed,
    detection_probability,
    mu_interval,
)
from privacy.auditing.noise import (
    AuditError,
    verify_distribution,
    verify_independence,
    verify_noise_variance,
)
from privacy.auditing.record_unit import (
    RECORD_THRESHOLD,
    RecordScores,
    calibration_runs,
    judge_record_unit,
    play_record_unit,
)

__all__ = [
    "RECORD_THRESHOLD",
    "AuditError",
    "AuditResult",
    "Canaries",
    "CanaryBound",
    "Claim",
    "ClientScores",
    "ErrorCounts",
    "GaussianBound",
    "RecordScores",
    "calibration_runs",
    "canaries_needed",
    "canary_bound",
    "canary_ceiling",
    "claim_of",
    "commitment_to",
    "detection_probability",
    "epsilon_ceiling",
    "epsilon_lower_bound",
    "gaussian_bound",
    "gaussian_claim",
    "judge_client_unit",
    "judge_record_unit",
    "mu_interval",
    "mu_of",
    "new_key",
    "one_run_p_value",
    "oversized_needed",
    "planned_guesses",
    "play_client_unit",
    "play_record_unit",
    "sampled_claim",
    "verify_distribution",
    "verify_independence",
    "verify_noise_variance",
]
