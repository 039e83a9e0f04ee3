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
"""The key of a validation's context that holds the mechanisms, if they are not the built-in ones.
"""


class AdaptiveClippingConfig(Section):
    """The clipping norm follows a quantile of the updates' norms (Andrew et al. 2021)."""

    quantile: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """Share of the updates that shall fit."""
    learning_rate: Rate = 0.2
    """Of the norm's logarithm."""
    flag_ratio: Positive = 0.1
    """Bound of the additional coordinate over C."""


class PrivacyConfig(Section):
    """What protects an upload. See `docs/privacy.md`."""

    mechanism: Annotated[str, Field(json_schema_extra={"enum": list(BUILT_IN.names)})] = "none"
    """Where noise is added: in every local step (`dp_sgd`), all of it on the client
    (`upload_noise`), a share on each client (`distributed_noise`) or on the coordinator
    (`central_noise`); see docs/privacy.md.
    """
    relation: Relation | None = None
    """Of neighbouring data sets; null: `replace_one` where a client is the unit,
    `add_or_remove_one` under `dp_sgd`.
    """
    personal: Literal["joint", "decoupled"] = "joint"
    """Under `dp_sgd`: `joint` trains personal parts with noise in every round, `decoupled` without
    noise after the last release, so that nothing released depends on them.
    """
    clipping_norm: Positive | None = None
    """Bound C on the l2 norm of an upload; the first round's where it adapts. Required with noise
    on uploads; not under `dp_sgd`.
    """
    adaptive_clipping: AdaptiveClippingConfig | None = None
    """Makes C follow a quantile of the updates' norms, at the price of one more noised coordinate;
    null: C stays.
    """
    per_sample_clipping_norm: Positive | None = None
    """Bound on each example's gradient in training. Required under `dp_sgd`; null elsewhere: none.
    """
    sampling_probability: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """With which each example is in a batch, on its own coin; the same for all clients. Required
    under `dp_sgd`.
    """
    noise_distribution: NoiseDistribution | None = None
    """`discrete_gaussian` also under `upload_noise`, `skellam` under `distributed_noise` only;
    null: `discrete_gaussian` under `distributed_noise`, else `gaussian`.
    """
    noise_multiplier: Positive | None = None
    """Standard deviation over C: with noise exactly one of this and `target_epsilon`."""
    target_epsilon: Positive | None = None
    """Epsilon of the whole run that the noise is calibrated for."""
    target_delta: Annotated[float, Field(gt=0.0, lt=1.0)] = 1e-5
    """Delta of every epsilon that is stated."""
    accountant: Literal["auto", "exact", "pld", "rdp"] = "auto"
    """What composes the rounds."""
    noise_source: Literal["os", "seeded"] = "os"
    """`os`: the operating system's entropy; `seeded` repeats itself and protects nobody."""
    spare_attempts: RoundsOrNone = 0
    """Attempts beyond the planned rounds that calibration leaves room for; a second collection of a
    pool that is made once is one of them, but where the rounds release nothing, calibration leaves
    no room for it.
    """
    subspace: Literal["none", "text_jacobian", "public_images", "random"] = "none"
    """Where uploads, clipping, noise and sums live: `text_jacobian`, in the `rank` directions in
    which a learned prompt moves the frozen model's text features of the classes most, found by the
    coordinator at each broadcast; `public_images`, in those that hold most of the gradients of the
    images of `public_data` there; `random`, in as many drawn anew for each round; `none`: whole
    updates. For averaged methods without personal state and pool.
    """
    rank: Directions | None = None
    """Directions of the subspace, fixed in advance: required with one, null without."""
    lifetime_budget: Positive | None = None
    """Epsilon that a client lets itself be charged in all runs on the same data, and its store is
    shared by these runs then; null: no bound. In a simulation the same data are the same data set,
    or the same folder of one's own images, however they are dealt out: each client is charged what
    every other run on them charged its worst client.
    """


class SecureAggregationConfig(Section):
    """Pairwise-masked sums."""

    enabled: bool = False
    """Whether the sum is formed under pairwise masks."""
    adversary: Literal["semi_honest", "active"] = "semi_honest"
    """The server that it withstands: `semi_honest` follows the protocol, `active` may lie about
    keys, lists and shares; needs `secure_aggregation.enrolment`.
    """
    enrolment: str | None = None
    """Path of the file that says whose keys are whose, made with `enrolment`; in a simulation every
    client's key lies beside it as `NAME.key`. Required under `active`.
    """
    threshold: Clients | None = None
    """Fewest shares that rebuild a secret, on the complete graph also fewest survivors whose sum
    may be opened; above `secure_aggregation.corrupt` = c, under `active` above (n+c)/2. Null:
    floor(2n/3)+1; computed, hence left out, under `k_regular`.
    """
    graph: Literal["auto", "complete", "k_regular"] = "auto"
    """Who shares masks with whom; `k_regular` not under `active`. `auto`: the cheaper of the two,
    but `complete` where a threshold is given. See `secagg-plan`.
    """
    tolerated_dropout_rate: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """On a k-regular graph: share of the cohort that may be lost, at least `cohort.dropout_rate`; a
    round that loses more is aborted.
    """
    corrupt: ClientsOrNone = 0
    """Clients that may collude with the server; below the threshold."""
    value_bound: Positive | None = None
    """Largest coordinate that is quantised. Null: from clipping norm and noise where uploads are
    noised, else 8; given under `none` only.
    """
    largest_weight: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    """Most examples of a client, up to 2^20, which all parties know before the first round: it
    fixes the ring, hence the bits of every masked value, and a client that has more sends nothing.
    A simulation takes its largest client's. Only under `none`, as all weigh alike with noise.
    """
    bits: Annotated[int, Field(ge=8, le=32)] = 20
    """Bits of a quantised coordinate."""


