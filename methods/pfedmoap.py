"""pFedMoAP: federated mixture of adaptive prompts.

Luo et al. 2025, "Mixture of Experts Made Personalized: Federated Prompt Learning for
Vision-Language Models" (ICLR), Algorithm 1 and Eqs. 6-11. Prompts are averaged (Eq. 6) and also
kept apart in a pool of the previous round (Eq. 7), from which a client gets its K nearest (l2) as
non-local experts, fixed during local training (Eq. 8). A gate by multi-head attention, which never
leaves the client, mixes local and non-local text features per image (Eqs. 9, 11), and

    logit(c) = sim(pool(I), T_MoE(c)) + lambda sim(I, T_L(c))                             (Eq. 10)

Clients without an entry in the pool train the plain prompt (footnote 1). The platform has its own
rules for the pool (generations in place of overwriting, minimum size).

The published code departs from the paper; its choices are options: `select: random` in place of
nearest, `gate_scale: 10` in place of 1/sqrt(head size), `gate_pool: stride` in place of the mean,
`moe_similarity: dot` in place of the cosine. The paper's ablations are options too: no local logits
(`local_weight: 0`, Figure 4), a gate by linear projection (`gate: linear`, Table 7) and one gate
for all, averaged like the prompt (`gate_sharing: aggregated`, Table 7).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Le
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods.errors import MethodError
from methods.interface import method as m
from methods.interface.method import CountsWith
from methods.networks.layers import Parameters, linear, linear_layers, linear_start, specs
from methods.prompts.prompt import (
    CONTEXT,
    PromptConfig,
    PromptEncoder,
    PromptMethod,
    as_tensor,
    as_tensors,
)

PROJECTIONS = ("query", "key", "value", "output")
PUBLISHED_GATE_SCALE = 10.0


@dataclass(frozen=True)
class Gate:
    """Mixes experts' text features and compares the mixture with the image.

    Image features are (B, d), pooled to (B, d_gating) for `mix`; experts are the pooled text
    features (E, C, d_gating) of all experts, the local one first.

    Attributes:
        dim: Dimension d_gating of pooled features.
        pooling: Mean over neighbouring coordinates, or every r-th coordinate.
        similarity: Cosine, or the plain product with the pooled image feature.
    """

    dim: int
    pooling: Literal["mean", "stride"]
    similarity: Literal["cosine", "dot"]

    def spec(self) -> Mapping[str, m.TensorSpec]:
        """Return the gate's arrays."""
        raise NotImplementedError

    def init(self, rng: m.Rng) -> dict[str, NDArray[np.float32]]:
        """Return fresh parameters, uniform in +-1/sqrt(d_gating)."""
        return {n: linear_start(rng, spec.shape, self.dim) for n, spec in self.spec().items()}

    def pool(self, features: Tensor) -> Tensor:
        """Reduce the last dimension from d to d_gating (the paper's Pooling layer)."""
        each = features.shape[-1] // self.dim
        blocks = features.reshape(*features.shape[:-1], self.dim, each)
        return blocks.mean(-1) if self.pooling == "mean" else blocks[..., 0]

    def mix(self, parameters: Parameters, image: Tensor, experts: Tensor) -> Tensor:
        """Return enhanced text features T_MoE (B, C, d_gating)."""
        raise NotImplementedError

    def logits(self, parameters: Parameters, image: Tensor, experts: Tensor) -> Tensor:
        """Return sim(pool(I), T_MoE) of Eq. 10, shape (B, C), before the temperature."""
        query = self.pool(image)
        mixed = self.mix(parameters, query, experts)
        if self.similarity == "cosine":
            query, mixed = functional.normalize(query, dim=-1), functional.normalize(mixed, dim=-1)
        return torch.einsum("bd,bcd->bc", query, mixed)

    def weights(self, parameters: Parameters, image: Tensor, experts: Tensor) -> Tensor:
        """Return the weight of each expert for each image (B, E), rows of sum one."""
        raise NotImplementedError


