"""FedGen: FedAvg, and a generator of features by which the clients' heads teach each other.

Zhu, Hong & Zhou 2021, "Data-Free Knowledge Distillation for Heterogeneous Federated Learning"
(ICML, arXiv 2105.10056), Algorithm 1. The server trains a generator G that turns noise e and a
class y into features for which the clients' heads g_k predict y. A client adds to its loss the
cross-entropy of its own head on generated pairs. Neither needs data of another client:

    server:    min over G of E_{y, e} [ CE(ensemble of g_k at G(e, y), y) ] + diversity term
    client k:  min over its network of F_k + E_{y, e} [ CE(g_k(G(e, y)), y) ]

with y from the label distribution of all clients, which the server estimates from their counts.
The paper writes the ensemble in two ways, and both are options:

- `individual`: the sum over clients of their own losses, weighted by their share of class y, as in
  the authors' code. The server needs each client's head by itself, so secure sums and noise on sums
  are refused.
- `mean`: one loss, of the mean of the heads' logits. Heads are linear, so that is the loss of the
  mean head, an aggregate that the server has anyway (weighted by examples, as in PFLlib's code).

A client sends the shares of its labels and no counts, as a difference to the server's shares:
counts in the hundreds would fill a whole clipping norm. So `individual` weights classes by shares,
as if clients had equally many examples. Shares are statistics of records that do not come from a
noised step, so `dp_sgd` is refused with them. `ensemble: mean` with `labels: uniform` draws all
classes equally, sends no shares, and admits `dp_sgd`: the server trains on noised releases only.

The paper leaves open how many pairs are drawn when. Here a client draws `generated` of them once
a round and takes the gradient over all of them in each step, as a term that sees no data; with
`weight: 0` it is FedAvg. The generator's Adam starts anew in each round. The authors' code leaves
the client's term out of the first round, multiplies it by 10, lets it fade, and adds a divergence
between predictions on data and on generated features; the paper's objective and PFLlib do not. Both
codes draw uniform noise where the paper has Gaussian: `noise`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods.fedavg import FedAvg
from methods.interface import method as m
from methods.interface.defaults import ALL_UNITS, CLIENT_ONLY
from methods.interface.method import CountsWith
from methods.networks.extractors import NetworkConfig
from methods.networks.layers import Layers, Parameters, linear, linear_layers, start
from methods.networks.method import HEAD, ServerLoss, descend, label_shares

HIDDEN, OUTPUT = "generator.hidden", "generator.output"


@dataclass(frozen=True)
class Generator:
    """The network, without its arrays: it maps noise (E,) and one of C classes to features (D,)."""

    classes: int
    noise_width: int
    hidden_width: int
    width: int
    noise: Literal["gaussian", "uniform"]

    @property
    def layers(self) -> Layers:
        """Both layers."""
        return {
            **linear_layers(HIDDEN, self.noise_width + self.classes, self.hidden_width),
            **linear_layers(OUTPUT, self.hidden_width, self.width),
        }

    def draw(self, rng: m.Rng, count: int) -> NDArray[np.float32]:
        """Return noise (count, E)."""
        shape = (count, self.noise_width)
        if self.noise == "gaussian":
            return rng.standard_normal(shape, np.float32)
        return rng.random(shape, np.float32)

    def features(self, parameters: Parameters, noise: Tensor, labels: Tensor) -> Tensor:
        """Return features (B, D) of noise (B, E) and classes (B,)."""
        hot = functional.one_hot(labels, self.classes).to(noise.dtype)
        hidden = functional.relu(linear(parameters, HIDDEN, torch.cat((noise, hot), dim=1)))
        return linear(parameters, OUTPUT, hidden)


def likeness(noise: Tensor, features: Tensor) -> Tensor:
    """Return the term that asks for different features where noise differs, shape ().

    As in the paper's published code, after Mao et al. 2019: exp(-mean_ij n_ij f_ij), n_ij being
    the mean squared difference of two rows of noise (B, E) and f_ij the mean absolute difference of
    their features (B, D). It is 1 where all features are alike, and less the more they differ.
    """
    squares = noise.square().sum(1)
    apart = (squares[:, None] + squares[None, :] - 2.0 * noise @ noise.T) / noise.shape[1]
    differences = torch.cdist(features, features, p=1.0) / features.shape[1]
    return torch.exp(-(apart * differences).mean())


SHARES = "label_shares"

VARIANTS = (
    {"ensemble": "mean"},
    {"network": "features", "ensemble": "mean", "labels": "uniform", "noise": "uniform"},
)


@dataclass(frozen=True)
class Config(NetworkConfig):
    """Options.

    Attributes:
        ensemble: Whether each client's head or their mean teaches the generator.
        labels: Classes of generated pairs: as often as the clients have them, or equally often.
        weight: Factor of the client's term.
        generated: Pairs that a client draws for a round.
        noise: Of the generator.
        noise_width: Numbers of noise behind one feature.
        hidden_width: Width of the generator's hidden layer.
        diversity: Factor of the term that asks for different features from different noise.
        generator_rate: Learning rate of the generator's Adam.
        generator_steps: Its steps in a round.
        generator_batch: Pairs of one of them.
    """

    ensemble: Literal["individual", "mean"] = "individual"
    labels: Literal["counted", "uniform"] = "counted"
    weight: Annotated[float, Ge(0.0), Le(1e6)] = 1.0
    generated: Annotated[int, Ge(1), Le(65536), CountsWith("weight")] = 128
    noise: Literal["gaussian", "uniform"] = "gaussian"
    noise_width: Annotated[int, Ge(1), Le(16384)] = 32
    hidden_width: Annotated[int, Ge(1), Le(16384)] = 256
    diversity: Annotated[float, Ge(0.0), Le(1e6)] = 1.0
    generator_rate: Annotated[float, Gt(0.0), Le(1e3)] = 3e-4
    generator_steps: Annotated[int, Ge(1), Le(1000000)] = 50
    generator_batch: Annotated[int, Ge(1), Le(65536)] = 32

    @property
    def counts_labels(self) -> bool:
        """Whether the server must know the clients' labels, as shares."""
        return self.ensemble == "individual" or self.labels == "counted"


