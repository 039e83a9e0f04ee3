"""A mechanism: its declared facts, how it is built, and its own caveats for reports.

All other differences between runs under two mechanisms follow from the facts, by a rule with a
reason in this file, and never from a name. A mechanism is built from `Settings`: a run's numbers,
without the configuration that holds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from privacy import (
    RELATIONS,
    ClientMechanism,
    Cones,
    DpSgd,
    GroupCounts,
    MechanismFacts,
    Relation,
    UnknownMechanism,
    default_scale,
    require_mechanism,
)


@dataclass(frozen=True)
class Sums:
    """Certain facts about every masked sum of a run.

    Attributes:
        smallest: Fewest clients of a sum that may be opened.
        corrupt: Number of these clients that may collude with the server.
    """

    smallest: int
    corrupt: int


@dataclass(frozen=True)
class Steps:
    """Local steps, the same for all clients and all data.

    Attributes:
        clipping_norm: Largest L2 norm of one record's gradient.
        sampling_probability: Probability that a record is in a batch.
        count: Steps of one fit.
        batch_size: Average number of records in a batch.
    """

    clipping_norm: float
    sampling_probability: float
    count: int
    batch_size: int


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Numbers for one vector of one run.

    Attributes:
        relation: How neighbours differ.
        distribution: Law of the noise, one of the mechanism's; None without noise.
        value_bound: Largest coordinate that is carried if nothing is clipped.
        clipping_norm: C of the coordinates that are clipped together; None without clipping.
        noise_multiplier: Standard deviation of the noise over C; None without noise.
        sums: Certain facts about sums, if the noise relies on them.
        steps: Local steps, if the noise is in them.
        counts: The counts at the end of the vector if clients are in groups, else None.
        cones: Where vectors lie before such counts; None for anywhere. A mechanism that does not
            know them charges more.
    """

    relation: Relation
    distribution: str | None
    value_bound: float
    clipping_norm: float | None
    noise_multiplier: float | None
    sums: Sums | None
    steps: Steps | None
    counts: GroupCounts | None = None
    cones: Cones | None = None

    @property
    def norm(self) -> float:
        """C; `ValueError` if nothing is clipped, which the configuration has refused before."""
        return _given(self.clipping_norm, "clipping_norm")

    @property
    def multiplier(self) -> float:
        """The noise's standard deviation over C; `ValueError` if there is no noise."""
        return _given(self.noise_multiplier, "noise_multiplier")

    def scale_for(self, shares: int) -> float:
        """Return steps of the integer grid per unit, where so many clients share the noise."""
        return default_scale(self.norm, self.multiplier / math.sqrt(shares))


def _given(value: float | None, name: str) -> float:
    # Without the value, the mechanism would not do what its ledger row says.
    if value is None:
        raise ValueError(f"{name} is missing; this mechanism cannot be built without it")
    return value


NoiseDistribution = Literal["gaussian", "discrete_gaussian", "skellam"]
EntryNoise = Literal["same", "independent"]
"""Laws of noise that a configuration may choose between."""


@dataclass(frozen=True)
class Circumstances:
    """Facts of a run on which a mechanism's own caveats may depend.

    Attributes:
        corrupt: Clients that may collude with the server.
        is_active: Whether secure aggregation withstands a server that lies.
    """

    corrupt: int
    is_active: bool


def no_caveats(circumstances: Circumstances) -> Iterator[str]:
    """Yield nothing: the facts are enough for a report."""
    return iter(())


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """One privacy mechanism. No field has a default: a mechanism declares all of them.

    Attributes:
        facts: The meaning of a ledger row: name, unit, and which party sees values without noise.
        relations: The possible relations of neighbours; the first is the default.
        distributions: Names of the laws of noise that are built, as ledger rows state them; the
            first is the default. A law that no accountant prices may be declared, and a run with it
            is refused. Empty without noise.
        upload: Builds the protection of the vector that is summed.
        entry: Builds the protection of a pool entry that has noise of its own, all of it on the
            client; None if entries have no own noise, or consist of noised steps.
        training: Builds the noise of local steps; None if the noise is not in them.
        caveats: Yields the mechanism's own sentences for a report.
    """

    facts: MechanismFacts
    relations: tuple[Relation, ...]
    distributions: tuple[str, ...]
    upload: Callable[[Settings], ClientMechanism]
    entry: Callable[[Settings], ClientMechanism] | None
    training: Callable[[Settings], DpSgd] | None
    caveats: Callable[[Circumstances], Iterator[str]]

    def __post_init__(self) -> None:
        """Refuse missing or contradictory declarations."""
        facts, name = self.facts, self.facts.name
        known = set(self.relations)
        if not known or len(known) != len(self.relations) or not known <= set(RELATIONS):
            raise ValueError(f"{name}: relations must be some of {', '.join(RELATIONS)}")
        if bool(self.distributions) != facts.claims:
            raise ValueError(f"{name}: distributions must be given if it has noise, and only then")
        if facts.is_shared_out and "gaussian" in self.distributions:
            raise ValueError(f"{name}: shares of noise are integers, and gaussian is on the reals")
        if (self.training is not None) != facts.is_in_steps:
            raise ValueError(f"{name}: training must be given if is_in_steps, and only then")
        if (self.entry is not None) != (facts.claims and not facts.is_in_steps):
            raise ValueError(f"{name}: entry must be given if uploads are noised, and only then")

    @property
    def name(self) -> str:
        """The word in configuration and ledger."""
        return self.facts.name

    @property
    def clips_uploads(self) -> bool:
        """Whether uploads are clipped; else nothing is clipped, or gradients of single records."""
        return self.facts.unit == "client"

    @property
    def needs_masks(self) -> bool:
        """Whether only sums may be seen: one share of the noise does not protect its client."""
        return self.facts.is_shared_out

    @property
    def weighs_examples(self) -> bool:
        """Whether clients may weigh by their examples; else a weight would tell how many."""
        return not self.facts.claims

    @property
    def entry_noise(self) -> tuple[EntryNoise, ...]:
        """How a pool entry may be noised; the first unless the configuration says otherwise.

        The upload's noise can also serve the entry if the client adds all of it, to both.
        """
        if self.facts.is_in_steps:
            return ("same",)
        return ("same", "independent") if self.facts.noises_alone else ("independent",)

    def build_upload(self, settings: Settings) -> ClientMechanism:
        """Build the protection of the summed vector; `CalibrationError` for an unfit grid."""
        built = require_mechanism(self.upload(settings))
        # Under noised steps uploads are only carried, and training has the row.
        expected = self.facts if not self.facts.is_in_steps else None
        if expected is not None and built.facts != expected:
            raise UnknownMechanism(
                f"{self.name} builds an upload whose ledger rows would say {built.facts.name}"
            )
        return built

    def build_entry(self, settings: Settings) -> ClientMechanism | None:
        """Build the protection of a pool entry with noise of its own; None without own noise."""
        if self.entry is None:
            return None
        built = require_mechanism(self.entry(settings))
        if not (built.facts.claims and built.facts.noises_alone):
            raise UnknownMechanism(
                f"{self.name} builds pool entries under {built.facts.name}, which protects no "
                "entry that is seen alone"
            )
        return built

    def build_training(self, settings: Settings) -> DpSgd | None:
        """Build the noise of local steps, of this mechanism; None if the noise is not in them."""
        if self.training is None:
            return None
        built = self.training(settings)
        if built.facts != self.facts:
            raise UnknownMechanism(
                f"{self.name} builds training whose ledger rows would say {built.facts.name}"
            )
        return built
