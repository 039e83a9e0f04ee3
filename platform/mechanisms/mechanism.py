"""What a mechanism is: facts that it declares, how it is built, and what a report must say of it.

Everything else that a run does differently under one mechanism or another follows from the facts,
by a rule with a reason here, and never from a name. A mechanism is built from `Settings`: a run's
numbers, without the configuration that they stand in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from privacy import (
    RELATIONS,
    ClientMechanism,
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
        relation: How neighbours differ.
        distribution: Law of the noise, one of the mechanism's; None without noise.
        value_bound: Largest coordinate that is carried where nothing is clipped.
        clipping_norm: C of all that is clipped together; None without clipping.
        noise_multiplier: Standard deviation of the noise over C; None without noise.
        sums: What is certain about sums, where the noise relies on it.
        steps: Local steps, where the noise is in them.
        counts: The counts at the end of the vector where clients are in groups, else None.
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
            ValueError: If nothing is clipped; the configuration has refused this before.
        """
        return _given(self.clipping_norm, "clipping_norm")

    @property
    def multiplier(self) -> float:
        """Standard deviation of the noise over C.

        Raises:
            ValueError: If there is no noise; the configuration has refused this before.
        """
        return _given(self.noise_multiplier, "noise_multiplier")

    @property
    def scale(self) -> float:
        """Steps of the integer grid per unit, where noise or rounding is on one."""
        return default_scale(self.norm)


def _given(value: float | None, name: str) -> float:
    # Without the value, the mechanism would do something else than its ledger row says.
    if value is None:
        raise ValueError(f"{name} is missing; this mechanism cannot be built without")
    return value


NoiseDistribution = Literal["gaussian", "discrete_gaussian", "skellam"]
EntryNoise = Literal["same", "independent"]
"""Laws of noise that a configuration may choose between."""


@dataclass(frozen=True)
class Circumstances:
    """What a mechanism's own caveats may depend on.

    Attributes:
        corrupt: Clients that may collude with the server.
        is_active: Whether secure aggregation withstands a server that lies.
    """

    corrupt: int
    is_active: bool


def no_caveats(circumstances: Circumstances) -> Iterator[str]:
    """Yield nothing: the facts say all that a report must."""
    return iter(())


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """One privacy mechanism. Nothing has a default: all of it is declared.

    Attributes:
        facts: What a row means in the ledger: name, unit, and who sees what without its noise.
        relations: What a neighbour may be; the first unless the configuration says otherwise.
        distributions: Names of the laws of noise that are built, as ledger rows state them; the
            first unless the configuration says otherwise. A law that no accountant prices may be
            declared, and a run with it is refused. None where there is no noise.
        upload: Builds what is done to the vector that is summed.
        entry: Builds what is done to a pool entry that has noise of its own, all of it on the
            client; None where entries have none, or are made of noised steps.
        training: Builds the noise of local steps; None where the noise is not in them.
        caveats: What a report must say of this mechanism beside what follows from the facts.
    """

    facts: MechanismFacts
    relations: tuple[Relation, ...]
    distributions: tuple[str, ...]
    upload: Callable[[Settings], ClientMechanism]
    entry: Callable[[Settings], ClientMechanism] | None
    training: Callable[[Settings], DpSgd] | None
    caveats: Callable[[Circumstances], Iterator[str]]

    def __post_init__(self) -> None:
        """Refuse declarations that are missing or contradict each other."""
        facts, name = self.facts, self.facts.name
        known = set(self.relations)
        if not known or len(known) != len(self.relations) or not known <= set(RELATIONS):
            raise ValueError(f"{name}: relations must be some of {', '.join(RELATIONS)}")
        if bool(self.distributions) != facts.claims:
            raise ValueError(f"{name}: distributions must be given exactly where noise is")
        if facts.is_shared_out and "gaussian" in self.distributions:
            raise ValueError(f"{name}: shares of noise are integers, and gaussian is on the reals")
        if (self.training is not None) != facts.is_in_steps:
            raise ValueError(f"{name}: training must be given exactly where is_in_steps")
        if (self.entry is not None) != (facts.claims and not facts.is_in_steps):
            raise ValueError(f"{name}: entry must be given exactly where uploads are noised")

    @property
    def name(self) -> str:
        """The word in configuration and ledger."""
        return self.facts.name

    @property
    def clips_uploads(self) -> bool:
        """Whether uploads are clipped; else nothing is, or gradients of single records are."""
        return self.facts.unit == "client"

    @property
    def shows_uploads(self) -> bool:
        """Whether one client's upload may be shown to the server.

        It may if it has all the noise itself, or if the mechanism claims nothing.
        """
        return self.facts.noises_alone

    @property
    def needs_masks(self) -> bool:
        """Whether only sums may be seen: a share of the noise protects nobody alone."""
        return self.facts.is_shared_out

    @property
    def weighs_examples(self) -> bool:
        """Whether clients may weigh by their examples; else a weight would tell how many."""
        return not self.facts.claims

    @property
    def entry_noise(self) -> tuple[EntryNoise, ...]:
        """How a pool entry may be noised; the first unless the configuration says otherwise.

        The noise of an upload also serves the entry if all of it is on the client and in both.
        """
        if self.facts.is_in_steps:
            return ("same",)
        return ("same", "independent") if self.facts.noises_alone else ("independent",)

    def build_upload(self, settings: Settings) -> ClientMechanism:
        """Build what is done to the vector that is summed.

        Raises:
            CalibrationError: If the numbers mean too little or too much noise for the grid.
            UnknownMechanism: If the built value is no mechanism, or another one.
        """
        built = require_mechanism(self.upload(settings))
        # Under noised steps uploads are only carried, and training has the row.
        expected = self.facts if not self.facts.is_in_steps else None
        if expected is not None and built.facts != expected:
            raise UnknownMechanism(
                f"{self.name} builds an upload whose ledger rows would say {built.facts.name}"
            )
        return built

    def build_entry(self, settings: Settings) -> ClientMechanism | None:
        """Build what is done to a pool entry with noise of its own; None where there is none.

        Raises:
            CalibrationError: As for `build_upload`.
            UnknownMechanism: If the built value does not noise an entry that is seen alone.
        """
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
        """Build the noise of local steps; None where it is not in them.

        Raises:
            UnknownMechanism: If its ledger rows would say another mechanism.
        """
        if self.training is None:
            return None
        built = self.training(settings)
        if built.facts != self.facts:
            raise UnknownMechanism(
                f"{self.name} builds training whose ledger rows would say {built.facts.name}"
            )
        return built
