"""What a federated method is: the one interface that every method of this package implements.

A method is a small value with pure functions: state goes in, state comes out. A method never learns
who a client is, draws no noise, opens no file and sends nothing; the platform does all of that.
Names mapped to arrays (`Arrays`) cross the boundary, so every state can be stored and sent without
pickle.

The file has, in this order: marks for options of a method's `Config`; what leaves a client, tensor
by tensor; the trainer, by which a method's parameters meet a client's data; the method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_type_hints

import numpy as np
from numpy.typing import NDArray

from methods.errors import MethodError

if TYPE_CHECKING:
    from torch import Tensor

    Penalty = Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], Tensor]
    """A data-free term of a loss: parameters and what `Objective.encode` made of them, to ()."""
    from methods.clip.adapter import Backbone


@dataclass(frozen=True)
class OptionsOf:
    """Marks an option that holds the options of the method that another option names.

    In a configuration it is a section of its own, which the platform validates against that
    method's `Config`. `build` gets that `Config`.

    Attributes:
        option: The option that names the method.
    """

    option: str


@dataclass(frozen=True)
class CountsWith:
    """Marks an option that has an effect only while another option has a certain value.

    Where a user set the option and it has no effect, the platform says so before the run. An option
    may have several of these marks; all must hold.

    Attributes:
        option: The other option of the same `Config`, or with a dot a key of the run, such as
            `privacy.personal`.
        values: Its values with which the marked option has an effect; empty for any but null, false
            and 0.
    """

    option: str
    values: tuple[object, ...] = ()

    def holds(self, value: object) -> bool:
        """Return whether the marked option counts with this value of the other one."""
        return value in self.values if self.values else bool(value)

    @property
    def wanted(self) -> str:
        """What the other option must be, in words."""
        return " or ".join(map(str, self.values)) or "another value"


@dataclass(frozen=True)
class CountsUpTo:
    """Marks a number that has an effect only up to another number of the run.

    Attributes:
        key: The run's number, such as `rounds` or `task.clients`.
        so: What happens where the option is larger; the platform says so before the run.
    """

    key: str
    so: str


@dataclass(frozen=True)
class UpToClients:
    """Marks a number that `Registry.build` refuses above the number of clients, or of the others.

    Attributes:
        others: Whether the client itself does not count.
    """

    others: bool = False


def marks_of(kind: type[Any]) -> Iterator[tuple[str, object]]:
    """Yield the name of every option of a `Config` with each of its marks."""
    for key, hint in get_type_hints(kind, include_extras=True).items():
        for mark in getattr(hint, "__metadata__", ()):
            yield key, mark


@dataclass(frozen=True, eq=False)
class Groups:
    """How many clients of a sum are in each group, as the noised sum says.

    Attributes:
        counts: (K,), with noise, so numbers may be negative.
        floor: Smallest number that divides a group's sum, and smallest count that moves a group's
            expert. It is fixed before the first release.
    """

    counts: NDArray[np.float64]
    floor: float


class Weighting(StrEnum):
    """How one shared tensor is combined over the clients of a round."""

    EXAMPLES = "examples"
    """Mean weighted by the number of examples (uniform under a privacy mechanism)."""
    UNIFORM = "uniform"
    """Plain mean."""
    SUM = "sum"
    """Plain sum."""


class Source(StrEnum):
    """The source from which a method makes one tensor of an update."""

    TRAINING = "training"
    """The difference that training steps made: zero without steps."""
    PERSONAL = "personal"
    """Training steps and, as the paper says, what the client kept from earlier rounds."""
    GRADIENT = "gradient"
    """The mean of something that each example has, such as its gradient at the broadcast."""
    STATISTIC = "statistic"
    """Another summary of the client's data, such as the shares of its classes."""


