"""The rows of the privacy ledger: the law of the noise, the facts of a mechanism, the release.

A `NoiseLaw` is what a ledger row states, what accountants price and what a mechanism draws
(`NoiseSource.draw`), so the noise that is charged is the noise that is added. The set of laws is
open: a new mechanism may bring a law with a name of its own, and a name read from a ledger is a law
also where this module cannot draw it. Accountants price the laws in `PRICED_LAWS` and refuse all
others.

`MechanismFacts` say what a mechanism's name means. Accountants ask these facts and never the name,
so a new mechanism is priced by what it does. A release cannot carry a name without facts.

A `Release` says what happened; `privacy.accounting` says what it costs. Events never change their
meaning: a new kind of release becomes a new field value or a new type, and an accountant that
cannot price it must refuse. A row never holds a bare noise multiplier, because some accountants
take it relative to C and others relative to the sensitivity. A row holds the standard deviation,
C, the relation and the law of the noise, and each accountant's adapter converts.

What is charged: `reserved` (written before anything is sent, so a crash leaves a charge),
`released`, and `aborted` unless it is known that nothing left the client. A resend of identical
bytes is the same release and gets no second row; a retry with fresh noise is another attempt and
another row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from numpy.typing import NDArray

from privacy._validate import require_member, require_not_negative, require_positive
from privacy.errors import UnknownMechanism, UnsupportedEvent
from privacy.integer_noise import discrete_gaussian_from, skellam_from
from privacy.randomness import NoiseSource

NoiseKind = Literal["discrete_gaussian", "skellam"]
NOISE_KINDS: tuple[str, ...] = get_args(NoiseKind)
PRICED_LAWS: tuple[str, ...] = ("gaussian", *NOISE_KINDS)


@dataclass(frozen=True, order=True)
class NoiseLaw:
    """A law of noise without parameters but its standard deviation.

    Attributes:
        name: The word in the ledger.
    """

    name: str

    def sample(self, source: NoiseSource, deviation: float, size: int) -> NDArray[Any]:
        """Return independent draws; `NoiseSource.draw` is how a mechanism asks for them.

        Args:
            source: Where they come from.
            deviation: Their standard deviation.
            size: How many.

        Raises:
            UnsupportedEvent: This is the name of a law that nothing here draws.
        """
        if self != GAUSSIAN:
            raise UnsupportedEvent(f"nothing here draws noise of the law {self.name!r}")
        return deviation * source.standard_normal(size)


@dataclass(frozen=True, order=True)
class IntegerNoise(NoiseLaw):
    """Noise that is an integer on a grid, as a sum of equal and independent shares.

    Only shares that whoever looks does not know count: those of honest clients. Their sum has the
    release's standard deviation, so the grid's step is that over `share_deviation` sqrt(`shares`).

    Attributes:
        name: Law of one share, of `NOISE_KINDS`.
        share_deviation: Its standard deviation in steps of the grid.
        shares: How many honest shares are in the sum for certain, at least 1.
        dimension: How many coordinates carry noise, at least 1.
        corrupt: How many clients may show their share to whoever looks without touching `shares`.
    """

    share_deviation: float
    shares: int
    dimension: int
    corrupt: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        require_member(NOISE_KINDS, name=self.name)
        require_positive(
            share_deviation=self.share_deviation, shares=self.shares, dimension=self.dimension
        )
        require_not_negative(corrupt=self.corrupt)

    def sample(self, source: NoiseSource, deviation: float, size: int) -> NDArray[Any]:
        """Return exact draws of one share, `deviation` being in steps of the grid."""
        draw = skellam_from if self.name == "skellam" else discrete_gaussian_from
        return draw(source.uniform_bytes, deviation, size)


GAUSSIAN = NoiseLaw("gaussian")
"""Independent Gaussian noise on the reals."""
NO_NOISE = NoiseLaw("none")
"""Of what is released as it is: its standard deviation is 0 and its price infinite."""


def gaussian_of(standard_deviation: float) -> NoiseLaw:
    """Return the law of Gaussian noise of this deviation: none where it is 0."""
    return GAUSSIAN if standard_deviation else NO_NOISE


Unit = Literal["client", "record"]

UNITS: tuple[str, ...] = get_args(Unit)


@dataclass(frozen=True, kw_only=True)
class MechanismFacts:
    """What a ledger row of one mechanism means. Nothing has a default: all of it is declared.

    Attributes:
        name: The word in the ledger.
        unit: Whom its epsilon is about; None where it claims none, as there is no noise.
        is_in_steps: Whether the noise is in the local steps, of which all that a client sends is
            computed: each row is charged against everybody, on whatever channel, and Poisson
            batches amplify.
        is_shared_out: Whether each client adds a share of the noise and only the sum has enough
            of it: a peer knows its own share, and nothing but sums is protected.
        is_bare_to_server: Whether the noise is added after the server has seen what is released.
        may_amplify: Whether cohorts that are drawn in secret may amplify a sum.
        keeps_state: Whether noise depends on noise that was drawn before: what protects one release
            hands a state on to the next of the same run.
    """

    name: str
    unit: Unit | None
    is_in_steps: bool
    is_shared_out: bool
    is_bare_to_server: bool
    may_amplify: bool
    keeps_state: bool

    def __post_init__(self) -> None:
        """Refuse facts that contradict each other; each would make a number too small."""
        if not self.name.isidentifier():
            raise ValueError(f"name is {self.name!r}; it must be one word")
        if self.unit is not None:
            require_member(UNITS, unit=self.unit)
        kinds = (self.is_in_steps, self.is_shared_out, self.is_bare_to_server)
        if sum(kinds) > (self.unit is not None):
            raise ValueError(
                f"{self.name}: noise is in the steps, shared out, or added after the server saw "
                "the sum, at most one of them, and none where nothing is claimed"
            )
        if self.is_in_steps != (self.unit == "record"):
            # Clipping and noise for single records are built into training and nowhere else.
            raise ValueError(f"{self.name}: unit must be 'record' exactly where is_in_steps")
        if self.may_amplify and not self.is_bare_to_server:
            # Who sends is known to the server; only what follows the sum can hide the draw.
            raise ValueError(f"{self.name}: may_amplify needs is_bare_to_server")

    @property
    def claims(self) -> bool:
        """Whether it claims any epsilon."""
        return self.unit is not None

    @property
    def noises_alone(self) -> bool:
        """Whether what one client sends has all the noise, whoever looks at it alone."""
        return not (self.is_shared_out or self.is_bare_to_server)


Relation = Literal["replace_one", "add_or_remove_one"]
Sampling = Literal["none", "poisson"]
Channel = Literal["sum", "pool", "metrics"]
Status = Literal["reserved", "released", "aborted"]
CohortKind = Literal["poisson", "fixed_size"]

RELATIONS: tuple[str, ...] = get_args(Relation)
SAMPLINGS: tuple[str, ...] = get_args(Sampling)
CHANNELS: tuple[str, ...] = get_args(Channel)
STATUSES: tuple[str, ...] = get_args(Status)
COHORT_KINDS: tuple[str, ...] = get_args(CohortKind)


def sensitivity_over_norm(relation: Relation) -> float:
    """Return how far a neighbour moves what was noised, over C: 2 under replace_one, else 1."""
    return 2.0 if relation == "replace_one" else 1.0


@dataclass(frozen=True, kw_only=True, order=True)
class CohortSampling:
    """How the clients of a round were drawn, in secret, where that can amplify.

    Every client of the population has a row for every such round, drawn or not, because what a
    secret draw costs does not depend on how it came out.

    Attributes:
        kind: "poisson": each client on a coin of its own; "fixed_size": exactly `size` of them,
            all choices equally likely.
        size: Clients of a round, on average under "poisson"; from 1 to `population`.
        population: Clients that are drawn from.
        is_drawn: Whether this client was. Who prices a draw whose outcome must not be told charges
            all clients as if they were.
    """

    kind: CohortKind
    size: int
    population: int
    is_drawn: bool

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        require_member(COHORT_KINDS, kind=self.kind)
        if not 1 <= self.size <= self.population:
            raise ValueError(
                f"size is {self.size}; it must be from 1 to the population, {self.population}"
            )

    @property
    def probability(self) -> float:
        """With which a client is drawn."""
        return self.size / self.population


@dataclass(frozen=True, kw_only=True)
class ReleaseKey:
    """Which release it is: no two rows of a ledger have the same key.

    Attributes:
        run_id: The run, whatever its form.
        round_number: The round, from 0 or 1 as the platform counts.
        attempt: Which try of that round; each draws fresh noise and is charged.
        pseudonym: The client, under the name that its ledger uses.
        channel: Where it goes: the secure sum, the expert pool or the metrics. A pool entry that is
            the very same noised vector as the update is on the sum channel.
    """

    run_id: str
    round_number: int
    attempt: int
    pseudonym: str
    channel: Channel = "sum"


@dataclass(frozen=True, kw_only=True)
class Release:
    """One thing that leaves, or may have left, one client: a row of the ledger.

    Attributes:
        mechanism: What protects it, as facts that its name stands for.
        standard_deviation: Of the noise on each coordinate, in the units of the update; 0 under
            `none`, which costs infinity.
        clipping_norm: C, the bound on the L2 norm of what was noised, in the same units; 0 where
            nothing bounds it (only under `none`).
        relation: What a neighbour is; sensitivity is 2C under replace_one, else C.
        law: Of the noise. It is `NO_NOISE` exactly where the standard deviation is 0, and
            `IntegerNoise` goes with the clipping norm that holds after rounding to the grid. A law
            that no accountant knows may stand here, and no accountant prices it.
        channel: Where it goes: the secure sum, the expert pool or the metrics.
        run_id: The run, whatever its form.
        round_number: The round, from 0 or 1 as the platform counts.
        attempt: Which try of that round; each draws fresh noise and is charged.
        pseudonym: The client, under the name that its ledger uses.
        status: How far it got.
        sampling: Whether a secret coin chose who took part.
        sampling_probability: Of that coin; 1 where `sampling` is `none`.
        left_client: Whether anything left the client, or may have. False only beside `aborted`,
            and only where it is known; it is what makes an aborted attempt free of charge.
        count: How many equal compositions the row stands for: 1 for an upload, the number of
            optimiser steps for training under dp_sgd.
        cohort: How the round's clients were drawn, where that was a secret of the coordinator;
            only under `central_noise` and on the sum channel.
    """

    mechanism: MechanismFacts
    standard_deviation: float
    clipping_norm: float
    relation: Relation
    law: NoiseLaw
    channel: Channel
    run_id: str
    round_number: int
    attempt: int
    pseudonym: str
    status: Status
    sampling: Sampling = "none"
    sampling_probability: float = 1.0
    left_client: bool = True
    count: int = 1
    cohort: CohortSampling | None = None

    def __post_init__(self) -> None:
        """Refuse unknown words and numbers out of range."""
        if not isinstance(self.mechanism, MechanismFacts):
            # A bare name says nothing that could be priced; the type checker is not everywhere.
            raise UnknownMechanism(
                f"mechanism is {self.mechanism!r}; it must be the facts that a mechanism declares"
            )
        require_member(RELATIONS, relation=self.relation)
        require_member(CHANNELS, channel=self.channel)
        require_member(STATUSES, status=self.status)
        require_member(SAMPLINGS, sampling=self.sampling)
        require_not_negative(
            standard_deviation=self.standard_deviation,
            clipping_norm=self.clipping_norm,
            round_number=self.round_number,
            attempt=self.attempt,
        )
        self._require_consistent()

    def _require_consistent(self) -> None:
        name = self.mechanism.name
        if not self.mechanism.claims and self.standard_deviation:
            raise ValueError(f"standard_deviation must be 0 under {name!r}, which adds no noise")
        if self.mechanism.claims:
            require_positive(clipping_norm=self.clipping_norm)
        if self.sampling == "none" and self.sampling_probability != 1.0:
            raise ValueError("sampling_probability must be 1 where sampling is 'none'")
        if not 0.0 < self.sampling_probability <= 1.0:
            raise ValueError(
                f"sampling_probability is {self.sampling_probability}; it must be above 0 and at "
                "most 1"
            )
        if self.count < 1:
            raise ValueError(f"count is {self.count}; it must be at least 1")
        if (self.law == NO_NOISE) != (self.standard_deviation == 0.0):
            raise ValueError(
                f"law is {self.law.name!r}; it must be 'none' exactly where standard_deviation is 0"
            )
        if self.mechanism.is_shared_out and self.law == GAUSSIAN:
            raise ValueError(f"law is 'gaussian'; shares of noise are integers under {name!r}")
        if self.cohort is not None and not (self.mechanism.may_amplify and self.channel == "sum"):
            raise ValueError(
                f"cohort must be None on channel {self.channel!r} under {name!r}; secret draws "
                "amplify only sums that are noised by the coordinator"
            )
        if self.cohort is not None and self.sampling != "none":
            raise ValueError("sampling must be 'none' beside a cohort, which is drawn instead")
        if not self.mechanism.noises_alone and self.channel != "sum":
            raise ValueError(
                f"channel is {self.channel!r}; it must be 'sum' under {name!r}, which protects "
                "sums only"
            )
        if not self.left_client and self.status != "aborted":
            raise ValueError(f"left_client can be false only beside 'aborted', not {self.status!r}")

    @property
    def key(self) -> ReleaseKey:
        """Which release it is."""
        return ReleaseKey(
            run_id=self.run_id,
            round_number=self.round_number,
            attempt=self.attempt,
            pseudonym=self.pseudonym,
            channel=self.channel,
        )

    @property
    def sensitivity(self) -> float:
        """How far a neighbour moves what was noised, in L2: 2C under replace_one, else C."""
        return self.clipping_norm * sensitivity_over_norm(self.relation)

    @property
    def charged(self) -> bool:
        """Whether it counts towards epsilon: everything but an abort that nothing left."""
        return self.left_client


@dataclass(frozen=True, kw_only=True)
class Protected:
    """What protects a release, in the numbers that its row states.

    Attributes:
        standard_deviation: As in `Release`, like all that follow.
        clipping_norm: C.
        relation: What a neighbour is.
        law: Of the noise that is drawn, and no other.
        sampling_probability: Of the batches' Poisson coins; 1 where nothing is sampled.
        count: Compositions that the row stands for.
    """

    standard_deviation: float
    clipping_norm: float
    relation: Relation
    law: NoiseLaw
    sampling_probability: float = 1.0
    count: int = 1


def reserved(
    key: ReleaseKey,
    mechanism: MechanismFacts,
    protected: Protected,
    cohort: CohortSampling | None = None,
) -> Release:
    """Return the ledger row of what is about to leave a client; every mechanism's row is made here.

    Args:
        key: Which release it is.
        mechanism: What protects it.
        protected: In which numbers.
        cohort: How the round's clients were drawn, where that may amplify.

    Raises:
        ValueError: The mechanism protects nothing on that channel, or in those numbers.
    """
    return Release(
        mechanism=mechanism,
        standard_deviation=protected.standard_deviation,
        clipping_norm=protected.clipping_norm,
        relation=protected.relation,
        law=protected.law,
        channel=key.channel,
        run_id=key.run_id,
        round_number=key.round_number,
        attempt=key.attempt,
        pseudonym=key.pseudonym,
        status="reserved",
        sampling="poisson" if protected.sampling_probability < 1.0 else "none",
        sampling_probability=protected.sampling_probability,
        count=protected.count,
        cohort=cohort,
    )
