"""What a federated method is: the one interface that every method of this package implements.

A method is a small value with pure functions: state goes in, state comes out. It never learns
who a client is, draws no noise, opens no file and sends nothing; the platform does all of that
around it. What crosses the boundary is names mapped to arrays (`Arrays`), so every state can be
stored and sent without pickle.

First what a method's `Config` says of options, and what leaves a client, tensor by tensor; then the
trainer, which is how a method's parameters meet a client's data; then the method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol

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
    """Marks an option that holds the options of a method that another option names.

    In a configuration it is a section of its own, validated against that method's `Config`; `build`
    is given that `Config`.

    Attributes:
        option: Which option names the method.
    """

    option: str


@dataclass(frozen=True)
class CountsWith:
    """Marks an option that does nothing unless another is as it must be.

    Where it was set and does nothing, that is said before the run. An option may have several of
    these marks, each of which must hold.

    Attributes:
        option: The other option of the same `Config`, or with a dot a key of the run, such as
            `privacy.personal`.
        values: What it must be one of; empty for anything but null, false and 0.
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
    """Marks a number of which a run has only so much use, and else does without, which is said.

    Attributes:
        key: The run's number that it is held against, such as `rounds` or `task.clients`.
        so: What happens where the option is more than that.
    """

    key: str
    so: str


@dataclass(frozen=True, eq=False)
class Groups:
    """How many clients of a sum are in each group, as the noised sum tells it.

    Attributes:
        counts: (K,), with noise; negative ones too.
        floor: The least that a group's sum may be divided by, and that its count must reach for
            its expert to move; fixed before anything is released.
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
    """What one tensor of an update is made from."""

    TRAINING = "training"
    """The difference that training steps made: zero without any."""
    PERSONAL = "personal"
    """The same, and besides what the client kept from earlier rounds: by the paper, it is told."""
    GRADIENT = "gradient"
    """The mean of something that each example has, such as its gradient at the broadcast."""
    STATISTIC = "statistic"
    """A summary of the client's data, such as its classes' shares, in no such sense a mean."""


@dataclass(frozen=True)
class TensorSpec:
    """Shape, dtype, combination rule and source of one array that leaves a client."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    weighting: Weighting = Weighting.EXAMPLES
    source: Source = Source.TRAINING


@dataclass(frozen=True)
class PoolPolicy:
    """How a method uses the expert pool.

    Attributes:
        spec: The arrays of one entry.
        k: Number of experts a client is handed, its own excluded.
        select: `nearest` by l2 distance from the client's own newest entry, `random`, or `all`.
        exclude_self: Whether the client's own entries are left out.
        minimum: Smallest pool that is served from; None for the platform's rule 2(k+1).
        fixed: Whether the pool is made once, of what all clients `contribute`; `client_update`
            gives no entry then.
        trains: Whether `contribute` trains, which is a release of its own under `dp_sgd`; for
            `fixed` only.
        when: For `fixed` only. `after` the last round: all entries are fetched before
            `personalise`, in one order for all, own entry included (PM-MoE's second phase), and
            `client_update` is handed no experts. `before` the first round: the clients of all
            rounds are handed entries, as `k`, `select` and `exclude_self` say (CCST's styles).
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
        """Whether the pool is made once, before the first round."""
        return self.fixed and self.when == "before"

    @property
    def closes(self) -> bool:
        """Whether the pool is made once, after the last round."""
        return self.fixed and self.when == "after"


Arrays = Mapping[str, NDArray[Any]]


class Objective(Protocol):
    """A loss in two stages, so that per-example gradients stay cheap.

    The encoder sees no data: for prompts it maps context tokens to the text features of all
    classes, once a step. The head maps those features and a batch to one loss per example.
    """

    @property
    def encoder_parameters(self) -> frozenset[str]:
        """Names of the parameters that `encode` reads; the others reach the loss by `losses`."""
        ...

    def encode(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return data-free part, e.g. `{"text": (C, d)}`. Empty where there is none."""
        ...

    def losses(
        self,
        parameters: Mapping[str, Tensor],
        encoded: Mapping[str, Tensor],
        batch: Mapping[str, Tensor],
    ) -> Tensor:
        """Return loss of each example, shape (B,).

        Row i depends on example i alone, unless the method `couples_examples`.
        """
        ...


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters trained with one learning rate; None takes `training.learning_rate`.

    A schedule over rounds multiplies either.
    """

    names: tuple[str, ...]
    learning_rate: float | None = None


class Trainer(Protocol):
    """Local training. It is the only way by which a method's parameters meet a client's data."""

    @property
    def learning_rate(self) -> float:
        """The learning rate of this round, for corrections that depend on it (SCAFFOLD)."""
        ...

    @property
    def charged_steps(self) -> int | None:
        """Steps that all fits of one release may take together under `dp_sgd`; None without it.

        A method that fits twice shares them out; it cannot ask for its number of examples there.
        """
        ...

    def steps_for(self, num_examples: int) -> int:
        """Step of one fit over this many examples, where `fit` is not told otherwise."""
        ...

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
        """Train the parameters that a group names and return all of them.

        Args:
            objective: The loss.
            parameters: Starting values; those in no group are constants.
            examples: The client's data, row i of each array being example i.
            groups: Disjoint groups of trained parameters.
            rng: Draws the batches (simulation).
            steps: Number of steps in place of the configured amount.
            penalty: A term of the loss that sees no data, such as a proximal one. Its gradient is
                added after clipping and noise, so no example's bound is spent on it.
            after_step: Data-free correction of the trained tensors, run after clipping and noise.

        Returns:
            The parameters after training, new arrays.
        """
        ...


Unit = Literal["client", "record"]
Need = Literal["features", "tokens", "pixels", "text", "domains"]


class Visibility(StrEnum):
    """What `Method.server_update` must be shown."""

    AGGREGATE_ONLY = "aggregate_only"
    """The combined tensors suffice: compatible with secure aggregation."""
    PER_CLIENT = "per_client"
    """Each client's update is needed: refused unless uploads are noised or privacy is off."""


