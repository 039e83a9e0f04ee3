"""HCVP: visual prompts that each image makes of itself, for its domain and its task; centralised.

Zhou et al. 2024, "HCVP: Leveraging Hierarchical Contrastive Visual Prompt for Domain
Generalization" (IEEE TMM, arXiv 2401.09716), here by its published code (jameszhou-gl/TMM-HCVP,
commit 594a15b: prompt_network.py, modulation_network.py, algorithms.py). One party holds all data,
so nothing is shared. With m the mean over positions of a frozen network's last map of an image,

    p = A m + a  (domain prompt),    q = B [m; p] + b  (task prompt),

stand beside the patches of a vision transformer that is trained whole: p and q in its first layer,
and M p, M q in each later one, M being one layer for all (`modulation: shared`), one for each layer
(`layers`), or one for p and one for q (`separate`). The loss is

    CE + l_1 C(p; same domain) + l_2 C(q; same domain and class) + l_3 C(f; same class),
    C(v) = -mean_i log [(sum_{k in P_i} e^{cos(v_i, v_k) / t} + 1e-7) / (sum_{k != i} ... + 1e-7)],

f being the image's feature and P_i the others of the batch that are alike. As published all three
factors are 0 and t is 1; we did not find the paper's values. An image without such others costs
some sixteen nats. Where a factor is not 0 the loss joins the examples of a batch.

The code makes q by a convolution of one position and then takes the mean; a mean of an affine map
is the map of the mean, so here q comes from m directly.

Departures: the frozen network there is a ResNet-50. Here the map is the image tower's own last
tokens as CLIP left them (`needs: tokens`). The feature is the tower's, of length one, and the head
starts as CLIP's text features (`ClipTower`); there is no dropout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor
from torch.nn import functional

from methods.interface import method as m
from methods.networks.extractors import NetworkConfig
from methods.networks.layers import Layers, Parameters, linear, linear_layers
from methods.networks.method import HEAD, CentralisedMethod

MAP: Final = "map"
DOMAIN_PROMPT, TASK_PROMPT, MODULATION = "domain_prompt", "task_prompt", "modulation"
NOTHING: Final = 1e-7
"""Added to both sums, so that none is zero."""

READING = "the frozen map is CLIP's own image tower's, where the authors have a ResNet-50's"
SENDS_NOTHING = True
VARIANTS = (
    {"modulation": "layers", "domain_contrast": 0.5, "task_contrast": 0.5, "class_contrast": 0.5},
    {"modulation": "separate", "lora_rank": 1},
)


@dataclass(frozen=True)
class Config(NetworkConfig):
    """Options.

    Attributes:
        network: CLIP's image tower.
        modulation: Layers that prompts pass before each later layer of the tower: one for all, one
            for each, or one for each of both prompts.
        domain_contrast: l_1, factor of the contrast between domain prompts.
        task_contrast: l_2, of that between task prompts.
        class_contrast: l_3, of that between features.
        temperature: t, the divisor of a contrast's cosines.
        head_learning_rate: Of the head; None for `training.learning_rate`.
    """

    network: Literal["clip"] = "clip"
    modulation: Literal["shared", "layers", "separate"] = "shared"
    domain_contrast: Annotated[float, Ge(0.0), Le(1e6)] = 0.0
    task_contrast: Annotated[float, Ge(0.0), Le(1e6)] = 0.0
    class_contrast: Annotated[float, Ge(0.0), Le(1e6)] = 0.0
    temperature: Annotated[float, Gt(0.0), Le(1e6)] = 1.0
    head_learning_rate: Annotated[float, Gt(0.0), Le(1e3)] | None = 5e-5

    @property
    def contrasts(self) -> tuple[float, float, float]:
        """l_1, l_2 and l_3."""
        return (self.domain_contrast, self.task_contrast, self.class_contrast)


class Hcvp(CentralisedMethod):
    """A tower with an image's own prompts beside its patches."""

    config: Config

    @property
    def couples_examples(self) -> bool:
        """A contrast joins the examples of a batch."""
        return any(self.config.contrasts)

    @property
    def network_layers(self) -> Layers:
        """Tower, head, the layers that make both prompts, and those that prompts pass."""
        width = self.tower.token_width
        passed = {
            name: layer
            for prefix in dict.fromkeys(self._modulations)
            for name, layer in linear_layers(prefix, width, width).items()
        }
        return {
            **super().network_layers,
            **linear_layers(DOMAIN_PROMPT, width, width),
            **linear_layers(TASK_PROMPT, 2 * width, width),
            **passed,
        }

    @property
    def _modulations(self) -> tuple[str, ...]:
        """Names of the layers that p and q pass, for each later layer of the tower in turn."""
        later = range(1, self.tower.depth)
        if self.config.modulation == "layers":
            return tuple(f"{MODULATION}{index}" for index in later for _ in "pq")
        if self.config.modulation == "separate":
            return tuple(f"{MODULATION}_{one}" for _ in later for one in "pq")
        return (MODULATION,) * (2 * len(later))

    def prepare(self, arrays: m.Arrays) -> m.Arrays:
        """Return pixels, and the mean m of the patches' tokens (n, w) float32."""
        tokens = np.asarray(arrays["tokens"])[:, 1:]
        return {**self.extractor.prepare(arrays), MAP: tokens.mean(axis=1, dtype=np.float32)}

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train all layers, the head with its own learning rate."""
        head = m.ParameterGroup(tuple(self.head_layers), self.config.head_learning_rate)
        others = [name for name in self.personal_layers if name not in head.names]
        trained = self.train(view, data, trainer, rng, names=others, further=(head,))
        return self.result(view, trained)

    def losses(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return the loss of each example, (B,)."""
        both = self.prompts(parameters, batch)
        feature = self._feature(parameters, batch, both)
        labels, domains = batch["labels"], batch["domains"]
        logits = linear(parameters, HEAD, feature)
        found = functional.cross_entropy(logits, labels, reduction="none")
        same_class, same_domain = labels[:, None] == labels, domains[:, None] == domains
        alike = (same_domain, same_domain & same_class, same_class)
        for factor, rows, positive in zip(
            self.config.contrasts, (*both, feature), alike, strict=True
        ):
            if factor:
                found = found + factor * contrast(rows, positive, self.config.temperature)
        return found

    def prompts(self, parameters: Parameters, batch: Parameters) -> tuple[Tensor, Tensor]:
        """Return p and q of each image, (B, w) each."""
        domain = linear(parameters, DOMAIN_PROMPT, batch[MAP])
        joined = torch.cat((batch[MAP], domain), dim=-1)
        return domain, linear(parameters, TASK_PROMPT, joined)

    def logits(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return logits (B, C)."""
        feature = self._feature(parameters, batch, self.prompts(parameters, batch))
        return linear(parameters, HEAD, feature)

    def _feature(
        self, parameters: Parameters, batch: Parameters, both: tuple[Tensor, Tensor]
    ) -> Tensor:
        names = self._modulations
        passed = [linear(parameters, name, both[at % 2]) for at, name in enumerate(names)]
        beside = [torch.stack(both, dim=1)]
        beside += [torch.stack(passed[at : at + 2], dim=1) for at in range(0, len(passed), 2)]
        return self.tower.features_beside(parameters, self.tower.inputs(batch), *beside)


def contrast(rows: Tensor, alike: Tensor, temperature: float) -> Tensor:
    """Return C of each row, (B,), of rows (B, w), those with `alike` (B, B) being alike."""
    unit = functional.normalize(rows, dim=-1)
    others = ~torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    near = (unit @ unit.T / temperature).exp()
    positive = (near * (alike & others)).sum(1) + NOTHING
    return -(positive / ((near * others).sum(1) + NOTHING)).log()


def build(config: Config, task: m.Task) -> m.Method:
    """Build the method."""
    method = Hcvp.built(config, task)
    method.tower.require_tokens()
    return replace(method, needs=method.needs | {"tokens", "domains"})
