"""The sections on data, clients, training and evaluation, which have nothing on privacy.

Every section is frozen and refuses unknown keys. Users read the text below a key in
`configs --keys` and on the page of keys.

Every number has an upper bound, far above every known use and low enough that such a run can begin.
A slip of a zero or of a unit gives an error at once, and costs neither an hour nor the machine's
whole memory.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

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


Layout = Literal[
    "class_folders",
    "split_folders",
    "domain_folders",
    "client_folders",
    "table",
    "split_file",
    "saved",
]


class Section(BaseModel):
    """A frozen part of the tree."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )


class ModelConfig(Section):
    """The frozen CLIP: an open_clip model name with a pretrained tag or a local checkpoint."""

    name: str = "sotto-tiny"
    """The model that ships, or any open_clip model name."""
    pretrained: str | None = None
    """An open_clip tag, or a local checkpoint; null for the model that ships."""


class PartitionConfig(Section):
    """How the training and test images are dealt out to clients."""

    kind: Literal[
        "pathological",
        "iid",
        "dirichlet",
        "domain",
        "domain_dirichlet",
        "shared_ratio",
        "hierarchical_dirichlet",
    ] = "pathological"
    """`pathological`: disjoint classes, evenly; `iid`: all classes everywhere; `dirichlet`: of each
    class random shares, the same for training and test images; `domain`: the i-th client holds the
    i-th domain that is not held out, so `task.clients` (with `task.new_clients`) is their number
    (the only kind for `client_folders`, whose domains are the clients' own folders);
    `domain_dirichlet`: as many clients on each domain, in domain order, and random shares within
    it, so `task.clients` is a multiple of their number (pFedMoAP, section 5.1); `shared_ratio`:
    training and test images are one pool, dealt out by `shared_ratio`, of which each client then
    keeps three quarters for training (PM-MoE; a shuffle by `seeds.split`, not class by class);
    `hierarchical_dirichlet`: of `cifar100`, training and test images are one pool, of which each
    client draws as many, by random shares of superclasses and, within each, nearly even shares of
    classes, and tests with the test images among its own (published code's `noniid-labeldir100`).
    `datasets --show CONFIG` shows who has what.
    """
    alpha: Positive | None = None
    """Concentration of the Dirichlet distribution, small is unequal; only under `dirichlet`,
    `domain_dirichlet`, `hierarchical_dirichlet` and `shared_ratio`. Null: 0.5, and 0.1 under
    `shared_ratio`.
    """
    minimum: Images | None = None
    """Fewest training images of a client, who has a test image as well; null: 2. Under
    `shared_ratio` fewest images of a client in all; null: 40 or half its even part if that is less,
    as published. Only under the random kinds, which draw up to 100 times (for each domain) until it
    holds.
    """
    minimum_test: Images | None = None
    """Fewest test images of a client under `dirichlet` and `domain_dirichlet`; null: 1. Published
    loops ask for as many as of training images: 10 on CIFAR, 2 on domains.
    """
    slices: Literal["even", "rounded"] | None = None
    """How disjoint classes are cut where clients do not divide them: `even` slices differ by one;
    `rounded`, as in published code of pFedMoAP and FedPGP, are C / N classes, rounded, and what is
    left for the last client; only under `pathological`. Null: even.
    """
    shared_classes: Fraction | None = None
    """Share of the classes, rounded to whole ones, that all clients own, their images being
    disjoint; the others are dealt out as ever (FedPGP's repeat rate); only under `pathological`.
    """
    shared_ratio: Fraction | None = None
    """Share of each class's images that is dealt out evenly, what is left over going to the last
    client, and the rest in random shares: PM-MoE's S in [0, 1], so 0.2 for S = 20; required under
    `shared_ratio` only.
    """
    images_per_client: Images | None = None
    """Training images of each client, drawn at random without replacement from all of them,
    whatever their class, and validation images likewise; only under `iid`, with `task.shots: null`.
    Null: `task.shots` of each class. A client that comes to have no test image is left out of
    accuracy on own ones.
    """
    classes_per_client: Classes | None = None
    """Classes of each client, drawn so that all classes have as many owners, or one more; each
    owner has `task.shots` of it, and no image goes to two; only under `pathological`. Null:
    disjoint classes. A client that comes to have no test image is left out of accuracy on own ones.
    """

    fewest_classes: Classes | None = None
    """Of how many classes a client has training images at least; null: two under few shots (as one
    class alone tells nothing of others), else one. 1 lets few-shot clients hold a single class, as
    one of FedPGP's ten on OxfordPets does, where the method learns from it.
    """

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
    """Any that `datasets` lists."""
    root: str = "data"
    """Folder that holds the data sets' own folders, of `images`, `folders` and `client_folders`
    that of the images itself; unused by `shapes`, `homonyms`, `digits` and `headlines`.
    `datasets --check NAME --root DIR` says what is right and wrong with it.
    """
    layout: Layout | None = None
    """What `task.root` looks like, where it could be read in two ways, of `images` only:
    `class_folders` (`CLASS/IMAGE`), `split_folders` (`train/CLASS/IMAGE` with `test/` or `val/`),
    `domain_folders` or `client_folders` (either of these in a folder for each), `table` (a CSV file
    with the columns path and label), `split_file` (CoOp's JSON), `saved` (a data set of Hugging
    Face on disk). Null: recognised, and said.
    """
    class_names: str | None = None
    """File of words for the classes of `images` or `client_folders`, as names of folders often are
    none: `n02084071 dog` in each line, or a JSON object. Null: `class_names.txt` or
    `class_names.json` beside the images, if there is one.
    """
    domains: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Domains to use; null: all."""
    clients: Clients = 10
    """Clients in the federation."""
    new_clients: ClientsOrNone = 0
    """Clients beyond `task.clients` who hold data of the same partition and never take part in a
    round; measured at the end.
    """
    shots: Images | None = 16
    """Training images per owned class and client, fewer where a class has fewer ("all if fewer");
    `null` takes all; under `domain` per class, as each client has one domain; under `dirichlet` and
    `domain_dirichlet` per class (of each domain) **in all**, shared out among the clients, so that
    the volume is that of `pathological`; under `shared_ratio` per class in all, training and test
    images together. A number that no class can serve is refused, and so are clients with shots of a
    single class, unless `task.partition.fewest_classes` is 1; not under `domain`, where clients
    have what their own folders hold, and where mechanisms that count records need `null`, as one
    record more would displace another. `null` with `task.partition.images_per_client`.
    """
    validation_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Each training image's chance to be for validation, by a keyed hash of its bytes, so that one
    image more moves no other; a client whose folder has a place for validation images has those
    instead.
    """
    test_per_class: Rendered = 60
    """Test images per class, over all domains (`shapes`, `homonyms` and `headlines` only)."""
    senses: str | None = None
    """What the names of `homonyms` mean, and to whom; only there. A sense's name (`garden`,
    `harbour`, `kitchen`, `theatre`): that one for all, null: the first; `styles`: styles of one
    kind (surfaces, flat colours, lines) share a sense; `clients`: the i-th client has the i-th
    sense, over and over, new clients going on where the others end.
    """
    partition: PartitionConfig = PartitionConfig()
    held_out_domain: str | None = None
    """The target of `leave_one_domain_out`, and needed there only: none of its training images is
    dealt out; its test images measure every client.
    """
    model: ModelConfig | None = ModelConfig()
    """`null`: no CLIP model, for methods that bring their own network (pixels of their own size, or
    texts); a method that needs features, tokens or a model's pixels is refused.
    """


