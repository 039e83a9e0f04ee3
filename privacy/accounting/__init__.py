"""What a ledger of releases costs: one adapter per accountant, and the rules around them."""

from __future__ import annotations

from privacy.accounting.accountants import (
    ACCOUNTANTS,
    Accountant,
    EpsilonResult,
    accountant_table,
    epsilon,
)
from privacy.accounting.adversaries import Adversary, Epsilons, claimed_epsilon, epsilons
from privacy.accounting.budget import (
    MOST_ROUNDS,
    RunningLedger,
    affordable_rounds,
    filter_of,
    require_affordable,
)
from privacy.accounting.calibration import calibrate, calibrate_noise_multiplier

__all__ = [
    "ACCOUNTANTS",
    "MOST_ROUNDS",
    "Accountant",
    "Adversary",
    "EpsilonResult",
    "Epsilons",
    "RunningLedger",
    "accountant_table",
    "affordable_rounds",
    "calibrate",
    "calibrate_noise_multiplier",
    "claimed_epsilon",
    "epsilon",
    "epsilons",
    "filter_of",
    "require_affordable",
]
