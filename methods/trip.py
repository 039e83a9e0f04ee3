"""TRIP: token-level mixture of prompts with parameter-free routing, for domain generalisation.

Gong et al. 2025, "Token-Level Prompt Mixture with Parameter-Free Routing for Federated Domain
Generalization", Algorithm 1 and Eqs. 2-13. M prompts are averaged over clients (Eq. 13). Each image
has a prompt of its own: the experts' mean, weighted by shares that a router without parameters
finds in the image's tokens (Eqs. 3-8, `methods.networks.routing`). The loss is

    cross-entropy + beta KL(zero-shot CLIP || prediction)                            (Eqs. 10-12)

Shares are those of capacity factor 1.0 in training and 2.0 in prediction (section V-C). Equal
prompts of a batch are encoded once, and all of them in one pass. The paper does not state its
multiplier step; 1e-4 is the published code's. Squared distances of tokens are in the hundreds, so
with this step the multipliers hardly move, and capacities hold by discarding tokens alone. Its Eq.
11 lacks the sum over classes, which is here.

The published code departs from the paper; its choices are options: `clustering: published` (plain
distances, multipliers that only fall, other rounding of capacities, clusters that run empty
together seated at one token), `expert_init: equal`, and `average_rounds`, with which predictions
use a mean of the server's prompts over rounds, weighted by Beta(0.2, 0.2). Left out are: its
teacher of 67 templates (`template` is one); the parameter-free image-level router of section V-F,
which clusters the images of a batch and so joins examples; and the row of Table V with prompts for
keys, as the paper does not say how prompts compare with tokens of another width. `capacity_factor`
of `experts` or more is clustering without capacities, and `router: random` the random assignment of
Table V.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods.interface import method as m
from methods.interface.method import CountsUpTo, CountsWith
from methods.networks.layers import Parameters
from methods.networks.method import BatchObjective
from methods.networks.routing import (
    KEY_INITS,
    LearnedRouter,
    RandomRouter,
    Router,
    Rules,
    StaticRouter,
    draw_keys,
)
from methods.prompts.prompt import (
    Captions,
    PromptConfig,
    PromptEncoder,
    PromptMethod,
    as_tensor,
    as_tensors,
    build_encoder,
    require_backbone,
)

EXPERTS = "experts"
AVERAGE, AVERAGE_WEIGHT, ROUNDS = "average.experts", "average.weight", "average.rounds"
BETA_EXPONENT = 0.2 - 1
"""Of Beta(0.2, 0.2), whose density weighs rounds in the published average."""
SEQUENCES = 2048
"""Texts that torch encodes at once in prediction; changes memory only."""

VARIANTS = ({"router": "learnable"}, {"router": "random"})


@dataclass(frozen=True)
class Config(PromptConfig):
    """Options.

    Attributes:
        context_tokens: Number of context vectors of each expert; 32 in the paper, for which the
            shipped model's context has no room.
        experts: Number M of prompts.
        expert_init: Experts start at draws of their own, or all alike (with a `context_init` they
            always do).
        beta: Weight of the divergence from zero-shot CLIP, Eq. 12.
        template: Zero-shot caption with `{}` where the class name goes.
        router: `static` is TRIP; `learnable` routes tokens and `image` routes images by a layer
            that is trained and averaged with the prompts; `random` sends tokens to random experts.
        balance_weight: Weight of the learnable router's balancing loss.
        capacity_factor: alpha of Eq. 3 in training.
        inference_capacity_factor: The same in prediction.
        multiplier_step: Step of the capacities' multipliers theta, in units of the tokens' squared
            distances (published: distances); only a step of their order sends tokens elsewhere.
        clustering: As in the paper or in the published code.
        seating: Tokens at which clusters begin: random ones, or far from one another.
        key_init: How the experts' keys are drawn.
        key_seed: Draws keys, random seats and random routes; the same for all parties.
        average_rounds: Rounds of the run over which predictions use the published weighted mean of
            prompts; 0 uses the newest.
    """

    context_tokens: Annotated[int, Ge(1), Le(64)] = 16
    experts: Annotated[int, Ge(1), Le(256)] = 4
    expert_init: Literal["independent", "equal"] = "independent"
    beta: Annotated[float, Ge(0.0), Le(1e6)] = 0.8
    template: Annotated[str, CountsWith("beta")] = "a photo of a {}."
    router: Literal["static", "learnable", "image", "random"] = "static"
    balance_weight: Annotated[float, Ge(0.0), Le(1e6), CountsWith("router", ("learnable",))] = 0.01
    capacity_factor: Annotated[float, Gt(0.0), Le(1e6), CountsWith("router", ("static",))] = 1.0
    inference_capacity_factor: Annotated[
        float, Gt(0.0), Le(1e6), CountsWith("router", ("static",))
    ] = 2.0
    multiplier_step: Annotated[float, Ge(0.0), Le(1e6), CountsWith("router", ("static",))] = 1e-4
    clustering: Annotated[Literal["paper", "published"], CountsWith("router", ("static",))] = (
        "paper"
    )
    seating: Annotated[Literal["random", "farthest"], CountsWith("router", ("static",))] = "random"
    key_init: Annotated[KEY_INITS, CountsWith("router", ("static",))] = "orthogonal"
    key_seed: Annotated[int, Ge(0), Le(2**63 - 1), CountsWith("router", ("static", "random"))] = 0
    average_rounds: Annotated[
        int,
        Ge(0),
        Le(100000),
        CountsUpTo("rounds", "the last prompts count for less than they should"),
    ] = 0


@dataclass(frozen=True)
class Trip(PromptMethod):
    """Mixture of prompts, routed by each image's tokens."""

    config: Config
    router: Router
    captions: Captions
    needs: frozenset[m.Need] = field(default=frozenset({"features"}), kw_only=True)

    def prepare(self, arrays: m.Arrays) -> m.Arrays:
        """Route each image once; nothing needs its tokens again."""
        return self.router.prepare(arrays)

    def shared_spec(self) -> Mapping[str, m.TensorSpec]:
        """Return experts (M, l, w), and the router's layer where it has one."""
        experts = m.TensorSpec((self.config.experts, *self.encoder.spec.shape))
        return {EXPERTS: experts, **self.router.spec()}

    def init_server(self, rng: m.Rng) -> m.Arrays:
        """Return fresh experts."""
        count, text = self.config.experts, self.config.context_init
        first = self.encoder.init_context(rng, text)
        drawn = [first] + [self.encoder.init_context(rng, text) for _ in range(count - 1)]
        experts = np.stack([first] * count if self.config.expert_init == "equal" else drawn)
        state = {EXPERTS: experts, **self.router.init(rng)}
        if self.config.average_rounds:
            state[AVERAGE] = experts.copy()
            state[AVERAGE_WEIGHT] = np.array([self._round_weight(0)], np.float64)
            state[ROUNDS] = np.zeros(1, np.int64)
        return state

    def broadcast(self, state: m.Arrays, client: str | None = None) -> m.Arrays:
        """Return experts and router; the average too, if there is one."""
        return {n: v for n, v in state.items() if n not in (AVERAGE_WEIGHT, ROUNDS)}

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train all experts from the broadcast ones (Algorithm 1, lines 8-18)."""
        groups = (m.ParameterGroup(tuple(self.shared_spec())),)
        return self.train(view, data, trainer, rng, groups=groups)

    def server_update(
        self, state: m.Arrays, aggregate: m.Aggregate, pool: Sequence[m.Arrays], rng: m.Rng
    ) -> m.Arrays:
        """Eq. 13, and the published average if asked for."""
        after = dict(super().server_update(state, aggregate, pool, rng))
        if self.config.average_rounds:
            number = int(state[ROUNDS][0])
            weight, before = self._round_weight(number), state[AVERAGE_WEIGHT]
            share = weight / (before + weight)
            average = (1 - share) * state[AVERAGE] + share * after[EXPERTS]
            after[AVERAGE] = average.astype(np.float32)
            after[AVERAGE_WEIGHT], after[ROUNDS] = before + weight, state[ROUNDS] + 1
        return after

    def predict(self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]) -> m.Logits:
        """Return CLIP's logits (n, C), each image under its own prompt (Eqs. 8, 9)."""
        backbone = self.encoder.backbone
        tensors = as_tensors(batch, backbone)
        prompts = as_tensor(view.broadcast.get(AVERAGE, view.broadcast[EXPERTS]), backbone)
        logits = tensors["features"].new_empty((len(tensors["features"]), len(classes)))
        with torch.no_grad():
            distinct, which = _distinct(self.shares(view, tensors))
            size = max(1, SEQUENCES // len(classes))
            for start in range(0, len(distinct), size):
                rows = torch.nonzero((which >= start) & (which < start + size))[:, 0]
                images = (tensors["features"][rows], which[rows] - start)
                chosen = mixed(distinct[start : start + size], prompts)
                logits[rows] = prompt_logits(self.encoder, tuple(classes), chosen, images)
        return logits.cpu().numpy().astype(np.float32)

    def expert_weights(
        self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]
    ) -> NDArray[np.float32] | None:
        """Return the shares pi of Eq. 8 that prediction uses, (n, M)."""
        shares = self.shares(view, as_tensors(batch, self.encoder.backbone))
        return shares.cpu().numpy().astype(np.float32)

    def shares(self, view: m.ClientView, batch: Parameters) -> Tensor:
        """Return a prediction's shares pi of Eq. 8, (n, M), without gradients."""
        layer = {name: view.broadcast[name] for name in self.router.spec()}
        with torch.no_grad():
            parameters = as_tensors(layer, self.encoder.backbone)
            return self.router.shares(parameters, batch, training=False)

    def training_objective(self) -> m.Objective:
        """Return Eq. 12 and the router's balance; each image has a prompt of its own."""
        # The zero-shot text features (C, d) are computed once.
        teacher = self.captions.features(self.classes) if self.config.beta > 0 else None

        def losses(parameters: Parameters, batch: Parameters) -> Tensor:
            distinct, which = _distinct(self.router.shares(parameters, batch, training=True))
            prompts = mixed(distinct, parameters[EXPERTS])
            logits = prompt_logits(self.encoder, self.classes, prompts, (batch["features"], which))
            found = functional.cross_entropy(logits, batch["labels"], reduction="none")
            if teacher is not None:
                target = self.encoder.backbone.logit_scale * batch["features"] @ teacher.T
                found = found + self.config.beta * divergence(target, logits)
            return found + self.router.balance(parameters, batch)

        return BatchObjective(losses)

    def _round_weight(self, number: int) -> float:
        """Return Beta(0.2, 0.2)'s density at a round's middle, up to a factor; zero after R."""
        place = (number + 0.5) / (self.config.average_rounds + 1)
        return 0.0 if place >= 1 else float((place * (1 - place)) ** BETA_EXPONENT)


