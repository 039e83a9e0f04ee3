"""Private experts: K servers of one method; each client trains the expert that fits it best.

Where clients mean different things by one class name, a single mean hides what each group has in
common. With K experts (Ghosh et al. 2020, "An Efficient Framework for Clustered Federated
Learning", NeurIPS, Algorithm 1: IFCA, here with secret choices) a round is:

1. The server broadcasts all K experts. So clients fetch no expert and keep their choice secret.
2. A client picks, in secret, the expert k with the lowest cross-entropy on its own training
   examples (ties to the lowest index) and trains it. The client uploads K blocks: its update in
   block k, zeros elsewhere. The platform clips, appends the client's count, and noises all of it.
3. With s_j the noised sum of block j and n_j the noised count, expert j takes the method's own step
   along s_j / max(n_j, floor). Where n_j < floor, the expert stays as it is, bit for bit, or
   becomes a copy of a crowded expert.

The choice is personal state. A client never sends it, and no metric reveals it. The server learns
noised sums only.

States, broadcasts and updates of the base are stacked: every array has a first axis of K. A server
optimiser within has K memories, and a subspace within has K bases. For a method that mixes experts
from a pool, the other K - 1 experts take the place of the pool's entries (the nearest of them where
the method asks for fewer): no pool, no handles, no search at the server.

Two groups of clients that choose the same expert early stay there, as its mean suits both better
than any other expert. With `split` the server therefore splits a crowded expert, as Linde, Buzo and
Gray (1980, "An Algorithm for Vector Quantizer Design") split centroids: an empty expert becomes its
copy, moved aside. Each of the two groups then fits one of the copies better. Noised counts alone
say which experts split, and no data enter the draws that move copies: splitting is post-processing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from methods.errors import MethodError
from methods.interface import method as m
from methods.interface.defaults import OverMethod
from methods.interface.subspace import Spec, flat, length, shaped

CROWDED: Final = 2.0
"""The server splits an expert with more than so many times an even share n / K of the clients."""


def splits(groups: m.Groups) -> Iterator[tuple[int, int]]:
    """Yield pairs: an empty expert, and the crowded expert that it becomes a copy of.

    A split expert counts with half of its clients from then on. An expert is empty where its noised
    count is below the floor.
    """
    left = np.maximum(groups.counts, 0.0)
    even = float(left.sum()) / len(left)
    for empty in np.flatnonzero(groups.counts < groups.floor):
        largest = int(np.argmax(left))
        if left[largest] <= CROWDED * even or groups.counts[largest] < groups.floor:
            return
        left[largest] /= 2.0
        yield int(empty), largest


def aside(mean: m.Arrays, spec: Spec, rng: m.Rng) -> m.Arrays:
    """Return an update as long as `mean`, in a direction that `rng` draws uniformly.

    No data may enter the draws.
    """
    drawn = rng.standard_normal(length(spec))
    drawn *= np.linalg.norm(flat(mean, spec)) / np.linalg.norm(drawn)
    return shaped(drawn.astype(np.float32), spec)


CHOICE: Final = "groups.choice"
"""Name of an array in personal state: the expert that a client trained or picked last."""


@dataclass(frozen=True)
class InGroups(OverMethod):
    """A method whose clients train one of K experts each. Made by `in_groups`.

    Attributes:
        groups: K.
        classes: Class names in label order, by which a client picks.
        split: Whether an expert that no client picks becomes a copy of a crowded one.
    """

    groups: int
    classes: tuple[str, ...]
    split: bool = False
    has_personal_state = True
    averaged = frozenset[str]()
    has_public_jacobian = False

    def shared_spec(self) -> Mapping[str, m.TensorSpec]:
        """Return K blocks of what the base shares; all clients weigh the same, as counts do."""
        return {
            name: replace(tensor, shape=(self.groups, *tensor.shape), weighting=m.Weighting.UNIFORM)
            for name, tensor in self.base.shared_spec().items()
        }

    def pool_policy(self) -> m.PoolPolicy | None:
        """Return no pool: every client has all experts."""
        return None

    def init_server(self, rng: m.Rng) -> m.Arrays:
        """Return K states, each with draws of its own."""
        return _stacked([self.base.init_server(rng) for _ in range(self.groups)])

    def broadcast(self, state: m.Arrays, client: str | None = None) -> m.Arrays:
        """Return what the base sends of each state."""
        return _stacked([self.base.broadcast(_at(state, k), client) for k in range(self.groups)])

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train the expert that fits best; refuse noised steps, which do not cover the choice."""
        if trainer.charged_steps is not None:
            raise MethodError("noise in training steps does not cover which expert is picked")
        choice = self.best_for(view, data)
        result = self.base.client_update(self._view(view, choice), data, trainer, rng)
        update = {}
        for name, tensor in self.shared_spec().items():
            update[name] = np.zeros(tensor.shape, tensor.dtype)
            update[name][choice] = result.update[name]
        return m.LocalResult(
            update, None, _with_choice(result.personal, choice), result.metrics, group=choice
        )

    def best_for(self, view: m.ClientView, data: m.Examples) -> int:
        """Return the expert with the lowest cross-entropy on these examples, ties to the lowest.

        Personal parts are left out: a client trained them beside one expert, and they favour it. A
        broadcast that is not finite is refused.
        """
        sent = view.broadcast
        if not all(np.isfinite(a).all() for a in sent.values() if a.dtype.kind == "f"):
            raise MethodError("an expert holds a number that is not finite")
        labels = data.arrays["labels"]
        losses = []
        for k in range(self.groups):
            one = m.ClientView(_at(sent, k), is_common=view.is_common)
            losses.append(_cross_entropy(self.base.predict(one, data.arrays, self.classes), labels))
        # A loss that overflowed loses; where all overflowed, the first expert wins.
        return int(np.argmin(np.nan_to_num(np.asarray(losses), nan=np.inf, posinf=np.inf)))

    def server_update(
        self, state: m.Arrays, aggregate: m.Aggregate, pool: Sequence[m.Arrays], rng: m.Rng
    ) -> m.Arrays:
        """Move each expert by its group's mean if the group is large enough; it needs counts."""
        groups = aggregate.groups
        if groups is None:
            raise MethodError("the sum of private experts came without counts")
        after: list[m.Arrays] = [_at(state, k) for k in range(self.groups)]
        large = np.flatnonzero(groups.counts >= groups.floor).tolist()

        def told_to(k: int) -> m.Aggregate:
            """Return what the server of one expert learns: its group's mean."""
            count = float(groups.counts[k])
            factor = aggregate.total_weight / max(count, groups.floor)
            return replace(
                aggregate,
                values={
                    n: np.asarray(v[k] * factor, np.float32) for n, v in aggregate.values.items()
                },
                total_weight=count,
                cohort_size=max(1, round(count)),
                groups=None,
            )

        told = {k: told_to(k) for k in large}
        for k, mean in told.items():
            after[k] = self.base.server_update(after[k], mean, (), rng)
        for empty, crowded in splits(groups) if self.split else ():
            mean = told[crowded]
            moved = replace(mean, values=aside(mean.values, self.base.shared_spec(), rng))
            after[empty] = self.base.server_update(after[crowded], moved, (), rng)
        return _stacked(after)

    def personalise(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.Arrays:
        """Pick among the last experts, and do what the base does. No release follows.

        A personal part that a client trained beside one expert stays with that expert.
        """
        if self.base.has_personal_state and CHOICE in view.personal:
            choice = _choice(view)
        else:
            choice = self.best_for(view, data)
        personal = self.base.personalise(self._view(view, choice), data, trainer, rng)
        return _with_choice(personal, choice)

    def predict(
        self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]
    ) -> NDArray[np.float32]:
        """Return the base's logits with the client's expert; the first before it has picked."""
        return self.base.predict(self._view(view, _choice(view)), batch, classes)

    def expert_weights(
        self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]
    ) -> NDArray[np.float32] | None:
        """Return the base's weights of the experts that it mixes."""
        return self.base.expert_weights(self._view(view, _choice(view)), batch, classes)

    def _view(self, view: m.ClientView, choice: int) -> m.ClientView:
        """Return what the base sees: one expert as broadcast, others in place of pool entries."""
        personal = {name: array for name, array in view.personal.items() if name != CHOICE}
        others = self._others(view.broadcast, choice)
        return m.ClientView(_at(view.broadcast, choice), others, personal, is_common=view.is_common)

    def _others(self, broadcast: m.Arrays, choice: int) -> tuple[m.Arrays, ...]:
        """Return the nearest other experts, in the order of their distance (l2)."""
        policy = self.base.pool_policy()
        if policy is None:
            return ()
        entries = [
            {name: _at(broadcast, k)[name] for name in policy.spec} for k in range(self.groups)
        ]
        here = flat(entries[choice], policy.spec)
        others = [k for k in range(self.groups) if k != choice]
        away = [float(np.linalg.norm(flat(entries[k], policy.spec) - here)) for k in others]
        nearest = np.argsort(np.asarray(away), kind="stable")
        most = len(others) if policy.select == "all" else policy.k
        return tuple(entries[others[i]] for i in nearest[:most])


