"""Server optimisers: the step that the server takes from a round's mean change.

Reddi et al. 2021, "Adaptive Federated Optimization" (ICLR), Algorithms 1 and 2. The mean change
Delta_t of the clients takes the place of a (negative) gradient, coordinate by coordinate:

    sgd       m_t = momentum m_{t-1} + Delta_t                 x_{t+1} = x_t + eta m_t
    adagrad   v_t = v_{t-1} + Delta_t^2
    adam      v_t = beta_2 v_{t-1} + (1 - beta_2) Delta_t^2
    yogi      v_t = v_{t-1} - (1 - beta_2) Delta_t^2 sign(v_{t-1} - Delta_t^2)

and for the last three, m_t = beta_1 m_{t-1} + (1 - beta_1) Delta_t and

    x_{t+1} = x_t + eta m_t / (sqrt(v_t) + tau).

`sgd` with momentum is FedAvgM (Hsu et al. 2019); without momentum and with eta = 1 it is FedAvg,
bit for bit. m_{-1} = 0 and v_{-1} = tau^2, the smallest value that the paper allows. Nothing
corrects the bias of the first rounds. Defaults are those of the paper's experiments, which tune eta
over powers of ten; so eta has no default.

An optimiser sees what a round released, and its memory follows from that. So it spends no privacy
under any mechanism, and changes no ledger row (post-processing).

`WithServerOptimizer` wraps a method: it replaces only the combined changes of the tensors that the
method declares `averaged`, by the step to take. The optimiser's memory lies in the server state
beside the method's own state, and the server never sends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal

import numpy as np
from annotated_types import Ge, Gt, Le, Lt
from numpy.typing import NDArray

from methods.interface.defaults import OverMethod
from methods.interface.method import Aggregate, Arrays

MEMORY: Final = "server_optimizer."
"""Beginning of the names of an optimiser's arrays in the server state."""

Rate = Annotated[float, Gt(0.0), Le(1e3)]
Decay = Annotated[float, Ge(0.0), Lt(1.0)]
Squares = NDArray[np.float64]
Slots = Mapping[str, NDArray[Any]]
"""An optimiser's memory of one tensor, by kind."""


@dataclass(frozen=True)
class ServerSGD:
    """Options of `sgd`.

    Attributes:
        name: Its name.
        learning_rate: eta.
        momentum: Of the server.
    """

    name: Literal["sgd"]
    learning_rate: Rate = 1.0
    momentum: Decay = 0.0

    def start(self, shape: tuple[int, ...]) -> Slots:
        """Return m_{-1} = 0; nothing without momentum."""
        return {"momentum": np.zeros(shape, np.float32)} if self.momentum else {}

    def step(self, change: NDArray[Any], slots: Slots) -> tuple[NDArray[Any], Slots]:
        """Return eta m_t, and m_t."""
        if not self.momentum:
            return (self.learning_rate * change.astype(np.float64)).astype(change.dtype), {}
        moved = self.momentum * slots["momentum"].astype(np.float64) + change
        step = (self.learning_rate * moved).astype(change.dtype)
        return step, {"momentum": moved.astype(np.float32)}


@dataclass(frozen=True)
class _Adaptive:
    """The step that the three adaptive optimisers share.

    `start` gives an optimiser's memory of a tensor before the first round. `step` gives the step to
    take in place of a change, and the new memory, in float32.
    """

    learning_rate: Rate
    beta_1: Decay
    tau: Rate

    def start(self, shape: tuple[int, ...]) -> Slots:
        """Return m_{-1} = 0 and v_{-1} = tau^2."""
        return {
            "mean": np.zeros(shape, np.float32),
            "square": np.full(shape, self.tau**2, np.float32),
        }

    def step(self, change: NDArray[Any], slots: Slots) -> tuple[NDArray[Any], Slots]:
        """Return eta m_t / (sqrt(v_t) + tau), and m_t and v_t."""
        delta = change.astype(np.float64)
        mean = self.beta_1 * slots["mean"].astype(np.float64) + (1.0 - self.beta_1) * delta
        square = self.squares(slots["square"].astype(np.float64), delta**2)
        step = self.learning_rate * mean / (np.sqrt(square) + self.tau)
        kept = {"mean": mean.astype(np.float32), "square": square.astype(np.float32)}
        return step.astype(change.dtype), kept

    def squares(self, before: Squares, now: Squares) -> Squares:
        """Return v_t of v_{t-1} and Delta_t^2."""
        raise NotImplementedError