def divergence(target: Tensor, logits: Tensor) -> Tensor:
    """Return KL(softmax(target) || softmax(logits)) (B,), Eq. 11, of logits (B, C)."""
    wanted = target.log_softmax(-1)
    return (wanted.exp() * (wanted - logits.log_softmax(-1))).sum(dim=-1)


def mixed(shares: Tensor, experts: Tensor) -> Tensor:
    """Return instance prompts (U, l, w), Eq. 8, of shares (U, M) and experts (M, l, w)."""
    return (shares @ experts.flatten(1)).reshape(len(shares), *experts.shape[1:])


def prompt_logits(
    encoder: PromptEncoder, classes: tuple[str, ...], prompts: Tensor, images: tuple[Tensor, Tensor]
) -> Tensor:
    """Return logits (B, C) of features (B, d), each under its own of the prompts (U, l, w)."""
    features, which = images
    text = encoder.text_features_each(prompts, classes)
    scaled = encoder.backbone.logit_scale * features
    if len(prompts) == 1:
        return scaled @ text[0].T
    return torch.einsum("bd,bcd->bc", scaled, text[which])


def build(config: Config, task: m.Task) -> m.Method:
    """Build the method; refuse more experts than keys, and a router without its tokens."""
    encoder = build_encoder(config, task)
    router = _router(config, task)
    captions = Captions(encoder.backbone, config.template)
    if config.beta > 0:
        captions.require_room(task.classes)
    return Trip(encoder, config, task, router, captions, needs=router.needs)


def _router(config: Config, task: m.Task) -> Router:
    backbone = require_backbone(task)
    if config.router == "image":
        return LearnedRouter(config.experts, backbone.embed_dim, "features", config.balance_weight)
    width = backbone.image_tower.token_width
    if config.router == "learnable":
        return LearnedRouter(config.experts, width, "tokens", config.balance_weight)
    if config.router == "random":
        return RandomRouter(config.experts, config.key_seed)
    factors = (config.capacity_factor, config.inference_capacity_factor)
    training, inference = (Rules(f, config.multiplier_step, config.clustering) for f in factors)
    keys = draw_keys(config.key_init, (config.experts, width), config.key_seed)
    return StaticRouter(keys, training, inference, config.seating, config.key_seed)


def _distinct(shares: Tensor) -> tuple[Tensor, Tensor]:
    """Return different rows (U, M), and the number of each row among them (B,)."""
    # Learned shares are never equal, and the search has no derivative. `vmap` sees single rows and
    # cannot run a search whose result has no fixed size.
    if len(shares) == 1 or shares.requires_grad:
        return shares, torch.arange(len(shares), device=shares.device)
    found: tuple[Tensor, Tensor] = torch.unique(shares, dim=0, return_inverse=True)
    return found
