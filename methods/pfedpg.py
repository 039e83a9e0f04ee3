"""pFedPG: the server learns to make each client's visual prompt, from how the last one changed.

Yang, Wang, Wang 2023, "Efficient Model Personalization in Federated Learning via Client-Specific
Prompt Generation" (ICCV), section 3.2. With P_base (K, l) and a descriptor d_n of each client, both
learned at the server, client n is sent

    P_n = softmax(Q K^T / sqrt(l_k)) V W_O,    Q = d_n W_Q,  K = P_base W_K,  V = P_base W_V,

puts it beside the patches of a frozen vision transformer, trains it together with a linear head of
its own by cross-entropy, and sends back how it changed, dP_n = P'_n - P_n. The head stays.

The server takes that change for the direction in which P_n should go. So with rate alpha, and phi
for P_base, d_n and the four matrices, it descends on - sum_n <dP_n, P_n(phi)>, dP_n being held:

    phi <- phi + alpha sum_n (dP_n / dphi)^T dP_n,    the sum being over the clients of the round.

Left open there, and decided here:

- Attention has as many rows as its query. So d_n has K rows (`descriptor: tokens`), or one, which
  shifts all rows of P_base alike (`descriptor: row`).
- How many heads there are (one here), and how all of it starts: prompts and descriptors
  N(0, 0.02^2), matrices by Xavier's uniform range. A descriptor's start follows from its client's
  name, so whoever comes later has one too.
- Whether the loss sees all classes: here every head has an output for each.
- The paper's transformer was trained on ImageNet-21k. Here it is CLIP's image tower, and the head
  sees its feature before that is scaled to length one.

A third party's code (MSungK/pFedPG) hands dP_n to its optimiser as a gradient, which moves every
prompt away from where its client wants it; not followed.

The server needs each change by itself: secure sums and noise on sums hide it, so the method is
refused under them. Uploads that carry their own noise (`upload_noise`, `dp_sgd`) are fine. Heads
are trained by the same noised steps under `dp_sgd`, as later changes depend on them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods.errors import MethodError
from methods.interface.defaults import MethodDefaults
from methods.interface.method import (
    Aggregate,
    Arrays,
    ClientView,
    Examples,
    LocalResult,
    Method,
    Need,
    ParameterGroup,
    Task,
    TensorSpec,
    Trainer,
    Visibility,
)
from methods.networks.layers import Parameters, linear, linear_layers, start
from methods.networks.method import HEAD, BatchObjective, columns_of
from methods.prompts.deep import DeepImageEncoder
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
PATCHES = "patches"
IMAGES_AT_ONCE = 128
"""Images encoded in one pass of a prediction; changes memory only."""

VARIANTS = ({"descriptor": "row", "heads": 2},)


@dataclass(frozen=True)
class Config:
    """Options.

    Attributes:
        context_tokens: Number K of visual prompts.
        descriptor: Whether d_n has a row for each prompt, or one for all, which P_base is then
            added to.
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

    Attributes:
        backbone: The frozen model.
        image: Its image tower, beside whose patches prompts stand.
        config: The method's options.
        classes: Class names in label order.
    """

    backbone: Backbone
    image: DeepImageEncoder
    config: Config
    classes: tuple[str, ...]
    needs: frozenset[Need] = field(default=frozenset({"pixels"}), init=False)
    visibility: Visibility = field(default=Visibility.PER_CLIENT, init=False)

    @property
    def closed_classes(self) -> bool:
        """A head has an output for each class."""
        return True

    def prepare(self, arrays: Arrays) -> Arrays:
        """Return class token and patches as they enter the tower's first layer, float32."""
        # A copy, since torch takes no read-only memory and images may be mapped from a file.
        pixels = self.backbone.to_pixels(np.array(arrays["pixels"]))
        with torch.no_grad():
            embedded = self.image.embed(pixels)
        return {PATCHES: embedded.cpu().numpy().astype(np.float32)}

    def shared_spec(self) -> Mapping[str, TensorSpec]:
        """Return a client's prompts."""
        return {PROMPTS: TensorSpec((self.config.context_tokens, self.image.width))}

    def init_server(self, rng: np.random.Generator) -> Arrays:
        """Return a fresh generator, and what descriptors are drawn by."""
        width = self.image.width
        bound = math.sqrt(6.0 / (width + width))
        matrices = {
            name: rng.uniform(-bound, bound, (width, width)).astype(np.float32) for name in MATRICES
        }
        base = _fresh_rows(rng, self.config.context_tokens, width)
        return {BASE: base, **matrices, SEED: np.array(rng.integers(2**62), np.int64)}

    def init_client(
        self, shared_rng: np.random.Generator, client_rng: np.random.Generator
    ) -> Arrays:
        """Return a fresh head, alike for all clients."""
        return start(linear_layers(HEAD, self.backbone.embed_dim, len(self.classes)), shared_rng)

    def broadcast(self, state: Arrays, client: str | None = None) -> Arrays:
        """Return the client's prompts P_n."""
        arrays = {name: state[name] for name in (BASE, *MATRICES)}
        arrays[DESCRIPTOR] = self._descriptor(state, client)
        phi = {name: _double(value) for name, value in arrays.items()}
        with torch.no_grad():
            prompts = self._generated(phi)
        return {PROMPTS: prompts.numpy().astype(np.float32)}

    def client_update(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> LocalResult:
        """Train prompts and head together, upload the prompts' change, keep the head."""
        before = view.broadcast[PROMPTS]
        trained = trainer.fit(
            BatchObjective(self.cross_entropies),
            {PROMPTS: before, **view.personal},
            data.arrays,
            groups=(ParameterGroup((PROMPTS, *view.personal)),),
            rng=rng,
        )
        head = {name: trained[name] for name in view.personal}
        return LocalResult({PROMPTS: trained[PROMPTS] - before}, None, head)

    def logits(self, parameters: Parameters, patches: Tensor) -> Tensor:
        """Return logits (B, C) of patches (B, 1 + P, l)."""
        features = self.image.pooled_features(patches, parameters[PROMPTS].unsqueeze(0))
        return linear(parameters, HEAD, features)

    def cross_entropies(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return cross-entropy of each example, (B,)."""
        logits = self.logits(parameters, batch[PATCHES])
        return functional.cross_entropy(logits, batch["labels"], reduction="none")

    def server_update(
        self, state: Arrays, aggregate: Aggregate, pool: Sequence[Arrays], rng: np.random.Generator
    ) -> Arrays:
        """Move the generator so that each prompt of the round goes where its client took it.

        Raises:
            MethodError: If the clients' updates were not handed over one by one.
        """
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

    def predict(
        self, view: ClientView, batch: Arrays, classes: Sequence[str]
    ) -> NDArray[np.float32]:
        """Return logits (n, len(classes)) under the client's prompts and head.

        Raises:
            MethodError: If a class is not one of the task's, or there is no head.
        """
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

    def _descriptor(self, state: Arrays, client: str | None) -> NDArray[np.float32]:
        """Return d_n, (K, l) or (1, l): where it is now, or where one of that name starts."""
        known = state.get(f"{DESCRIPTOR}{client}")
        if known is not None:
            return known
        named = hashlib.sha256(f"{client}".encode()).digest()
        rng = np.random.default_rng([int(state[SEED]), int.from_bytes(named)])
        rows = self.config.context_tokens if self.config.descriptor == "tokens" else 1
        return _fresh_rows(rng, rows, self.image.width)


def generated(phi: Parameters, heads: int = 1, *, residual: bool = False) -> Tensor:
    """Return prompts P_n (K, l) of one client.

    Args:
        phi: P_base (K, l), the descriptor d_n (K, l) or (1, l), and four matrices (l, l).
        heads: Of the attention.
        residual: Whether P_base is added.
    """
    base, descriptor = phi[BASE], phi[DESCRIPTOR]
    query, key, value = (
        (rows @ phi[name]).reshape(len(rows), heads, -1).transpose(0, 1)
        for rows, name in zip((descriptor, base, base), MATRICES, strict=False)
    )
    attended = functional.scaled_dot_product_attention(query, key, value)
    found = attended.transpose(0, 1).flatten(1) @ phi["out"]
    return base + found if residual else found


def _fresh_rows(rng: np.random.Generator, rows: int, width: int) -> NDArray[np.float32]:
    return rng.normal(0.0, CONTEXT_STANDARD_DEVIATION, (rows, width)).astype(np.float32)


def _double(array: NDArray[Any]) -> Tensor:
    # At the server and in double precision everywhere, so that a device is no part of a result.
    return torch.from_numpy(np.array(array, np.float64))


def _leaf(array: NDArray[Any]) -> Tensor:
    return _double(array).requires_grad_()


def build(config: Config, task: Task) -> Method:
    """Build the method.

    Raises:
        MethodError: If the heads do not divide the token width.
        BackboneError: If the task has no backbone, or its image tower takes no prompts.
    """
    backbone = require_backbone(task)
    image = DeepImageEncoder.of(backbone)
    if image.width % config.heads:
        raise MethodError(
            f"method.heads: {config.heads} do not divide the image tower's token width of "
            f"{image.width}; valid: a divisor of it"
        )
    return PFedPG(backbone, image, config, task.classes)