@dataclass(frozen=True)
class Task:
    """What a method is built for.

    Attributes:
        classes: Class names in label order.
        domains: Domain names in domain-index order.
        population: Number of clients in the federation.
        backbone: The frozen CLIP model, None for methods that bring their own network.
        decoupled: Whether personal parts are trained after the last release only, so that no
            release depends on them; asked of methods that `decouples` only.
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
        individual: Each client's update, for `PER_CLIENT` methods, under the same opaque key that
            `Method.broadcast` is given for that client; else None.
        groups: Of the clients, where there are private experts; else None.
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
            MethodError: If the updates were not handed over one by one.
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
    """What a client has in hand at one moment of a run.

    Attributes:
        broadcast: What the coordinator sent.
        experts: The pool entries that it was handed, none without a pool.
        personal: Its own state, from its own store.
        own: Which of the experts is its own entry, in `personalise` of a pool that is made once,
            after the last round; None where it has none there.
        is_common: Whether all clients were sent this very broadcast, so that what follows from it
            alone may be kept in memory for all of them. No client's training is in it then.
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
        update: Difference to what was broadcast, one array per shared tensor; the array itself
            where nothing of its name is broadcast. Protected, then sent.
        pool_entry: The client's expert in absolute terms (not a difference), or None. Protected,
            then sent.
        personal: The client's own state. Stays in its store.
        metrics: Numbers for the client's own store; a simulation may read them.
        group: Which group the client is in, where there are private experts: as private as its
            data. The update is zero outside this block; the platform counts the client in it.
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
        ...

    @property
    def pixel_size(self) -> int | None:
        """Side S of the images behind `pixels`; None for what the frozen model takes."""
        ...

    @property
    def visibility(self) -> Visibility:
        """What `server_update` must be shown."""
        ...

    @property
    def units(self) -> frozenset[Unit]:
        """Units of privacy that its releases can be given.

        A client always can be one: its whole upload is noised. A record can where only noised steps
        see data, and each step's loss is a sum over records.
        """
        ...

    @property
    def couples_examples(self) -> bool:
        """Whether an example's training loss depends on the others of its batch.

        Then no bound on one example's gradient bounds what that example does.
        """
        ...

    @property
    def has_personal_state(self) -> bool:
        """Whether a client keeps anything from round to round."""
        ...

    @property
    def decouples(self) -> bool:
        """Whether personal parts can be trained after the last release only."""
        ...

    @property
    def plain_sgd(self) -> bool:
        """Whether it counts on steps of the learning rate times a gradient (SCAFFOLD).

        Then no other optimiser is valid, and no momentum.
        """
        ...

    @property
    def learns(self) -> bool:
        """Whether training changes anything."""
        ...

    @property
    def learns_one_class(self) -> bool:
        """Whether what it shares learns to tell a class from others by examples of it alone.

        A loss over all the task's classes does; one that only contrasts the examples at hand, or
        the classes among them, does not.
        """
        ...

    @property
    def centralised(self) -> bool:
        """Whether one party holds all data, so that there is no federation and nothing is shared.

        Refused with more than one client.
        """
        ...

    @property
    def anchored(self) -> bool:
        """Whether training depends on the broadcast otherwise than as its start (a proximal term).

        Then several rounds of one client are not one longer training; read for methods without
        personal state only.
        """
        ...

    @property
    def averaged(self) -> frozenset[str]:
        """Return the shared tensors that `server_update` moves by their combined change.

        Any server optimiser may take the place of that step
        (`methods.interface.server_optimizers`).
        """
        ...

    @property
    def closed_classes(self) -> bool:
        """Whether there is an output for each class of the task and for no other."""
        ...

    @property
    def has_public_jacobian(self) -> bool:
        """Whether `public_jacobian` gives one."""
        ...

    def public_jacobian(self, broadcast: Arrays) -> NDArray[np.float64] | None:
        """Return how what the method predicts with moves with what it shares, None if unknown.

        Of the frozen model, the task's classes and the broadcast alone, hence of nothing private
        (`methods.interface.subspace`).

        Args:
            broadcast: Where.

        Returns:
            (m, d), the columns being all shared tensors, flat, in the order of their names.
        """
        ...

    def public_gradients(self, broadcast: Arrays, public: Examples) -> NDArray[np.float64] | None:
        """Return the gradient of each public example's training loss at a broadcast.

        Known, and with the columns of `public_jacobian`, where that is: (n, d), else None. Terms of
        the loss that no example enters are left out.
        """
        ...

    def prepare(self, arrays: Arrays) -> Arrays:
        """Return what the method keeps of each example, made once, before any training.

        Nothing is learned here: row i of every result depends on example i alone, so it may be
        cached, and a record remains one record.

        Args:
            arrays: What `needs` asked for, but for `domains`; row i of each being example i.

        Returns:
            What `client_update` and `predict` get in place of it.
        """
        ...

    def shared_spec(self) -> Mapping[str, TensorSpec]:
        """Return what is summed over clients; empty for local methods: no protocol, no charge."""
        ...

    def pool_policy(self) -> PoolPolicy | None:
        """Return how the expert pool is used, None if it is not."""
        ...

    def init_server(self, rng: np.random.Generator) -> Arrays:
        """Return server state before the first round."""
        ...

    def init_client(
        self, shared_rng: np.random.Generator, client_rng: np.random.Generator
    ) -> Arrays:
        """Return personal state before a client's first round.

        `shared_rng` is alike for all clients.
        """
        ...

    def broadcast(self, state: Arrays, client: str | None = None) -> Arrays:
        """Return what is sent to a client; `client` matters to `PER_CLIENT` methods only."""
        ...

    def client_update(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> LocalResult:
        """Train on one client. Reaches the data through `trainer`."""
        ...

    def server_update(
        self, state: Arrays, aggregate: Aggregate, pool: Sequence[Arrays], rng: np.random.Generator
    ) -> Arrays:
        """Return the next server state; `pool` holds this round's entries, without owners."""
        ...

    def contribute(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> LocalResult:
        """Return what a client puts into a `fixed` pool, before the first round or after the last.

        With the first broadcast or the last.

        Returns:
            An empty update, the entry, and the personal state that the entry was made of.
        """
        ...

    def personalise(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> Arrays:
        """Return personal state after the last release; nothing that follows leaves the client."""
        ...

    def predict(
        self, view: ClientView, batch: Arrays, classes: Sequence[str]
    ) -> NDArray[np.float32]:
        """Return logits (n, len(classes)) of a batch for the given class names."""
        ...

    def expert_weights(
        self, view: ClientView, batch: Arrays, classes: Sequence[str]
    ) -> NDArray[np.float32] | None:
        """Return what each expert counts in the prediction of each image; for reports alone.

        Returns:
            Weights (n, E), each row adding up to one: the client's own expert first and then
            `view.experts` where those are picked from the pool, else in one order for all clients.
            None for a method without experts, or for a client that has none yet.
        """
        ...
