"""FedDG-GA: a client weighs more if averaging makes the model worse on that client's data.

Zhang, Xu, Yao, Zhang, Tian & Wang 2023, "Federated Domain Generalization with Generalization
Adjustment" (CVPR), as in the authors' code (MediaBrain-SJTU/FedDG-GA at 8d03a24): the paper's text
was not available. Around the rounds of another method, weights a_i of the clients, 1/M at first,
follow the gaps

    g_i = metric of the averaged model - metric of the client's own model before averaging,

both on images that the client does not train on:

    a_i <- clip( a_i + s (g_i / max_j |g_j|) d_t / 3, 0, 1 ),  then scaled to add up to one,
    d_t = d (1 - (t - 1) / R),   t = 0, 1, ...,

with s = 1 where the metric is a loss and -1 where it is the accuracy. As we remember the paper, it
first subtracts the mean from the gaps (`centre`) and has no division (`divisor: 1`); the code
subtracts nothing and divides by 3, its number of clients. Where all gaps are 0 the code divides by
0; here the weights stay. After R + 1 steps d_t would turn negative; here it is 0. With `step: 0` it
is the base method with plain means.

A client measures the averaged model when it receives it, in its next round, and its own model after
training. So the gap of a round comes with the upload of the client's next round, in time for that
mean, as in the code. A client without an earlier round has no gap. If only some clients take part,
they share out the weight that they had together, and the mean is over them.

Images: the platform hands only training examples to a method. The client holds out a share of them
(`held_out`), evenly spread and the same in each round; if that is less than one image, it measures
gaps on its training images.

Privacy: the server needs each single gap, and a gap tells of one client's data; so do updates with
different weights. Under `upload_noise` update and gap are clipped as one vector, noised on the
client and charged as one release. `gap_factor` multiplies a sent gap; the server uses only ratios
to the largest gap, and weights follow noise where gaps are below it. Secure sums, noise on sums and
`dp_sgd` are refused: a secure sum hides each gap, there is no channel for single noised numbers
beside it, and no noised step covers a measurement.

Tensors that the base sums (SCAFFOLD's control variates) stay sums; the code weights them too. What
a base collects before the first round (`ccst`, `elcfs`) is from all of a client's images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal

import numpy as np
from annotated_types import Ge, Gt, Le, Lt
from numpy.typing import NDArray
from scipy.special import logsumexp

from methods.interface import method as m
from methods.interface.defaults import CLIENT_ONLY, OverMethod
from methods.interface.method import CountsWith, OptionsOf
from methods.interface.registry import BUILT_IN_METHODS, options_of
from methods.networks.method import ROWS, blocks

GAP: Final = "adjustment.gap"
MEASURED: Final = "adjustment.measured"
"""Name under which a client keeps the metric of its own model."""
WEIGHT: Final = "adjustment.weight/"
STEPS: Final = "adjustment.steps"

VARIANTS = (
    {"base": "scaffold", "base_options": {"network": "features"}, "metric": "loss"},
    {"base": "fedsr", "base_options": {"network": "features"}, "held_out": 0.25},
    {"base": "elcfs", "base_options": {"network": "cnn", "band": 0.1}},
)


@dataclass(frozen=True)
class Config:
    """Options.

    Attributes:
        base: The method of the rounds.
        base_options: Its own options; those not named are at their defaults.
        metric: The metric of the gaps.
        step: d, how far weights move at first.
        rounds: R, over which the step fades.
        divisor: Divisor of a step.
        centre: Whether the mean gap is subtracted.
        held_out: Share of a client's training images that gaps are measured on.
        gap_factor: Factor of a sent gap, which matters under noise only.
    """

    base: Literal["fedavg", "fedprox", "scaffold", "fedsr", "ccst", "elcfs"] = "fedavg"
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
    """Another method under generalisation adjustment, for `population` clients."""

    config: Config
    classes: tuple[str, ...]
    population: int

    visibility = m.Visibility.PER_CLIENT
    units = CLIENT_ONLY
    has_personal_state = True
    averaged = frozenset[str]()
    """Nothing: gaps weigh the mean."""

    def shared_spec(self) -> Mapping[str, m.TensorSpec]:
        """Return the base's tensors, and the gap (1,): like an update, it is 0 without training."""
        gap = m.TensorSpec((1,), weighting=m.Weighting.UNIFORM, source=m.Source.PERSONAL)
        return {**self.base.shared_spec(), GAP: gap}

    def init_server(self, rng: m.Rng) -> m.Arrays:
        """Return the base's state before any step of the weights."""
        return {**self.base.init_server(rng), STEPS: np.zeros(1)}

    def broadcast(self, state: m.Arrays, client: str | None = None) -> m.Arrays:
        """Return what the base sends; weights stay with the server."""
        own = {n: v for n, v in state.items() if n != STEPS and not n.startswith(WEIGHT)}
        return self.base.broadcast(own, client)

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Measure the broadcast, train by the base, and measure the result."""
        trained_on, measured_on = held_out(data, self.config.held_out)
        gap = 0.0
        if MEASURED in view.personal:
            gap = self.measure(view, measured_on) - float(view.personal[MEASURED][0])
        own = {name: value for name, value in view.personal.items() if name != MEASURED}
        result = self.base.client_update(replace(view, personal=own), trained_on, trainer, rng)
        sent = view.broadcast
        moved = {n: sent[n] + step for n, step in result.update.items() if n in sent}
        after = m.ClientView({**sent, **moved}, view.experts, result.personal)
        kept = np.array([self.measure(after, measured_on)], np.float64)
        sent_gap = np.array([self.config.gap_factor * gap], np.float32)
        return replace(
            result,
            update={**result.update, GAP: sent_gap},
            personal={**result.personal, MEASURED: kept},
        )

    def measure(self, view: m.ClientView, data: m.Examples) -> float:
        """Return mean loss or accuracy of a network on examples."""
        total = 0.0
        for some in blocks(data.arrays, ROWS):
            images = {n: v for n, v in some.items() if n not in ("labels", "domains")}
            logits = self.base.predict(view, images, self.classes).astype(np.float64)
            total += float(scores(logits, some["labels"], self.config.metric).sum())
        return total / data.num_examples

    def server_update(
        self, state: m.Arrays, aggregate: m.Aggregate, pool: Sequence[m.Arrays], rng: m.Rng
    ) -> m.Arrays:
        """Move the weights by single clients' gaps, then the base's state by the weighted mean."""
        updates = aggregate.each()
        if not updates:
            return state
        moved = self.weighed(state, {key: float(u[GAP][0]) for key, u in updates.items()})
        weights = np.array([moved[f"{WEIGHT}{key}"][0] for key in updates])
        values = {
            name: aggregate.values[name]
            if spec.weighting is m.Weighting.SUM
            else weighted_mean([update[name] for update in updates.values()], weights)
            for name, spec in self.base.shared_spec().items()
        }
        after = self.base.server_update(state, replace(aggregate, values=values), pool, rng)
        return {**after, **moved}

    def weighed(self, state: m.Arrays, gaps: Mapping[str, float]) -> dict[str, NDArray[Any]]:
        """Return weights of a round's clients, some from the state, and the steps so far."""
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
    """Return weights (K,) after one step d_t along gaps (K,), with the same sum as before."""
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
    """Return the mean of K arrays by weights (K,); the plain mean where all weights are 0."""
    total = weights.sum()
    shares = weights / total if total else np.full(len(weights), 1.0 / len(weights))
    mean: NDArray[np.float64] = np.tensordot(shares, np.stack(values).astype(np.float64), 1)
    return mean


