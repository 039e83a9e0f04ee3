"""All sections of a run's configuration, and the run with all of them.

Every section is frozen and refuses unknown keys. `configs --keys` and the page of keys show users
the text below a key.

Every number has an upper bound, far above every known use and low enough that such a run can begin.
A slip of a zero or of a unit gives an error at once, and costs neither an hour nor all memory.

Checks of one section are types and bounds. `RunConfig` checks sections together.
`platform.experiment.planning` checks the method's own options, which only its module knows.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from methods.plugins import Plugins
from platform.mechanisms import (
    BUILT_IN,
    KNOWN,
    EntryNoise,
    Mechanism,
    Mechanisms,
    NoiseDistribution,
)
from privacy import Relation

MOST_CLIENTS: Final = 100_000
"""Client names have five digits, so that sorting keeps their order."""
MOST_ROUNDS: Final = 100_000
"""Accountants and schedules look at all rounds first; published runs have up to 1,000."""
MOST_EXPERTS: Final = 10_000
"""Expert names in a message have four digits."""
LARGEST_SEED: Final = 2**63 - 1
"""Databases and YAML have signed 64-bit integers."""
LARGEST_REAL: Final = 1e6
"""Bound of norms, noise multipliers, epsilons and concentrations. Noise or data beyond it carry no
information, and squares in 32 bits are still exact to seven digits.
"""

Clients = Annotated[int, Field(ge=1, le=MOST_CLIENTS)]
ClientsOrNone = Annotated[int, Field(ge=0, le=MOST_CLIENTS)]
Rounds = Annotated[int, Field(ge=1, le=MOST_ROUNDS)]
RoundsOrNone = Annotated[int, Field(ge=0, le=MOST_ROUNDS)]
Experts = Annotated[int, Field(ge=1, le=MOST_EXPERTS)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Images = Annotated[int, Field(ge=1, le=10_000_000)]
"""Images of a client or a class; ImageNet has 14 million in all."""
Rendered = Annotated[int, Field(ge=1, le=100_000)]
"""Images of a class that are rendered for the run, each in a millisecond."""
Classes = Annotated[int, Field(ge=1, le=100_000)]
"""ImageNet-21k has 22 thousand."""
Threads = Annotated[int, Field(ge=1, le=1024)]
"""Machines have fewer CPUs than this bound."""
Epochs = Annotated[int, Field(ge=1, le=10_000)]
Steps = Annotated[int, Field(ge=1, le=1_000_000)]
"""Steps of one client in one round; the bound takes days with the smallest model."""
Batch = Annotated[int, Field(ge=1, le=65_536)]
"""Examples that one step holds in memory at once, each with its own gradient under `dp_sgd`."""
Directions = Annotated[int, Field(ge=1, le=65_536)]
"""Directions of a subspace, each as long as the upload; prompts have some 10,000 values."""
Retries = Annotated[int, Field(ge=0, le=1_000)]
"""Retries of one round, each with fresh keys and its own charge."""
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0, le=LARGEST_REAL, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0.0, le=1_000.0, allow_inf_nan=False)]
"""Learning rate; parameters begin at about 1."""
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
    """`sotto-tiny` or `sotto-glyphs`, which ship with Sotto, or the name of an open_clip model."""
    pretrained: str | None = None
    """Tag of an open_clip model, or path of a local checkpoint. Null for a model that ships."""


class PartitionConfig(Section):
    """How clients get the training and test images."""

    kind: Literal[
        "pathological",
        "iid",
        "dirichlet",
        "domain",
        "domain_dirichlet",
        "shared_ratio",
        "hierarchical_dirichlet",
    ] = "pathological"
    """`pathological`: the classes are cut into even, disjoint slices, one for each client. `iid`:
    all clients own all classes. `dirichlet`: clients get random shares of each class, the same
    shares of training and test images. `domain`: the i-th client gets the i-th domain that is not
    held out, so `task.clients` plus `task.new_clients` is the number of these domains, or 1: a
    client with all of them. This is the only kind for `client_folders`, whose domains are the
    clients' own folders. `domain_dirichlet` (pFedMoAP, section 5.1): each domain goes in random
    shares to equally many clients, in domain order, so `task.clients` is a multiple of the number
    of domains. `shared_ratio` (PM-MoE): training and test images are one pool, dealt out by
    `task.partition.shared_ratio`; each client then trains on three quarters of its images,
    shuffled by `seeds.split` and not class by class. `hierarchical_dirichlet` (published code's
    `noniid-labeldir100`), for `cifar100`: training and test images are one pool. Each client draws
    equally many, in random shares of superclasses and nearly even shares of the classes within
    each, and tests with the test images among them.
    `sotto datasets --show CONFIG` shows who has what.
    """
    alpha: Positive | None = None
    """Concentration of the Dirichlet distribution; smaller values make clients more unequal. Only
    under `dirichlet`, `domain_dirichlet`, `hierarchical_dirichlet` and `shared_ratio`. Null: 0.1
    under `shared_ratio`, else 0.5.
    """
    minimum: Images | None = None
    """Fewest training images of a client; null: 2. Under `shared_ratio` fewest images of a client
    in all; null, as published: 40, or half of an even part if that is less. Sotto draws up to 100
    times (for each domain) until all clients have so many. Only under `dirichlet`,
    `domain_dirichlet` and `shared_ratio`.
    """
    minimum_test: Images | None = None
    """Fewest test images of a client; null: 1. Published code asks for as many as training images:
    10 on CIFAR, 2 on domains. Only under `dirichlet` and `domain_dirichlet`.
    """
    slices: Literal["even", "rounded"] | None = None
    """How to cut C classes for N clients if N does not divide C. `even`: the slices differ by at
    most one class. `rounded`, as in published code of pFedMoAP and FedPGP: C / N classes, rounded,
    and the rest for the last client. Only under `pathological`. Null: `even`.
    """
    shared_classes: Fraction | None = None
    """Share of the classes, rounded to whole classes, that all clients own (FedPGP's repeat rate);
    clients share none of the images. Each other class has one owner. Only under `pathological`.
    """
    shared_ratio: Fraction | None = None
    """Share of each class's images that goes evenly to all clients; the last client gets the
    remainder. The other images go out in random shares. This is PM-MoE's S in [0, 1]: 0.2 for S =
    20. Required under `shared_ratio`, null elsewhere.
    """
    images_per_client: Images | None = None
    """Training images of each client, drawn without replacement from all of them, whatever their
    class; `task.validation_share` is a share of these. Only under `iid`, with `task.shots: null`.
    Null: `task.shots` of each class. Accuracies on own images leave out a client without a test
    image.
    """
    classes_per_client: Classes | None = None
    """Number of classes of each client; all classes have equally many owners, or one more. Each
    owner has `task.shots` images of the class, and no image goes to two clients. Only under
    `pathological`. Null: disjoint classes. Accuracies on own images leave out a client without a
    test image.
    """

    fewest_classes: Classes | None = None
    """Fewest classes among a client's training images. Null: 2 with few shots, because a single
    class teaches nothing about others, else 1. Set 1 if few-shot clients may hold a single class,
    as one of FedPGP's ten clients on OxfordPets does, and the method learns from it.
    """

    @property
    def concentration(self) -> float:
        """Alpha of the Dirichlet distribution, by default that of pFedMoAP, or of PM-MoE."""
        usual = 0.1 if self.kind == "shared_ratio" else 0.5
        return usual if self.alpha is None else self.alpha

    @property
    def fewest(self) -> int | None:
        """Fewest images of a client; None if the size of the data decides."""
        usual = None if self.kind == "shared_ratio" else 2
        return usual if self.minimum is None else self.minimum


class TaskConfig(Section):
    """Data, clients and model."""

    dataset: str = "shapes"
    """Name of a data set that `sotto datasets` lists."""
    root: str = "data"
    """Folder in which the data set's own folder lies; for `images`, `folders` and `client_folders`
    the folder of the images itself. Unused by data sets that come with the program.
    `sotto datasets --check NAME --root DIR` finds what is wrong with it.
    """
    layout: Layout | None = None
    """Layout of `task.root`, if it has two readings; only for `images`. `class_folders`:
    `CLASS/IMAGE`. `split_folders`: `train/CLASS/IMAGE` with `test/` or `val/`. `domain_folders` and
    `client_folders`: one of these two in a folder for each domain or client. `table`: a CSV file
    with the columns path and label. `split_file`: CoOp's JSON. `saved`: a data set that Hugging
    Face's `datasets` saved to disk. Null: Sotto recognises the layout and prints it.
    """
    class_names: str | None = None
    """File with words for the classes of `images` or `client_folders`, for folder names that are
    codes: lines such as `n02084071 dog`, or a JSON object. Null: `class_names.txt` or
    `class_names.json` beside the images, if there is such a file.
    """
    domains: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Domains to use. Null: all."""
    clients: Clients = 10
    """Number of clients in the federation."""
    new_clients: ClientsOrNone = 0
    """Number of clients beyond `task.clients` that hold data of the same partition and take part in
    no round. They are measured at the end.
    """
    shots: Images | None = 16
    """Training images per owned class and client; a class with fewer gives all. `null` takes all
    images. Under `domain` a number is per class of the client's domain. Under `dirichlet` and
    `domain_dirichlet` it is per class (of each domain) **in all**, shared out among the clients, so
    that the volume is that of `pathological`. Under `shared_ratio` it is per class in all, training
    and test images together. Sotto refuses a number that no class can serve, and shots of a single
    class for a client, unless `task.partition.fewest_classes` is 1. Under `domain` it refuses
    neither, as clients have what their folders hold; but mechanisms that count records need `null`
    there, as one more record would displace another. `task.partition.images_per_client` needs
    `null`.
    """
    validation_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Chance of each training image to be a validation image. A keyed hash of its bytes decides, so
    that one more image moves no other. A client whose folder has a place for validation images uses
    those instead.
    """
    test_per_class: Rendered = 60
    """Test images per class, over all domains; only for `shapes`, `homonyms`, `headlines` and
    `handwriting_tuning`, which takes them out of its pool.
    """
    senses: str | None = None
    """The sense in which clients see the names of `homonyms`, or the hand of `handwriting`; only
    there. `garden`, `harbour`, `kitchen` or `theatre`; `left_thin`, `left_thick`, `right_thin` or
    `right_thick`: this one for all. Null: `garden`, or the images as they are. `styles`: styles of
    one kind (surfaces, flat colours, lines) share a sense. `clients`: clients have the four in
    turn, and new clients go on where the others end.
    """
    partition: PartitionConfig = PartitionConfig()
    held_out_domain: str | None = None
    """Target domain of `leave_one_domain_out`; required there, null elsewhere. No client trains on
    its images; its test images measure every client.
    """
    model: ModelConfig | None = ModelConfig()
    """The CLIP model. `null`: no CLIP model, for methods that bring their own network (for pixels
    of their own size, or for texts). Sotto then refuses methods that need features, tokens or a
    model's pixels.
    """

    @property
    def dealt(self) -> str:
        """How the data set is dealt out, as captions say it."""
        section, senses = self.partition, self.senses
        given = section.model_dump(mode="json", exclude={"kind"}, exclude_none=True)
        if "dirichlet" in section.kind or section.kind == "shared_ratio":
            given["alpha"] = section.concentration
        parts = [section.kind.replace("iid", "IID").replace("dirichlet", "Dirichlet")]
        parts += (f"{name} {value}" for name, value in given.items())
        if self.shots is not None:
            parts.append(f"{self.shots} shots")
        elif section.images_per_client is None:
            parts.append("all training examples")
        return ", ".join(parts).replace("_", " ") + (f", senses: {senses}" if senses else "")


class PublicDataConfig(Section):
    """Images of the task's classes that the user declares public; no client holds them."""

    dataset: str | None = None
    """A data set that `sotto datasets` lists, with exactly the task's classes. Null: the task's."""
    root: str | None = None
    """Folder in which the data set's own folder lies, without any client's images. Null:
    `task.root`. Unused by `shapes` and `homonyms`, whose public images are rendered separately.
    """
    per_class: Rendered = 16
    """Number of images of each class; a class with fewer gives all."""
    seed: Seed = 0
    """Seed that chooses the images, or renders them for `shapes` and `homonyms`."""


class MethodConfig(BaseModel):
    """The method's name and its options, which its own `Config` validates."""

    model_config = ConfigDict(
        frozen=True, extra="allow", strict=True, use_attribute_docstrings=True
    )

    name: str
    """A method that `sotto methods` lists; the section's other keys are its own options."""
    server_optimizer: dict[str, Any] | None = None
    """How the server applies a mean change, for any averaged method (Reddi et al. 2021).

    `{name: sgd, learning_rate, momentum}`, or `name` `adagrad`, `adam` or `yogi` with
    `learning_rate`, `beta_1`, `tau` and (not for `adagrad`) `beta_2`. Null: it adds the change.
    """

    @property
    def options(self) -> dict[str, Any]:
        """The method's own options: all keys but the name and the server's optimiser."""
        return dict(self.model_extra or {})


class CohortConfig(Section):
    """The clients of a round."""

    size: Clients | None = None
    """Number of clients that are invited to a round. Null: all."""
    minimum: Clients = 2
    """Fewest survivors of a valid round. Amplification by cohorts needs 1."""
    sampling: Literal["fixed_size", "poisson"] = "fixed_size"
    """`fixed_size`: exactly `cohort.size` clients. `poisson`: each client by its own coin,
    `cohort.size` on average. Both amplify only against the observer of `central_noise`, and only
    without masks, with `cohort.minimum: 1` and `cohort.retries: 0`; otherwise Sotto refuses
    `poisson`. See docs/privacy.md.
    """
    retries: Retries = 2
    """How often Sotto repeats an aborted round, with another cohort, fresh keys and, if uploads
    were asked for, its own charge. Then the run stops and can be resumed. Amplification by cohorts
    needs 0. Without noise on the client (`none`, `central_noise`) a masked round is not repeated
    once uploads were asked for: it stays without a result.
    """
    dropout_rate: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Simulation only: share of the cohort, rounded to whole clients, that is lost between key
    sharing and masked input in every round. With amplification by cohorts each client is lost with
    this probability, by its own coin.
    """


class EvaluationConfig(Section):
    """What is measured, and when."""

    when: Literal["after_update"] = "after_update"
    """After the server's update, with the new broadcast and each client's own personal part."""
    protocol: Literal["client_mean", "all_classes", "base_to_novel", "leave_one_domain_out"] = (
        "client_mean"
    )
    """Test images that measure the final models. `client_mean`: each client's own. `all_classes`:
    those of all clients, in the client's own sense under `task.senses: clients`, and at the end
    also its own. See docs/configuration.md for `base_to_novel` and `leave_one_domain_out`; under
    these two, rounds are measured by `client_mean`, unless one round is to be chosen.
    """
    selection: Literal["last", "best_on_validation"] = "last"
    """`last`: the report states the last round. `best_on_validation`: also the best round."""
    release: Literal["none", "noised"] = "none"
    """`none`: no metric leaves a client; a simulation reads them. `noised`: each upload carries the
    client's validation accuracy as one more noised coordinate.
    """
    metric_ratio: Positive | None = None
    """Bound of the accuracy's coordinate, divided by C; only under `noised`. Null: 1."""
    every: Rounds = 1
    """Number of rounds from one measurement to the next. Sotto always measures the last round."""
    measured_clients: Clients | None = None
    """Number of clients that are measured and trained alone, drawn by `seed` from those that have
    test images. Null: all clients. New clients are always measured.
    """
    local_twins: bool = True
    """Whether every client also trains alone at the end, which costs as much training as the run.
    If false, `local` and `gain_over_local` in the summary are null.
    """
    at_home: Literal["shared", "own", "both", "select"] = "shared"
    """Head of a client after the last release. `shared`: the method's. `own`: means of its own
    image features for its own classes. `both`: the method says whether a class is one of these, the
    means say which. `select`: `own` or `shared`, by its own images; the summary's `expert_weights`
    then says how many chose `own`.
    """
    worth_of_sharing: bool = True
    """Whether Sotto repeats the run at the end with uploads of zeros, once with its noise and once
    without, for up to twice its training. If false, the summary's `worth_of_sharing` is null.
    """


class SeedConfig(Section):
    """Seeds that differ from the run's; null takes the run's seed."""

    class_map: Seed | None = None
    """Decides which client owns which classes, or which share of them. Null: `seed`."""
    shots: Seed | None = None
    """Decides which images of a class clients get. Null: `seed`."""
    split: Seed | None = None
    """Decides which of its images each client tests with, under `shared_ratio`, and which images
    are test images if the files do not tell. Null: `seed`.
    """
    validation: Seed | None = None
    """Decides which training images are held back for validation. Null: `seed`."""
    initialisation: Seed | None = None
    """Decides the values that training starts from. Null: `seed`."""
    cohort: Seed | None = None
    """Decides which clients are drawn, and which are lost. Null: `seed`."""
    batches: Seed | None = None
    """Decides the order of examples in training. Null: `seed`."""


class StorageConfig(Section):
    """The coordinator's database; run folders and the feature cache lie beside it."""

    url: str = "sqlite:///runs/sotto.db"
    """Address of the coordinator's database; run folders and the feature cache lie beside it."""
    cache_gib: Gibibytes = 20.0
    """Largest size of the feature cache in GiB; entries that were unused for longest go first."""


Share = Annotated[float, Field(gt=0.0, le=1.0)]
Beta = Annotated[float, Field(ge=0.0, lt=1.0)]
ADAM_BETAS = (0.9, 0.999)
ADAM_EPS = 1e-8
"""The defaults of Kingma and Ba 2015, Algorithm 1, and of torch."""


class ScheduleConfig(Section):
    """The factor of a round's learning rates: a function of the round's number alone."""

    kind: Literal["constant", "exponential", "cosine"] = "constant"
    """After warm-up: `constant` keeps the rates. `exponential` multiplies the rates of the round
    before by `gamma`. `cosine` lets the rates fall to `final` of them along half a cosine; the last
    of `rounds` comes one step before its end (Loshchilov and Hutter 2017, Eq. 5).
    """
    gamma: Share | None = None
    """Factor from one round to the next. Required under `exponential`, null elsewhere."""
    final: Fraction | None = None
    """Share of the rates to which the cosine falls; only under `cosine`. Null: 0."""
    rounds: Rounds | None = None
    """Rounds of warm-up and cosine together, at least those of the run; only under `cosine`. Null:
    those of the run.
    """
    warm_up_rounds: RoundsOrNone = 0
    """Number of rounds before those of `kind`, which starts after them."""
    warm_up_factor: Share | None = None
    """Factor of all warm-up rounds; only if there are some. Null: it grows evenly, to 1 in the
    first round after them (Goyal et al. 2017, section 2.2).
    """

    def factor(self, round_number: int, rounds: int) -> float:
        """Return the factor, in (0, 1], of all learning rates in a round from 1 to `rounds`."""
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
    """Optimiser of local training; it starts anew in every round."""
    local_epochs: Epochs | None = None
    """Epochs of local training in a round: give exactly one of this and `local_steps`."""
    local_steps: Steps | None = None
    """Steps of local training in a round: give exactly one of this and `local_epochs`."""
    batch_size: Batch = 16
    """Number of examples in a step."""
    learning_rate: Rate = 0.002
    """Learning rate of the prompts; a method may have other rates in its own section."""
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Momentum of `sgd`; 0 with any other optimiser."""
    weight_decay: Decay = 0.0
    """Weight decay of the optimiser."""
    betas: tuple[Beta, Beta] | None = None
    """Shares of the mean gradient and of the mean square that a step of `adam` or `adamw` keeps;
    null: 0.9 and 0.999. Must be null under `sgd`.
    """
    eps: Positive | None = None
    """Number that `adam` and `adamw` add to the root by which they divide; null: 1e-8. Must be null
    under `sgd`.
    """
    schedule: ScheduleConfig | None = None
    """Schedule of all learning rates over rounds, a method's own included. Training after the last
    round (personalising, an entry of a pool that is made once) has the plain rates. Null: constant.
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
    """The clients' names, as in their own configurations. `task.clients` is their number."""
    classes: Annotated[tuple[ClassName, ...], Field(min_length=1)]
    """All classes, in label order. The list is public and fixed in advance; a client may have
    images of only some.
    """
    socket: str = "runs/hub.sock"
    """Path of the Unix socket at which relays reach the coordinator."""
    phase_seconds: Seconds = 60.0
    """Seconds for a message without training, there and back. A slower client is lost in that
    round.
    """
    training_seconds: Seconds = 900.0
    """Seconds for a message that makes clients train or personalise, there and back."""
    joining_seconds: Seconds = 600.0
    """Seconds for which the coordinator waits at its start until all clients are there."""
    start_with: Clients | None = None
    """Number of clients that must have accepted before the first round. A later client joins
    between rounds and counts as lost until then. At least as many as a round needs; null if cohorts
    are drawn in secret. Null: all.
    """
    go_on_with: Clients | None = None
    """Number of clients whose updates end the wait for a round's training. A slower client counts
    as lost in that round, so a cohort may be larger than a round needs (over-selection). At least
    as many as a round needs; null if cohorts are drawn in secret. Null: all.
    """


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

    _mechanisms: Mechanisms = PrivateAttr(default=KNOWN)

    def model_post_init(self, context: Any, /) -> None:
        """Take the mechanisms of the validation's context, if it has any."""
        if context is not None:
            self._mechanisms = context[MECHANISMS]

    @property
    def mechanisms(self) -> Mechanisms:
        """All mechanisms; rows of a ledger may name any of them."""
        return self._mechanisms

    @property
    def plugins(self) -> Plugins:
        """Code from outside that the configuration may name."""
        return self._mechanisms.plugins

    @property
    def mechanism(self) -> Mechanism:
        """The run's mechanism; a rule has refused an unknown name."""
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