class PublicDataConfig(Section):
    """Images that the user declares public: of the task's classes, and none of the clients'."""

    dataset: str | None = None
    """Any that `datasets` lists and that has exactly the task's classes; null: the task's own."""
    root: str | None = None
    """Folder that holds its own folder, which is not one that clients' images lie in; null:
    `task.root`. Unused by `shapes` and `homonyms`, whose public images are rendered apart.
    """
    per_class: Rendered = 16
    """Images of each class, fewer where a class has fewer."""
    seed: Seed = 0
    """Which images; of `shapes` and `homonyms` they are drawn from it."""


class MethodConfig(BaseModel):
    """The method's name and its options, which its own `Config` validates."""

    model_config = ConfigDict(
        frozen=True, extra="allow", strict=True, use_attribute_docstrings=True
    )

    name: str
    """Any that `methods` lists; the section's other keys are the method's own options."""
    server_optimizer: dict[str, Any] | None = None
    """What the server makes of a mean change, for any averaged method (Reddi et al. 2021).

    `{name: sgd, learning_rate, momentum}`, or `name` `adagrad`, `adam` or `yogi` with
    `learning_rate`, `beta_1`, `tau` and, but for `adagrad`, `beta_2`; null adds the change.
    """

    @property
    def options(self) -> dict[str, Any]:
        """The method's own: everything but the name and the server's optimiser."""
        return dict(self.model_extra or {})