def held_out(data: m.Examples, share: float) -> tuple[m.Examples, m.Examples]:
    """Return the training examples and the measured examples of a client.

    `share` is held out, rounded down; if that is less than one example, both parts hold all.
    """
    count = int(share * data.num_examples)
    if not count:
        return data, data
    spared = np.zeros(data.num_examples, bool)
    # Data may come class by class, so the held-out examples are spread evenly.
    spared[((np.arange(count) + 0.5) * data.num_examples / count).astype(np.int64)] = True
    kept, taken = ({n: v[rows] for n, v in data.arrays.items()} for rows in (~spared, spared))
    return m.Examples(kept), m.Examples(taken)


def scores(
    logits: NDArray[np.float64], labels: NDArray[Any], metric: Literal["accuracy", "loss"]
) -> NDArray[np.float64]:
    """Return a metric's value (n,) of each example: right or wrong, or cross-entropy."""
    if metric == "accuracy":
        return np.asarray(logits.argmax(axis=1) == labels, np.float64)
    return np.asarray(logsumexp(logits, axis=1) - logits[np.arange(len(labels)), labels])


def serving(config: Config, clients: int) -> m.PoolPolicy | None:
    """Return how the base will use a pool, if it has one."""
    return BUILT_IN_METHODS.serving(config.base, config.base_options, clients)


def build(config: Config, task: m.Task) -> m.Method:
    """Build the method around its base."""
    base = BUILT_IN_METHODS.build(config.base, options_of(config.base, config.base_options), task)
    return FedDGGA(base, config, task.classes, task.population)
