"""Who is invited to a round, and who is lost in a simulated one."""

from __future__ import annotations

from collections.abc import Sequence

from platform.config import RunConfig
from platform.randomness import stream
from platform.transport import ClientId, Losses


def draw_cohort(
    config: RunConfig, names: Sequence[ClientId], round_number: int
) -> tuple[ClientId, ...]:
    """A cohort of the configured size, uniformly without replacement, sorted."""
    rng = stream(config.seed_of("cohort"), "cohort", round_number)
    drawn = rng.choice(len(names), config.cohort_size, replace=False)
    return tuple(sorted(names[i] for i in drawn))


def simulated_losses(config: RunConfig, names: Sequence[ClientId]) -> Losses:
    """Exactly the configured number of clients of each round's cohort, drawn from the seed."""

    def losses(round_number: int, attempt: int) -> frozenset[ClientId]:
        cohort = draw_cohort(config, names, round_number)
        rng = stream(config.seed_of("cohort"), "lost", round_number, attempt)
        lost = rng.choice(len(cohort), config.lost_per_round, replace=False)
        return frozenset(cohort[i] for i in lost)

    return losses
