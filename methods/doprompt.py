"""DoPrompt: a prompt for each domain, mixed for images of other domains; centralised.

Zheng et al. 2022, "Prompt Vision Transformer for Domain Generalization" (arXiv 2208.08914), here by
its published code (zhengzangw/DoPrompt, commit a580930: algorithms.py). One party holds all data,
so nothing is shared. It trains a whole vision transformer, with L prompts P_d of each training
domain d beside the patches. z is an image's feature without prompts or gradient. An adapter gives
each of the L places a distribution over domains, and

    w = softmax(adapter(z)) (L, D),    P(x)_l = sum_d w_ld P_dl,
    loss = CE(x; P_own) + CE(x; P(x)) + lambda mean_ld BCE(w_ld, [d = own]),

in one step along the sum. Predictions use P(x), so they need no domain labels. Training needs them.

Departures: the transformer is CLIP's image tower, and z is its feature of length one; the head
starts as CLIP's text features (`ClipTower`). The adapter's inner layer, under ReLU, is four times
as wide as z, as there. Weight decay is one number for all, where that code has four; the four
learning rates are options.
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
from methods.networks.layers import Layer, Layers, Parameters, linear, linear_layers
from methods.networks.method import HEAD, CentralisedMethod
from methods.prompts.prompt import CONTEXT_STANDARD_DEVIATION

PROMPTS: Final = "prompts"
ADAPTER: Final = ("adapter.inner", "adapter.outer")
EXPANSION: Final = 4

READING = "the transformer is CLIP's image tower, where the authors' is a plain one"
SENDS_NOTHING = True
VARIANTS = ({"lora_rank": 1, "context_tokens": 2},)


@dataclass(frozen=True)
class Config(NetworkConfig):
    """Options.

    Attributes:
        network: CLIP's image tower.
        context_tokens: L, prompts of a domain.
        domain_weight: lambda, factor of the loss that teaches the adapter an image's domain.
        adapter_learning_rate: Of the adapter; None for `training.learning_rate`, the prompts' rate.
        tower_learning_rate: Of the image tower; None for `training.learning_rate`.
        head_learning_rate: Of the head; None for `training.learning_rate`.
    """

    network: Literal["clip"] = "clip"
    context_tokens: Annotated[int, Ge(1), Le(64)] = 4
    domain_weight: Annotated[float, Ge(0.0), Le(1e6)] = 1.0
    adapter_learning_rate: Annotated[float, Gt(0.0), Le(1e3)] | None = 1e-4
    tower_learning_rate: Annotated[float, Gt(0.0), Le(1e3)] | None = 5e-6
    head_learning_rate: Annotated[float, Gt(0.0), Le(1e3)] | None = 5e-4


class DoPrompt(CentralisedMethod):
    """A tower with prompts of D training domains."""

    config: Config

    @property
    def network_layers(self) -> Layers:
        """Tower, head, prompts (D, L, w) and adapter."""
        given, places = self.tower.width, self.config.context_tokens
        inner, outer = ADAPTER
        return {
            **super().network_layers,
            PROMPTS: Layer((len(self.task.domains), places, self.tower.token_width), 0),
            **linear_layers(inner, given, EXPANSION * given),
            **linear_layers(outer, EXPANSION * given, places * len(self.task.domains)),
        }

    def init_client(self, shared_rng: m.Rng, client_rng: m.Rng) -> m.Arrays:
        """Return the tower as CLIP left it, a fresh adapter, and prompts N(0, 0.02^2)."""
        network = super().init_client(shared_rng, client_rng)
        drawn = shared_rng.normal(0.0, CONTEXT_STANDARD_DEVIATION, network[PROMPTS].shape)
        return {**network, PROMPTS: drawn.astype(np.float32)}

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train all of it, by four learning rates."""
        config, layers = self.config, self.personal_layers
        adapter = tuple(name for name in layers if name.startswith(ADAPTER))
        further = (
            m.ParameterGroup(adapter, config.adapter_learning_rate),
            m.ParameterGroup(tuple(self.extractor.layers), config.tower_learning_rate),
            m.ParameterGroup(tuple(self.head_layers), config.head_learning_rate),
        )
        trained = self.train(view, data, trainer, rng, names=(PROMPTS,), further=further)
        return self.result(view, trained)

    def losses(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return the loss of each example, (B,)."""
        inputs, own = self.tower.inputs(batch), batch["domains"]
        shares = self.shares(parameters, inputs)
        found = self._cross_entropy(parameters, inputs, parameters[PROMPTS][own], batch["labels"])
        found = found + self._cross_entropy(
            parameters, inputs, mixed(shares, parameters[PROMPTS]), batch["labels"]
        )
        # Torch's one-hot reads values, so it cannot run example by example.
        every = torch.arange(len(self.task.domains), device=own.device)
        known = (own[:, None] == every).to(shares.dtype).unsqueeze(1)
        told = functional.binary_cross_entropy(shares, known.expand_as(shares), reduction="none")
        return found + self.config.domain_weight * told.mean((1, 2))

    def shares(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Return w, each place's distribution over domains, (B, L, D)."""
        # With a graph, then detached: torch's path without a graph cannot run example by example.
        feature = self.tower.features(parameters, inputs).detach()
        inner, outer = ADAPTER
        hidden = functional.relu(linear(parameters, inner, feature))
        logits = linear(parameters, outer, hidden)
        return logits.reshape(len(logits), -1, len(self.task.domains)).softmax(-1)

    def logits(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return logits (B, C), each image under its own mixture."""
        inputs = self.tower.inputs(batch)
        prompts = mixed(self.shares(parameters, inputs), parameters[PROMPTS])
        return linear(parameters, HEAD, self.tower.features_beside(parameters, inputs, prompts))

    def _cross_entropy(
        self, parameters: Parameters, inputs: Tensor, prompts: Tensor, labels: Tensor
    ) -> Tensor:
        logits = linear(parameters, HEAD, self.tower.features_beside(parameters, inputs, prompts))
        return functional.cross_entropy(logits, labels, reduction="none")


def mixed(shares: Tensor, prompts: Tensor) -> Tensor:
    """Return each image's prompts P(x), (B, L, w), of w (B, L, D) and prompts (D, L, w)."""
    return torch.einsum("bld,dlw->blw", shares, prompts)


def build(config: Config, task: m.Task) -> m.Method:
    """Build the method."""
    method = DoPrompt.built(config, task)
    method.tower.require_tokens()
    return replace(method, needs=method.needs | {"domains"})
