"""FedCP: a network of its own decides for each example which features are generic, which personal.

Zhang et al. 2023, "FedCP: Separating Feature Information for Personalized Federated Learning via
Conditional Policy" (KDD, arXiv 2307.01217). Extractor f, generic head and policy network are
shared, a second head is personal. With v the column sums of the personal head's weights, scaled to
length 1, and h = f(x),

    (a, b) = policy(v * h),    r = e^a / (e^a + e^b)  of each feature,
    logits = personal head(r * h) + generic head((1 - r) * h),
    loss   = CE + lambda MMD(h, h_0),

where h_0 are the features under the broadcast extractor, and the policy has a linear layer D -> 2D,
layer normalisation and ReLU. A client trains extractor, policy and personal head together and holds
v, h_0 and the generic head. The new generic head is the mean of heads halfway between each client's
personal head and the old generic one, as in the authors' code. So a client sends the difference of
its personal head to the generic one, and the server adds half of the mean. The personal head does
leave the client, protected like all that it sends. A client's first personal head is the generic
one.

MMD is the maximum mean discrepancy with a Gaussian kernel. The paper leaves its width and the
estimator open; both are from the authors' code: the sum of four kernels exp(-d^2 / 2w), w in 10,
15, 20, 50, and the mean over all pairs of a batch, pairs of one example with itself included. It
joins the examples of a batch: with `mmd_weight` above 0 `dp_sgd` is refused, and so is clipping of
single examples; with 0 all that is sent or kept comes from the trainer, and both are admitted.

Published code (the authors', and PFLlib) departs: it adds Gumbel noise to a and b, also when it
predicts, so that one image gets many answers. `gumbel: true` has the noise in training alone, one
draw for each example and round; then `dp_sgd` is refused, as it hides the number of examples. In
the first round that code draws v at random.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from annotated_types import Ge, Le
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods.interface import method as m
from methods.interface.defaults import ALL_UNITS, CLIENT_ONLY
from methods.networks.extractors import NetworkConfig
from methods.networks.layers import (
    Layer,
    Layers,
    Parameters,
    linear,
    linear_layers,
    norm,
    norm_layers,
)
from methods.networks.method import FED, GATED, HEAD, ModularMethod, rows_of

GENERIC = "generic"
POLICY = "policy"
POLICY_NORM = "policy_norm"
CONTEXT = "context"
"""v, held while the head that gives it is trained."""
FEATURES = "features_of_all"
"""Name of the part that holds h."""
BROADCAST = "broadcast_features"
"""h_0, with each example, (n, D)."""
NOISE = "policy_noise"
WIDTHS = (10.0, 15.0, 20.0, 50.0)
"""Squared widths of the kernels."""

VARIANTS = ({"network": "features", "mmd_weight": 0.0}, {"network": "features", "gumbel": True})


@dataclass(frozen=True)
class Config(NetworkConfig):
    """Options.

    Attributes:
        mmd_weight: lambda, factor of the discrepancy between new and broadcast features.
        gumbel: Whether training draws the shares by the Gumbel trick.
    """

    mmd_weight: Annotated[float, Ge(0.0), Le(1e6)] = 5.0
    gumbel: bool = False


class FedCP(ModularMethod):
    """Conditional policy."""

    config: Config
    combined: ClassVar[tuple[str, ...]] = (GENERIC,)

    @property
    def couples_examples(self) -> bool:
        """The discrepancy joins the examples of a batch."""
        return self.config.mmd_weight > 0.0

    @property
    def units(self) -> frozenset[m.Unit]:
        """Only the client, where the discrepancy or the noise reads data outside noised steps."""
        return CLIENT_ONLY if self.couples_examples or self.config.gumbel else ALL_UNITS

    @property
    def policy_layers(self) -> Layers:
        """The policy network."""
        width = self.extractor.width
        return {**linear_layers(POLICY, width, 2 * width), **norm_layers(POLICY_NORM, 2 * width)}

    @property
    def generic_layers(self) -> Layers:
        """The generic head."""
        return linear_layers(GENERIC, self.extractor.width, len(self.classes))

    @property
    def shared_layers(self) -> Layers:
        """Extractor, policy and generic head."""
        return {**self.extractor.layers, **self.policy_layers, **self.generic_layers}

    def shared_spec(self) -> Mapping[str, m.TensorSpec]:
        """Return the shared part; a client sends its personal head in place of the generic one."""
        spec = super().shared_spec()
        told = {n: replace(spec[n], source=m.Source.PERSONAL) for n in self.generic_layers}
        return {**spec, **told}

    @property
    def averaged(self) -> frozenset[str]:
        """Extractor and policy; the generic head has a step of its own."""
        return frozenset((*self.extractor.layers, *self.policy_layers))

    @property
    def personal_layers(self) -> Layers:
        """The personal head; zeros stand for a head to be copied from the generic one."""
        return {name: Layer(layer.shape, 0) for name, layer in self.head_layers.items()}

    def model_of(self, view: m.ClientView) -> dict[str, NDArray[Any]]:
        """Return the arrays of the client's network, and the context of its head."""
        model = super().model_of(view)
        if not model.keys() >= self.personal_layers.keys():
            return model
        if not any(model[name].any() for name in self.personal_layers):
            model.update({name: model[generic_of(name)] for name in self.personal_layers})
        return {**model, CONTEXT: context_of(model[f"{HEAD}.weight"])}

    def shares(self, parameters: Parameters, features: Tensor, batch: Parameters) -> Tensor:
        """Return the personal share r (B, D) of each feature of each example, in (0, 1)."""
        fed = features * parameters[CONTEXT]
        scores = functional.relu(norm(parameters, POLICY_NORM, linear(parameters, POLICY, fed)))
        personal, generic = scores.chunk(2, dim=-1)
        # A softmax over two is a sigmoid of their difference.
        difference = personal - generic
        return torch.sigmoid(difference + batch[NOISE] if NOISE in batch else difference)

    def parts(self, parameters: Parameters, batch: Parameters) -> dict[str, Tensor]:
        """Return personal part of the features (B, D), generic logits (B, C), all features."""
        features = self.features(parameters, batch)
        personal = self.shares(parameters, features, batch) * features
        generic = linear(parameters, GENERIC, features - personal)
        return {FED: personal, GATED: personal, GENERIC: generic, FEATURES: features}

    def combine(self, parameters: Parameters, parts: Parameters, output: Tensor) -> Tensor:
        """Return logits (B, C): the sum of both heads."""
        return parts[GENERIC] + output

    def losses(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return loss of each example (B,), plus the whole batch's discrepancy in each."""
        if not self.config.mmd_weight:
            return self.cross_entropies(parameters, batch)
        parts = self.parts(parameters, batch)
        logits = self.combine(parameters, parts, self.module_output(parameters, parts[FED]))
        losses = functional.cross_entropy(logits, batch["labels"], reduction="none")
        # The biased estimator (Gretton et al. 2012, equation 5): means over all pairs.
        one, other = parts[FEATURES], batch[BROADCAST]
        within = kernels(one, one).mean() + kernels(other, other).mean()
        distance = within - 2.0 * kernels(one, other).mean()
        return losses + self.config.mmd_weight * distance

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train all but the generic head."""
        names = (*self.extractor.layers, *self.policy_layers, *self.head_layers)
        if self.config.gumbel:
            # Noise (D,) for each example's shares: a difference of Gumbel draws.
            noise = rng.logistic(size=(data.num_examples, self.extractor.width))
            data = m.Examples({**data.arrays, NOISE: noise.astype(np.float32)})
        if self.config.mmd_weight:
            held = rows_of(self, self.features, view.broadcast, data)
            data = m.Examples({**data.arrays, BROADCAST: held})
        return self.result(view, self.train(view, data, trainer, rng, names=names))

    def result(self, view: m.ClientView, trained: m.Arrays) -> m.LocalResult:
        """Return the changes, the personal head's difference to the generic one, and that head."""
        own = {name: trained[name] for name in self.personal_layers}
        new = {**trained, **{generic_of(name): value for name, value in own.items()}}
        update = {name: new[name] - view.broadcast[name] for name in self.shared_layers}
        return m.LocalResult(update, None, own)

    def server_update(
        self, state: m.Arrays, aggregate: m.Aggregate, pool: Sequence[m.Arrays], rng: m.Rng
    ) -> m.Arrays:
        """Add the mean change, and half of the mean difference to the generic head."""
        halves = {n: 0.5 * aggregate.values[n] for n in self.generic_layers}
        values = {**aggregate.values, **halves}
        return super().server_update(state, replace(aggregate, values=values), pool, rng)


def generic_of(name: str) -> str:
    """Return the generic head's name of a personal head's array."""
    return GENERIC + name.removeprefix(HEAD)


def context_of(weight: NDArray[Any]) -> NDArray[np.float32]:
    """Return the context v (D,): the column sums of a head's weights (C, D), of length 1."""
    sums = weight.sum(axis=0, dtype=np.float64)
    scaled: NDArray[np.float64] = sums / max(float(np.linalg.norm(sums)), 1e-12)
    return scaled.astype(np.float32)


def kernels(one: Tensor, other: Tensor) -> Tensor:
    """Return the sum of Gaussian kernels (B, B') of all pairs of rows (B, D) and (B', D)."""
    squares = one.square().sum(1)[:, None] + other.square().sum(1) - 2.0 * one @ other.T
    return torch.stack([torch.exp(-squares / (2.0 * width)) for width in WIDTHS]).sum(0)


build = FedCP.built
