"""What a run may spend."""

from __future__ import annotations

from dataclasses import dataclass

from platform.mechanisms import BUILT_IN, Mechanisms
from platform.protection.limits import Limits
from privacy import Accountant


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a run may spend.

    Attributes:
        delta: Of every epsilon that is stated.
        target_epsilon: What the run may cost one client; None if it has no target.
        accountant: Who prices.
        noise_multiplier: Configured or calibrated; None under `none`.
        lifetime_budget: What a client may spend in all runs on the same data, None without limit.
        mechanisms: All that a ledger's rows may name.
    """

    delta: float
    target_epsilon: float | None
    accountant: Accountant
    noise_multiplier: float | None
    lifetime_budget: float | None = None
    mechanisms: Mechanisms = BUILT_IN

    @property
    def limits(self) -> Limits:
        """The same as a client holds itself to it."""
        return Limits(
            delta=self.delta,
            accountant=self.accountant,
            target_epsilon=self.target_epsilon,
            lifetime_budget=self.lifetime_budget,
            mechanisms=self.mechanisms,
        )
