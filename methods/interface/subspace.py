"""A public subspace: uploads, clipping, noise and sums in a few directions that all parties know.

Noise of standard deviation s on each of d coordinates has norm s sqrt(d) beside any update. In k
directions the noise has norm s sqrt(k), and the update keeps its part in them. So k directions that
hold most of an update raise its signal to noise by up to sqrt(d / k) (projected DP-SGD: Zhou et al.
2021, "Bypassing the Ambient Dimension", ICLR; Yu et al. 2021, "Do Not Let Privacy Overbill
Utility", ICLR). Those papers take directions from public gradients. Here the directions are:

- `text_jacobian`: the top right singular vectors of the Jacobian of the class-centred text features
  at the broadcast. A direction that moves the features of all classes alike changes no prediction,
  so an update has little in it.
- `public_images`: the top right singular vectors of the gradients, at the broadcast, of the
  training losses of images that the user declares public (the papers' choice).
- `random`: an orthonormal basis drawn for each round, by Haar's measure: the control.

Directions depend on the frozen model, the task's class list, the broadcast (already released) and
public images, so not on private data. The server computes them once for each broadcast and keeps
them in its state. It *sends* them, and clients never recompute them, since signs of singular
vectors differ between machines. A digest of the model and of the class list goes with them; clients
compare it with their own before they train. With B of shape (k, d), its rows the directions, and u
the flat update, a client uploads

    z = B u                        and the server applies the mean's   B^T z.

A client projects first, and the platform clips z after that. So the bound C on what leaves holds
for any B, also a hostile one, and the mechanism's guarantee and the ledger's row are those of k
coordinates. Where the noise is in the steps, the client trains z itself: an example's gradient is B
(d loss / d theta), projected before it is clipped, with noise in k directions.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from methods.errors import MethodError
from methods.interface import method as m
from methods.interface.defaults import OverMethod

if TYPE_CHECKING:
    from torch import Tensor

    from methods.interface.method import Penalty


BASIS: Final = "subspace.basis"
ORIGIN: Final = "subspace.origin"
"""A digest (8,) of uint32 of the directions' sources, the same for all parties."""
COORDINATES: Final = "subspace.coordinates"
Spec = Mapping[str, m.TensorSpec]


def top_directions(jacobian: NDArray[np.float64], rank: int) -> NDArray[np.float64]:
    """Return the top right singular vectors (k, d) of a matrix (m, d).

    Where the matrix has a rank below k, further vectors complete an orthonormal basis; along them
    nothing moves.
    """
    # Eigenvectors of J^T J: d is some hundreds, while m has a row for each number of each feature.
    _, vectors = np.linalg.eigh(jacobian.T @ jacobian)
    return np.ascontiguousarray(vectors[:, ::-1][:, :rank].T)


def origin_of(fingerprint: str | None, classes: Sequence[str]) -> NDArray[np.uint32]:
    """Return the digest (8,) of a model's fingerprint (None without a model) and its classes."""
    text = json.dumps([fingerprint, list(classes)])
    return np.frombuffer(hashlib.sha256(text.encode()).digest(), "<u4").copy()


def random_directions(rank: int, size: int, rng: m.Rng) -> NDArray[np.float64]:
    """Return k orthonormal directions (k, d), uniform over all such frames."""
    q, r = np.linalg.qr(rng.standard_normal((size, rank)))
    # Without the signs the frame would not be uniform (Mezzadri 2007).
    return np.ascontiguousarray((q * np.sign(np.diag(r))).T)


def length(spec: Spec) -> int:
    """Return d, the number of numbers in the tensors."""
    return sum(math.prod(tensor.shape) for tensor in spec.values())


def flat(arrays: m.Arrays, spec: Spec) -> NDArray[np.float64]:
    """Return tensors one after another in the order of their names, (d,)."""
    vector, offset = np.empty(length(spec)), 0
    for name in sorted(spec):
        size = math.prod(spec[name].shape)
        vector[offset : offset + size] = np.asarray(arrays[name]).reshape(-1)
        offset += size
    return vector


def shaped(vector: Any, spec: Spec) -> dict[str, Any]:
    """Return the tensors of a flat vector (d,), a numpy array or a torch tensor."""
    parts, offset = {}, 0
    for name in sorted(spec):
        size = math.prod(spec[name].shape)
        parts[name] = vector[offset : offset + size].reshape(spec[name].shape)
        offset += size
    return parts


_NEEDED: Final = (
    "privacy.subspace: noised steps within it need fits of all that is shared, at one learning "
    "rate and without corrections; valid: none"
)