@dataclass(frozen=True)
class ServerAdagrad(_Adaptive):
    """Options of `adagrad`.

    Attributes:
        learning_rate: eta.
        beta_1: Share of the old mean; 0 in the paper's experiments.
        tau: Keeps steps finite; the larger, the less adaptive.
        name: Its name.
    """

    beta_1: Decay = 0.0
    tau: Rate = 1e-3
    name: Literal["adagrad"] = "adagrad"

    def squares(self, before: Squares, now: Squares) -> Squares:
        """Return the sum of all squares."""
        return before + now


@dataclass(frozen=True)
class ServerAdam(_Adaptive):
    """Options of `adam`.

    Attributes:
        learning_rate: eta.
        beta_1: Share of the old mean.
        tau: Keeps steps finite; the larger, the less adaptive.
        beta_2: Share of the old squares.
        name: Its name.
    """

    beta_1: Decay = 0.9
    tau: Rate = 1e-3
    beta_2: Decay = 0.99
    name: Literal["adam"] = "adam"

    def squares(self, before: Squares, now: Squares) -> Squares:
        """Return the running mean of the squares."""
        return self.beta_2 * before + (1.0 - self.beta_2) * now


@dataclass(frozen=True)
class ServerYogi(_Adaptive):
    """Options of `yogi`.

    Attributes:
        learning_rate: eta.
        beta_1: Share of the old mean.
        tau: Keeps steps finite; the larger, the less adaptive.
        beta_2: One minus the share of a square by which v moves towards it.
        name: Its name.
    """

    beta_1: Decay = 0.9
    tau: Rate = 1e-3
    beta_2: Decay = 0.99
    name: Literal["yogi"] = "yogi"

    def squares(self, before: Squares, now: Squares) -> Squares:
        """Return the old squares, moved towards the new squares by a share of them."""
        return before - (1.0 - self.beta_2) * now * np.sign(before - now)


ServerOptimizer = ServerSGD | _Adaptive
SERVER_OPTIMIZERS: Final[Mapping[str, type[Any]]] = {
    "sgd": ServerSGD,
    "adagrad": ServerAdagrad,
    "adam": ServerAdam,
    "yogi": ServerYogi,
}
"""By name."""


@dataclass(frozen=True)
class WithServerOptimizer(OverMethod):
    """A method whose server takes an optimiser's steps."""

    optimizer: ServerOptimizer

    def init_server(self, rng: np.random.Generator) -> Arrays:
        """Return the method's state and the optimiser's memory."""
        spec = self.base.shared_spec()
        memory = {name: self.optimizer.start(spec[name].shape) for name in self.base.averaged}
        return {**self.base.init_server(rng), **_flat(memory)}

    def broadcast(self, state: Arrays, client: str | None = None) -> Arrays:
        """Return what the method sends of its own state."""
        return self.base.broadcast(_without_memory(state), client)

    def server_update(
        self, state: Arrays, aggregate: Aggregate, pool: Sequence[Arrays], rng: np.random.Generator
    ) -> Arrays:
        """Return the method's next state, moved by the optimiser's steps, and the new memory."""
        values, memory = dict(aggregate.values), dict[str, Slots]()
        for name in self.base.averaged:
            prefix = f"{MEMORY}{name}/"
            slots = {n.removeprefix(prefix): a for n, a in state.items() if n.startswith(prefix)}
            values[name], memory[name] = self.optimizer.step(values[name], slots)
        moved = replace(aggregate, values=values)
        after = self.base.server_update(_without_memory(state), moved, pool, rng)
        return {**after, **_flat(memory)}


def _flat(memory: Mapping[str, Slots]) -> dict[str, NDArray[Any]]:
    return {
        f"{MEMORY}{name}/{slot}": array
        for name in sorted(memory)
        for slot, array in memory[name].items()
    }


def _without_memory(state: Arrays) -> Arrays:
    return {name: array for name, array in state.items() if not name.startswith(MEMORY)}
