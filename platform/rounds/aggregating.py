"""What a round's sum is to the method."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from methods import Aggregate, Groups
from platform.protection.extras import GroupReading
from platform.rounds.run import RunTerms
from platform.wire.layout import Summed, unflatten
from platform.wire.transport import ClientId


def aggregate_of(
    terms: RunTerms,
    summed: Summed,
    survivors: int,
    individual: Mapping[ClientId, NDArray[np.float64]] | None,
    *,
    groups: GroupReading | None = None,
) -> Aggregate:
    """Return what the method's server is shown of a round.

    Args:
        terms: The run's.
        summed: What the sum yields.
        survivors: How many clients are in it.
        individual: Each survivor's vector, where the server sees them.
        groups: What the sum tells of its groups, where clients are in some.
    """
    spec = terms.protection.layout.spec
    planned = terms.protection.mechanism.divides_by == "planned"
    return Aggregate(
        unflatten(summed.vector, spec),
        summed.total_weight,
        cohort_size=int(summed.total_weight) if planned else survivors,
        population=terms.config.task.clients,
        individual=None
        if individual is None
        else {client: unflatten(vector, spec) for client, vector in individual.items()},
        groups=None if groups is None else Groups(groups.counts, groups.floor),
    )