@dataclass(frozen=True)
class TensorSpec:
    """Shape, dtype, combination rule and source of one array that leaves a client.

    `cone` promises that the array itself leaves (no difference), and that of each so many numbers
    the first is at least the length of the others: (h, s) with h >= |s|. With 1, that no number is
    negative. The platform enforces this before it clips; replacing a client then moves a sum by
    sqrt(2) C instead of 2 C. None promises nothing.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    weighting: Weighting = Weighting.EXAMPLES
    source: Source = Source.TRAINING
    cone: int | None = None


@dataclass(frozen=True)
class PoolPolicy:
    """How a method uses the expert pool.

    Attributes:
        spec: The arrays of one entry.
        k: Number of experts that a client gets, without its own.
        select: `nearest` by l2 distance from the client's own newest entry, `random`, or `all`.
        exclude_self: Whether the client's own entries are left out.
        minimum: Smallest pool that the platform serves from; None for the platform's rule 2(k+1).
        fixed: Whether all clients `contribute` to the pool once; then `client_update` gives no
            entry.
        trains: For `fixed` only: whether `contribute` trains, a release of its own under `dp_sgd`.
        when: For `fixed` only. `after` the last round: every client fetches all entries before
            `personalise`, in one order for all, own entry included (PM-MoE's second phase), and
            `client_update` gets no experts. `before` the first round: in all rounds clients get
            entries as `k`, `select` and `exclude_self` say (CCST's styles).
    """

    spec: Mapping[str, TensorSpec]
    k: int
    select: Literal["nearest", "random", "all"] = "nearest"
    exclude_self: bool = True
    minimum: int | None = None
    fixed: bool = False
    trains: bool = False
    when: Literal["before", "after"] = "after"

    @property
    def opens(self) -> bool:
        """Whether clients fill the pool once, before the first round."""
        return self.fixed and self.when == "before"

    @property
    def closes(self) -> bool:
        """Whether clients fill the pool once, after the last round."""
        return self.fixed and self.when == "after"


Arrays = Mapping[str, NDArray[Any]]
Logits = NDArray[np.float32]
"""Scores (n, C) of n examples, before a softmax."""
Rng = np.random.Generator


class Objective(Protocol):
    """A loss in two stages, so that per-example gradients stay cheap.

    The encoder sees no data: for prompts it maps context tokens to the text features of all
    classes, once a step. The head maps those features and a batch to one loss for each example.
    """

    @property
    def encoder_parameters(self) -> frozenset[str]:
        """Names of the parameters that `encode` reads; `losses` may read any."""

    def encode(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the data-free part, e.g. `{"text": (C, d)}`; empty where there is none."""

    def losses(
        self,
        parameters: Mapping[str, Tensor],
        encoded: Mapping[str, Tensor],
        batch: Mapping[str, Tensor],
    ) -> Tensor:
        """Return the loss of each example, (B,).

        Row i depends on example i alone, unless the method `couples_examples`.
        """


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters trained with one learning rate; None takes `training.learning_rate`.

    A schedule over rounds multiplies either.
    """

    names: tuple[str, ...]
    learning_rate: float | None = None


class Trainer(Protocol):
    """Local training: the only way by which a method's parameters meet a client's data."""

    @property
    def learning_rate(self) -> float:
        """The learning rate of this round, for corrections that depend on it (SCAFFOLD)."""

    @property
    def charged_steps(self) -> int | None:
        """Steps that all fits of one release may take together under `dp_sgd`; None without it.

        A method that fits twice divides them. Under `dp_sgd` it cannot learn its number of
        examples.
        """

    def steps_for(self, num_examples: int) -> int:
        """Return the steps of one fit over this many examples, where `fit` gets no `steps`."""

    def fit(
        self,
        objective: Objective,
        parameters: Arrays,
        examples: Arrays,
        *,
        groups: Sequence[ParameterGroup],
        rng: np.random.Generator,
        steps: int | None = None,
        penalty: Penalty | None = None,
        after_step: Callable[[Mapping[str, Tensor]], None] | None = None,
    ) -> Mapping[str, NDArray[Any]]:
        """Train the parameters that a group names, and return all of them.

        Args:
            objective: The loss.
            parameters: Starting values; those in no group are constants.
            examples: The client's data, row i of each array being example i.
            groups: Disjoint groups of trained parameters.
            rng: Draws the batches (simulation).
            steps: Number of steps in place of the configured amount.
            penalty: A term of the loss that sees no data, such as a proximal term. The trainer adds
                its gradient after clipping and noise, so it takes no part of an example's bound.
            after_step: Data-free correction of the trained tensors, after clipping and noise.

        Returns:
            The parameters after training, new arrays.
        """


Unit = Literal["client", "record"]
Need = Literal["features", "tokens", "pixels", "text", "domains"]


class Visibility(StrEnum):
    """What `Method.server_update` must be shown."""

    AGGREGATE_ONLY = "aggregate_only"
    """The combined tensors suffice: compatible with secure aggregation."""
    PER_CLIENT = "per_client"
    """The server needs each update: refused unless uploads are noised or privacy is off."""


@dataclass(frozen=True)
class Task:
    """What a method is built for.

    Attributes:
        classes: Class names in label order.
        domains: Domain names in domain-index order.
        population: Number of clients in the federation.
        backbone: The frozen CLIP model, None for methods that bring their own network.
        decoupled: Whether clients train personal parts after the last release only, so that no
            release depends on them; True only for methods that have `decouples`.
        device: Where torch computes.
    """

    classes: tuple[str, ...]
    domains: tuple[str, ...]
    population: int
    backbone: Backbone | None = None
    decoupled: bool = False
    device: str = "cpu"


@dataclass(frozen=True)
class Aggregate:
    """What the server learns from one round.

    Attributes:
        values: Each shared tensor, combined as its `TensorSpec.weighting` says.
        total_weight: Sum of the weights behind the `examples` means.
        cohort_size: Number of clients in the sum.
        population: Number of clients in the federation.
        individual: Each client's update, for `PER_CLIENT` methods, under the opaque key that
            `Method.broadcast` gets for that client; else None.
        groups: The clients' groups, where there are private experts; else None.
    """

    values: Arrays
    total_weight: float
    cohort_size: int
    population: int
    individual: Mapping[str, Arrays] | None = None
    groups: Groups | None = None

    def each(self) -> dict[str, Arrays]:
        """Return each client's own update, in the order of the keys.

        Raises:
            MethodError: If the platform did not hand over the updates one by one.
        """
        if self.individual is None:
            raise MethodError("aggregate.individual is None; valid is each client's own update")
        return dict(sorted(self.individual.items()))


@dataclass(frozen=True)
class Examples:
    """A client's data as the data layer provides it, row i of each array being example i.

    Attributes:
        arrays: `labels`: (n,) int64, and what `Method.prepare` made of what `Method.needs` asked
            for: `features`: (n, d) float32, l2-normalised; `tokens`: (n, T, w) float32, the image
            tower's last hidden states; `pixels`: (n, S, S, 3) uint8, S being `Method.pixel_size`;
            `text`: (n,) str; `domains`: (n,) int64, index into `Task.domains`, in training only.
    """

    arrays: Arrays

    @property
    def num_examples(self) -> int:
        """Return the number of rows."""
        return len(self.arrays["labels"])


@dataclass(frozen=True)
class ClientView:
    """What a client has at one moment of a run.

    Attributes:
        broadcast: What the coordinator sent.
        experts: The pool entries that it got; empty without a pool.
        personal: Its own state, from its own store.
        own: In `personalise` of a pool that clients fill once after the last round: which of the
            experts is its own entry; None where it has no entry there.
        is_common: Whether the coordinator sent this broadcast to all clients. Then no client's
            training is in it, and all clients may keep in memory what follows from it alone.
    """

    broadcast: Arrays
    experts: Sequence[Arrays] = ()
    personal: Arrays = field(default_factory=dict)
    own: int | None = None
    is_common: bool = False


@dataclass(frozen=True)
class LocalResult:
    """What one client's training gives.

    Attributes:
        update: Difference to the broadcast, one array for each shared tensor; the array itself
            where the broadcast has no array of that name. The platform protects it, then sends it.
        pool_entry: The client's expert itself (not a difference), or None. Protected, then sent.
        personal: The client's own state. It stays in its store.
        metrics: Numbers for the client's own store; a simulation may read them.
        group: The client's group, where there are private experts: as private as its data. The
            update is zero outside this block; the platform counts the client in it.
    """

    update: Arrays
    pool_entry: Arrays | None
    personal: Arrays
    metrics: Mapping[str, float] = field(default_factory=dict)
    group: int | None = None


class Method(Protocol):
    """A federated method. See the package's documentation for the life of one round."""

    @property
    def needs(self) -> frozenset[Need]:
        """What the data layer must provide, and may cache."""

    @property
    def pixel_size(self) -> int | None:
        """Side S of the images behind `pixels`; None for the size that the frozen model takes."""

    @property
    def visibility(self) -> Visibility:
        """What `server_update` must be shown."""

    @property
    def units(self) -> frozenset[Unit]:
        """Units of privacy that the platform can protect in its releases.

        Always the client: noise covers its whole upload. The record too, if only noised steps see
        data, and each step's loss is a sum over records.
        """

    @property
    def couples_examples(self) -> bool:
        """Whether an example's training loss depends on other examples of its batch.

        Then a bound on one example's gradient does not bound what that example changes.
        """

    @property
    def has_personal_state(self) -> bool:
        """Whether a client keeps anything from round to round."""

    @property
    def decouples(self) -> bool:
        """Whether personal parts can be trained after the last release only."""

    @property
    def plain_sgd(self) -> bool:
        """Whether steps must be the learning rate times a gradient (SCAFFOLD).

        Then no other optimiser is valid, and no momentum.
        """

    @property
    def learns(self) -> bool:
        """Whether training changes anything."""

    @property
    def learns_one_class(self) -> bool:
        """Whether shared tensors learn to tell a class from others by examples of it alone.

        A loss over all the task's classes teaches this. A loss that only contrasts the examples of
        a batch, or their classes, does not.
        """

    @property
    def centralised(self) -> bool:
        """Whether one party holds all data: no federation, nothing shared, one client only."""

    @property
    def anchored(self) -> bool:
        """Whether training uses the broadcast for more than its start (a proximal term).

        Then several rounds of one client are not one longer training. The platform reads this for
        methods without personal state only.
        """

    @property
    def averaged(self) -> frozenset[str]:
        """Names of the shared tensors that `server_update` moves by their combined change.

        Any server optimiser may replace that step (`methods.interface.server_optimizers`).
        """

    @property
    def closed_classes(self) -> bool:
        """Whether there is an output for each class of the task and for no other."""

    @property
    def has_public_jacobian(self) -> bool:
        """Whether `public_jacobian` gives one."""

    def public_jacobian(self, broadcast: Arrays) -> NDArray[np.float64] | None:
        """Return how predictions move with the shared tensors, (m, d); None if unknown.

        It depends only on the frozen model, the task's classes and the broadcast, so not on private
        data (`methods.interface.subspace`). Columns are all shared tensors, flat, in the order of
        their names.
        """

    def public_gradients(self, broadcast: Arrays, public: Examples) -> NDArray[np.float64] | None:
        """Return the gradient (n, d) of each public example's training loss at a broadcast.

        Columns are those of `public_jacobian`; None where that is None. Terms of the loss that see
        no example are left out.
        """

    def prepare(self, arrays: Arrays) -> Arrays:
        """Return what the method keeps of each example; the platform calls this before training.

        Nothing is learned here: row i of every result depends on example i alone. So the platform
        may cache it, and a record remains one record.

        Args:
            arrays: What `needs` asked for, without `domains`; row i of each being example i.

        Returns:
            What `client_update` and `predict` get in place of `arrays`.
        """

    def shared_spec(self) -> Mapping[str, TensorSpec]:
        """Return what is summed over clients; empty for local methods, which send nothing."""

    def pool_policy(self) -> PoolPolicy | None:
        """Return how the method uses the expert pool; None if it uses no pool."""

    def init_server(self, rng: np.random.Generator) -> Arrays:
        """Return server state before the first round."""

    def init_client(
        self, shared_rng: np.random.Generator, client_rng: np.random.Generator
    ) -> Arrays:
        """Return personal state before a client's first round.

        `shared_rng` is the same for all clients.
        """

    def broadcast(self, state: Arrays, client: str | None = None) -> Arrays:
        """Return what is sent to a client; `client` matters to `PER_CLIENT` methods only."""

    def client_update(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> LocalResult:
        """Train on one client. `trainer` alone reads the data."""

    def server_update(
        self, state: Arrays, aggregate: Aggregate, pool: Sequence[Arrays], rng: np.random.Generator
    ) -> Arrays:
        """Return the next server state; `pool` holds this round's entries, without owners."""

    def contribute(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> LocalResult:
        """Return what a client puts into a `fixed` pool.

        The broadcast is the first one (`before`) or the last one (`after`).

        Returns:
            An empty update, the entry, and the personal state that the entry was made from.
        """

    def personalise(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> Arrays:
        """Return personal state after the last release; nothing that follows leaves the client."""

    def predict(
        self, view: ClientView, batch: Arrays, classes: Sequence[str]
    ) -> NDArray[np.float32]:
        """Return logits (n, len(classes)) of a batch for the given class names."""

    def expert_weights(
        self, view: ClientView, batch: Arrays, classes: Sequence[str]
    ) -> NDArray[np.float32] | None:
        """Return the weight of each expert in the prediction of each image; for reports alone.

        Returns:
            Weights (n, E), rows of sum one: the client's own expert first and then `view.experts`
            where those come from the pool, else in one order for all clients. None for a method
            without experts, or for a client that has none yet.
        """
