"""What a number in a configuration can be at most, and why: no key takes a number without an end.

A bound is far above what anybody has asked for, and low enough that what is asked for can begin: a
slip of a zero or of a unit is one sentence at once, not an hour or the machine's whole memory.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

MOST_CLIENTS: Final = 100_000
"""Names of clients have five digits, so that they sort as they count."""
MOST_ROUNDS: Final = 100_000
"""Accountants and schedules look at every round before the first; published runs have up to 1,000.
"""
MOST_EXPERTS: Final = 10_000
"""Names of experts in a message have four digits."""
LARGEST_SEED: Final = 2**63 - 1
"""Databases and YAML have signed numbers of 64 bits."""
LARGEST_REAL: Final = 1e6
"""Of a norm, a multiplier of noise, an epsilon or a concentration: beyond it noise or data say
nothing any more, and squares of 32 bits are still exact to seven digits.
"""

Clients = Annotated[int, Field(ge=1, le=MOST_CLIENTS)]
ClientsOrNone = Annotated[int, Field(ge=0, le=MOST_CLIENTS)]
Rounds = Annotated[int, Field(ge=1, le=MOST_ROUNDS)]
RoundsOrNone = Annotated[int, Field(ge=0, le=MOST_ROUNDS)]
Experts = Annotated[int, Field(ge=1, le=MOST_EXPERTS)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Images = Annotated[int, Field(ge=1, le=10_000_000)]
"""Of a client or a class: ImageNet has 14 million in all."""
Rendered = Annotated[int, Field(ge=1, le=100_000)]
"""Images of a class that are drawn for the run, a millisecond each."""
Classes = Annotated[int, Field(ge=1, le=100_000)]
"""ImageNet-21k has 22 thousand."""
Threads = Annotated[int, Field(ge=1, le=1024)]
"""More CPUs than a machine has."""
Epochs = Annotated[int, Field(ge=1, le=10_000)]
Steps = Annotated[int, Field(ge=1, le=1_000_000)]
"""Of one client in one round: days of the smallest model."""
Batch = Annotated[int, Field(ge=1, le=65_536)]
"""Examples that one step holds in memory at once, each with its own gradient under `dp_sgd`."""
Directions = Annotated[int, Field(ge=1, le=65_536)]
"""Of a subspace, each a vector as long as the upload; prompts have some ten thousand values."""
Retries = Annotated[int, Field(ge=0, le=1_000)]
"""Of one round, each with fresh keys and a charge of its own."""
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0, le=LARGEST_REAL, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0.0, le=1_000.0, allow_inf_nan=False)]
"""Of learning: parameters begin at about 1."""
Decay = Annotated[float, Field(ge=0.0, le=1_000.0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0.0, le=2_592_000.0, allow_inf_nan=False)]
"""Up to thirty days."""
Gibibytes = Annotated[float, Field(gt=0.0, le=1_048_576.0, allow_inf_nan=False)]
"""Up to a pebibyte, beyond any disk."""