@dataclass(frozen=True)
class Teachers:
    """Heads that teach a generator: weights (K, C, D), biases (K, C), their trust (K, C)."""

    weight: Tensor
    bias: Tensor
    trust: Tensor

    def loss(self, features: Tensor, labels: Tensor) -> Tensor:
        """Return the weighted cross-entropy, shape (), of all heads on features (B, D)."""
        logits = torch.einsum("bd,kcd->kbc", features, self.weight) + self.bias[:, None]
        every = labels.expand(len(logits), -1)
        losses = functional.cross_entropy(logits.transpose(1, 2), every, reduction="none")
        weighted: Tensor = (self.trust[:, labels] * losses).sum(0).mean()
        return weighted


class FedGen(FedAvg):
    """Data-free distillation beside federated averaging."""

    config: Config

    @property
    def visibility(self) -> m.Visibility:
        """Each client's head, unless their mean teaches the generator."""
        is_summed = self.config.ensemble == "mean"
        return m.Visibility.AGGREGATE_ONLY if is_summed else m.Visibility.PER_CLIENT

    @property
    def units(self) -> frozenset[m.Unit]:
        """Only the client, where shares of labels are sent."""
        return CLIENT_ONLY if self.config.counts_labels else ALL_UNITS

    @property
    def anchored(self) -> bool:
        """The generator that was broadcast makes the generated pairs."""
        return self.config.weight > 0.0

    @property
    def generator(self) -> Generator:
        """The network that makes features."""
        config = self.config
        return Generator(
            len(self.classes),
            config.noise_width,
            config.hidden_width,
            self.extractor.width,
            config.noise,
        )

    def shared_spec(self) -> Mapping[str, m.TensorSpec]:
        """Return the network, and the shares of labels (C,) where the server needs them."""
        shares = (
            {SHARES: m.TensorSpec((len(self.classes),), source=m.Source.STATISTIC)}
            if self.config.counts_labels
            else {}
        )
        return {**super().shared_spec(), **shares}

    def init_server(self, rng: m.Rng) -> m.Arrays:
        """Return FedAvg's start, then a fresh generator; shares are equal at first."""
        shares = np.full(len(self.classes), 1.0 / len(self.classes), np.float32)
        return {
            **super().init_server(rng),
            **start(self.generator.layers, rng),
            **({SHARES: shares} if self.config.counts_labels else {}),
        }

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train the network on its own data and on generated pairs."""
        penalty = self.generated_loss(view.broadcast, rng) if self.config.weight else None
        trained = self.train(view, data, trainer, rng, penalty=penalty)
        result = self.result(view, trained)
        if not self.config.counts_labels:
            return result
        shares = label_shares(data.arrays["labels"], len(self.classes)) - view.broadcast[SHARES]
        return replace(result, update={**result.update, SHARES: shares})

    def generated_loss(self, broadcast: m.Arrays, rng: m.Rng) -> m.Penalty:
        """Return weighted mean cross-entropy of a head on pairs that are drawn here."""
        noise, labels = self.draw(broadcast, self.config.generated, rng)
        generator = self.tensors({name: broadcast[name] for name in self.generator.layers})
        with torch.no_grad():
            features = self.generator.features(generator, noise, labels)

        def penalty(parameters: Parameters, encoded: Parameters) -> Tensor:
            device = parameters[f"{HEAD}.bias"].device
            logits = linear(parameters, HEAD, features.to(device))
            return self.config.weight * functional.cross_entropy(logits, labels.to(device))

        return penalty

    def draw(self, state: m.Arrays, count: int, rng: m.Rng) -> tuple[Tensor, Tensor]:
        """Return noise (count, E) and classes (count,) for generated pairs."""
        if self.config.labels == "counted":
            labels = rng.choice(len(self.classes), count, p=distribution(state[SHARES]))
        else:
            labels = rng.integers(0, len(self.classes), count)
        drawn = self.tensors({"noise": self.generator.draw(rng, count), "labels": labels})
        return drawn["noise"], drawn["labels"]

    def server_update(
        self, state: m.Arrays, aggregate: m.Aggregate, pool: Sequence[m.Arrays], rng: m.Rng
    ) -> m.Arrays:
        """Return FedAvg's mean change, then the generator's training."""
        moved = super().server_update(state, aggregate, pool, rng)
        trained = descend(
            self.tensors({name: state[name] for name in self.generator.layers}),
            self.generator_losses(moved, self.teachers(state, moved, aggregate), rng),
            partial(torch.optim.Adam, lr=self.config.generator_rate),
        )
        return {**moved, **trained}

    def teachers(self, state: m.Arrays, moved: m.Arrays, aggregate: m.Aggregate) -> Teachers:
        """Return the heads after this round, whose broadcast was `state` and result is `moved`."""
        if self.config.ensemble == "mean":
            heads, trust = [moved], np.ones((1, len(self.classes)))
        else:
            updates = aggregate.each().values()
            names = (*self.head_layers, SHARES)
            heads = [{name: state[name] + update[name] for name in names} for update in updates]
            trust = trust_of(np.stack([head[SHARES] for head in heads]))
        arrays = {
            "weight": np.stack([head[f"{HEAD}.weight"] for head in heads]),
            "bias": np.stack([head[f"{HEAD}.bias"] for head in heads]),
            "trust": trust,
        }
        return Teachers(**self.tensors({n: a.astype(np.float32) for n, a in arrays.items()}))

    def generator_losses(
        self, state: m.Arrays, teachers: Teachers, rng: m.Rng
    ) -> Iterator[ServerLoss]:
        """Yield the generator's loss on pairs drawn anew for each step."""
        for _ in range(self.config.generator_steps):
            noise, labels = self.draw(state, self.config.generator_batch, rng)
            yield partial(self.generator_loss, teachers, noise, labels)

    def generator_loss(
        self, teachers: Teachers, noise: Tensor, labels: Tensor, generator: Parameters
    ) -> Tensor:
        """Return the heads' loss on generated features, plus the likeness of these: shape ()."""
        features = self.generator.features(generator, noise, labels)
        taught = teachers.loss(features, labels)
        if not self.config.diversity:
            return taught
        return taught + self.config.diversity * likeness(noise, features)


def distribution(shares: NDArray[Any]) -> NDArray[np.float64]:
    """Return probabilities (C,) from shares, which noise may have made negative."""
    positive = np.maximum(shares.astype(np.float64), 0.0)
    total = positive.sum()
    return positive / total if total > 0 else np.full(len(shares), 1.0 / len(shares))


def trust_of(shares: NDArray[Any]) -> NDArray[np.float64]:
    """Return each client's share of a class (K, C), columns of sum 1, from its label shares (K, C).

    A class without examples counts alike for all clients.
    """
    return np.stack([distribution(column) for column in shares.T], axis=1)


build = FedGen.built
