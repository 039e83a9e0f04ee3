"""One door to every mechanism that treats a client's upload: how it is carried, noised and charged.

A mechanism is whatever has all that `ClientMechanism` asks for. Here is what holds for each of
them, whichever it is; what they do is in modules of their own.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache, lru_cache
from typing import Any, Literal, Protocol, Self, cast

from numpy.typing import NDArray

from privacy._validate import require_positive
from privacy.errors import UnknownMechanism
from privacy.events import CohortSampling, Protected, Relation, Release, ReleaseKey, reserved
from privacy.facts import MechanismFacts
from privacy.grids import Grid
from privacy.mechanisms import ProtectedUpload, SumNoise
from privacy.randomness import NO_STATE, NoiseSource, NoiseState, require_noise_source


class ClientMechanism(Protocol):
    """What is done to one vector between a client and the sum, and what of it may be said.

    What it clips (`clipping_norm`, `around`), what it adds (`protect`, `client_deviation`,
    `noise_for_sum`), what it releases (`facts`, `protected`), what the sum carries (`grid`,
    `noise_in_sum`) and how a lost client changes that (`divides_by`).
    """

    @property
    def facts(self) -> MechanismFacts:
        """What a release means in the ledger."""
        ...

    @property
    def relation(self) -> Relation:
        """What a neighbour is."""
        ...

    @property
    def clipping_norm(self) -> float | None:
        """C, in the units of the update; None where nothing is clipped."""
        ...

    @property
    def client_deviation(self) -> float:
        """Of the noise that leaves one client on each coordinate, in the units of the update."""
        ...

    @property
    def divides_by(self) -> Literal["survivors", "planned"]:
        """What a sum is divided by: clients that are in it, or those that it was planned for."""
        ...

    def around(self, clipping_norm: float) -> Self:
        """Return the same mechanism around another norm, at the same cost."""
        ...

    def grid(self, dimension: int, *, bits: int, clients: int) -> Grid:
        """Return the grid on which so many coordinates of so many clients travel and are summed."""
        ...

    def protect(
        self, vector: NDArray[Any], grid: Grid, noise: NoiseSource, state: NoiseState
    ) -> ProtectedUpload:
        """Clip, add the client's noise by `noise.draw`, and put the result on the grid.

        The state is what the same client's last upload of the run left, empty before the first.
        """
        ...

    def noise_in_sum(self, clients: int) -> float:
        """Return the deviation of all noise on a coordinate of a finished sum of so many."""
        ...

    def noise_for_sum(
        self, dimension: int, noise: NoiseSource, state: NoiseState
    ) -> SumNoise | None:
        """Return what the coordinator adds to a sum, None where it adds nothing.

        It is added in the ring, before the sum is decoded or checked. The state is what the noise
        of the run's last committed sum left, empty before the first.
        """
        ...

    def protected(self, dimension: int) -> Protected:
        """Return the numbers of the ledger row of one upload of so many coordinates."""
        ...


def require_mechanism(mechanism: object) -> ClientMechanism:
    """Return a mechanism that has all that one must have.

    Raises:
        UnknownMechanism: Something is missing.
    """
    missing: list[str] = []
    if not _has_all(cast("Hashable", type(mechanism))):
        missing = [name for name in _asked() if not hasattr(mechanism, name)]
    if missing:
        raise UnknownMechanism(
            f"{type(mechanism).__name__} is no mechanism for uploads: it has no "
            f"{', '.join(missing)}"
        )
    # Not by `isinstance`, which collects a protocol's names anew each time.
    return cast("ClientMechanism", mechanism)


@lru_cache(maxsize=64)
def _has_all(kind: Hashable) -> bool:
    """Return whether all mechanisms of a type have what one must have, whatever each is."""
    fields = getattr(kind, "__dataclass_fields__", {})
    return all(hasattr(kind, name) or name in fields for name in _asked())


@cache
def _asked() -> tuple[str, ...]:
    """Return what a mechanism must have: the protocol's own names, without what any class has."""
    return tuple(sorted(name for name in vars(ClientMechanism) if not name.startswith("_")))


def grid_of(mechanism: ClientMechanism, dimension: int, *, bits: int, clients: int) -> Grid:
    """Return the grid on which a mechanism's uploads travel.

    Args:
        mechanism: What is done to the upload.
        dimension: Its number of coordinates, at least 1.
        bits: Of a coordinate, where it is quantised after noise on the reals.
        clients: Most clients of one sum, where the noise lives on the grid itself.

    Raises:
        CalibrationError: No ring holds the sum.
        UnknownMechanism: It is no mechanism.
    """
    return require_mechanism(mechanism).grid(dimension, bits=bits, clients=clients)


def protect_upload(
    vector: NDArray[Any],
    mechanism: ClientMechanism,
    grid: Grid,
    noise: NoiseSource,
    *,
    state: NoiseState = NO_STATE,
) -> ProtectedUpload:
    """Apply a mechanism to an upload; what the result may be shown to differs, see `Release`.

    Args:
        vector: The update as one flat vector of shape (n,): all tensors, difference to what was
            broadcast.
        mechanism: What to do.
        grid: From `grid_of`, for the same mechanism.
        noise: Where noise and rounding come from.
        state: What the same client's last upload of the run left; empty before the first.

    Raises:
        NonFiniteUpdate: A coordinate is NaN or infinite.
        UploadSaturated: Under `NoProtection` a coordinate is beyond the bound.
        TypeError: `noise` is not a noise source, or `grid` is of another kind.
        UnknownMechanism: It is no mechanism, or one that keeps a state without declaring so.
        ValueError: `grid` has another scale, so the sum would be opened wrongly.
    """
    # Before the mechanism is asked: one that draws no noise itself would not notice.
    require_noise_source(noise)
    protected = require_mechanism(mechanism).protect(vector, grid, noise, state)
    if protected.state and not mechanism.facts.keeps_state:
        # Nobody would keep it, and each round's noise would be drawn as if it were the first.
        raise UnknownMechanism(f"{mechanism.facts.name} keeps a state and declares none")
    return protected


def release_of_upload(
    mechanism: ClientMechanism,
    dimension: int,
    key: ReleaseKey,
    cohort: CohortSampling | None = None,
) -> Release:
    """Return the ledger row for one upload, reserved.

    Args:
        mechanism: What protects it.
        dimension: Coordinates of the update.
        key: Which release it is.
        cohort: How the round's clients were drawn, where that may amplify.

    Raises:
        UnknownMechanism: It is no mechanism.
        ValueError: The channel is none of the mechanism's, or a cohort is given that amplifies
            nothing under it.
    """
    found = require_mechanism(mechanism)
    return reserved(key, found.facts, found.protected(dimension), cohort)


def with_clipping_norm(mechanism: ClientMechanism, clipping_norm: float) -> ClientMechanism:
    """Return the same mechanism around another norm: noise and grid go with it.

    Noise multiplier and norm in steps of the grid stay, so a release costs what it did and what
    was calibrated to a budget stays within it; a scale chosen anew would leave it by some 1e-5.

    Raises:
        UnknownMechanism: Nothing is clipped under it.
        ValueError: `clipping_norm` is not finite and positive, or too small for any grid.
    """
    require_positive(clipping_norm=clipping_norm)
    return require_mechanism(mechanism).around(clipping_norm)


def noise_in_sum(mechanism: ClientMechanism, clients: int) -> float:
    """Return the standard deviation of the noise on each coordinate of a sum of so many uploads.

    Rounding to the grid is not counted. 0 where there is none.
    """
    return require_mechanism(mechanism).noise_in_sum(clients)
