"""Bases of methods: `MethodDefaults` does nothing, `OverMethod` does what its base does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from methods.interface import method as m

ALL_UNITS: frozenset[m.Unit] = frozenset(("client", "record"))
CLIENT_ONLY: frozenset[m.Unit] = frozenset(("client",))
"""Units of a method that reads data outside noised steps, or joins the records of a batch."""


@dataclass(frozen=True)
class MethodDefaults:
    """A method on cached image features that releases nothing; each method overrides the rest."""

    needs: frozenset[m.Need] = field(default=frozenset({"features"}), init=False)
    pixel_size: int | None = field(default=None, init=False)
    visibility: m.Visibility = field(default=m.Visibility.AGGREGATE_ONLY, init=False)
    has_personal_state: bool = field(default=True, init=False)
    decouples: bool = field(default=False, init=False)
    plain_sgd: bool = field(default=False, init=False)
    learns: bool = field(default=True, init=False)
    centralised: bool = field(default=False, init=False)
    closed_classes: bool = field(default=False, init=False)

    @property
    def units(self) -> frozenset[m.Unit]:
        """Client and record, or the client alone where a loss joins a batch's examples."""
        return CLIENT_ONLY if self.couples_examples else ALL_UNITS

    @property
    def couples_examples(self) -> bool:
        """An example's loss depends on it alone."""
        return False

    @property
    def learns_one_class(self) -> bool:
        """The loss is over all the task's classes."""
        return True

    @property
    def anchored(self) -> bool:
        """Training uses the broadcast as its start only."""
        return False

    @property
    def has_public_jacobian(self) -> bool:
        """The method knows no Jacobian."""
        return False

    @property
    def averaged(self) -> frozenset[str]:
        """Nothing is averaged."""
        return frozenset()

    def public_jacobian(self, broadcast: m.Arrays) -> NDArray[np.float64] | None:
        """Return None: the method knows no Jacobian."""
        return None

    def public_gradients(
        self, broadcast: m.Arrays, public: m.Examples
    ) -> NDArray[np.float64] | None:
        """Return None: the method knows no gradients."""
        return None

    def prepare(self, arrays: m.Arrays) -> m.Arrays:
        """Keep everything as it is."""
        return arrays

    def shared_spec(self) -> Mapping[str, m.TensorSpec]:
        """Return no tensors: nothing is shared."""
        return {}

    def pool_policy(self) -> m.PoolPolicy | None:
        """Return no pool."""
        return None

    def init_server(self, rng: m.Rng) -> m.Arrays:
        """Return no state."""
        return {}

    def init_client(self, shared_rng: m.Rng, client_rng: m.Rng) -> m.Arrays:
        """Return no personal state."""
        return {}

    def broadcast(self, state: m.Arrays, client: str | None = None) -> m.Arrays:
        """Return the whole server state."""
        return state

    def server_update(
        self, state: m.Arrays, aggregate: m.Aggregate, pool: Sequence[m.Arrays], rng: m.Rng
    ) -> m.Arrays:
        """Return the state as it is."""
        return state

    def contribute(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Return nothing: the method has no pool that clients fill once."""
        return m.LocalResult({}, None, view.personal)

    def personalise(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.Arrays:
        """Change nothing."""
        return view.personal

    def expert_weights(
        self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]
    ) -> NDArray[np.float32] | None:
        """Return None: the method has no experts."""
        return None


@dataclass(frozen=True)
class OverMethod:
    """Another method, except for the members that a subclass defines."""

    base: m.Method

    def __getattr__(self, name: str) -> Any:
        # Python asks this only for a name that the class itself does not have.
        if name not in vars(m.Method):
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        return getattr(self.base, name)
