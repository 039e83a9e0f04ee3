"""Noised steps within a public subspace: what is trained are the coordinates.

See `methods.interface.subspace`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from methods.errors import MethodError
from methods.interface.directions import BASIS, COORDINATES, Spec, shaped
from methods.interface.method import Arrays, Objective, ParameterGroup, Trainer

if TYPE_CHECKING:
    from torch import Tensor

    from methods.interface.method import Penalty

_NEEDED: Final = (
    "privacy.subspace: noised steps within it need fits of all that is shared, at one learning "
    "rate and without corrections; valid: none"
)


@dataclass(frozen=True)
class _Unfolded:
    """A loss of coordinates: the base's at the point that they stand for.

    Attributes:
        base: The loss of the tensors.
        spec: These tensors.
    """

    base: Objective
    spec: Spec

    @property
    def encoder_parameters(self) -> frozenset[str]:
        """The base's, with the coordinates in place of the tensors."""
        names = self.base.encoder_parameters
        if names.isdisjoint(self.spec):
            return names
        return (names - self.spec.keys()) | {COORDINATES}

    def encode(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return what the base's encoder makes at that point.

        An encoder that reads nothing that is trained runs once, before there are coordinates.
        """
        moves = COORDINATES in self.encoder_parameters
        return self.base.encode(self.at(parameters) if moves else parameters)

    def losses(
        self,
        parameters: Mapping[str, Tensor],
        encoded: Mapping[str, Tensor],
        batch: Mapping[str, Tensor],
    ) -> Tensor:
        """Return the base's losses at that point, (B,)."""
        return self.base.losses(self.at(parameters), encoded, batch)

    def at(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors that the coordinates stand for, and all other parameters."""
        moved = shaped(parameters[COORDINATES] @ parameters[BASIS], self.spec)
        rest = {n: t for n, t in parameters.items() if n not in (COORDINATES, BASIS)}
        return {**rest, **{name: rest[name] + moved[name] for name in self.spec}}


@dataclass(frozen=True)
class _OutOfReach(Mapping[str, Any]):
    """The tensors after a step that moved coordinates in their place: it can move none of them."""

    names: Collection[str]

    def __getitem__(self, name: str) -> NoReturn:
        raise MethodError(_NEEDED)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class InCoordinates:
    """A trainer whose fits move within the subspace.

    Attributes:
        trainer: Fits the coordinates.
        basis: Directions (k, d).
        spec: The tensors that a fit trains.
        fits: The coordinates that each fit has found.
    """

    trainer: Trainer
    basis: NDArray[np.float64]
    spec: Spec
    fits: list[NDArray[Any]] = field(default_factory=list, init=False)

    @property
    def learning_rate(self) -> float:
        """The trainer's."""
        return self.trainer.learning_rate

    @property
    def charged_steps(self) -> int | None:
        """The trainer's."""
        return self.trainer.charged_steps

    def steps_for(self, num_examples: int) -> int:
        """Return the trainer's."""
        return self.trainer.steps_for(num_examples)

    def only_fit(self) -> NDArray[Any]:
        """Return what the noised steps made, as it is: nothing else may leave under `dp_sgd`.

        Raises:
            MethodError: If there was not exactly one fit.
        """
        if len(self.fits) != 1:
            raise MethodError(
                f"privacy.subspace: noised steps within it need one fit a round, and there were "
                f"{len(self.fits)}"
            )
        return self.fits[0]

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
        """Train coordinates in place of the tensors, from zero; see `Trainer.fit`.

        What a method does after a step it does here as well, if it needs no tensor for that.

        Raises:
            MethodError: If a fit trains other tensors, by several rates, or corrects its steps.
        """
        trained = {name for group in groups for name in group.names}
        rates = {group.learning_rate for group in groups}
        if trained != self.spec.keys() or len(rates) != 1:
            raise MethodError(_NEEDED)
        unfolded = _Unfolded(objective, self.spec)
        start = {
            **parameters,
            BASIS: self.basis.astype(np.float32),
            COORDINATES: np.zeros(len(self.basis), np.float32),
        }
        inside = None
        if penalty is not None:
            inside = _penalty_inside(penalty, unfolded)
        found = self.trainer.fit(
            unfolded,
            start,
            examples,
            groups=(ParameterGroup((COORDINATES,), rates.pop()),),
            rng=rng,
            steps=steps,
            penalty=inside,
            after_step=None if after_step is None else lambda _: after_step(_OutOfReach(self.spec)),
        )
        self.fits.append(found[COORDINATES])
        moved = shaped(found[COORDINATES].astype(np.float64) @ self.basis, self.spec)
        after = {n: (parameters[n] + moved[n]).astype(np.float32) for n in self.spec}
        return {**parameters, **after}


def _penalty_inside(penalty: Penalty, unfolded: _Unfolded) -> Penalty:
    def inside(parameters: Mapping[str, Tensor], encoded: Mapping[str, Tensor]) -> Tensor:
        return penalty(unfolded.at(parameters), encoded)

    return inside