@dataclass(frozen=True)
class AttentionGate(Gate):
    """The attention-based gating network G of Eq. 11.

    Attributes:
        heads: Number h of attention heads; divides `dim`.
        scale: Factor of the attention scores: 1/sqrt(head size), or the published code's 10.
    """

    heads: int
    scale: Literal["sqrt", "10"]

    def spec(self) -> Mapping[str, m.TensorSpec]:
        """Return four d_gating x d_gating projections with bias."""
        each = [linear_layers(f"gate.{name}", self.dim, self.dim) for name in PROJECTIONS]
        return specs({name: layer for layers in each for name, layer in layers.items()})

    def mix(self, parameters: Parameters, image: Tensor, experts: Tensor) -> Tensor:
        """Return enhanced text features; the image is the query, experts are keys and values."""
        attention = self._attention(parameters, image, experts)
        value = self._heads(linear(parameters, "gate.value", experts))
        mixed = torch.einsum("bche,echd->bchd", attention, value)
        return linear(parameters, "gate.output", mixed.flatten(-2))

    def weights(self, parameters: Parameters, image: Tensor, experts: Tensor) -> Tensor:
        """Return attention to each expert (B, E), its mean over heads and classes (Figure 6)."""
        return self._attention(parameters, self.pool(image), experts).mean((1, 2))

    def _attention(self, parameters: Parameters, image: Tensor, experts: Tensor) -> Tensor:
        """Return softmax over experts of the scores, (B, C, heads, E)."""
        query = self._heads(linear(parameters, "gate.query", image))
        key = self._heads(linear(parameters, "gate.key", experts))
        head = self.dim // self.heads
        factor = PUBLISHED_GATE_SCALE if self.scale == "10" else 1.0 / math.sqrt(head)
        scores = torch.einsum("bhd,echd->bche", query, key) * factor
        return scores.softmax(-1)

    def _heads(self, projected: Tensor) -> Tensor:
        return projected.reshape(*projected.shape[:-1], self.heads, -1)


@dataclass(frozen=True)
class LinearGate(Gate):
    """Weights of the experts by a linear projection of the pooled image feature.

    The paper leaves open which feature is projected and whether a softmax follows; both are as in
    Shazeer et al. With d_gating = d nothing is pooled, and text features are sums of whole ones.

    Attributes:
        experts: Largest number of experts, the local one included. Fewer experts share the softmax.
    """

    experts: int

    def spec(self) -> Mapping[str, m.TensorSpec]:
        """Return one row and one bias an expert."""
        return specs(linear_layers("gate.linear", self.dim, self.experts))

    def mix(self, parameters: Parameters, image: Tensor, experts: Tensor) -> Tensor:
        """Return enhanced text features: one weighted mean of the experts' for each image."""
        return torch.einsum("be,ecd->bcd", self._shares(parameters, image, experts), experts)

    def weights(self, parameters: Parameters, image: Tensor, experts: Tensor) -> Tensor:
        """Return the weights of the mean themselves (B, E)."""
        return self._shares(parameters, self.pool(image), experts)

    def _shares(self, parameters: Parameters, image: Tensor, experts: Tensor) -> Tensor:
        return linear(parameters, "gate.linear", image)[:, : len(experts)].softmax(-1)


VARIANTS = ({"gate_sharing": "aggregated"}, {"gate": "linear"})


@dataclass(frozen=True)
class Config(PromptConfig):
    """Options.

    Attributes:
        experts: Number K of non-local experts.
        local_weight: lambda of Eq. 10.
        gate: How experts are mixed: multi-head attention, or the softmax of a linear projection of
            the image feature (Table 7), here of the pooled one.
        gate_sharing: Whether the gate stays personal or is averaged over clients (Table 7).
        gate_dim: Dimension d_gating that features are pooled to.
        gate_heads: Number h of attention heads; divides `gate_dim`.
        gate_learning_rate: Learning rate of the gate (the paper's eta_2).
        decoupled_steps: Steps of the gate's training where it comes after the last release
            (`privacy.personal: decoupled`), without noise.
        select: Which entries of the pool become experts.
        gate_scale: Factor of the attention scores: 1/sqrt(head size) or the constant 10.
        gate_pool: Mean over neighbouring coordinates, or every r-th coordinate.
        moe_similarity: Cosine, or the plain product with the normalised pooled image feature.
    """

    experts: Annotated[int, Ge(1), Le(10000), m.UpToClients(others=True)] = 9
    local_weight: Annotated[float, Ge(0.0), Le(1e6)] = 0.5
    gate: Literal["attention", "linear"] = "attention"
    gate_sharing: Literal["personal", "aggregated"] = "personal"
    gate_dim: Annotated[int, Ge(1), Le(16384)] = 128
    gate_heads: Annotated[int, Ge(1), Le(64), CountsWith("gate", ("attention",))] = 8
    gate_learning_rate: Annotated[float, Ge(0.0), Le(1e3)] = 0.01
    decoupled_steps: Annotated[
        int, Ge(1), Le(1000000), CountsWith("privacy.personal", ("decoupled",))
    ] = 100
    select: Literal["nearest", "random"] = "nearest"
    gate_scale: Annotated[Literal["sqrt", "10"], CountsWith("gate", ("attention",))] = "sqrt"
    gate_pool: Literal["mean", "stride"] = "mean"
    moe_similarity: Literal["cosine", "dot"] = "cosine"