class PoolConfig(Section):
    """Experts of others: an anonymised pool of entries, or private experts of groups."""

    kind: Literal["entries", "groups"] = "entries"
    """`entries`: single clients' experts, where the method uses a pool. `groups`: as many experts
    as `pool.experts` are broadcast; each client picks in secret the one that fits it best and
    trains that one, and the coordinator sees noised sums and counts of secret groups only. For any
    averaged method without personal state, and in place of pFedMoAP's pool; under masks, with
    `distributed_noise`, `central_noise` or `none`.
    """
    experts: Experts | None = None
    """Private experts, 2 to `task.clients`: required under `groups`, null elsewhere."""
    count_ratio: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Bound of the coordinate that counts a client in its group, over C; under `groups` with noise.
    Null: 1 under `replace_one`, where counts cost nothing, else 0.25.
    """
    floor: Positive | None = None
    """Least number of clients that a group's sum is divided by; a group whose noised count is below
    it keeps its expert. Under `groups`; null: one standard deviation of a count's noise, and at
    least 1.
    """
    empty: Literal["keep", "split"] = "keep"
    """What becomes of an expert that nobody picks, as noised counts tell. `keep`: it stays as it
    is. `split`: where another has more than twice an even share of the clients, it becomes a copy
    of that one, moved aside, so that groups of clients that met in one expert come apart. Under
    `groups`; valid: keep, split.
    """
    fetch: Literal["experts"] = "experts"
    """The coordinator picks a client's experts."""
    noise: EntryNoise | None = None
    """`same`: the pool entry is the noised upload itself, one charge; `independent`: noise of its
    own, two charges. An entry of a pool that is made once, after the last round, always has its own
    noise, and one charge. Null: `same` where the client adds all of the noise, or none.
    """
    clipping_norm: Positive | None = None
    """C of a pool entry that has its own noise: a whole module has another norm than an update. The
    noise multiplier is the run's, so epsilon stays as it is. Null: `privacy.clipping_norm`.
    """
    minimum: Experts | None = None
    """Smallest pool that experts are handed out from. Null: 2(K+1), and 2 where the pool is made
    once.
    """
    generations: Rounds = 1
    """Rounds whose entries live; has no effect where the pool is made once."""


class AuditConfig(Section):
    """Canary clients that audit a simulation from within. See `docs/privacy.md`."""

    canaries: Clients
    """Clients beside `task.clients` whose update is a secret direction of norm C, one way or the
    other on a secret coin. They are charged like all others, count in no mean and in no smallest
    sum, and leave their share of joint noise out, as clients that collude may.
    """
    directions: Clients | None = None
    """How many directions canaries have among them, at right angles: those of one direction share
    a coin, and a few in one direction show as much as many in their own. Null: each its own.
    """


def default_threshold(clients: int) -> int:
    """Return Bonawitz et al. 2017: more than two thirds of the cohort, floor(2n/3) + 1."""
    return 2 * clients // 3 + 1


class RunSections(Section):
    """A whole run, section by section, with values that follow from several sections."""

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")]
    """Begins the run's id."""
    seed: Seed = 0
    """Seed of the simulation; never of keys, masks or `os` noise."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where tensors are; `auto` takes CUDA where there is any."""
    threads: Threads = 1
    """CPU threads of torch; one is quickest for small models, and the last bits of results depend
    on it.
    """
    rounds: Rounds = 10
    """How often clients train and the server updates."""
    phase_two_of: str | None = None
    """A finished run whose pool, clients and ledger this one takes over for a second phase of its
    own.
    """
    task: TaskConfig = TaskConfig()
    federation: FederationConfig | None = None
    """Clients that are processes of their own; null: all are simulated in this process."""
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
    """Canary clients within a simulation, which show a lower bound on its epsilon; null: none."""
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
        """Return the seed of one purpose: its own in `seeds`, else the run's."""
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
        """Return the names of an audit's clients, in an order that sorting keeps."""
        return tuple(f"canary-{i:05d}" for i in range(self.canaries))

    @property
    def seats(self) -> int:
        """Clients asked to take part in a round, those of an audit included."""
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
