"""Who is invited to a round, and who is lost in a simulated one.

A cohort is a secret of the coordinator where that is to amplify (`central_noise` whose sum is
released whoever came): it is drawn from the operating system's entropy then, unless the run is a
simulation with seeded noise. Everywhere else it is drawn from the run's seed and amplifies nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from platform.config import RunConfig
from platform.config.randomness import stream
from platform.errors import TooFewLeft
from platform.rounds.run import Roll
from platform.wire.transport import ClientId, Losses


def drawn_from(config: RunConfig, roll: Roll) -> tuple[ClientId, ...]:
    """Return the names among which a cohort is drawn, in order.

    Who has left, or has not come yet, is no more than lost in a round that it is drawn into. Where
    cohorts amplify, all are drawn from for good, as epsilon counts on that. Where it tells nothing
    who is drawn, seats are left empty only where too few clients are there to take them: all terms
    of a secure sum go by the size of the cohort.
    """
    present = roll.present
    if config.has_secret_cohorts or len(present) == len(roll.clients):
        return roll.clients
    there = set(present)
    empty = [name for name in roll.clients if name not in there]
    seats = {*there, *empty[: max(0, config.cohort_size - len(there))]}
    return tuple(name for name in roll.clients if name in seats)


def require_enough(config: RunConfig, roll: Roll, minimum: int) -> None:
    """Refuse a round that could have no result, whoever of those who are there took part in it.

    Args:
        config: The run's.
        roll: Who is there.
        minimum: Fewest survivors of the round.

    Raises:
        TooFewLeft: If fewer are.
    """
    there, of_all = len(roll.present), len(roll.clients)
    if there < of_all and there < minimum:
        raise TooFewLeft(
            f"{there} of {of_all} clients are left ({len(roll.left)} have left for good), and a "
            f"round needs {minimum}"
        )


def draw_cohort(
    config: RunConfig, names: Sequence[ClientId], round_number: int, attempt: int = 1
) -> tuple[ClientId, ...]:
    """Return the clients of an attempt at a round, sorted; a further attempt has another cohort.

    An audit's canaries are among the names, and none of them is ever left out.

    `fixed_size`: exactly `cohort.size`, uniformly without replacement. `poisson`: each on a coin
    of its own, `cohort.size` on average and possibly none.
    """
    if config.has_secret_cohorts and config.privacy.noise_source == "os":
        return _draw_in_secret(config, names)
    further = () if attempt == 1 else (attempt,)
    rng = stream(config.seed_of("cohort"), "cohort", round_number, *further)
    if config.cohort.sampling == "poisson":
        coins = rng.random(len(names))
        return tuple(n for n, coin in zip(names, coins, strict=True) if coin < config.cohort_rate)
    drawn = rng.choice(len(names), config.seats, replace=False)
    return tuple(sorted(names[i] for i in drawn))


def _draw_in_secret(config: RunConfig, names: Sequence[ClientId]) -> tuple[ClientId, ...]:
    entropy = secrets.SystemRandom()
    if config.cohort.sampling == "poisson":
        return tuple(name for name in names if entropy.random() < config.cohort_rate)
    return tuple(sorted(entropy.sample(list(names), config.cohort_size)))


def simulated_losses(config: RunConfig) -> Losses:
    """Return the configured share of each round's cohort, drawn from the seed.

    Of a secret cohort each client is lost on a coin of its own: what its draw is worth counts on
    losses that do not depend on who else was drawn, nor on how many.
    """

    def losses(round_number: int, attempt: int, cohort: Sequence[ClientId]) -> frozenset[ClientId]:
        if config.has_secret_cohorts:
            return frozenset(c for c in cohort if _is_lost(config, c, round_number, attempt))
        rng = stream(config.seed_of("cohort"), "lost", round_number, attempt)
        lost = rng.choice(len(cohort), round(config.cohort.dropout_rate * len(cohort)), False)
        return frozenset(cohort[i] for i in lost)

    return losses


def _is_lost(config: RunConfig, client: ClientId, round_number: int, attempt: int) -> bool:
    rng = stream(config.seed_of("cohort"), "lost", round_number, attempt, client)
    return bool(rng.random() < config.cohort.dropout_rate)