class CohortConfig(Section):
    """Who takes part in a round."""

    size: Clients | None = None
    """Clients invited to a round; null: all."""
    minimum: Clients = 2
    """Fewest survivors of a valid round; 1 where cohorts are to amplify."""
    sampling: Literal["fixed_size", "poisson"] = "fixed_size"
    """`fixed_size`: exactly `cohort.size` clients; `poisson`: each on a coin of its own,
    `cohort.size` on average. Both amplify against the observer of `central_noise` only, and only
    without masks, with `cohort.minimum: 1` and `cohort.retries: 0`; otherwise `poisson` is refused.
    See docs/privacy.md.
    """
    retries: Retries = 2
    """How often an aborted round is tried again, with another cohort, fresh keys and, if uploads
    were asked for, a charge of its own; then the run stops and can be resumed; 0 where cohorts are
    to amplify. A masked round without noise on the client (`none`, `central_noise`) is not tried
    again once uploads were asked for: it stays without a result.
    """
    dropout_rate: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Simulation: share of the cohort, rounded to whole clients, that is lost between key sharing
    and masked input in every round; of cohorts that are to amplify each client is lost with this
    probability, on a coin of its own.
    """


class EvaluationConfig(Section):
    """What is measured, and when."""

    when: Literal["after_update"] = "after_update"
    """After the server's update, with the new broadcast and everybody's own personal part."""
    protocol: Literal["client_mean", "all_classes", "base_to_novel", "leave_one_domain_out"] = (
        "client_mean"
    )
    """What the final models are measured on: `client_mean`, each client's own test images;
    `all_classes`, all test images of all clients, in the client's own sense under
    `task.senses: clients`, and at the end its own ones beside them; the others are below. Rounds
    are measured by `client_mean` under these others, unless one is to be chosen.
    """
    selection: Literal["last", "best_on_validation"] = "last"
    """`last`: the last round is reported. `best_on_validation`: the best round beside it."""
    release: Literal["none", "noised"] = "none"
    """`none`: no metric leaves a client; a simulation reads them. `noised`: each upload carries the
    client's validation accuracy as one more noised coordinate.
    """
    metric_ratio: Positive | None = None
    """Bound of that coordinate over C; only under `noised`. Null: 1."""
    every: Rounds = 1
    """Rounds between measurements; the last one is always measured."""
    measured_clients: Clients | None = None
    """How many clients are measured and trained alone, drawn at random by `seed` among those that
    have test images, in place of all of them (null). New clients are always measured.
    """
    local_twins: bool = True
    """Whether every client is also trained alone at the end, which costs as much training as the
    run; without, `local` and `gain_over_local` in the summary are null.
    """
    worth_of_sharing: bool = True
    """Whether the run is repeated at the end with uploads of zeros, once with its noise and once
    without, which costs up to twice its training; without, it is null in the summary.
    """


class SeedConfig(Section):
    """Seeds that differ from the run's; None takes the run's seed."""

    class_map: Seed | None = None
    """Which client owns which classes, or what share of them."""
    shots: Seed | None = None
    """Which images of a class are taken."""
    split: Seed | None = None
    """Which of its images each client tests with, under `shared_ratio`; which of all images are
    test images, where files tell no split.
    """
    validation: Seed | None = None
    """Which training images are held back."""
    initialisation: Seed | None = None
    """What training starts from."""
    cohort: Seed | None = None
    """Who is drawn, and who is lost."""
    batches: Seed | None = None
    """The order of examples."""


class StorageConfig(Section):
    """The coordinator's database; run folders and the feature cache lie beside it."""

    url: str = "sqlite:///runs/sotto.db"
    """The coordinator's database; run folders and the feature cache lie beside it."""
    cache_gib: Gibibytes = 20.0
    """Most GiB that the feature cache may take; what was not used for longest goes first."""


Share = Annotated[float, Field(gt=0.0, le=1.0)]
Beta = Annotated[float, Field(ge=0.0, lt=1.0)]
ADAM_BETAS = (0.9, 0.999)
ADAM_EPS = 1e-8
"""Kingma and Ba 2015, Algorithm 1, which are torch's own."""