@dataclass(frozen=True)
class MixtureObjective:
    """Cross-entropy of Eq. 10 with fixed non-local experts."""

    encoder: PromptEncoder
    classes: tuple[str, ...]
    gate: Gate
    local_weight: float
    experts: Tensor
    """Pooled non-local text features (K, C, d_gating), constants."""
    encoder_parameters: frozenset[str] = frozenset({CONTEXT})

    def encode(self, parameters: Parameters) -> Parameters:
        """Return local text features T_L (C, d)."""
        return {"text": self.encoder.text_features(parameters[CONTEXT], self.classes)}

    def logits(self, parameters: Parameters, encoded: Parameters, image: Tensor) -> Tensor:
        """Eq. 10 over the temperature, shape (B, C)."""
        text = encoded["text"]
        mixture = self.gate.logits(parameters, image, self._all_experts(text))
        local = image @ text.T
        scale = self.encoder.backbone.logit_scale
        return scale * (mixture + self.local_weight * local)

    def weights(self, parameters: Parameters, encoded: Parameters, image: Tensor) -> Tensor:
        """Return the weight of each expert for each image (B, K+1), the local one first."""
        return self.gate.weights(parameters, image, self._all_experts(encoded["text"]))

    def _all_experts(self, text: Tensor) -> Tensor:
        return torch.cat((self.gate.pool(text).unsqueeze(0), self.experts))

    def losses(self, parameters: Parameters, encoded: Parameters, batch: Parameters) -> Tensor:
        """Return cross-entropy of each example, shape (B,)."""
        logits = self.logits(parameters, encoded, batch["features"])
        return functional.cross_entropy(logits, batch["labels"], reduction="none")


