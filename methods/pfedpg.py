"""pFedPG: the server learns to make each client's visual prompt, from how the last one changed.

Yang, Wang, Wang 2023, "Efficient Model Personalization in Federated Learning via Client-Specific
Prompt Generation" (ICCV), section 3.2. With P_base (K, l) and a descriptor d_n of each client, both
learned at the server, client n gets

    P_n = softmax(Q K^T / sqrt(l_k)) V W_O,    Q = d_n W_Q,  K = P_base W_K,  V = P_base W_V,

puts it beside the patches of a frozen vision transformer, trains it together with a linear head of
its own by cross-entropy, and sends back its change, dP_n = P'_n - P_n. The head stays.

The server takes that change for the direction of P_n. So with rate alpha, and phi for P_base, d_n
and the four matrices, it descends on - sum_n <dP_n, P_n(phi)>, with dP_n held:

    phi <- phi + alpha sum_n (dP_n / dphi)^T dP_n,    the sum being over the clients of the round.

The paper leaves these open; decided here:

- Attention has as many rows as its query. So d_n has K rows (`descriptor: tokens`), or one, which
  shifts all rows of P_base alike (`descriptor: row`).
- Attention has one head by default. Prompts and descriptors start from N(0, 0.02^2), matrices from
  Xavier's uniform range. A descriptor's start follows from its client's name, so a client that
  comes later has one too.
- The loss sees all classes: every head has an output for each.
- The paper's transformer was trained on ImageNet-21k. Here it is CLIP's image tower, and the head
  sees its feature before that is scaled to length one.

A third party's code (MSungK/pFedPG) hands dP_n to its optimiser as a gradient, which moves every
prompt away from its client's direction; we do not follow it.

The server needs each single change, which secure sums and noise on sums hide: the method is
refused under them. Uploads with their own noise (`upload_noise`, `dp_sgd`) are admitted. Under
`dp_sgd` the same noised steps train heads, as later changes depend on them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods.errors import MethodError
from methods.interface import method as m
from methods.interface.defaults import MethodDefaults
from methods.networks.layers import Parameters, linear, linear_layers, start
from methods.networks.method import HEAD, BatchObjective, columns_of
from methods.prompts.deep import IMAGES_AT_ONCE, PATCHES, DeepImageEncoder, patches_of
from methods.prompts.prompt import (
    CONTEXT_STANDARD_DEVIATION,
    as_tensor,
    as_tensors,
    require_backbone,
)

if TYPE_CHECKING:
    from methods.clip.adapter import Backbone

PROMPTS = "prompts"
BASE = "base"
MATRICES = ("query", "key", "value", "out")
DESCRIPTOR = "descriptor/"
SEED = "seed"

READING = "the paper leaves open the descriptors' size, the attention's heads and all starts"
VARIANTS = ({"descriptor": "row", "heads": 2},)


@dataclass(frozen=True)
class Config:
    """Options.

    Attributes:
        context_tokens: Number K of visual prompts.
        descriptor: Whether d_n has a row for each prompt, or one row for all, with P_base added.
        heads: Of the attention; divides the token width.
        server_rate: alpha, of the server's step.
    """

    context_tokens: Annotated[int, Ge(1), Le(64)] = 10
    descriptor: Literal["tokens", "row"] = "tokens"
    heads: Annotated[int, Ge(1), Le(64)] = 1
    server_rate: Annotated[float, Gt(0.0), Le(1e3)] = 1e-3


@dataclass(frozen=True)
class PFedPG(MethodDefaults):
    """Visual prompts that a net at the server makes for each client, and personal heads.

    Prompts stand beside the patches of `image`, the frozen model's image tower.
    """

    backbone: Backbone
    image: DeepImageEncoder
    config: Config
    classes: tuple[str, ...]
    needs = frozenset({"pixels"})
    visibility = m.Visibility.PER_CLIENT
    closed_classes = True

    def prepare(self, arrays: m.Arrays) -> m.Arrays:
        """Return class token and patches as they enter the tower's first layer, float32."""
        return patches_of(self.backbone, self.image, arrays["pixels"])

    def shared_spec(self) -> Mapping[str, m.TensorSpec]:
        """Return a client's prompts."""
        return {PROMPTS: m.TensorSpec((self.config.context_tokens, self.image.width))}

    def init_server(self, rng: m.Rng) -> m.Arrays:
        """Return a fresh generator, and the seed of descriptors."""
        width = self.image.width
        bound = math.sqrt(6.0 / (width + width))
        matrices = {
            name: rng.uniform(-bound, bound, (width, width)).astype(np.float32) for name in MATRICES
        }
        base = _fresh_rows(rng, self.config.context_tokens, width)
        return {BASE: base, **matrices, SEED: np.array(rng.integers(2**62), np.int64)}

    def init_client(self, shared_rng: m.Rng, client_rng: m.Rng) -> m.Arrays:
        """Return a fresh head, alike for all clients."""
        return start(linear_layers(HEAD, self.backbone.embed_dim, len(self.classes)), shared_rng)

    def broadcast(self, state: m.Arrays, client: str | None = None) -> m.Arrays:
        """Return the client's prompts P_n."""
        arrays = {name: state[name] for name in (BASE, *MATRICES)}
        arrays[DESCRIPTOR] = self._descriptor(state, client)
        phi = {name: _double(value) for name, value in arrays.items()}
        with torch.no_grad():
            prompts = self._generated(phi)
        return {PROMPTS: prompts.numpy().astype(np.float32)}

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train prompts and head together, upload the prompts' change, keep the head."""
        before = view.broadcast[PROMPTS]
        objective, start = BatchObjective(self.cross_entropies), {PROMPTS: before, **view.personal}
        groups = (m.ParameterGroup(tuple(start)),)
        trained = trainer.fit(objective, start, data.arrays, groups=groups, rng=rng)
        head = {name: trained[name] for name in view.personal}
        return m.LocalResult({PROMPTS: trained[PROMPTS] - before}, None, head)

    def logits(self, parameters: Parameters, patches: Tensor) -> Tensor:
        """Return logits (B, C) of patches (B, 1 + P, l)."""
        features = self.image.pooled_features(patches, parameters[PROMPTS].unsqueeze(0))
        return linear(parameters, HEAD, features)

    def cross_entropies(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return cross-entropy of each example, (B,)."""
        logits = self.logits(parameters, batch[PATCHES])
        return functional.cross_entropy(logits, batch["labels"], reduction="none")

    def server_update(
        self, state: m.Arrays, aggregate: m.Aggregate, pool: Sequence[m.Arrays], rng: m.Rng
    ) -> m.Arrays:
        """Move the generator so that each prompt of the round moves as its client moved it."""
        updates = aggregate.each()
        shared = {name: _leaf(state[name]) for name in (BASE, *MATRICES)}
        leaves, wanted = dict(shared), torch.zeros((), dtype=torch.float64)
        for client, update in updates.items():
            own = leaves[f"{DESCRIPTOR}{client}"] = _leaf(self._descriptor(state, client))
            prompts = self._generated({**shared, DESCRIPTOR: own})
            wanted = wanted + (prompts * _double(update[PROMPTS])).sum()
        if len(leaves) == len(shared):
            return state
        gradients = torch.autograd.grad(wanted, list(leaves.values()))
        rate = self.config.server_rate
        moved = {
            name: (leaf.detach() + rate * gradient).numpy().astype(np.float32)
            for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True)
        }
        return {**state, **moved}

    def predict(self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]) -> m.Logits:
        """Return logits (n, len(classes)) under the client's prompts and head, which it needs."""
        columns = columns_of(classes, self.classes)
        if not view.personal:
            raise MethodError("client: none, but the head is a client's own; valid: one client")
        model = as_tensors({PROMPTS: view.broadcast[PROMPTS], **view.personal}, self.backbone)
        with torch.no_grad():
            parts = torch.split(as_tensor(batch[PATCHES], self.backbone), IMAGES_AT_ONCE)
            logits = torch.cat([self.logits(model, part) for part in parts])
        return logits[:, columns].cpu().numpy().astype(np.float32)

    def _generated(self, phi: Parameters) -> Tensor:
        is_row = self.config.descriptor == "row"
        return generated(phi, self.config.heads, residual=is_row)

    def _descriptor(self, state: m.Arrays, client: str | None) -> NDArray[np.float32]:
        """Return d_n, (K, l) or (1, l), from the state, or its start for a new client."""
        known = state.get(f"{DESCRIPTOR}{client}")
        if known is not None:
            return known
        named = hashlib.sha256(f"{client}".encode()).digest()
        rng = np.random.default_rng([int(state[SEED]), int.from_bytes(named)])
        rows = self.config.context_tokens if self.config.descriptor == "tokens" else 1
        return _fresh_rows(rng, rows, self.image.width)


def generated(phi: Parameters, heads: int = 1, *, residual: bool = False) -> Tensor:
    """Return prompts P_n (K, l) of one client; `residual` adds P_base.

    phi has P_base (K, l), the descriptor d_n (K, l) or (1, l), and four matrices (l, l).
    """
    base, descriptor = phi[BASE], phi[DESCRIPTOR]
    query, key, value = (
        (rows @ phi[name]).reshape(len(rows), heads, -1).transpose(0, 1)
        for rows, name in zip((descriptor, base, base), MATRICES, strict=False)
    )
    attended = functional.scaled_dot_product_attention(query, key, value)
    found = attended.transpose(0, 1).flatten(1) @ phi["out"]
    return base + found if residual else found


def _fresh_rows(rng: m.Rng, rows: int, width: int) -> NDArray[np.float32]:
    return rng.normal(0.0, CONTEXT_STANDARD_DEVIATION, (rows, width)).astype(np.float32)


def _double(array: NDArray[Any]) -> Tensor:
    # The server computes in double precision, so that results do not depend on a device.
    return torch.from_numpy(np.array(array, np.float64))


def _leaf(array: NDArray[Any]) -> Tensor:
    return _double(array).requires_grad_()


def build(config: Config, task: m.Task) -> m.Method:
    """Build the method; refuse heads that do not divide the token width."""
    backbone = require_backbone(task)
    image = DeepImageEncoder.of(backbone)
    if image.width % config.heads:
        raise MethodError(
            f"method.heads: {config.heads} do not divide the image tower's token width of "
            f"{image.width}; valid: a divisor of it"
        )
    return PFedPG(backbone, image, config, task.classes)
