"""FedADG: training pulls each client's features, by class, towards those of a shared generator.

Zhang, Lei, Shi, Huang & Chen, "Federated Learning with Domain Generalization" (arXiv 2111.10487),
as in the authors' code for PACS (Haoxiang-Wang/FedADG at 1d34f2a, a copy): only the paper's
abstract was available. Extractor F, head C and a generator G of features are shared. A
discriminator D, which tells generated features (1) from a client's own (0), stays with the client
for ever. In a round the first part of the steps trains F and C by cross-entropy with smoothed
labels. In each later step three fits follow one another on one batch (x, y), with noise e drawn for
it:

    D:     (1 - D(G(e, y), y))^2 + D(F(x), y)^2
    F, C:  alpha CE(C(F(x)), y) + (1 - alpha) (1 - D(F(x), y))^2
    G:     D(G(e, y), y)^2

where each fit trains its own arrays alone and holds the others. Classes reach G and D as one-hot
vectors times `label_scale`; e is uniform from 0 to 1. The server takes plain means of F, C and G.

Options and departures:

- `projection`: D first projects features by a matrix. The code trains it with the rest of D; as we
  remember the paper, it is random and `fixed`.
- Widths are the code's as shares of the features' width D_f (4096 there): noise D_f / 2, G's hidden
  layer D_f, D's projection and hidden layer D_f / 4.
- G ends with ReLU, as AlexNet's features do; `generator_output` may be `linear`, or `unit` for
  features of length one, which CLIP's are.
- The code's head is two linear layers with nothing between, which is one linear map: here it is
  one layer. The code has momentum, a warm-up of the learning rate, a decay by validation accuracy,
  and dropout in F; these are left out here.
- In the second part each step draws its batch anew, where the code goes through the data in turn.
- The copy's `train` returns three values where four are expected, so it does not run unchanged.

Each fit has one step and starts with a fresh optimiser, so the method needs plain SGD: momentum and
Adam are refused. D is trained on a client's records, and later steps and rounds start from D. F and
C train against a D that the same batch has just moved. So a bound on one record's gradient does not
bound the record's effect: `dp_sgd` and clipping of single examples are refused. Mechanisms on
uploads bound all that is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Final, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor
from torch.nn import functional

from methods.interface import method as m
from methods.networks.draws import MARK, Draws, marked, uniforms
from methods.networks.extractors import NetworkConfig
from methods.networks.layers import Layer, Layers, Parameters, linear, linear_layers
from methods.networks.method import BatchObjective, SplitMethod

HIDDEN, OUTPUT = "generator.hidden", "generator.output"
PROJECTION: Final = "discriminator.projection"
JUDGE, VERDICT = "discriminator.hidden", "discriminator.output"

VARIANTS = (
    {"network": "features", "projection": "fixed", "generator_output": "linear"},
    {"network": "features", "first_share": 0.0, "generator_output": "unit"},
)


@dataclass(frozen=True)
class Config(NetworkConfig):
    """Options.

    Attributes:
        first_share: Share of a round's steps that train by cross-entropy alone.
        alpha: Weight of cross-entropy beside the discriminator's verdict.
        smoothing: Share of a label that the other classes have together.
        label_scale: Factor of a one-hot label for generator and discriminator.
        adversary_rate: Their learning rate, as a multiple of `training.learning_rate`.
        projection: Whether the discriminator's projection is trained.
        generator_output: The last operation on generated features.
    """

    first_share: Annotated[float, Ge(0.0), Le(1.0)] = 0.3
    alpha: Annotated[float, Ge(0.0), Le(1.0)] = 0.85
    smoothing: Annotated[float, Ge(0.0), Lt(1.0)] = 0.01
    label_scale: Annotated[float, Gt(0.0), Le(1e6)] = 0.7
    adversary_rate: Annotated[float, Gt(0.0), Le(1e3)] = 0.7
    projection: Literal["trained", "fixed"] = "trained"
    generator_output: Literal["relu", "linear", "unit"] = "relu"


class FedADG(SplitMethod):
    """Adversarial alignment to generated features."""

    weighting: ClassVar[m.Weighting] = m.Weighting.UNIFORM
    config: Config
    has_personal_state = True
    plain_sgd = True
    couples_examples = True

    @property
    def noise_width(self) -> int:
        """Numbers of noise behind each feature."""
        return max(1, self.extractor.width // 2)

    @property
    def generator_layers(self) -> Layers:
        """G."""
        width = self.extractor.width
        return {
            **linear_layers(HIDDEN, self.noise_width + len(self.classes), width),
            **linear_layers(OUTPUT, width, width),
        }

    @property
    def shared_layers(self) -> Layers:
        """F, C and G."""
        return {**self.network_layers, **self.generator_layers}

    @property
    def personal_layers(self) -> Layers:
        """D, which starts alike on all clients."""
        width, narrow = self.extractor.width, max(1, self.extractor.width // 4)
        return {
            PROJECTION: Layer((narrow, width), width),
            **linear_layers(JUDGE, narrow + len(self.classes), narrow),
            **linear_layers(VERDICT, narrow, 1),
        }

    def prepare(self, arrays: m.Arrays) -> m.Arrays:
        """Return what the extractor keeps, each example with a mark, a hash of its content."""
        return marked(super().prepare(arrays))

    def labels(self, batch: Parameters) -> Tensor:
        """Return scaled one-hot labels (B, C)."""
        labels = batch["labels"]
        hot = labels.unsqueeze(1) == torch.arange(len(self.classes), device=labels.device)
        return self.config.label_scale * hot.to(torch.float32)

    def generated(self, draws: Draws, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return features (B, D_f) that G makes for the labels of a batch."""
        noise = uniforms(batch[MARK], draws.key, self.noise_width)
        fed = torch.cat((noise, self.labels(batch)), dim=1)
        made = linear(parameters, OUTPUT, functional.leaky_relu(linear(parameters, HIDDEN, fed)))
        if self.config.generator_output == "relu":
            return functional.relu(made)
        return functional.normalize(made) if self.config.generator_output == "unit" else made

    def verdict(self, parameters: Parameters, features: Tensor, batch: Parameters) -> Tensor:
        """Return D's verdict that features (B, D_f) are generated, (B,) in (0, 1)."""
        seen = functional.linear(features, parameters[PROJECTION])
        fed = torch.cat((seen, self.labels(batch)), dim=1)
        judged = functional.leaky_relu(linear(parameters, JUDGE, fed))
        return torch.sigmoid(linear(parameters, VERDICT, judged)).squeeze(1)

    def discriminator_losses(
        self, draws: Draws, parameters: Parameters, batch: Parameters
    ) -> Tensor:
        """Return D's loss of each example, (B,)."""
        made = self.verdict(parameters, self.generated(draws, parameters, batch), batch)
        own = self.verdict(parameters, self.features(parameters, batch), batch)
        return telling_apart(made, own)

    def network_losses(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return the loss of F and C of each example, (B,)."""
        passed = self.verdict(parameters, self.features(parameters, batch), batch)
        return mixed_losses(self.cross_entropies(parameters, batch), passed, self.config.alpha)

    def generator_losses(self, draws: Draws, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return G's loss of each example, (B,)."""
        made = self.generated(draws, parameters, batch)
        return self.verdict(parameters, made, batch).square()

    def cross_entropies(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return cross-entropy of each example with its smoothed label, (B,)."""
        return smoothed_losses(
            self.logits(parameters, batch), batch["labels"], self.config.smoothing
        )

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train by cross-entropy, then D, the network and G in turn."""
        steps = trainer.steps_for(data.num_examples)
        first = round(self.config.first_share * steps)
        model: m.Arrays = self.model_of(view)
        if first:
            names = tuple(self.network_layers)
            model = self.train(view, data, trainer, rng, names=names, start=model, steps=first)
        draws = Draws(rng)
        for _ in range(steps - first):
            seed = int(rng.integers(2**63))
            for objective, group in self.turns(draws, trainer.learning_rate):
                # One seed gives all three fits the same batch.
                batch = np.random.default_rng(seed)
                model = trainer.fit(
                    objective, model, data.arrays, groups=(group,), rng=batch, steps=1
                )
            draws.advance({})
        return self.result(view, model)

    def turns(self, draws: Draws, rate: float) -> Sequence[tuple[m.Objective, m.ParameterGroup]]:
        """Return the objective and the group of each fit of a step, in order."""
        fixed = {PROJECTION} if self.config.projection == "fixed" else set()
        judge = tuple(name for name in self.personal_layers if name not in fixed)
        adversary, generator = self.config.adversary_rate * rate, tuple(self.generator_layers)
        telling = BatchObjective(partial(self.discriminator_losses, draws))
        making = BatchObjective(partial(self.generator_losses, draws))
        return (
            (telling, m.ParameterGroup(judge, adversary)),
            (BatchObjective(self.network_losses), m.ParameterGroup(tuple(self.network_layers))),
            (making, m.ParameterGroup(generator, adversary)),
        )

    def whole_model_of(self, view: m.ClientView) -> m.Arrays:
        """Return F and C: a prediction needs neither G nor D."""
        return {name: view.broadcast[name] for name in self.network_layers}


def telling_apart(made: Tensor, own: Tensor) -> Tensor:
    """Return D's loss from its verdicts on generated features and on own ones, (B,) each."""
    return (1.0 - made).square() + own.square()


def mixed_losses(losses: Tensor, passed: Tensor, alpha: float) -> Tensor:
    """Return the loss of F and C (B,) from cross-entropies (B,) and D's verdicts (B,)."""
    return alpha * losses + (1.0 - alpha) * (1.0 - passed).square()


def smoothed_losses(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Return cross-entropy (B,) of logits (B, C) with smoothed labels (B,)."""
    right = functional.cross_entropy(logits, labels, reduction="none")
    if not smoothing or logits.shape[1] == 1:
        return right
    every: Tensor = -functional.log_softmax(logits, dim=1).sum(1)
    return (1.0 - smoothing) * right + smoothing / (logits.shape[1] - 1) * (every - right)


build = FedADG.built
