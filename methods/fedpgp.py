"""FedPGP: a shared prompt, adapted by each client at low rank, held to CLIP by a contrastive loss.

Cui et al. 2024, "Harmonizing Generalization and Personalization in Federated Prompt Learning"
(ICML), Algorithm 1 and Eqs. 7-13. Client i predicts with p_i = p_G + U_i V_i (Eq. 10); p_G is
averaged, U_i and V_i stay. With text features z_G of p_G, z_i of p_i and z_C of a hand-written
prompt, the loss is L_ce + mu L_con (Eq. 13), and

    L_con = -log( exp(sim(z_G, z_C) / tau) / (exp(sim(z_G, z_C) / tau) + exp(sim(z_G, z_i) / tau)) )

(Eq. 12), with the cosine for sim. It sees no data, so it is the trainer's `penalty`: under `dp_sgd`
it uses no part of an example's clipping bound. One fit trains U_i, V_i and p_G, so that one clip
and one noise cover all that later releases depend on. Decoupled, the rounds are PromptFL's, and
clients train U_i and V_i after the last release on top of its prompt, each from its own start.

The paper leaves open tau, the start of U and V, and how sim treats classes. The published code has
tau = 0.5, N(0, 0.02^2) for both, the same on all clients, and the mean over classes of Eq. 12, as
here. It departs in z_C, which it takes from "X X ... X <class>." (`clip_reference: placeholder`),
and runs b = 8, mu = 0.5 in its script.

Ablations: `rank: full` learns one unrestricted Delta p_i; `contrast: no_positive` and `no_negative`
leave one pair. Appendix A.2 prints the remaining terms as 1 - sim(z_G, z_i) and sim(z_G, z_C),
whose minimum is the opposite of what sections 3.4 and 4.3 want of the pairs. `ablation_sign: text`
minimises sim(z_G, z_i) and 1 - sim(z_G, z_C); `appendix` is as printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

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
    CONTEXT_STANDARD_DEVIATION,
    Captions,
    EncodedObjective,
    PromptConfig,
    PromptMethod,
    as_tensors,
    text_losses,
)

LEFT, RIGHT, FULL = "adapter.left", "adapter.right", "adapter.full"

VARIANTS = ({"rank": "full"},)


@dataclass(frozen=True)
class Config(PromptConfig):
    """Options.

    Attributes:
        bottleneck: Inner dimension b of U V.
        mu: Factor of the contrastive loss (Eq. 13).
        temperature: tau of Eq. 12.
        contrast: Eq. 12, or one of its pairs alone (the ablations of section 4.3).
        ablation_sign: Sign of a pair that is alone: as the text means it, or as appendix A.2
            prints it.
        rank: Adapter U V, or one matrix of the prompt's shape.
        adapter_init: N(0, 0.02^2) for all of it, or such that U V = 0 (V, or the one matrix).
        personal_learning_rate: Learning rate of the adapter; None for `training.learning_rate`, 0
            to leave it as it starts.
        decoupled_steps: Steps of the adapter's training where it comes after the last release
            (`privacy.personal: decoupled`), without noise.
        clip_reference: Whether z_C is of `template` or of l placeholders before the class name.
        template: Caption with `{}` where the class name goes.
    """

    bottleneck: Annotated[int, Ge(1), Le(1024), CountsWith("rank", ("low",))] = 8
    mu: Annotated[float, Ge(0.0), Le(1e6)] = 1.0
    temperature: Annotated[float, Gt(0.0), Le(1e6), CountsWith("mu")] = 0.5
    contrast: Annotated[Literal["both", "no_positive", "no_negative"], CountsWith("mu")] = "both"
    ablation_sign: Annotated[
        Literal["text", "appendix"], CountsWith("contrast", ("no_positive", "no_negative"))
    ] = "text"
    rank: Literal["low", "full"] = "low"
    adapter_init: Literal["normal", "zero"] = "normal"
    personal_learning_rate: Annotated[float, Ge(0.0), Le(1e3)] | None = None
    decoupled_steps: Annotated[
        int, Ge(1), Le(1000000), CountsWith("privacy.personal", ("decoupled",))
    ] = 100
    clip_reference: Annotated[Literal["template", "placeholder"], CountsWith("mu")] = "template"
    template: Annotated[str, CountsWith("clip_reference", ("template",)), CountsWith("mu")] = (
        "a photo of a {}."
    )


@dataclass(frozen=True)
class Adapter:
    """The personal term Delta p_i of a prompt (l, token width); callers pass its parameters."""

    config: Config
    shape: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return (FULL,) if self.config.rank == "full" else (LEFT, RIGHT)

    @property
    def is_frozen(self) -> bool:
        """Whether it never moves."""
        return self.config.personal_learning_rate == 0.0

    def init(self, rng: m.Rng) -> dict[str, NDArray[np.float32]]:
        """Return starting values: U (l, b) and V (b, width), or one matrix (l, width)."""
        length, width = self.shape
        inner = self.config.bottleneck
        shapes = {LEFT: (length, inner), RIGHT: (inner, width), FULL: (length, width)}
        arrays = {
            name: rng.normal(0.0, CONTEXT_STANDARD_DEVIATION, shapes[name]).astype(np.float32)
            for name in self.names
        }
        if self.config.adapter_init == "zero":
            arrays[self.names[-1]][:] = 0.0
        return arrays

    def personal_prompt(self, parameters: Parameters) -> Tensor:
        """Return p_i of Eq. 7 and Eq. 10, shape (l, token width)."""
        if self.config.rank == "full":
            return parameters[CONTEXT] + parameters[FULL]
        return parameters[CONTEXT] + parameters[LEFT] @ parameters[RIGHT]

    def group(self) -> tuple[m.ParameterGroup, ...]:
        """Return the trained group: all of it, or none."""
        rate = self.config.personal_learning_rate
        return () if self.is_frozen else (m.ParameterGroup(self.names, rate),)


@dataclass(frozen=True)
class Contrast:
    """mu times the contrastive loss of Eq. 12, or of an ablation, with z_C (C, d) as reference."""

    config: Config
    reference: Tensor

    def __call__(self, parameters: Parameters, encoded: Parameters) -> Tensor:
        """Return the penalty of one step, shape (), from features z_i and z_G of length one."""
        return self.config.mu * self.per_class(encoded["global"], encoded["text"]).mean()

    def per_class(self, shared: Tensor, personal: Tensor) -> Tensor:
        """Return the loss of each class (C,) from z_G and z_i, both (C, d)."""
        positive = (shared * self.reference).sum(-1)
        negative = (shared * personal).sum(-1)
        is_printed = self.config.ablation_sign == "appendix"
        if self.config.contrast == "no_positive":
            return 1.0 - negative if is_printed else negative
        if self.config.contrast == "no_negative":
            return positive if is_printed else 1.0 - positive
        # -log(e^a / (e^a + e^b)) = log(1 + e^(b - a)).
        return functional.softplus((negative - positive) / self.config.temperature)


class FedPGP(PromptMethod):
    """Shared prompt, personal low-rank adaptation, prompt-wise contrast."""

    config: Config
    has_personal_state = True
    decouples = True

    @property
    def adapter(self) -> Adapter:
        """The personal term of the prompt."""
        return Adapter(self.config, self.encoder.spec.shape)

    @cached_property
    def reference(self) -> Captions:
        """Captions whose text features are z_C; kept, as they never change."""
        placeholder = f"{'X ' * self.config.context_tokens}{{}}."
        is_written = self.config.clip_reference == "template"
        template = self.config.template if is_written else placeholder
        return Captions(self.encoder.backbone, template)

    def init_client(self, shared_rng: m.Rng, client_rng: m.Rng) -> m.Arrays:
        """Return the adapter, the same on all clients; decoupled, its training draws it later."""
        return {} if self.task.decoupled else self.adapter.init(shared_rng)

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Return the local epochs of Algorithm 1; decoupled, PromptFL's."""
        if self.task.decoupled:
            return super().client_update(view, data, trainer, rng)
        own = {name: view.personal[name] for name in self.adapter.names}
        groups = (m.ParameterGroup((CONTEXT,)), *self.adapter.group())
        loss, contrast = self._objective({CONTEXT, *own}), self._contrast
        return self.train(
            view, data, trainer, rng, own=own, groups=groups, objective=loss, penalty=contrast
        )

    def personalise(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.Arrays:
        """Train the adapter alone, decoupled, on top of the last global prompt."""
        if not self.task.decoupled or self.adapter.is_frozen:
            return view.personal
        trained = trainer.fit(
            self._objective(set(self.adapter.names), fixed=view.broadcast[CONTEXT]),
            {CONTEXT: view.broadcast[CONTEXT], **self.adapter.init(rng)},
            data.arrays,
            groups=self.adapter.group(),
            rng=rng,
            steps=self.config.decoupled_steps,
            penalty=self._contrast,
        )
        return {name: trained[name] for name in self.adapter.names}

    def predict(self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]) -> m.Logits:
        """Return CLIP's logits (n, C) under p_i; under p_G without an adapter."""
        if not view.personal:
            return self.broadcast_logits(view, batch, classes)
        arrays = {CONTEXT: view.broadcast[CONTEXT], **view.personal}
        tensors = as_tensors(arrays, self.encoder.backbone)
        prompt = self.adapter.personal_prompt(tensors).cpu().numpy()
        return self.prompt_logits(prompt, batch, classes)

    @cached_property
    def _contrast(self) -> Contrast | None:
        # z_C never changes, so one pass serves all clients and rounds.
        if not self.config.mu:
            return None
        return Contrast(self.config, self.reference.features(self.classes))

    def _objective(self, names: set[str], fixed: NDArray[Any] | None = None) -> EncodedObjective:
        """Return cross-entropy of the personal prompt (Eq. 6 at p_i).

        Its encoder gives z_i as `text`, and z_G as `global` where a penalty needs z_G. `fixed` is
        p_G where p_G is not trained.
        """
        shared = None
        if fixed is not None and self.config.mu:
            shared = self.encoder.fixed_features(fixed, self.classes)

        def encode(parameters: Parameters) -> Parameters:
            prompt = self.adapter.personal_prompt(parameters)
            if not self.config.mu:
                return {"text": self.encoder.text_features(prompt, self.classes)}
            if shared is not None:
                text = self.encoder.text_features(prompt, self.classes)
                return {"text": text, "global": shared}
            both = torch.stack((prompt, parameters[CONTEXT]))
            own, common = self.encoder.text_features_each(both, self.classes).unbind()
            return {"text": own, "global": common}

        def losses(parameters: Parameters, encoded: Parameters, batch: Parameters) -> Tensor:
            return text_losses(self.encoder.backbone, encoded["text"], batch)

        return EncodedObjective(frozenset(names), encode, losses)


def build(config: Config, task: m.Task) -> m.Method:
    """Build the method; refuse a template without `{}`."""
    method = FedPGP.built(config, task)
    method.reference.require_room(task.classes)
    return method
