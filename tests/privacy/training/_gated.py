"""A small objective with everything that is hard: prompt, text transformer, attention gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

WIDTH, CONTEXT, LENGTH, EXPERTS = 8, 2, 5, 3


@dataclass(frozen=True)
class Gated:
    """Logits from a mixture, made by multi-head attention, of own and expert text features.

    Queries are image features; keys and values are the text features of one class, the own
    prompt's first, so the loss reaches the prompt through both.
    """

    tower: nn.Module
    gate: nn.MultiheadAttention
    encoder_parameters: frozenset[str] = frozenset({"context"})

    def encode(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        names = parameters["class_tokens"]
        context = parameters["context"].expand(len(names), CONTEXT, WIDTH)
        text = self.tower(torch.cat([context, names], dim=1))[:, -1]
        return {"text": functional.normalize(text, dim=-1), "experts": parameters["experts"]}

    def losses(
        self,
        parameters: Mapping[str, Tensor],
        encoded: Mapping[str, Tensor],
        batch: Mapping[str, Tensor],
    ) -> Tensor:
        text, images = encoded["text"], batch["features"]
        keys = torch.cat([text[:, None], encoded["experts"].transpose(0, 1)], dim=1)
        queries = images.expand(len(text), *images.shape)
        weights = {n.removeprefix("gate."): t for n, t in parameters.items() if "gate." in n}
        mixed, _ = functional_call(
            self.gate, weights, (queries, keys, keys), {"need_weights": False}
        )
        own = images @ text.T
        gated = torch.einsum("cbd,bd->bc", functional.normalize(mixed, dim=-1), images)
        logits = 10.0 * (own + parameters["mix"] * gated)
        return functional.cross_entropy(logits, batch["labels"], reduction="none")


def make_gated(seed: int = 0) -> Gated:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 2, 16, dropout=0.0, batch_first=True, norm_first=True, dtype=torch.float64
        )
        tower = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).requires_grad_(False)
        gate = nn.MultiheadAttention(WIDTH, 2, batch_first=True, dtype=torch.float64)
    return Gated(tower, gate.requires_grad_(False))


def make_parameters(classes: int, seed: int = 1) -> dict[str, NDArray[np.float64]]:
    rng = np.random.default_rng(seed)
    experts = rng.normal(size=(EXPERTS, classes, WIDTH))
    return {
        "context": rng.normal(size=(CONTEXT, WIDTH)),
        "mix": np.array(0.7),
        "gate.in_proj_weight": 0.5 * rng.normal(size=(3 * WIDTH, WIDTH)),
        "gate.in_proj_bias": 0.1 * rng.normal(size=3 * WIDTH),
        "gate.out_proj.weight": 0.5 * rng.normal(size=(WIDTH, WIDTH)),
        "gate.out_proj.bias": 0.1 * rng.normal(size=WIDTH),
        "class_tokens": rng.normal(size=(classes, LENGTH - CONTEXT, WIDTH)),
        "experts": experts / np.linalg.norm(experts, axis=-1, keepdims=True),
    }


TRAINED = (
    "context",
    "mix",
    "gate.in_proj_weight",
    "gate.in_proj_bias",
    "gate.out_proj.weight",
    "gate.out_proj.bias",
)


def make_examples(count: int, classes: int, seed: int = 2) -> dict[str, NDArray[np.generic]]:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, WIDTH))
    return {
        "features": features / np.linalg.norm(features, axis=-1, keepdims=True),
        "labels": rng.integers(classes, size=count),
    }


def to_tensors(arrays: Mapping[str, NDArray[np.generic]]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}


def looped_gradients(
    objective: Gated,
    parameters: Mapping[str, Tensor],
    batch: Mapping[str, Tensor],
    trained: tuple[str, ...] = TRAINED,
) -> dict[str, Tensor]:
    """The oracle: one whole forward and backward pass per example, plain autograd."""
    rows: list[tuple[Tensor, ...]] = []
    for i in range(len(batch["labels"])):
        leaves = {n: parameters[n].clone().requires_grad_() for n in trained}
        values = {**parameters, **leaves}
        one = {name: value[i : i + 1] for name, value in batch.items()}
        loss = objective.losses(values, objective.encode(values), one)[0]
        rows.append(torch.autograd.grad(loss, list(leaves.values())))
    return {name: torch.stack(g) for name, g in zip(trained, zip(*rows, strict=True), strict=True)}
