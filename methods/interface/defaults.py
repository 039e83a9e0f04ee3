"""What a method does where its paper says nothing: share nothing, keep nothing, change nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from methods.interface.method import (
    Aggregate,
    Arrays,
    ClientView,
    Examples,
    LocalResult,
    Need,
    PoolPolicy,
    TensorSpec,
    Trainer,
    Unit,
    Visibility,
)

ALL_UNITS: frozenset[Unit] = frozenset(("client", "record"))
CLIENT_ONLY: frozenset[Unit] = frozenset(("client",))
"""Of a method that sees data past noised steps, or joins the records of a batch."""


@dataclass(frozen=True)
class MethodDefaults:
    """A method on cached image features that releases nothing; each method overrides the rest."""

    needs: frozenset[Need] = field(default=frozenset({"features"}), init=False)
    pixel_size: int | None = field(default=None, init=False)
    visibility: Visibility = field(default=Visibility.AGGREGATE_ONLY, init=False)
    units: frozenset[Unit] = field(default=ALL_UNITS, init=False)
    couples_examples: bool = field(default=False, kw_only=True)
    has_personal_state: bool = field(default=True, init=False)
    decouples: bool = field(default=False, init=False)
    plain_sgd: bool = field(default=False, init=False)

    @property
    def learns(self) -> bool:
        """Training changes something."""
        return True

    @property
    def learns_one_class(self) -> bool:
        """The loss is over all the task's classes."""
        return True

    @property
    def centralised(self) -> bool:
        """There is a federation."""
        return False

    @property
    def anchored(self) -> bool:
        """A broadcast is where training starts, and no more."""
        return False

    @property
    def averaged(self) -> frozenset[str]:
        """Nothing is averaged."""
        return frozenset()

    @property
    def closed_classes(self) -> bool:
        """Any class can be named."""
        return False

    @property
    def has_public_jacobian(self) -> bool:
        """There is none."""
        return False

    def public_jacobian(self, broadcast: Arrays) -> NDArray[np.float64] | None:
        """There is none."""
        return None

    def public_gradients(self, broadcast: Arrays, public: Examples) -> NDArray[np.float64] | None:
        """There are none that are known."""
        return None

    def prepare(self, arrays: Arrays) -> Arrays:
        """Keep everything as it is."""
        return arrays

    def shared_spec(self) -> Mapping[str, TensorSpec]:
        """Nothing is shared."""
        return {}

    def pool_policy(self) -> PoolPolicy | None:
        """Return no pool."""
        return None

    def init_server(self, rng: np.random.Generator) -> Arrays:
        """Return no state."""
        return {}

    def init_client(
        self, shared_rng: np.random.Generator, client_rng: np.random.Generator
    ) -> Arrays:
        """Nothing personal."""
        return {}

    def broadcast(self, state: Arrays, client: str | None = None) -> Arrays:
        """Return the whole server state."""
        return state

    def server_update(
        self, state: Arrays, aggregate: Aggregate, pool: Sequence[Arrays], rng: np.random.Generator
    ) -> Arrays:
        """Nothing to update."""
        return state

    def contribute(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> LocalResult:
        """Nothing: there is no pool that is made once."""
        return LocalResult({}, None, view.personal)

    def personalise(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> Arrays:
        """Change nothing."""
        return view.personal

    def expert_weights(
        self, view: ClientView, batch: Arrays, classes: Sequence[str]
    ) -> NDArray[np.float32] | None:
        """There are no experts."""
        return None
