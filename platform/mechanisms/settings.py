"""What a mechanism is built from: a run's numbers, without the configuration that they stand in."""

from __future__ import annotations

from dataclasses import dataclass

from privacy import GroupCounts, Relation, default_scale


@dataclass(frozen=True)
class Sums:
    """What is certain about every sum of a run, under masks.

    Attributes:
        smallest: Fewest clients of which a sum may be opened.
        corrupt: How many of them may collude with the server.
    """

    smallest: int
    corrupt: int


@dataclass(frozen=True)
class Steps:
    """Local steps, the same for every client whatever it holds.

    Attributes:
        clipping_norm: Largest L2 norm of one record's gradient.
        sampling_probability: With which a record is in a batch.
        count: Steps of one fit.
        batch_size: Of a batch, on average.
    """

    clipping_norm: float
    sampling_probability: float
    count: int
    batch_size: int


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Numbers for one vector of one run.

    Attributes:
        relation: What a neighbour is.
        distribution: Law of the noise, one of the mechanism's; None without noise.
        value_bound: Largest coordinate that is carried where nothing is clipped.
        clipping_norm: C of all that is clipped together; None where nothing is.
        noise_multiplier: Standard deviation of the noise over C; None without noise.
        sums: What is certain about sums, where the noise counts on it.
        steps: Local steps, where the noise is in them.
        counts: What the vector ends with where clients are in groups, else None.
    """

    relation: Relation
    distribution: str | None
    value_bound: float
    clipping_norm: float | None
    noise_multiplier: float | None
    sums: Sums | None
    steps: Steps | None
    counts: GroupCounts | None = None

    @property
    def norm(self) -> float:
        """C.

        Raises:
            ValueError: Nothing is clipped, which the configuration has refused already.
        """
        return _given(self.clipping_norm, "clipping_norm")

    @property
    def multiplier(self) -> float:
        """Standard deviation of the noise over C.

        Raises:
            ValueError: There is none, which the configuration has refused already.
        """
        return _given(self.noise_multiplier, "noise_multiplier")

    @property
    def scale(self) -> float:
        """Steps of the integer grid per unit, where noise or rounding is on one."""
        return default_scale(self.norm)


def _given(value: float | None, name: str) -> float:
    # Built without it, the mechanism would do something else than its ledger row says.
    if value is None:
        raise ValueError(f"{name} is missing; this mechanism cannot be built without")
    return value
