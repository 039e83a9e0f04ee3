"""FedOTP: global and local prompts cooperate by unbalanced optimal transport.

Li et al. 2024, "Global and Local Prompts Cooperation via Optimal Transport for Federated Learning"
(CVPR). Each client has N = 2 prompts: the first is averaged over clients, the others never leave.
Each class's N text features are matched with the M local features of an image (those of its
patches) by entropic transport in which a patch gives at most 1/M and a prompt gets mass/N, so that
prompts may leave patches aside. With S the cosines and the plan T a constant of the step,

    logit(c) = sum_mn T_mn(c) S_mn(c)    over the temperature.

Dykstra's algorithm finds the plan; `mass: 1.0` is balanced transport, the published code's `OT:
Sinkhorn`. The equations are from the published code. It stops all problems of a batch by their mean
progress (1e-3); here each gets `iterations`, so that a prediction depends on its own image only.

`entropy` is 0.1, as in that code's scripts for CIFAR. Its few-shot scripts have 0.01, where its
routine gives NaN on some inputs and stops: its kernel exp((S - 1)/0.01) is zero in single precision
for cosines below about -0.03 (in half precision for all below 0.8), and a prompt whose kernel is
zero for all patches gets infinity times zero. Here the kernel is scaled before it is taken, so that
`entropy: 0.01` works too; the plan is then nearly that without entropy, and takes more iterations.

Decoupled (`privacy.personal: decoupled`), the shared prompt is trained alone, with its own plan,
and the local prompts after the last release. The method admits every mechanism: under `dp_sgd`
noised steps train all prompts under one joint bound. The method keeps an image's local features:
401 KB for ViT-B/16, 33 KB for the tiny model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods.interface import method as m
from methods.interface.method import CountsWith
from methods.networks.layers import Parameters
from methods.prompts.prompt import (
    CONTEXT,
    EncodedObjective,
    PromptConfig,
    PromptMethod,
    as_tensor,
    as_tensors,
)

SMALLEST_EXPONENT = -69.0
"""Its exponential, 1e-30, does not change the plan, and float32 can still divide by it."""


def transport_plans(similarity: Tensor, *, mass: float, entropy: float, iterations: int) -> Tensor:
    """Return transport plans T of many problems, constants of the shape of `similarity`.

    The number of iterations is fixed, so that no problem's plan depends on other problems, and
    `vmap` can run it. Targets get exact amounts; a source's bound holds as far as the iterations
    have converged.

    Args:
        similarity: S of each problem, (N, M, ...): targets, sources, problems. That order keeps
            the long dimension innermost, which makes small problems fast.
        mass: The amount that is moved in all, in (0, 1].
        entropy: Weight of the entropic term, above 0.
        iterations: Pairs of projections.
    """
    # An einsum may return any strides; a contiguous tensor is four times as fast.
    fixed = similarity.detach().contiguous()
    targets, sources = fixed.shape[:2]
    # A factor on a column of K is undone by v; without it a small entropy overflows.
    exponent = (fixed - fixed.amax(dim=1, keepdim=True)) / entropy
    kernel = exponent.clamp_min(SMALLEST_EXPONENT).exp()
    share, cap = mass / targets, 1.0 if mass < 1.0 else torch.inf
    # Start as if no source were exhausted: that takes few iterations, a start at v = 1 takes many.
    v = share / kernel.sum(dim=1, keepdim=True)
    u = torch.ones_like(fixed[0])
    for _ in range(iterations):
        u = (sources * (kernel * v).sum(dim=0)).reciprocal().clamp_max(cap)
        v = share / (kernel * u).sum(dim=1, keepdim=True)
    return kernel * u * v


OWN = "own_contexts"
PATCHES = "patches"


@dataclass(frozen=True)
class Config(PromptConfig):
    """Options.

    Attributes:
        context_tokens: Number l of learned context vectors of each prompt.
        context_init: Text whose token embeddings start the shared prompt, or None for
            N(0, 0.02^2), from which the other prompts always start: equal ones would stay equal.
        prompts: Number N of prompts of a client, the shared one included; with 1 nothing is
            personal.
        mass: Amount that is transported in all; 1.0 makes every patch count.
        entropy: Weight of the entropic term.
        iterations: Pairs of projections; a smaller `entropy` needs more.
        decoupled_steps: Steps of the local prompts' training where it comes after the last release
            (`privacy.personal: decoupled`), without noise.
    """

    prompts: Annotated[int, Ge(1), Le(16)] = 2
    mass: Annotated[float, Gt(0.0), Le(1.0)] = 0.8
    entropy: Annotated[float, Ge(1e-3), Le(1e6)] = 0.1
    iterations: Annotated[int, Ge(1), Le(100000)] = 100
    decoupled_steps: Annotated[
        int, Ge(1), Le(1000000), CountsWith("privacy.personal", ("decoupled",))
    ] = 100


@dataclass(frozen=True)
class FedOTP(PromptMethod):
    """Shared and personal prompts under optimal transport."""

    config: Config
    has_personal_state: bool = field(default=True, kw_only=True)
    decouples = True
    needs = frozenset({"tokens"})

    def prepare(self, arrays: m.Arrays) -> m.Arrays:
        """Return local features of length one, (n, M, d), in place of tokens."""
        return {PATCHES: self.encoder.backbone.project_tokens(arrays["tokens"])}

    def init_client(self, shared_rng: m.Rng, client_rng: m.Rng) -> m.Arrays:
        """Return the client's own prompts; decoupled, they start with their training."""
        return {} if self.task.decoupled else self._fresh_prompts(client_rng)

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train the broadcast prompt and the own ones together; upload the former's change."""
        # No later release may use prompts that were trained after a last release.
        own = {} if self.task.decoupled else view.personal
        objective = self._objective({**view.broadcast, **own}, self.classes)
        return self.train(view, data, trainer, rng, own=own, objective=objective)

    def personalise(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.Arrays:
        """Train the own prompts alone, decoupled, beside the last shared one."""
        own = self._fresh_prompts(rng)
        if not (self.task.decoupled and own):
            return view.personal
        start = {CONTEXT: view.broadcast[CONTEXT], **own}
        objective, groups = self._objective(start, self.classes), (m.ParameterGroup((OWN,)),)
        steps = self.config.decoupled_steps
        fitted = trainer.fit(objective, start, data.arrays, groups=groups, rng=rng, steps=steps)
        return {OWN: fitted[OWN]}

    def predict(self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]) -> m.Logits:
        """Return logits (n, C) under the broadcast prompt and the own ones, if any."""
        backbone = self.encoder.backbone
        prompts = {CONTEXT: view.broadcast[CONTEXT], **view.personal}
        objective = self._objective(prompts, tuple(classes))
        with torch.no_grad():
            encoded = objective.encode(as_tensors(prompts, backbone))
            logits = self.logits(encoded, as_tensor(batch[PATCHES], backbone))
        return logits.cpu().numpy().astype(np.float32)

    def logits(self, encoded: Parameters, patches: Tensor) -> Tensor:
        """Return logits (B, C) of images with local features (B, M, d)."""
        similarity = torch.einsum("bmd,ncd->nmbc", patches, encoded["text"])
        plans = transport_plans(
            similarity,
            mass=self.config.mass,
            entropy=self.config.entropy,
            iterations=self.config.iterations,
        )
        transported = (plans * similarity).sum(dim=(0, 1))
        return self.encoder.backbone.logit_scale * transported

    def _fresh_prompts(self, rng: m.Rng) -> dict[str, NDArray[np.float32]]:
        count = self.config.prompts - 1
        drawn = [self.encoder.init_context(rng, None) for _ in range(count)]
        return {OWN: np.stack(drawn)} if drawn else {}

    def _objective(self, prompts: m.Arrays, classes: tuple[str, ...]) -> EncodedObjective:
        """Return cross-entropy of the transported cosines; without own prompts N is 1."""

        def encode(parameters: Parameters) -> Parameters:
            # Text features (N, C, d) behind each prompt, the shared one first.
            contexts = parameters[CONTEXT].unsqueeze(0)
            if OWN in prompts:
                contexts = torch.cat((contexts, parameters[OWN]))
            return {"text": self.encoder.text_features_each(contexts, classes)}

        def losses(parameters: Parameters, encoded: Parameters, batch: Parameters) -> Tensor:
            logits = self.logits(encoded, batch[PATCHES])
            return functional.cross_entropy(logits, batch["labels"], reduction="none")

        return EncodedObjective(frozenset(prompts), encode, losses)


def build(config: Config, task: m.Task) -> m.Method:
    """Build the method; refuse an image tower without tokens."""
    method = FedOTP.built(config, task)
    # Asked here, so that a tower without tokens is refused before anything is encoded.
    _ = method.encoder.backbone.image_tower
    return replace(method, has_personal_state=config.prompts > 1)
