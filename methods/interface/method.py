"""What a federated method is: the one interface that every method of this package implements.

A method is a small value with pure functions: state goes in, state comes out. It never learns
who a client is, draws no noise, opens no file and sends nothing; the platform does all of that
around it. What crosses the boundary is names mapped to arrays (`Arrays`), so every state can be
stored and sent without pickle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from methods.interface.counts import Groups as Groups
from methods.interface.options import CountsUpTo as CountsUpTo
from methods.interface.options import CountsWith as CountsWith
from methods.interface.options import OptionsOf as OptionsOf
from methods.interface.tensors import PoolPolicy as PoolPolicy
from methods.interface.tensors import Source as Source
from methods.interface.tensors import TensorSpec as TensorSpec
from methods.interface.tensors import Weighting as Weighting
from methods.interface.trainer import Arrays as Arrays
from methods.interface.trainer import Objective as Objective
from methods.interface.trainer import ParameterGroup as ParameterGroup
from methods.interface.trainer import Trainer as Trainer

if TYPE_CHECKING:
    from methods.clip.adapter import Backbone
    from methods.interface.trainer import Penalty as Penalty

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
        self,
        view: ClientView,
        data: Examples,
        trainer: Trainer,
        rng: np.random.Generator,
    ) -> LocalResult:
        """Train on one client. Reaches the data through `trainer`."""
        ...

    def server_update(
        self,
        state: Arrays,
        aggregate: Aggregate,
        pool: Sequence[Arrays],
        rng: np.random.Generator,
    ) -> Arrays:
        """Return the next server state; `pool` holds this round's entries, without owners."""
        ...

    def contribute(
        self,
        view: ClientView,
        data: Examples,
        trainer: Trainer,
        rng: np.random.Generator,
    ) -> LocalResult:
        """Return what a client puts into a `fixed` pool, before the first round or after the last.

        With the first broadcast or the last.

        Returns:
            An empty update, the entry, and the personal state that the entry was made of.
        """
        ...

    def personalise(
        self,
        view: ClientView,
        data: Examples,
        trainer: Trainer,
        rng: np.random.Generator,
    ) -> Arrays:
        """Return personal state after the last release; nothing that follows leaves the client."""
        ...

    def predict(
        self,
        view: ClientView,
        batch: Arrays,
        classes: Sequence[str],
    ) -> NDArray[np.float32]:
        """Return logits (n, len(classes)) of a batch for the given class names."""
        ...

    def expert_weights(
        self,
        view: ClientView,
        batch: Arrays,
        classes: Sequence[str],
    ) -> NDArray[np.float32] | None:
        """Return what each expert counts in the prediction of each image; for reports alone.

        Returns:
            Weights (n, E), each row adding up to one: the client's own expert first and then
            `view.experts` where those are picked from the pool, else in one order for all clients.
            None for a method without experts, or for a client that has none yet.
        """
        ...
