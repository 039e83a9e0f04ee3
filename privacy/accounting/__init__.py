"""What a ledger of releases costs: one adapter per accountant, and the rules around them."""

from __future__ import annotations

from privacy.accounting.adversaries import Epsilons, claimed_epsilon, epsilons
from privacy.accounting.budget import (
    MOST_ROUNDS,
    affordable_rounds,
    filter_of,
    require_affordable,
)
from privacy.accounting.calibration import calibrate, calibrate_noise_multiplier
from privacy.accounting.headline import ACCOUNTANTS, Accountant, EpsilonResult, epsilon
from privacy.accounting.running import RunningLedger
from privacy.accounting.support import Support, support_table
from privacy.accounting.table import accountant_table

__all__ = [
    "ACCOUNTANTS",
    "MOST_ROUNDS",
    "Accountant",
    "EpsilonResult",
    "Epsilons",
    "RunningLedger",
    "Support",
    "accountant_table",
    "affordable_rounds",
    "calibrate",
    "calibrate_noise_multiplier",
    "claimed_epsilon",
    "epsilon",
    "epsilons",
    "filter_of",
    "require_affordable",
    "support_table",
]