class ScheduleConfig(Section):
    """By which factor of its rate a round trains: a function of the round's number alone."""

    kind: Literal["constant", "exponential", "cosine"] = "constant"
    """After warm-up: `constant`, the rates as they are; `exponential`, `gamma` times those of the
    round before; `cosine`, falling from the rates to `final` of them along half a cosine, the last
    of whose `rounds` comes one step before its end (Loshchilov and Hutter 2017, Eq. 5).
    """
    gamma: Share | None = None
    """Factor from one round to the next; required under `exponential` only."""
    final: Fraction | None = None
    """Share of the rates that the cosine falls to; only under `cosine`. Null: 0."""
    rounds: Rounds | None = None
    """Rounds that warm-up and cosine take together, at least as many as the run has; only under
    `cosine`. Null: the run's own.
    """
    warm_up_rounds: RoundsOrNone = 0
    """Rounds before those of `kind`, which counts from the first one after them."""
    warm_up_factor: Share | None = None
    """Factor in all of these rounds; only with some. Null: it grows evenly, to 1 in the first round
    after them (Goyal et al. 2017, section 2.2).
    """

    def factor(self, round_number: int, rounds: int) -> float:
        """Return the factor of all learning rates in a round, in (0, 1].

        Args:
            round_number: From 1 to `rounds`.
            rounds: Number of the run's rounds.
        """
        if round_number <= self.warm_up_rounds:
            growing = round_number / (self.warm_up_rounds + 1)
            return growing if self.warm_up_factor is None else self.warm_up_factor
        past = round_number - self.warm_up_rounds - 1
        if self.kind == "exponential":
            return float((1.0 if self.gamma is None else self.gamma) ** past)
        if self.kind == "cosine":
            length, final = (self.rounds or rounds) - self.warm_up_rounds, self.final or 0.0
            return final + (1.0 - final) * (1.0 + math.cos(math.pi * past / length)) / 2.0
        return 1.0

    def least(self, rounds: int) -> float:
        """Return the smallest factor of a run with this many rounds."""
        return min(self.factor(number, rounds) for number in range(1, rounds + 1))


class TrainingConfig(Section):
    """Local training, with an optimiser that starts anew in every round."""

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """Of local training; starts anew in every round."""
    local_epochs: Epochs | None = None
    """Amount of local training in a round: exactly one of this and `local_steps`."""
    local_steps: Steps | None = None
    """Amount of local training in a round: exactly one of this and `local_epochs`."""
    batch_size: Batch = 16
    """Examples a step."""
    learning_rate: Rate = 0.002
    """Of the prompts; a method may name other rates in its own section."""
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Of `sgd` only."""
    weight_decay: Decay = 0.0
    """Of the optimiser."""
    betas: tuple[Beta, Beta] | None = None
    """How much of the mean gradient, and of the mean square, a step of `adam` or `adamw` keeps;
    null: 0.9 and 0.999 there, and nothing under `sgd`.
    """
    eps: Positive | None = None
    """What `adam` and `adamw` add to the root that they divide by; null: 1e-8 there, and nothing
    under `sgd`.
    """
    schedule: ScheduleConfig | None = None
    """Of all learning rates over rounds, a method's own included; what is trained after the last
    round (personalising, an entry of a pool that is made once) has the rates as they are. Null:
    constant.
    """

    @model_validator(mode="after")
    def _one_amount(self) -> Self:
        if (self.local_epochs is None) == (self.local_steps is None):
            raise ValueError("give exactly one of local_epochs and local_steps")
        return self

    @property
    def effective_betas(self) -> tuple[float, float]:
        """Adam's betas, by default the usual ones."""
        return ADAM_BETAS if self.betas is None else self.betas

    @property
    def effective_eps(self) -> float:
        """Adam's epsilon, by default the usual one."""
        return ADAM_EPS if self.eps is None else self.eps

    def factor(self, round_number: int | None, rounds: int) -> float:
        """Return the factor of all learning rates in a round; None is after the last round."""
        if self.schedule is None or round_number is None:
            return 1.0
        return self.schedule.factor(round_number, rounds)


ClientName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
ClassName = Annotated[str, Field(min_length=1, max_length=200)]


class FederationConfig(Section):
    """Clients that are processes of their own, each with its own data; see `federation.clients`."""

    clients: Annotated[tuple[ClientName, ...], Field(min_length=1)]
    """The clients' names, as each client's own configuration states its name; `task.clients` is
    their number.
    """
    classes: Annotated[tuple[ClassName, ...], Field(min_length=1)]
    """All classes, in label order. The list is public and fixed in advance; a client need not have
    images of each.
    """
    socket: str = "runs/hub.sock"
    """Path of the Unix socket at which relays reach the coordinator."""
    phase_seconds: Seconds = 60.0
    """How long a message without training may take, there and back; a client that takes longer is
    lost in that round.
    """
    training_seconds: Seconds = 900.0
    """The same where clients train or personalise."""
    joining_seconds: Seconds = 600.0
    """How long the coordinator waits at its start for all clients to be there."""
    start_with: Clients | None = None
    """How many clients must have accepted before the first round; whoever comes later joins between
    rounds and counts as lost until then. At least as many as a round needs, and not where cohorts
    are drawn in secret. Null: all.
    """
    go_on_with: Clients | None = None
    """How many clients' updates end the wait for a round's training: who is slower counts as lost
    in that round, so a cohort may be larger than what a round needs (over-selection). At least as
    many as a round needs, and not where cohorts are drawn in secret. Null: all.
    """
