"""The configuration tree: what protects uploads, and a run's sections together.

Checks of one section are types and bounds, here and in `sections`. `RunConfig` checks sections
together. `platform.bootstrap` checks the method's own options, which only its module knows.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr

from platform.config.sections import (
    Clients,
    ClientsOrNone,
    CohortConfig,
    Directions,
    EvaluationConfig,
    Experts,
    FederationConfig,
    MethodConfig,
    Positive,
    PublicDataConfig,
    Rate,
    Rounds,
    RoundsOrNone,
    Section,
    Seed,
    SeedConfig,
    StorageConfig,
    TaskConfig,
    Threads,
    TrainingConfig,
)
from platform.mechanisms import BUILT_IN, EntryNoise, Mechanism, Mechanisms, NoiseDistribution
from privacy import Relation

MECHANISMS = "mechanisms"
"""The key of a validation's context that holds the mechanisms if some are not built in."""


class AdaptiveClippingConfig(Section):
    """The clipping norm follows a quantile of the updates' norms (Andrew et al. 2021)."""

    quantile: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """Share of the updates that C shall not clip."""
    learning_rate: Rate = 0.2
    """Learning rate of C's logarithm."""
    flag_ratio: Positive = 0.1
    """Bound of the additional coordinate, divided by C."""


class PrivacyConfig(Section):
    """Protection of uploads. See `docs/privacy.md`."""

    mechanism: Annotated[str, Field(json_schema_extra={"enum": list(BUILT_IN.names)})] = "none"
    """Where noise is added. `none`: nowhere. `dp_sgd`: in every local step. `upload_noise`: all of
    it on the client. `distributed_noise`: a share on each client. `central_noise`: on the
    coordinator. See docs/privacy.md.
    """
    relation: Relation | None = None
    """How neighbouring data sets differ. Null: `replace_one`; under `dp_sgd` `add_or_remove_one`.
    """
    personal: Literal["joint", "decoupled"] = "joint"
    """Under `dp_sgd`: `joint` trains personal parts with noise in every round. `decoupled` trains
    them without noise after the last release, so that nothing released depends on them.
    """
    clipping_norm: Positive | None = None
    """Bound C on the L2 norm of an upload; with adaptive clipping the first round's. Required under
    all mechanisms with noise except `dp_sgd`, null elsewhere.
    """
    adaptive_clipping: AdaptiveClippingConfig | None = None
    """Lets C follow a quantile of the updates' norms, at the price of one more noised coordinate.
    Null: C stays.
    """
    per_sample_clipping_norm: Positive | None = None
    """Bound on the norm of each example's gradient. Required under `dp_sgd`; elsewhere null: no
    bound.
    """
    sampling_probability: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Probability with which each example is in a batch, by its own coin; the same for all clients.
    Required under `dp_sgd`.
    """
    noise_distribution: NoiseDistribution | None = None
    """Law of the noise: `gaussian` or `discrete_gaussian` under `upload_noise`, `discrete_gaussian`
    or `skellam` under `distributed_noise`, else `gaussian`. Null: the first of these.
    """
    noise_multiplier: Positive | None = None
    """Standard deviation of noise over C. Noise needs exactly one of this and `target_epsilon`."""
    target_epsilon: Positive | None = None
    """Epsilon of the whole run for which Sotto calibrates the noise."""
    target_delta: Annotated[float, Field(gt=0.0, lt=1.0)] = 1e-5
    """Delta of every epsilon that Sotto states."""
    accountant: Literal["auto", "exact", "pld", "rdp"] = "auto"
    """Accountant of the rounds; `auto`: the first of `exact`, `pld`, `rdp` that has a price."""
    noise_source: Literal["os", "seeded"] = "os"
    """`os`: the operating system's entropy. `seeded`: noise that a seed repeats; protects nobody.
    """
    spare_attempts: RoundsOrNone = 0
    """Attempts beyond the planned rounds for which calibration leaves room. A second collection of
    a pool that is made once is one of them; if the rounds release nothing, calibration leaves no
    room for it.
    """
    subspace: Literal["none", "text_jacobian", "public_images", "random"] = "none"
    """Directions in which uploads, clipping, noise and sums live. `none`: all of them.
    `text_jacobian`: the `rank` directions in which a learned prompt moves the frozen model's text
    features of the classes most; the coordinator finds them at each broadcast. `public_images`:
    those that hold most of the gradients of `public_data`'s images there. `random`: as many, drawn
    anew for each round. Only for averaged methods without personal state and pool.
    """
    rank: Directions | None = None
    """Number of directions of the subspace, fixed in advance. Required with one, null without."""
    lifetime_budget: Positive | None = None
    """Largest epsilon that a client accepts in all runs on the same data; these runs share its
    store. Null: no bound. In a simulation the same data are the same data set, or the same folder
    of own images, however they are dealt out. Each client is charged for every other run on them:
    what that run charged its worst client.
    """


class SecureAggregationConfig(Section):
    """Pairwise-masked sums."""

    enabled: bool = False
    """Whether the sum is formed under pairwise masks."""
    adversary: Literal["semi_honest", "active"] = "semi_honest"
    """The server that the protocol withstands. `semi_honest`: it follows the protocol. `active`: it
    may lie about keys, lists and shares; needs `secure_aggregation.enrolment`.
    """
    enrolment: str | None = None
    """Path of the file that states which client owns which key, made with `sotto enrolment`. In a
    simulation every client's key lies beside it as `NAME.key`. Required under `active`.
    """
    threshold: Clients | None = None
    """Fewest shares that rebuild a secret; on the complete graph also fewest survivors whose sum
    may be opened. Above `secure_aggregation.corrupt` = c, and under `active` above (n + c) / 2.
    Null: floor(2n/3) + 1. Must be null under `k_regular`, where Sotto computes it.
    """
    graph: Literal["auto", "complete", "k_regular"] = "auto"
    """Which clients share masks with each other. `auto`: the cheaper graph, but `complete` if a
    threshold is given. `active` refuses `k_regular`. See `sotto secagg-plan`.
    """
    tolerated_dropout_rate: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of the cohort that may be lost on a k-regular graph, at least `cohort.dropout_rate`. A
    round that loses more is aborted.
    """
    corrupt: ClientsOrNone = 0
    """Number of clients that may collude with the server; below the threshold."""
    value_bound: Positive | None = None
    """Largest coordinate that is quantised. Null: derived from clipping norm and noise if uploads
    are clipped, else 8. Only under `none` and `dp_sgd`.
    """
    largest_weight: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    """Most examples of a client, up to 2^20. All parties know this before the first round: it fixes
    the ring, and so the bits of every masked value. A client that has more sends nothing. Null: a
    simulation takes its largest client's. Only under `none`, as all weigh alike with noise.
    """
    bits: Annotated[int, Field(ge=8, le=32)] = 20
    """Bits of a quantised coordinate."""


