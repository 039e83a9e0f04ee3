"""DBE: a client's own shift of the features, and features whose mean is the same everywhere.

Zhang et al. 2023, "Eliminating Domain Bias for Federated Learning in Representation Space"
(NeurIPS, arXiv 2311.14975), over FedAvg. The whole network is shared. A client keeps one vector
z_p (D,), its *representation bias memory*. It is added to the features f(x) in front of the head g
and trained with the network. A *mean regularisation* holds the mean of the features at a consensus
z_g of all clients:

    CE(g(f(x) + z_p), y) + kappa MSE(z, z_g),    z <- (1 - mu) z_before + mu mean(f),

with mean(f) over a batch, MSE the mean of squares over the D features, and no gradient through
z_before. PM-MoE pools z_p, a vector of parameters.

The consensus. The paper has a period before the first round: all clients train without both parts,
and the server averages the means of their features once. Here that is the first round: a round of
FedAvg whose clients also send the mean of their features over all their examples after training. So
that training is not lost. In later rounds this part of the upload is zero, and the server does not
read it. Mean and update are one vector, so clipping and noise cover both: in the first round the
mean takes its share of the norm. With sampled cohorts, the consensus is the first cohort's.

`dp_sgd` and clipping of single examples are refused: the mean of a batch joins its examples, and
the consensus is a statistic of records that does not come from a noised step.

The paper leaves z_before at the first batch of a round open. Here it is that batch's own mean, so
that z is not pulled towards zero. With mu = 1, the value for this network, z_before has no effect.

Published code (the authors', and PFLlib) departs: it halves the mean of squares, so that its
kappa of 50 is 25 here; z_before is zero at first; its clients send their running mean for the
consensus, with mu = 1 that of their last batch; and it drops their training until then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods.interface import method as m
from methods.networks.extractors import NetworkConfig
from methods.networks.layers import Layer, Layers, Parameters, linear
from methods.networks.method import FED, HEAD, BatchObjective, ModularMethod, rows_of

CLIENT_MEAN = "client_mean"
"""z_p, the client's own shift (D,)."""
FEATURE_MEAN = "feature_mean"
"""What a client sends for the consensus (D,)."""
CONSENSUS = "consensus"
"""z_g (D,)."""
HAS_CONSENSUS = "has_consensus"
"""Whether there is a consensus: 0 or 1, (1,) int64."""

VARIANTS = ({"network": "features", "momentum": 0.5},)


@dataclass(frozen=True)
class Config(NetworkConfig):
    """Options.

    Attributes:
        mean_weight: kappa, factor of the mean regularisation.
        momentum: mu, the weight of a batch in the running mean of the features.
    """

    mean_weight: Annotated[float, Ge(0.0), Le(1e6)] = 25.0
    momentum: Annotated[float, Gt(0.0), Le(1.0)] = 1.0


class RunningMean:
    """The running mean of the features over the batches of one fit; each fit starts anew."""

    def __init__(self, momentum: float) -> None:
        self._momentum = momentum
        self._before: Tensor | None = None

    def after(self, mean: Tensor) -> Tensor:
        """Return running mean (D,) after a batch of this mean (D,); its gradient is the batch's."""
        before = mean.detach() if self._before is None else self._before
        running = (1.0 - self._momentum) * before + self._momentum * mean
        self._before = running.detach()
        return running


class DBE(ModularMethod):
    """Domain bias eliminator."""

    config: Config
    combined: ClassVar[tuple[str, ...]] = (FED,)
    couples_examples = True

    @property
    def personal_layers(self) -> Layers:
        """The client's own shift, zero at the start; the whole network is shared."""
        return {CLIENT_MEAN: Layer((self.extractor.width,), 0)}

    def shared_spec(self) -> Mapping[str, m.TensorSpec]:
        """Return the network, and the mean of the features."""
        mean = m.TensorSpec((self.extractor.width,), source=m.Source.STATISTIC)
        return {**super().shared_spec(), FEATURE_MEAN: mean}

    def init_server(self, rng: m.Rng) -> m.Arrays:
        """Return a fresh network, without a consensus."""
        return {
            **super().init_server(rng),
            CONSENSUS: np.zeros(self.extractor.width, np.float32),
            HAS_CONSENSUS: np.zeros(1, np.int64),
        }

    def module_output(self, module: Parameters, fed: Tensor) -> Tensor:
        """Return the shift itself (B, D), for any input."""
        return module[CLIENT_MEAN].expand(len(fed), -1)

    def combine(self, parameters: Parameters, parts: Parameters, output: Tensor) -> Tensor:
        """Return logits (B, C) of the shifted features."""
        return linear(parameters, HEAD, parts[FED] + output)

    def model_of(self, view: m.ClientView) -> dict[str, NDArray[Any]]:
        """Return the arrays of the client's network, and the consensus."""
        return {**super().model_of(view), CONSENSUS: view.broadcast[CONSENSUS]}

    def objective(self, view: m.ClientView) -> m.Objective:
        """Return cross-entropy, with the mean regularisation once there is a consensus."""
        if not has_consensus(view.broadcast):
            return BatchObjective(self.cross_entropies)
        running = RunningMean(self.config.momentum)
        return BatchObjective(partial(self.regularised, running))

    def regularised(
        self, running: RunningMean, parameters: Parameters, batch: Parameters
    ) -> Tensor:
        """Return loss of each example (B,), plus the whole batch's regularisation in each.

        It moves the running mean on. The parameters are the network, the shift and the consensus.
        """
        parts = self.parts(parameters, batch)
        logits = self.combine(parameters, parts, self.module_output(parameters, parts[FED]))
        mean = running.after(parts[FED].mean(0))
        distance = (mean - parameters[CONSENSUS]).square().mean()
        losses = functional.cross_entropy(logits, batch["labels"], reduction="none")
        return losses + self.config.mean_weight * distance

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train network and shift; before a consensus the network alone, and send the mean."""
        is_first = not has_consensus(view.broadcast)
        own = () if is_first else tuple(self.personal_layers)
        trained = self.train(view, data, trainer, rng, names=(*self.shared_layers, *own))
        result = self.result(view, trained)
        mean = np.zeros(self.extractor.width)
        if is_first:
            mean = rows_of(self, self.features, trained, data).mean(axis=0, dtype=np.float64)
        return replace(result, update={**result.update, FEATURE_MEAN: mean.astype(np.float32)})

    def server_update(
        self, state: m.Arrays, aggregate: m.Aggregate, pool: Sequence[m.Arrays], rng: m.Rng
    ) -> m.Arrays:
        """Add the mean change; the first mean of the features becomes the consensus."""
        values = {n: v for n, v in aggregate.values.items() if n != FEATURE_MEAN}
        moved = super().server_update(state, replace(aggregate, values=values), pool, rng)
        if has_consensus(state):
            return moved
        mean = aggregate.values[FEATURE_MEAN].astype(np.float32)
        return {**moved, CONSENSUS: mean, HAS_CONSENSUS: np.ones(1, np.int64)}


def has_consensus(state: m.Arrays) -> bool:
    """Return whether the server has averaged the clients' means."""
    return bool(state[HAS_CONSENSUS].any())


build = DBE.built
