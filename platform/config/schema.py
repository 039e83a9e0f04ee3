"""The configuration tree. Every section is frozen and refuses unknown keys.

Checks that need one section only are here, as types and bounds; those that join sections are in
`RunConfig`. The method's own options are validated against the method's `Config` by
`platform.bootstrap`, since only the method's module knows them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from platform.mechanisms import BUILT_IN, EntryNoise, Mechanism, Mechanisms, NoiseDistribution
from privacy import Relation

MECHANISMS = "mechanisms"
"""Under which name a validation is given the mechanisms, where not the built-in ones."""
PositiveInt = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class Section(BaseModel):
    """A frozen part of the tree."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())


class ModelConfig(Section):
    """The frozen CLIP: an open_clip model name with a pretrained tag or a local checkpoint."""

    name: str = "sotto-tiny"
    pretrained: str | None = None


class PartitionConfig(Section):
    """How the training and test images are dealt out to clients.

    `pathological`: disjoint classes, evenly; `iid`: all classes everywhere; `dirichlet`: each class
    in random shares; `domain`: one domain a client; `domain_dirichlet`: as many clients on each
    domain, each class of it in random shares; `shared_ratio`: a share of each class evenly, the
    rest in random shares, training and test images together before each client splits its own.
    """

    kind: Literal[
        "pathological", "iid", "dirichlet", "domain", "domain_dirichlet", "shared_ratio"
    ] = "pathological"
    alpha: Positive | None = None
    minimum: PositiveInt | None = None
    shared_classes: Fraction | None = None
    shared_ratio: Fraction | None = None

    @property
    def concentration(self) -> float:
        """Alpha of the Dirichlet distribution, by default that of pFedMoAP, or of PM-MoE."""
        usual = 0.1 if self.kind == "shared_ratio" else 0.5
        return usual if self.alpha is None else self.alpha

    @property
    def fewest(self) -> int | None:
        """Smallest number of a client's images; None where it follows from the data's size."""
        usual = None if self.kind == "shared_ratio" else 2
        return usual if self.minimum is None else self.minimum


class TaskConfig(Section):
    """Data, clients and model."""

    dataset: str = "shapes"
    root: str = "data"
    domains: tuple[str, ...] | None = None
    clients: PositiveInt = 10
    new_clients: Annotated[int, Field(ge=0)] = 0
    shots: PositiveInt | None = 16
    validation_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    test_per_class: PositiveInt = 60
    partition: PartitionConfig = PartitionConfig()
    held_out_domain: str | None = None
    model: ModelConfig | None = ModelConfig()


class MethodConfig(BaseModel):
    """The method's name and its options, which its own `Config` validates."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    name: str

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})


class TrainingConfig(Section):
    """Local training, with an optimiser that starts anew in every round."""

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    local_epochs: PositiveInt | None = None
    local_steps: PositiveInt | None = None
    batch_size: PositiveInt = 16
    learning_rate: Positive = 0.002
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    weight_decay: NonNegative = 0.0

    @model_validator(mode="after")
    def _one_amount(self) -> Self:
        if (self.local_epochs is None) == (self.local_steps is None):
            raise ValueError("give exactly one of local_epochs and local_steps")
        return self


class CohortConfig(Section):
    """Who takes part in a round.

    `dropout_rate` is for simulation: exactly that share of the cohort, rounded to whole clients,
    is lost between key sharing and masked input in every round.
    """

    size: PositiveInt | None = None
    minimum: PositiveInt = 2
    sampling: Literal["fixed_size", "poisson"] = "fixed_size"
    retries: Annotated[int, Field(ge=0)] = 2
    dropout_rate: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0


class AdaptiveClippingConfig(Section):
    """The clipping norm follows a quantile of the updates' norms (Andrew et al. 2021)."""

    quantile: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    learning_rate: Positive = 0.2
    flag_ratio: Positive = 0.1


class PrivacyConfig(Section):
    """What protects an upload. See `docs/privacy.md`."""

    mechanism: str = "none"
    relation: Relation | None = None
    personal: Literal["joint", "decoupled"] = "joint"
    clipping_norm: Positive | None = None
    adaptive_clipping: AdaptiveClippingConfig | None = None
    per_sample_clipping_norm: Positive | None = None
    sampling_probability: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    noise_distribution: NoiseDistribution | None = None
    noise_multiplier: Positive | None = None
    target_epsilon: Positive | None = None
    target_delta: Annotated[float, Field(gt=0.0, lt=1.0)] = 1e-5
    accountant: Literal["auto", "exact", "pld", "rdp"] = "auto"
    noise_source: Literal["os", "seeded"] = "os"
    spare_attempts: Annotated[int, Field(ge=0)] = 0
    lifetime_budget: Positive | None = None