class PoolConfig(Section):
    """Experts of other clients: an anonymised pool of entries, or private experts of groups."""

    kind: Literal["entries", "groups"] = "entries"
    """`entries`: experts of single clients, if the method uses a pool. `groups`: the coordinator
    broadcasts `pool.experts` experts. Each client secretly picks and trains the one that fits it
    best, and the coordinator sees only noised sums and counts of secret groups. For any averaged
    method without personal state, in place of pFedMoAP's pool; needs masks, and
    `distributed_noise`, `central_noise` or `none`.
    """
    experts: Experts | None = None
    """Number of private experts, 2 to `task.clients`. Required under `groups`, null elsewhere."""
    count_ratio: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Bound of the coordinate that counts a client in its group, divided by C; under `groups` with
    noise. Null: 1 if counts cost nothing (`replace_one`, no other added coordinate), else 0.25.
    """
    floor: Positive | None = None
    """Smallest number by which a group's sum is divided. A group whose noised count is lower keeps
    its expert. Only under `groups`. Null: one standard deviation of a count's noise, at least 1.
    """
    empty: Literal["keep", "split"] = "keep"
    """What happens to an expert that no client picks, by noised counts. `keep`: it stays. `split`:
    if another has more than twice an even share of the clients, the unpicked expert becomes a moved
    copy of it, so that groups in one expert come apart. Only under `groups`.
    """
    fetch: Literal["experts"] = "experts"
    """The coordinator picks the experts that a client gets."""
    noise: EntryNoise | None = None
    """`same`: the pool entry is the noised upload itself, for one charge. `independent`: the entry
    has its own noise, for two charges. An entry of a pool that is made once, after the last round,
    always has its own noise and one charge. Null: `same` if the client adds all of the noise or no
    noise, else `independent`.
    """
    clipping_norm: Positive | None = None
    """C of a pool entry that has its own noise, as a whole module has another norm than an update.
    The noise multiplier is the run's, so epsilon stays. Null: `privacy.clipping_norm`.
    """
    minimum: Experts | None = None
    """Smallest pool from which experts are handed out. Null: 2(K+1) for K experts a client, or 2 if
    the pool is made once.
    """
    generations: Rounds = 1
    """Number of rounds whose entries are in the pool. No effect if the pool is made once."""


class AuditConfig(Section):
    """Canary clients that audit a simulation from within. See `docs/privacy.md`."""

    canaries: Clients
    """Number of clients beside `task.clients` that upload a secret direction of norm C; a secret
    coin decides its sign, or under `add_or_remove_one` whether they send it. They are charged like
    others, count in no mean and in no smallest sum, and add no share of joint noise, as colluders
    may.
    """
    directions: Clients | None = None
    """Number of directions among canaries, at right angles. Those of one direction share a coin; a
    few in one direction show as much as many in their own. Null: each has its own.
    """


def default_threshold(clients: int) -> int:
    """Return more than two thirds of the cohort, floor(2n/3) + 1 (Bonawitz et al. 2017)."""
    return 2 * clients // 3 + 1


class RunSections(Section):
    """A whole run, section by section, with values that follow from several sections."""

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")]
    """First part of the run's id."""
    seed: Seed = 0
    """Seed of the simulation, but never of keys, masks or `os` noise."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the tensors; `auto` takes CUDA if the machine has it."""
    threads: Threads = 1
    """CPU threads of torch. One is fastest for small models; results depend on it in the last bits.
    """
    rounds: Rounds = 10
    """Number of rounds, in each of which clients train and the server updates."""
    phase_two_of: str | None = None
    """Id of a finished run whose pool, clients and ledger this run takes over for its own second
    phase.
    """
    task: TaskConfig = TaskConfig()
    federation: FederationConfig | None = None
    """A federation whose clients are separate processes. Null: this process simulates them all."""
    public_data: PublicDataConfig | None = None
    """Images declared public; required under `privacy.subspace: public_images`, null elsewhere."""
    method: MethodConfig
    training: TrainingConfig
    cohort: CohortConfig = CohortConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    secure_aggregation: SecureAggregationConfig = SecureAggregationConfig()
    pool: PoolConfig = PoolConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    audit: AuditConfig | None = None
    """Canary clients of a simulation, for a lower bound on its epsilon. Null: no canaries."""
    seeds: SeedConfig = SeedConfig()
    storage: StorageConfig = StorageConfig()

    _mechanisms: Mechanisms = PrivateAttr(default=BUILT_IN)

    def model_post_init(self, context: Any, /) -> None:
        """Take the mechanisms of the validation's context, if it has any."""
        if context is not None:
            self._mechanisms = context[MECHANISMS]

    @property
    def mechanisms(self) -> Mechanisms:
        """All mechanisms; rows of a ledger may name any of them."""
        return self._mechanisms

    @property
    def mechanism(self) -> Mechanism:
        """The run's mechanism.

        Raises:
            UnknownMechanism: If no mechanism has the configured name; a rule refuses that first.
        """
        return self._mechanisms.named(self.privacy.mechanism)

    def seed_of(self, purpose: str) -> int:
        """Return the seed of one purpose: that in `seeds` if given, else the run's."""
        own: int | None = getattr(self.seeds, purpose)
        return self.seed if own is None else own

    @property
    def cohort_size(self) -> int:
        """Clients asked to take part in a round."""
        return self.cohort.size if self.cohort.size is not None else self.task.clients

    @property
    def canaries(self) -> int:
        """Number of an audit's canary clients."""
        return 0 if self.audit is None else self.audit.canaries

    @property
    def canary_names(self) -> tuple[str, ...]:
        """The names of an audit's clients, in an order that sorting keeps."""
        return tuple(f"canary-{i:05d}" for i in range(self.canaries))

    @property
    def seats(self) -> int:
        """Clients asked to take part in a round, with those of an audit."""
        return self.cohort_size + self.canaries

    @property
    def cohort_rate(self) -> float:
        """Probability with which a client is drawn into a Poisson cohort."""
        return self.cohort_size / self.task.clients

    @property
    def has_secret_cohorts(self) -> bool:
        """Whether the coordinator keeps the cohort secret, for amplification.

        Only if every round's sum is released: a rule that releases it, or draws again, depending
        on the number of clients would let one client's coin decide about the whole sum.
        """
        drawn = self.cohort.sampling == "poisson" or self.cohort_size < self.task.clients
        amplifies = self.mechanism.facts.may_amplify
        always = self.cohort.minimum == 1 and self.cohort.retries == 0
        return drawn and amplifies and always and not self.secure_aggregation.enabled

    @property
    def noise_distribution(self) -> str | None:
        """The law of the noise, by default the mechanism's usual law; None without noise."""
        if self.privacy.noise_distribution is not None:
            return self.privacy.noise_distribution
        return next(iter(self.mechanism.distributions), None)

    @property
    def lost_per_round(self) -> int:
        """Simulated dropouts in every round."""
        return round(self.cohort.dropout_rate * self.cohort_size)

    @property
    def threshold(self) -> int:
        """Smallest number of clients whose sum the coordinator may open."""
        configured = self.secure_aggregation.threshold
        return configured if configured is not None else default_threshold(self.cohort_size)

    @property
    def relation(self) -> Relation:
        """The neighbouring relation, by default the mechanism's usual one."""
        own = self.privacy.relation
        return self.mechanism.relations[0] if own is None else own

    @property
    def pool_noise(self) -> EntryNoise:
        """Whether a pool entry carries the sum's noise or its own."""
        own = self.pool.noise
        return self.mechanism.entry_noise[0] if own is None else own
