"""TRIP-Lite: TRIP with two prompts of one token each, a thousand numbers a round.

Gong et al. 2025, "Token-Level Prompt Mixture with Parameter-Free Routing for Federated Domain
Generalization", section V-D: the configuration with the fewest parameters. The rest is
`methods.trip`, with its options.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from methods import trip
from methods.interface.method import Method, Task


@dataclass(frozen=True)
class Config(trip.Config):
    """Options of TRIP, with the Lite configuration's sizes.

    Attributes:
        context_tokens: Number of context vectors of each expert.
        experts: Number M of prompts.
    """

    context_tokens: Annotated[int, Ge(1), Le(64)] = 1
    experts: Annotated[int, Ge(1), Le(256)] = 2


def build(config: Config, task: Task) -> Method:
    """Build the method."""
    return trip.build(config, task)