class PFedMoAP(PromptMethod):
    """Federated mixture of adaptive prompts."""

    config: Config
    has_personal_state = True

    @property
    def gate(self) -> Gate:
        """The gate that the options ask for."""
        config = self.config
        common = (config.gate_dim, config.gate_pool, config.moe_similarity)
        if config.gate == "linear":
            return LinearGate(*common, config.experts + 1)
        return AttentionGate(*common, config.gate_heads, config.gate_scale)

    @property
    def decouples(self) -> bool:
        """Whether the gate stays: what goes with every update cannot be trained after the last."""
        return not self.shares_gate

    @property
    def is_decoupled(self) -> bool:
        """Whether the gate is trained after the last release."""
        return self.task.decoupled and self.decouples

    @property
    def shares_gate(self) -> bool:
        """Whether there is one gate for all, averaged like the prompt."""
        return self.config.gate_sharing == "aggregated"

    def shared_spec(self) -> Mapping[str, m.TensorSpec]:
        """Return the context, and the gate where it is averaged."""
        gate = self.gate.spec() if self.shares_gate else {}
        return {CONTEXT: self.encoder.spec, **gate}

    def init_server(self, rng: m.Rng) -> m.Arrays:
        """Return a fresh context, and a gate where it is averaged."""
        state = super().init_server(rng)
        return {**state, **self.gate.init(rng)} if self.shares_gate else state

    def pool_policy(self) -> m.PoolPolicy | None:
        """Return K experts of the previous rounds' entries (Eq. 7)."""
        return replace(serving(self.config, 0), spec={CONTEXT: self.encoder.spec})

    def init_client(self, shared_rng: m.Rng, client_rng: m.Rng) -> m.Arrays:
        """Return the client's own gate; the client has no own prompt before its first round.

        Decoupled, the gate's training draws it later.
        """
        return {} if self.is_decoupled or self.shares_gate else self.gate.init(client_rng)

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """ClientUpdate of Algorithm 1: starts from the global prompt."""
        start = view.broadcast[CONTEXT]
        gate = self._gate_of(view.broadcast, view.personal)
        if view.experts and not self.is_decoupled:
            own = m.ParameterGroup(tuple(gate), self.config.gate_learning_rate)
            groups = (m.ParameterGroup((CONTEXT,)), own)
            objective = self._objective(view.experts, self.classes)
            begin = {CONTEXT: start, **gate}
            trained = trainer.fit(objective, begin, data.arrays, groups=groups, rng=rng)
        else:
            trained = {CONTEXT: self.train_prompt(start, data, trainer, rng), **gate}
        context = trained[CONTEXT]
        update = {name: trained[name] - view.broadcast[name] for name in self.shared_spec()}
        kept = {CONTEXT: context} if self.shares_gate else trained
        return m.LocalResult(update, {CONTEXT: context}, kept)

    def personalise(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.Arrays:
        """Train the gate alone, decoupled, on top of prompts that were trained without it."""
        if not (self.is_decoupled and view.experts):
            return view.personal
        context = view.personal.get(CONTEXT, view.broadcast[CONTEXT])
        start = {CONTEXT: context, **self.gate.init(rng)}
        objective = self._objective(view.experts, self.classes)
        names = tuple(name for name in start if name != CONTEXT)
        groups = (m.ParameterGroup(names, self.config.gate_learning_rate),)
        steps = self.config.decoupled_steps
        return trainer.fit(objective, start, data.arrays, groups=groups, rng=rng, steps=steps)

    def predict(self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]) -> m.Logits:
        """Eq. 10 with the client's own prompt P_i; the plain prompt without experts or gate."""
        logits = self._asked(MixtureObjective.logits, view, batch, classes)
        return super().predict(view, batch, classes) if logits is None else logits

    def expert_weights(
        self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]
    ) -> NDArray[np.float32] | None:
        """Return the gate's weights of all experts (Figure 6), the local one first."""
        return self._asked(MixtureObjective.weights, view, batch, classes)

    def _asked(
        self,
        ask: Callable[[MixtureObjective, Parameters, Parameters, Tensor], Tensor],
        view: m.ClientView,
        batch: m.Arrays,
        classes: Sequence[str],
    ) -> NDArray[np.float32] | None:
        """Return what a client's mixture says of images; None without experts or a gate."""
        gate = self._gate_of(view.broadcast, view.personal)
        if not (view.experts and gate):
            return None
        held = {CONTEXT: view.personal.get(CONTEXT, view.broadcast[CONTEXT]), **gate}
        objective, backbone = self._objective(view.experts, tuple(classes)), self.encoder.backbone
        with torch.no_grad():
            parameters = as_tensors(held, backbone)
            image = as_tensor(batch["features"], backbone)
            answer = ask(objective, parameters, objective.encode(parameters), image)
        return answer.cpu().numpy().astype(np.float32)

    def _gate_of(self, broadcast: m.Arrays, personal: m.Arrays) -> m.Arrays:
        """Return the gate that a client uses; empty before a decoupled gate is trained."""
        source = broadcast if self.shares_gate else personal
        return {name: value for name, value in source.items() if name != CONTEXT}

    def _objective(self, experts: Sequence[m.Arrays], classes: tuple[str, ...]) -> MixtureObjective:
        # Eq. 8: the non-local features stay fixed during local training, so once is enough.
        with torch.no_grad():
            contexts = np.stack([entry[CONTEXT] for entry in experts])
            stacked = as_tensor(contexts, self.encoder.backbone)
            pooled = self.gate.pool(self.encoder.text_features_each(stacked, classes))
        weight = self.config.local_weight
        return MixtureObjective(self.encoder, classes, self.gate, weight, pooled)


def serving(config: Config, clients: int) -> m.PoolPolicy:
    """Return the pool's use, without an entry's tensors; known before the method is built."""
    return m.PoolPolicy({}, config.experts, config.select)


def build(config: Config, task: m.Task) -> m.Method:
    """Build the method; refuse an unfit gate, and a single client."""
    method = PFedMoAP.built(config, task)
    width = method.encoder.backbone.embed_dim
    if task.population < 2:
        raise MethodError(
            f"task.clients: {task.population} leaves no other client's experts; valid: at least 2"
        )
    if width % config.gate_dim:
        raise MethodError(
            f"method.gate_dim: {config.gate_dim} is not valid; it must divide the feature "
            f"dimension {width}"
        )
    if config.gate == "attention" and config.gate_dim % config.gate_heads:
        raise MethodError(
            f"method.gate_heads: {config.gate_heads} is not valid; it must divide "
            f"method.gate_dim = {config.gate_dim}"
        )
    return method