@dataclass(frozen=True)
class _Unfolded:
    """A loss of coordinates: the base's loss at the tensors that the coordinates stand for."""

    base: m.Objective
    spec: Spec

    @property
    def encoder_parameters(self) -> frozenset[str]:
        """The base's names, with the coordinates in place of the tensors."""
        names = self.base.encoder_parameters
        if names.isdisjoint(self.spec):
            return names
        return (names - self.spec.keys()) | {COORDINATES}

    def encode(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return what the base's encoder makes of those tensors.

        An encoder that reads no trained parameter runs once, before there are coordinates.
        """
        moves = COORDINATES in self.encoder_parameters
        return self.base.encode(self.at(parameters) if moves else parameters)

    def losses(
        self,
        parameters: Mapping[str, Tensor],
        encoded: Mapping[str, Tensor],
        batch: Mapping[str, Tensor],
    ) -> Tensor:
        """Return the base's losses there, (B,)."""
        return self.base.losses(self.at(parameters), encoded, batch)

    def at(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors that the coordinates stand for, and all other parameters."""
        moved = shaped(parameters[COORDINATES] @ parameters[BASIS], self.spec)
        rest = {n: t for n, t in parameters.items() if n not in (COORDINATES, BASIS)}
        return {**rest, **{name: rest[name] + moved[name] for name in self.spec}}


@dataclass(frozen=True)
class _OutOfReach(Mapping[str, Any]):
    """The tensors after a step that moved coordinates only: reading a tensor is an error."""

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
        fits: The coordinates that each fit has found.
    """

    trainer: m.Trainer
    basis: NDArray[np.float64]
    spec: Spec
    fits: list[NDArray[Any]] = field(default_factory=list, init=False)

    def __getattr__(self, name: str) -> Any:
        # Python asks this only for what is not defined here: the trainer's other members.
        if name not in vars(m.Trainer):
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        return getattr(self.trainer, name)

    def only_fit(self) -> NDArray[Any]:
        """Return what the one fit of noised steps made; under `dp_sgd` nothing else may leave."""
        if len(self.fits) != 1:
            raise MethodError(
                f"privacy.subspace: noised steps within it need one fit a round, and there were "
                f"{len(self.fits)}"
            )
        return self.fits[0]

    def fit(
        self,
        objective: m.Objective,
        parameters: m.Arrays,
        examples: m.Arrays,
        *,
        groups: Sequence[m.ParameterGroup],
        rng: m.Rng,
        steps: int | None = None,
        penalty: Penalty | None = None,
        after_step: Callable[[Mapping[str, Tensor]], None] | None = None,
    ) -> Mapping[str, NDArray[Any]]:
        """Train coordinates in place of the tensors, from zero; see `Trainer.fit`.

        A correction after each step runs as well, as long as it reads no tensor. A fit of other
        tensors, by several rates, or with corrected steps is refused.
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

        def inside(parameters: Mapping[str, Tensor], encoded: Mapping[str, Tensor]) -> Tensor:
            return cast("Penalty", penalty)(unfolded.at(parameters), encoded)

        found = self.trainer.fit(
            unfolded,
            start,
            examples,
            groups=(m.ParameterGroup((COORDINATES,), rates.pop()),),
            rng=rng,
            steps=steps,
            penalty=None if penalty is None else inside,
            after_step=None if after_step is None else lambda _: after_step(_OutOfReach(self.spec)),
        )
        self.fits.append(found[COORDINATES])
        moved = shaped(found[COORDINATES].astype(np.float64) @ self.basis, self.spec)
        after = {n: (parameters[n] + moved[n]).astype(np.float32) for n in self.spec}
        return {**parameters, **after}


Kind = Literal["text_jacobian", "public_images", "random"]
REMEMBERED = 64
"""Broadcasts whose directions are kept: those of all private experts of a round, and the first."""


@dataclass(frozen=True)
class InSubspace(OverMethod):
    """A method whose clients upload coordinates in a subspace. Made by `in_subspace`.

    Attributes:
        kind: What the directions are.
        rank: k, their number.
        origin: Digest of the frozen model and the class list, (8,).
        public: The public images that directions come from, as the method keeps them.
    """

    kind: Kind
    rank: int
    origin: NDArray[np.uint32] = field(repr=False, compare=False)
    public: m.Examples | None = field(default=None, repr=False, compare=False)
    averaged = frozenset[str]()
    _found: dict[bytes, NDArray[np.float64]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def whole(self) -> int:
        """d, the length of an update without a subspace."""
        return length(self.base.shared_spec())

    def shared_spec(self) -> Spec:
        """Return the coordinates (k,), combined as the tensors that they stand for."""
        first = next(iter(self.base.shared_spec().values()))
        return {COORDINATES: replace(first, shape=(self.rank,), dtype="float32")}

    def init_server(self, rng: m.Rng) -> m.Arrays:
        """Return the method's state, and the directions at its broadcast."""
        return self._with_basis(self.base.init_server(rng), rng)

    def broadcast(self, state: m.Arrays, client: str | None = None) -> m.Arrays:
        """Return what the method sends, the directions (k, d) and their digest."""
        sent = self.base.broadcast(without_basis(state), client)
        return {**sent, BASIS: state[BASIS], ORIGIN: self.origin}

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train as the method does and project the update; with noised steps train coordinates."""
        basis = view.broadcast[BASIS].astype(np.float64)
        if not np.isfinite(basis).all():
            raise MethodError("a direction of the subspace is not a finite number")
        within, spec = _without_basis_in(view), self.base.shared_spec()
        if trainer.charged_steps is not None:
            inside = InCoordinates(trainer, basis, spec)
            result = self.base.client_update(within, data, inside, rng)
            return replace(result, update={COORDINATES: inside.only_fit()})
        result = self.base.client_update(within, data, trainer, rng)
        coordinates = basis @ flat(result.update, spec)
        return replace(result, update={COORDINATES: coordinates.astype(np.float32)})

    def server_update(
        self, state: m.Arrays, aggregate: m.Aggregate, pool: Sequence[m.Arrays], rng: m.Rng
    ) -> m.Arrays:
        """Apply the tensors behind the coordinates as the method does; find new directions."""
        basis, spec = state[BASIS].astype(np.float64), self.base.shared_spec()

        def whole(values: m.Arrays) -> m.Arrays:
            return shaped(values[COORDINATES].astype(np.float64) @ basis, spec)

        seen = aggregate.individual
        individual = None if seen is None else {name: whole(one) for name, one in seen.items()}
        told = replace(aggregate, values=whole(aggregate.values), individual=individual)
        return self._with_basis(self.base.server_update(without_basis(state), told, pool, rng), rng)

    def personalise(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.Arrays:
        """Return the method's personal state."""
        return self.base.personalise(_without_basis_in(view), data, trainer, rng)

    def predict(
        self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]
    ) -> NDArray[np.float32]:
        """Return the method's logits."""
        return self.base.predict(_without_basis_in(view), batch, classes)

    def _with_basis(self, state: m.Arrays, rng: m.Rng) -> m.Arrays:
        broadcast = self.base.broadcast(state)
        if self.kind == "random":
            basis = random_directions(self.rank, length(self.base.shared_spec()), rng)
        else:
            basis = self._top_directions(broadcast)
        return {**state, BASIS: basis.astype(np.float32)}

    def _top_directions(self, broadcast: m.Arrays) -> NDArray[np.float64]:
        """Return the directions at a broadcast; keeps the newest, as starts are needed often."""
        place = flat(broadcast, self.base.shared_spec()).tobytes()
        if place not in self._found:
            matrix = (
                self.base.public_jacobian(broadcast)
                if self.public is None
                else self.base.public_gradients(broadcast, self.public)
            )
            if matrix is None:
                raise MethodError("the method announces a Jacobian and gives none")
            if len(self._found) >= REMEMBERED:
                del self._found[next(iter(self._found))]
            self._found[place] = top_directions(matrix, self.rank)
        return self._found[place]


def in_subspace(
    method: m.Method,
    kind: Kind,
    rank: int,
    *,
    origin: NDArray[np.uint32],
    public: Callable[[], m.Examples] | None = None,
) -> InSubspace:
    """Return the method with uploads in a subspace.

    Args:
        method: The method; a server optimiser around it works on whole updates.
        kind: What the directions are.
        rank: k.
        origin: Digest of the frozen model and the class list (`origin_of`).
        public: Reads the public images, after all other checks; for `public_images`. There must be
            k or more images, since fewer gradients have fewer directions.

    Raises:
        MethodError: If the method does not average all shared tensors alike, its directions would
            depend on private data, it has no directions of this kind, or k is not below d.
    """
    spec = method.shared_spec()
    if not spec or not method.averaged.issuperset(spec):
        raise MethodError(
            "privacy.subspace: takes the place of an averaged update, and this method shares "
            "something else, or nothing; valid: none"
        )
    if len({tensor.weighting for tensor in spec.values()}) != 1:
        raise MethodError(
            "privacy.subspace: one vector of coordinates cannot stand for tensors that are "
            "averaged differently; valid: none"
        )
    if method.has_personal_state or method.pool_policy() is not None:
        raise MethodError(
            "privacy.subspace: its directions are those of the one broadcast, and this method's "
            "clients predict with personal state or experts of their own; valid: none"
        )
    coordinates = length(spec)
    if not 1 <= rank < coordinates:
        raise MethodError(
            f"privacy.rank: {rank} is not valid for an update of {coordinates} numbers; valid: 1 "
            f"to {coordinates - 1}"
        )
    if kind != "random" and not method.has_public_jacobian:
        raise MethodError(
            f"privacy.subspace: {kind} needs a method that shares one prompt of a frozen text "
            "tower and nothing else; valid: none, random"
        )
    images = public() if kind == "public_images" and public is not None else None
    return InSubspace(method, kind, rank, origin, images)


def subspace_of(method: m.Method) -> InSubspace | None:
    """Return the subspace of a method's uploads, under any wrappers; None without a subspace."""
    while isinstance(method, OverMethod):
        if isinstance(method, InSubspace):
            return method
        method = method.base
    return None


def without_basis(state: m.Arrays) -> m.Arrays:
    """Return a state, or a broadcast, without the directions and their digest."""
    return {name: array for name, array in state.items() if name not in (BASIS, ORIGIN)}


def _without_basis_in(view: m.ClientView) -> m.ClientView:
    return replace(view, broadcast=without_basis(view.broadcast))
