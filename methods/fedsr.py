"""FedSR: a representation that is random, short, and holds little but the class.

Nguyen, Torr & Lim 2022, "FedSR: A Simple and Effective Domain Generalization Method for Federated
Learning" (NeurIPS), as in the authors' code (atuannguyen/FedSR at ba8d894): only the paper's
abstract was available. Behind the extractor a linear layer gives each example a distribution,

    z | x ~ N(mu, diag(sigma^2)),   (mu, rho) = layer(extractor(x)),   sigma = softplus(rho),

and a client minimises, with one z of each example and step,

    CE(head(z), y) + a |z| + b KL( N(c mu, (c sigma)^2) || N(r_y, s_y^2) ),   s = softplus(raw s),

KL being summed over the coordinates. r (zero at first) and raw s (one) are a reference for each
class, c (one) is a scalar, and all three are trained with the network. The server takes the plain
mean of extractor, layer and head. A prediction is the mean of the softmax over 20 samples of z.

Options, the code's first:

- `norm: plain` is |z|; `squared` is its square, the paper's regulariser as we remember it.
- `scale: learned` trains c; `none` leaves it out. Where c turns negative the code takes a logarithm
  of a negative number; here the deviation of c z is |c| sigma.
- `reference: personal` keeps r, s and c on the client, for ever, as the code does, which never
  averages them; `shared` averages them together with the network.

With a = b = 0 and sigma = 0 it is FedAvg. The loss of an example depends on no other, and its
sample is a hash of its own content and the step's key (`methods.networks.draws`), so `dp_sgd` is
admitted: r, s and c are then trained with noise like the network, in one joint clip with it.
Predictions sample with fixed keys: one image gets one answer. An optimiser starts anew in each
round, where the code's never does. With `network: clip` layer and head start at random, so the
method does not begin as zero-shot CLIP.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor
from torch.nn import functional

from methods.interface import method as m
from methods.interface.method import CountsWith
from methods.networks.draws import MARK, Draws, marked, normals
from methods.networks.extractors import NetworkConfig
from methods.networks.layers import Layer, Layers, Parameters, linear, linear_layers
from methods.networks.method import HEAD, BatchObjective, SplitMethod

REPRESENTATION = "representation"
CENTRE, SPREAD, SCALE = "reference.centre", "reference.spread", "reference.scale"
"""r (C, d), raw s (C, d) and c (1,)."""

VARIANTS = (
    {"network": "features", "reference": "shared", "norm": "squared"},
    {"network": "features", "scale": "none", "representation_width": 6},
    {"network": "features", "information_weight": 0.0},
)


@dataclass(frozen=True)
class Config(NetworkConfig):
    """Options.

    Attributes:
        representation_width: Width d of z; None for that of the features.
        norm_weight: a, factor of the length of z.
        norm: That length, or its square.
        information_weight: b, factor of the divergence from the class's reference.
        scale: Whether a learned number scales z before the comparison with the reference.
        reference: Whether references and scale stay with a client or are averaged.
        samples: Samples of z in a prediction.
    """

    representation_width: Annotated[int, Ge(1), Le(16384)] | None = None
    norm_weight: Annotated[float, Ge(0.0), Le(1e6)] = 0.01
    norm: Annotated[Literal["plain", "squared"], CountsWith("norm_weight")] = "plain"
    information_weight: Annotated[float, Ge(0.0), Le(1e6)] = 5e-4
    scale: Annotated[Literal["learned", "none"], CountsWith("information_weight")] = "learned"
    reference: Annotated[Literal["personal", "shared"], CountsWith("information_weight")] = (
        "personal"
    )
    samples: Annotated[int, Ge(1), Le(1000)] = 20


class FedSR(SplitMethod):
    """A simple representation."""

    weighting: ClassVar[m.Weighting] = m.Weighting.UNIFORM
    config: Config

    @property
    def has_personal_state(self) -> bool:
        """Whether there are references, and they stay with the client."""
        return bool(self.personal_layers)

    @property
    def width(self) -> int:
        """Width d of z."""
        return self.config.representation_width or self.extractor.width

    @property
    def network_layers(self) -> Layers:
        """Extractor, the layer that gives mu and rho, and the head."""
        return {
            **self.extractor.layers,
            **linear_layers(REPRESENTATION, self.extractor.width, 2 * self.width),
            **linear_layers(HEAD, self.width, len(self.classes)),
        }

    @property
    def reference_layers(self) -> Layers:
        """The references of a representation; none where their divergence has no weight."""
        if not self.config.information_weight:
            return {}
        shape = (len(self.classes), self.width)
        learned = {SCALE: Layer((1,), 0, constant=1.0)} if self.config.scale == "learned" else {}
        return {CENTRE: Layer(shape, 0), SPREAD: Layer(shape, 0, constant=1.0), **learned}

    @property
    def shared_layers(self) -> Layers:
        """The network, and the references where they are shared."""
        if self.config.reference == "personal":
            return self.network_layers
        return {**self.network_layers, **self.reference_layers}

    @property
    def personal_layers(self) -> Layers:
        """The references where they are a client's own."""
        return self.reference_layers if self.config.reference == "personal" else {}

    def prepare(self, arrays: m.Arrays) -> m.Arrays:
        """Return what the extractor keeps, each example with a mark, a hash of its content."""
        return marked(super().prepare(arrays))

    def distribution(self, parameters: Parameters, batch: Parameters) -> tuple[Tensor, Tensor]:
        """Return mu and sigma of each example, (B, d) each."""
        both = linear(parameters, REPRESENTATION, self.features(parameters, batch))
        mean, raw = both.chunk(2, dim=-1)
        return mean, functional.softplus(raw)

    def simple_losses(self, draws: Draws, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return loss of each example, (B,), at the sample of this step."""
        mean, deviation = self.distribution(parameters, batch)
        z = mean + deviation * normals(batch[MARK], draws.key, self.width)
        labels = batch["labels"]
        losses = functional.cross_entropy(linear(parameters, HEAD, z), labels, reduction="none")
        if self.config.norm_weight:
            is_squared = self.config.norm == "squared"
            length = z.square().sum(-1) if is_squared else torch.linalg.vector_norm(z, dim=-1)
            losses = losses + self.config.norm_weight * length
        if not self.config.information_weight:
            return losses
        if self.config.scale == "learned":
            scale = parameters[SCALE]
            mean, deviation = scale * mean, scale.abs() * deviation
        centre = functional.embedding(labels, parameters[CENTRE])
        spread = functional.softplus(functional.embedding(labels, parameters[SPREAD]))
        return losses + self.config.information_weight * divergences(
            mean, deviation, centre, spread
        )

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train the network and the references together."""
        draws = Draws(rng)
        loss, step = BatchObjective(partial(self.simple_losses, draws)), draws.advance
        trained = self.train(view, data, trainer, rng, objective=loss, after_step=step)
        return self.result(view, trained)

    def logits(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return the logarithm (B, C) of the mean softmax over all samples."""
        mean, deviation = self.distribution(parameters, batch)
        found = []
        for key in range(self.config.samples):
            z = mean + deviation * normals(batch[MARK], key, self.width)
            found.append(functional.log_softmax(linear(parameters, HEAD, z), dim=-1))
        total: Tensor = torch.stack(found).logsumexp(0)
        return total - math.log(len(found))

    def whole_model_of(self, view: m.ClientView) -> m.Arrays:
        """Return the network's arrays: a prediction needs no reference."""
        return {name: view.broadcast[name] for name in self.network_layers}


def divergences(mean: Tensor, deviation: Tensor, centre: Tensor, spread: Tensor) -> Tensor:
    """Return KL( N(mean, deviation^2) || N(centre, spread^2) ) (B,), of arguments (B, d)."""
    squares = deviation.square() + (mean - centre).square()
    each = torch.log(spread) - torch.log(deviation) + squares / (2.0 * spread.square()) - 0.5
    return each.sum(-1)


build = FedSR.built