class SecureAggregationConfig(Section):
    """Pairwise-masked sums."""

    enabled: bool = False
    adversary: Literal["semi_honest", "active"] = "semi_honest"
    enrolment: str | None = None
    threshold: PositiveInt | None = None
    graph: Literal["auto", "complete", "k_regular"] = "auto"
    tolerated_dropout_rate: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    corrupt: Annotated[int, Field(ge=0)] = 0
    value_bound: Positive | None = None
    largest_weight: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    bits: Annotated[int, Field(ge=8, le=32)] = 20


class PoolConfig(Section):
    """The anonymised expert pool."""

    fetch: Literal["experts"] = "experts"
    noise: EntryNoise | None = None
    clipping_norm: Positive | None = None
    minimum: PositiveInt | None = None
    generations: PositiveInt = 1


class EvaluationConfig(Section):
    """What is measured, and when."""

    when: Literal["after_update"] = "after_update"
    protocol: Literal["client_mean", "base_to_novel", "leave_one_domain_out"] = "client_mean"
    selection: Literal["last", "best_on_validation"] = "last"
    release: Literal["none", "noised"] = "none"
    metric_ratio: Positive | None = None
    every: PositiveInt = 1
    local_twins: bool = True


class SeedConfig(Section):
    """Seeds that differ from the run's; None takes the run's seed."""

    class_map: int | None = None
    shots: int | None = None
    split: int | None = None
    validation: int | None = None
    initialisation: int | None = None
    cohort: int | None = None
    batches: int | None = None


class StorageConfig(Section):
    """The coordinator's database; run folders and the feature cache lie beside it."""

    url: str = "sqlite:///runs/sotto.db"
    cache_gib: Positive = 20.0


def default_threshold(clients: int) -> int:
    """Return Bonawitz et al. 2017: more than two thirds of the cohort, floor(2n/3) + 1."""
    return 2 * clients // 3 + 1


class RunSections(Section):
    """A whole run, section by section, and what follows from several of them."""

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")]
    seed: Annotated[int, Field(ge=0)] = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: PositiveInt = 1
    rounds: PositiveInt = 10
    phase_two_of: str | None = None
    task: TaskConfig = TaskConfig()
    method: MethodConfig
    training: TrainingConfig
    cohort: CohortConfig = CohortConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    secure_aggregation: SecureAggregationConfig = SecureAggregationConfig()
    pool: PoolConfig = PoolConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    seeds: SeedConfig = SeedConfig()
    storage: StorageConfig = StorageConfig()
    _mechanisms: Mechanisms = PrivateAttr(default=BUILT_IN)

    def model_post_init(self, context: Any, /) -> None:
        """Take the mechanisms that this configuration is checked against, where others are."""
        if context is not None:
            self._mechanisms = context[MECHANISMS]

    @property
    def mechanisms(self) -> Mechanisms:
        """All mechanisms that there are: rows of a ledger may name any of them."""
        return self._mechanisms

    @property
    def mechanism(self) -> Mechanism:
        """The run's.

        Raises:
            UnknownMechanism: There is none of the configured name, which is refused first.
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
    def cohort_rate(self) -> float:
        """Probability with which a client is drawn into a Poisson cohort."""
        return self.cohort_size / self.task.clients

    @property
    def has_secret_cohorts(self) -> bool:
        """Whether who is drawn is the coordinator's secret, for amplification.

        Only where a round's sum is released whoever came: a rule that opens it, or draws again,
        depending on how many were there hangs the whole sum on one client's coin.
        """
        drawn = self.cohort.sampling == "poisson" or self.cohort_size < self.task.clients
        amplifies = self.mechanism.facts.may_amplify
        always = self.cohort.minimum == 1 and self.cohort.retries == 0
        return drawn and amplifies and always and not self.secure_aggregation.enabled

    @property
    def noise_distribution(self) -> NoiseDistribution | None:
        """The law of the noise, by default the mechanism's usual one; None without noise."""
        if self.privacy.noise_distribution is not None:
            return self.privacy.noise_distribution
        return next(iter(self.mechanism.distributions), None)

    @property
    def lost_per_round(self) -> int:
        """Simulated dropouts in every round."""
        return round(self.cohort.dropout_rate * self.cohort_size)

    @property
    def threshold(self) -> int:
        """Smallest number of clients whose sum may be opened."""
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