def in_groups(
    method: m.Method, groups: int, classes: tuple[str, ...], *, split: bool = False
) -> InGroups:
    """Return the method with K private experts.

    Args:
        method: The method, a server optimiser and a subspace already in it.
        groups: K, at least 2.
        classes: Class names in label order.
        split: Whether an expert that no client picks becomes a copy of a crowded one.

    Raises:
        MethodError: If the experts start alike, the method does not average its update, keeps
            personal state without a pool, or uses a pool that K experts cannot stand for.
    """
    spec, policy = method.shared_spec(), method.pool_policy()
    if not spec or any(tensor.weighting is m.Weighting.SUM for tensor in spec.values()):
        raise MethodError(
            "pool.kind: groups divides each expert's sum by its clients, and this method shares "
            "nothing, or sums; valid: entries"
        )
    if method.visibility == "per_client":
        raise MethodError(
            "pool.kind: groups shows the server noised sums only, and this method needs each "
            "client's update; valid: entries"
        )
    if policy is None and method.has_personal_state:
        raise MethodError(
            "pool.kind: groups is for methods that keep nothing on a client, or mix experts of "
            "a pool; this one keeps what was trained beside one broadcast; valid: entries"
        )
    if policy is not None and (policy.fixed or policy.select == "random"):
        what = "made once" if policy.fixed else "drawn from at random"
        raise MethodError(
            f"pool.kind: groups has its experts in every broadcast, and this method's pool is "
            f"{what}; valid: entries"
        )
    shapes = {name: tensor.shape for name, tensor in spec.items()}
    entry = {} if policy is None else policy.spec
    if any(shapes.get(name) != tensor.shape for name, tensor in entry.items()):
        raise MethodError(
            "pool.kind: groups hands out other clients' experts as they are shared, and this "
            "method's pool entries are something else; valid: entries"
        )
    found = InGroups(method, groups, classes, split)
    first = found.broadcast(found.init_server(np.random.default_rng(0)))
    shared = [n for n in first if n in method.shared_spec()] or list(first)
    if all(np.array_equal(first[name][0], first[name][1]) for name in shared):
        raise MethodError(
            "pool.kind: groups needs experts that start apart, and this method's all start alike, "
            "as from a text; valid: entries, or a start that is drawn"
        )
    return found


def _cross_entropy(logits: NDArray[Any], labels: NDArray[Any]) -> float:
    """Return the sum over examples, in double precision; NaN where logits are NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
        totals = np.log(np.exp(shifted).sum(axis=1))
        return float((totals - shifted[np.arange(len(labels)), labels]).sum())


def _stacked(states: Sequence[m.Arrays]) -> dict[str, NDArray[Any]]:
    return {name: np.stack([state[name] for state in states]) for name in states[0]}


def _at(stacked: m.Arrays, k: int) -> dict[str, NDArray[Any]]:
    return {name: np.asarray(array[k]) for name, array in stacked.items()}


def _choice(view: m.ClientView) -> int:
    return int(view.personal[CHOICE]) if CHOICE in view.personal else 0


def _with_choice(personal: m.Arrays, choice: int) -> m.Arrays:
    return {**personal, CHOICE: np.array(choice, np.int64)}
