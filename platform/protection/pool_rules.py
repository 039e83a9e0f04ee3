"""How an expert pool is served: how many entries, how long they live, and the fewest at once."""

from __future__ import annotations

from dataclasses import dataclass

from methods import PoolPolicy


@dataclass(frozen=True)
class PoolRules:
    """How a run serves its pool.

    Attributes:
        policy: What the method asks for.
        minimum: Smallest pool that is served from.
        generations: Rounds whose entries are kept.
    """

    policy: PoolPolicy
    minimum: int
    generations: int


def default_minimum(policy: PoolPolicy) -> int:
    """Return smallest pool that is served from, unless the method says otherwise.

    2(K+1) where K experts are picked; two where all are handed to everybody in any case.
    """
    if policy.minimum is not None:
        return policy.minimum
    return 2 if policy.fixed else 2 * (policy.k + 1)
