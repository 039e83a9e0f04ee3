"""FedDG-GA: clients whose own data the averaged model serves worse than their own count for more.

Zhang, Xu, Yao, Zhang, Tian & Wang 2023, "Federated Domain Generalization with Generalization
Adjustment" (CVPR), as in the authors' code (MediaBrain-SJTU/FedDG-GA at 8d03a24): the paper's text
was not at hand. Around the rounds of another method, weights a_i of the clients, 1/M at first,
follow the gaps

    g_i = metric of the averaged model - metric of the client's own model before averaging,

both on images that the client does not train on:

    a_i <- clip( a_i + s (g_i / max_j |g_j|) d_t / 3, 0, 1 ),  then scaled to add up to one,
    d_t = d (1 - (t - 1) / R),   t = 0, 1, ...,

with s = 1 where the metric is a loss and -1 where it is the accuracy. The paper is remembered to
take the mean off the gaps first (`centre`) and to divide by nothing (`divisor: 1`); the code takes
nothing off and divides by 3, its number of clients. Where all gaps are 0 the code divides by 0;
here the weights stay. After R + 1 steps d_t would turn negative; here it is 0. With `step: 0` it is
the base method with plain means.

A client measures the averaged model when it is sent it, which is with the next round, and its own
after training; the gap of a round so comes with the upload of the client's next one, in time for
that one's mean, as in the code. A client that was in no round before has no gap. Where not all take
part, those who do share out what they had together, and the mean is over them.

Images: the platform hands training examples to a method and no others, so `held_out` of these are
spared, evenly spread and the same in each round; where that is not one image, gaps are measured on
what is trained on.

Privacy: a gap tells of one client's data and is needed by itself, and so are updates that count
differently. Under `upload_noise` update and gap are clipped as one vector, noised on the client and
charged as one release; `gap_factor` is what a gap is sent times, of which nothing but the largest
gap's share remains at the server, and weights follow noise where gaps are below it. Secure sums,
noise on sums and `dp_sgd` are refused: what a secure sum adds up hides each gap, there is no
channel for single noised numbers beside it, and no noised step covers a measurement.

Tensors that the base sums (SCAFFOLD's control variates) stay sums; the code weights them too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Annotated, Any, Final, Literal

import numpy as np
from annotated_types import Ge, Gt, Le, Lt
from numpy.typing import NDArray

from methods import fedavg, fedprox, fedsr, scaffold
from methods.interface.defaults import CLIENT_ONLY, OverMethod
from methods.interface.method import (
    Aggregate,
    Arrays,
    ClientView,
    CountsWith,
    Examples,
    LocalResult,
    Method,
    OptionsOf,
    Source,
    Task,
    TensorSpec,
    Trainer,
    Unit,
    Visibility,
    Weighting,
)
from methods.networks.method import blocks

GAP: Final = "adjustment.gap"
MEASURED: Final = "adjustment.measured"
"""Under which a client keeps the metric of its own model."""
WEIGHT: Final = "adjustment.weight/"
STEPS: Final = "adjustment.steps"
_ROWS: Final = 256

VARIANTS = (
    {"base": "scaffold", "base_options": {"network": "features"}, "metric": "loss"},
    {"base": "fedsr", "base_options": {"network": "features"}, "held_out": 0.25},
)


@dataclass(frozen=True)
class Config:
    """Options.

    Attributes:
        base: The method of the rounds.
        base_options: Its own options; those not named are at their defaults.
        metric: What gaps are of.
        step: d, how far weights move at first.
        rounds: R, over which that fades.
        divisor: What a step is divided by.
        centre: Whether the mean gap is taken off.
        held_out: Share of a client's training images that gaps are measured on.
        gap_factor: What a gap is sent times, which matters under noise only.
    """

    base: Literal["fedavg", "fedprox", "scaffold", "fedsr"] = "fedavg"
    base_options: Annotated[Any, OptionsOf("base")] = field(default_factory=dict)
    metric: Annotated[Literal["accuracy", "loss"], CountsWith("step")] = "accuracy"
    step: Annotated[float, Ge(0.0), Le(1e3)] = 0.2
    rounds: Annotated[int, Ge(1), Le(100000), CountsWith("step")] = 40
    divisor: Annotated[float, Gt(0.0), Le(1e6), CountsWith("step")] = 3.0
    centre: Annotated[bool, CountsWith("step")] = False
    held_out: Annotated[float, Ge(0.0), Lt(1.0)] = 0.1
    gap_factor: Annotated[float, Gt(0.0), Le(1e6)] = 1.0


@dataclass(frozen=True)
class FedDGGA(OverMethod):
    """Another method under generalisation adjustment.

    Attributes:
        base: The method of the rounds.
        config: Options.
        classes: The task's classes in label order.
        population: Number M of clients.
    """

    config: Config
    classes: tuple[str, ...]
    population: int

    @property
    def visibility(self) -> Visibility:
        """Weights and gaps are of single clients."""
        return Visibility.PER_CLIENT

    @property
    def units(self) -> frozenset[Unit]:
        """No noised step covers a gap."""
        return CLIENT_ONLY

    @property
    def has_personal_state(self) -> bool:
        """A client keeps what its own model measured."""
        return True

    @property
    def averaged(self) -> frozenset[str]:
        """Nothing: a mean is weighted by gaps."""
        return frozenset()

    def shared_spec(self) -> Mapping[str, TensorSpec]:
        """Return the base's, and the gap (1,): like an update, it is 0 where nobody trains."""
        gap = TensorSpec((1,), weighting=Weighting.UNIFORM, source=Source.PERSONAL)
        return {**self.base.shared_spec(), GAP: gap}

    def init_server(self, rng: np.random.Generator) -> Arrays:
        """Return the base's state before any step of the weights."""
        return {**self.base.init_server(rng), STEPS: np.zeros(1)}

    def broadcast(self, state: Arrays, client: str | None = None) -> Arrays:
        """Return what the base sends; weights stay with the server."""
        own = {n: v for n, v in state.items() if n != STEPS and not n.startswith(WEIGHT)}
        return self.base.broadcast(own, client)

    def client_update(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> LocalResult:
        """Measure what was sent, train by the base, and measure what came of it."""
        trained_on, measured_on = held_out(data, self.config.held_out)
        gap = 0.0
        if MEASURED in view.personal:
            gap = self.measure(view, measured_on) - float(view.personal[MEASURED][0])
        own = {name: value for name, value in view.personal.items() if name != MEASURED}
        result = self.base.client_update(replace(view, personal=own), trained_on, trainer, rng)
        sent = view.broadcast
        moved = {n: sent[n] + step for n, step in result.update.items() if n in sent}
        after = ClientView({**sent, **moved}, view.experts, result.personal)
        kept = np.array([self.measure(after, measured_on)], np.float64)
        sent_gap = np.array([self.config.gap_factor * gap], np.float32)
        return replace(
            result,
            update={**result.update, GAP: sent_gap},
            personal={**result.personal, MEASURED: kept},
        )

    def measure(self, view: ClientView, data: Examples) -> float:
        """Return mean loss or accuracy of a network on examples."""
        total = 0.0
        for some in blocks(data.arrays, _ROWS):
            images = {n: v for n, v in some.items() if n not in ("labels", "domains")}
            logits = self.base.predict(view, images, self.classes).astype(np.float64)
            total += float(scores(logits, some["labels"], self.config.metric).sum())
        return total / data.num_examples

    def server_update(
        self, state: Arrays, aggregate: Aggregate, pool: Sequence[Arrays], rng: np.random.Generator
    ) -> Arrays:
        """Move the weights by the gaps, then the base's state by the weighted mean.

        Raises:
            MethodError: If the clients' updates were not handed over one by one.
        """
        updates = aggregate.each()
        if not updates:
            return state
        moved = self.weighed(state, {key: float(u[GAP][0]) for key, u in updates.items()})
        weights = np.array([moved[f"{WEIGHT}{key}"][0] for key in updates])
        values = {
            name: aggregate.values[name]
            if spec.weighting is Weighting.SUM
            else weighted_mean([update[name] for update in updates.values()], weights)
            for name, spec in self.base.shared_spec().items()
        }
        after = self.base.server_update(state, replace(aggregate, values=values), pool, rng)
        return {**after, **moved}

    def weighed(self, state: Arrays, gaps: Mapping[str, float]) -> dict[str, NDArray[Any]]:
        """Return weights of a round's clients, and the number of steps so far.

        Args:
            state: The server's, with the weights of those who were in a round before.
            gaps: What each client sent.
        """
        known = [key for key in gaps if f"{WEIGHT}{key}" in state]
        found = {f"{WEIGHT}{key}": np.array([1.0 / self.population]) for key in gaps}
        if not known:
            return {**found, STEPS: state[STEPS]}
        taken = int(state[STEPS][0])
        weights = adjusted(
            np.array([state[f"{WEIGHT}{key}"][0] for key in known]),
            np.array([gaps[key] for key in known]),
            step=self.config.step * max(0.0, 1.0 - (taken - 1) / self.config.rounds),
            config=self.config,
        )
        found |= {f"{WEIGHT}{key}": weights[i : i + 1] for i, key in enumerate(known)}
        return {**found, STEPS: np.array([taken + 1.0])}


def adjusted(
    weights: NDArray[np.float64], gaps: NDArray[np.float64], *, step: float, config: Config
) -> NDArray[np.float64]:
    """Return weights after one step, adding up to what they did before.

    Args:
        weights: Weights (K,) of the clients.
        gaps: Their gaps (K,).
        step: d_t.
        config: The metric, and what is done to gaps and step.
    """
    gaps = gaps - gaps.mean() if config.centre else gaps
    largest = np.abs(gaps).max()
    if not largest:
        return weights
    sign = 1.0 if config.metric == "loss" else -1.0
    moved = np.clip(weights + sign * gaps / largest * step / config.divisor, 0.0, 1.0)
    total = float(moved.sum())
    return moved * (float(weights.sum()) / total) if total else weights


def weighted_mean(
    values: Sequence[NDArray[Any]], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the mean of K arrays by weights (K,); the plain one where all weights are 0."""
    total = weights.sum()
    shares = weights / total if total else np.full(len(weights), 1.0 / len(weights))
    mean: NDArray[np.float64] = np.tensordot(shares, np.stack(values).astype(np.float64), 1)
    return mean


def held_out(data: Examples, share: float) -> tuple[Examples, Examples]:
    """Return what is trained on and what is measured on.

    Args:
        data: The n examples of a client.
        share: Of them, rounded down, that are spared; where that is none, both are all of them.
    """
    count = int(share * data.num_examples)
    if not count:
        return data, data
    spared = np.zeros(data.num_examples, bool)
    # Data may come class by class, so what is spared is spread evenly.
    spared[((np.arange(count) + 0.5) * data.num_examples / count).astype(np.int64)] = True
    kept, taken = ({n: v[rows] for n, v in data.arrays.items()} for rows in (~spared, spared))
    return Examples(kept), Examples(taken)


def scores(
    logits: NDArray[np.float64], labels: NDArray[Any], metric: Literal["accuracy", "loss"]
) -> NDArray[np.float64]:
    """Return what a metric is the mean of, (n,): right or wrong, or cross-entropy.

    Args:
        logits: Of each example, (n, C).
        labels: Classes (n,).
        metric: Which.
    """
    if metric == "accuracy":
        return np.asarray(logits.argmax(axis=1) == labels, np.float64)
    highest = logits.max(axis=1, keepdims=True)
    totals = highest[:, 0] + np.log(np.exp(logits - highest).sum(axis=1))
    losses: NDArray[np.float64] = totals - logits[np.arange(len(labels)), labels]
    return losses


def build(config: Config, task: Task) -> Method:
    """Build the method.

    Raises:
        BackboneError: If the base's network needs a CLIP model and the task has none.
    """
    module, options = _MODULES[config.base], config.base_options
    chosen = module.Config(**options) if isinstance(options, Mapping) else options
    return FedDGGA(module.build(chosen, task), config, task.classes, task.population)


_MODULES: Mapping[str, ModuleType] = {
    "fedavg": fedavg,
    "fedprox": fedprox,
    "scaffold": scaffold,
    "fedsr": fedsr,
}
