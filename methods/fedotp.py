"""FedOTP: global and local prompts cooperate by unbalanced optimal transport.

Li et al. 2024, "Global and Local Prompts Cooperation via Optimal Transport for Federated Learning"
(CVPR). Each client has N = 2 prompts: the first is averaged over clients, the others never leave.
Each class's N text features are matched with the M local features of an image (those of its
patches) by entropic transport in which a patch gives at most 1/M and a prompt gets mass/N, so that
prompts may leave patches aside. With S the cosines and the plan T a constant of the step,

    logit(c) = sum_mn T_mn(c) S_mn(c)    over the temperature.

The plan is found by Dykstra's algorithm (`methods.fedotp`); `mass: 1.0` is
balanced transport, the published code's `OT: Sinkhorn`. The equations are taken from the published
code, from which this departs once: it stops all problems of a batch by their mean progress (1e-3),
here each gets `iterations`, so that a prediction depends on its own image only.

`entropy` is 0.1, as in that code's scripts for CIFAR. Its few-shot scripts have 0.01, where its
routine gives NaN on some inputs and stops: its kernel exp((S - 1)/0.01) is zero in single precision
for cosines below about -0.03 (in half precision for all below 0.8), and a prompt whose kernel is
zero for all patches gets infinity times zero. Here the kernel is scaled before it is taken, so that
`entropy: 0.01` works too; the plan is then nearly that without entropy, and takes more iterations.

Decoupled (`privacy.personal: decoupled`), the shared prompt is trained with a plan of its own
alone, and the local prompts after the last release. It admits every mechanism: under `dp_sgd` all
prompts are trained by noised steps under one joint bound. What is kept of an image is its local
features: 401 KB for ViT-B/16, 33 KB for the tiny model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods.interface.method import (
    Arrays,
    ClientView,
    CountsWith,
    Examples,
    LocalResult,
    Method,
    Need,
    ParameterGroup,
    Task,
    Trainer,
)
from methods.networks.layers import Parameters
from methods.prompts.prompt import (
    CONTEXT,
    PromptConfig,
    PromptEncoder,
    PromptMethod,
    as_tensor,
    as_tensors,
    build_encoder,
)

SMALLEST_EXPONENT = -69.0
"""exp of it, 1e-30, is nothing to the plan and still no zero to divide by in float32."""


def transport_plans(similarity: Tensor, *, mass: float, entropy: float, iterations: int) -> Tensor:
    """Return plans of many problems by a fixed number of iterations.

    The number is fixed, so that no problem's plan depends on its company, and `vmap` can run it.

    Args:
        similarity: S of each problem, (N, M, ...): targets, sources, problems. That order keeps
            the long dimension innermost, which is what makes small problems fast.
        mass: What is moved in all, in (0, 1].
        entropy: Weight of the entropic term, above 0.
        iterations: Pairs of projections.

    Returns:
        T of each problem, constants of the shape of `similarity`. What targets get is exact; a
        source's bound is met as far as the iterations have converged.
    """
    # An einsum may return any strides; laid out as its shape says it is four times as fast.
    fixed = similarity.detach().contiguous()
    targets, sources = fixed.shape[:2]
    # A factor on a column of K is undone by v; without it a small entropy overflows.
    exponent = (fixed - fixed.amax(dim=1, keepdim=True)) / entropy
    kernel = exponent.clamp_min(SMALLEST_EXPONENT).exp()
    share, cap = mass / targets, 1.0 if mass < 1.0 else torch.inf
    # As if no source were exhausted: from here few iterations do, from v = 1 many.
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
        mass: What is transported in all; 1.0 makes every patch count.
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
class TransportObjective:
    """Cross-entropy of the transported cosines.

    Attributes:
        encoder: Prompt encoder over the frozen backbone.
        classes: Class names in label order.
        config: The method's options.
        encoder_parameters: Names of the contexts; without the personal ones N is 1.
    """

    encoder: PromptEncoder
    classes: tuple[str, ...]
    config: Config
    encoder_parameters: frozenset[str]

    def encode(self, parameters: Parameters) -> Parameters:
        """Return text features (N, C, d) of all classes behind each prompt.

        The shared one first.
        """
        contexts = parameters[CONTEXT].unsqueeze(0)
        if OWN in self.encoder_parameters:
            contexts = torch.cat((contexts, parameters[OWN]))
        return {"text": self.encoder.text_features_each(contexts, self.classes)}

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

    def losses(self, parameters: Parameters, encoded: Parameters, batch: Parameters) -> Tensor:
        """Return cross-entropy of each example, shape (B,)."""
        logits = self.logits(encoded, batch[PATCHES])
        return functional.cross_entropy(logits, batch["labels"], reduction="none")


@dataclass(frozen=True)
class FedOTP(PromptMethod):
    """Shared and personal prompts under optimal transport."""

    config: Config
    is_decoupled: bool = False
    has_personal_state: bool = field(default=True, kw_only=True)
    decouples: bool = field(default=True, init=False)
    needs: frozenset[Need] = field(default=frozenset({"tokens"}), init=False)

    def prepare(self, arrays: Arrays) -> Arrays:
        """Return local features of length one, (n, M, d), in place of tokens."""
        return {PATCHES: self.encoder.backbone.project_tokens(arrays["tokens"])}

    def init_client(
        self, shared_rng: np.random.Generator, client_rng: np.random.Generator
    ) -> Arrays:
        """Return the client's own prompts; decoupled, they begin with their training."""
        return {} if self.is_decoupled else self._fresh_prompts(client_rng)

    def client_update(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> LocalResult:
        """Train the broadcast prompt and the own ones together; upload the former's change."""
        # What was trained after a last release may not enter a further one.
        own = {} if self.is_decoupled else view.personal
        start = {CONTEXT: view.broadcast[CONTEXT], **own}
        groups = (ParameterGroup(tuple(start)),)
        objective = self._objective(start, self.classes)
        trained = trainer.fit(objective, start, data.arrays, groups=groups, rng=rng)
        kept = {name: trained[name] for name in own}
        return LocalResult({CONTEXT: trained[CONTEXT] - view.broadcast[CONTEXT]}, None, kept)

    def personalise(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> Arrays:
        """Train the own prompts alone, decoupled, beside the last shared one."""
        own = self._fresh_prompts(rng)
        if not (self.is_decoupled and own):
            return view.personal
        start = {CONTEXT: view.broadcast[CONTEXT], **own}
        trained = trainer.fit(
            self._objective(start, self.classes),
            start,
            data.arrays,
            groups=(ParameterGroup((OWN,)),),
            rng=rng,
            steps=self.config.decoupled_steps,
        )
        return {OWN: trained[OWN]}

    def predict(
        self, view: ClientView, batch: Arrays, classes: Sequence[str]
    ) -> NDArray[np.float32]:
        """Return logits (n, C) under the broadcast prompt and the own ones, where there are any."""
        backbone = self.encoder.backbone
        prompts = {CONTEXT: view.broadcast[CONTEXT], **view.personal}
        objective = self._objective(prompts, tuple(classes))
        with torch.no_grad():
            encoded = objective.encode(as_tensors(prompts, backbone))
            logits = objective.logits(encoded, as_tensor(batch[PATCHES], backbone))
        return logits.cpu().numpy().astype(np.float32)

    def _fresh_prompts(self, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
        count = self.config.prompts - 1
        drawn = [self.encoder.init_context(rng, None) for _ in range(count)]
        return {OWN: np.stack(drawn)} if drawn else {}

    def _objective(self, prompts: Arrays, classes: tuple[str, ...]) -> TransportObjective:
        return TransportObjective(self.encoder, classes, self.config, frozenset(prompts))


def build(config: Config, task: Task) -> Method:
    """Build the method.

    Raises:
        BackboneError: If the task has no backbone, its image tower gives no tokens, or the prompt
            does not fit into it.
    """
    encoder = build_encoder(config, task)
    # Asked for its own sake: a tower without tokens is refused before anything is encoded.
    _ = encoder.backbone.image_tower
    return FedOTP(
        encoder, config, task.classes, task.decoupled, has_personal_state=config.prompts > 1
    )
