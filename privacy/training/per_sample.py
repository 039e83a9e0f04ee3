"""The gradient of each example's loss, also for parameters behind a data-free encoder.

A prompt is one parameter behind a text encoder whose rows are *classes*. Samplers that hook
layers (Opacus' `GradSampleModule`) take the rows that a layer sees for examples, so they return
per-class gradients, and nothing complains when there are as many examples as classes. Here
nothing is hooked: the chain rule is applied to the two stages of an `Objective`,

    d loss_i / d theta  =  (d loss_i / d T) (d T / d theta)  +  (d loss_i / d theta at fixed T),

where T, the encoder's output, is the same for all examples. The brackets of the head come from
`vmap(grad)` over examples; the encoder's factor is applied by one vector-Jacobian product per
example through a *single* forward pass, a few products at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS_AT_ONCE = 16
"""Examples whose head is differentiated at once; changes memory only."""

CHUNK = 8
"""Vector-Jacobian products taken at once; `docs/adr/0010-record-level-privacy.md` has timings."""


class Objective(Protocol):
    """A loss in two stages: an encoder that sees no data, and a head that sees the batch."""

    @property
    def encoder_parameters(self) -> frozenset[str]:
        """Names of the parameters that `encode` reads; `losses` may read any."""
        ...

    def encode(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return data-free part, e.g. `{"text": (C, d)}`; empty where there is none."""
        ...

    def losses(
        self,
        parameters: Mapping[str, Tensor],
        encoded: Mapping[str, Tensor],
        batch: Mapping[str, Tensor],
    ) -> Tensor:
        """Return loss of each example, shape (B,); row i depends on example i alone."""
        ...


@dataclass(frozen=True)
class PerSampleGradients:
    """What each example of a batch contributes.

    Attributes:
        losses: Loss of each example, shape (B,).
        gradients: For each trained parameter of shape s, its gradients, shape (B, *s).
    """

    losses: Tensor
    gradients: Mapping[str, Tensor]

    def norms(self) -> Tensor:
        """Return the L2 norm of each example's gradient over all parameters, (B,)."""
        rows = [g.flatten(1) if g.dim() > 1 else g[:, None] for g in self.gradients.values()]
        norms: Tensor = torch.linalg.vector_norm(torch.cat(rows, dim=1), dim=1)
        return norms


def per_sample_gradients(
    objective: Objective,
    parameters: Mapping[str, Tensor],
    batch: Mapping[str, Tensor],
    *,
    trained: Collection[str],
    chunk: int = CHUNK,
) -> PerSampleGradients:
    """Return the gradient of each example's loss with respect to each trained parameter.

    The head must be one that `vmap` can run: no branch on a tensor's value, no shape that depends
    on data, no dropout, no batch statistics. Such a head raises torch's own error; there is no
    slower path that would hide it. The same holds where `encoder_parameters` is empty: then the
    whole loss is the head.

    Args:
        objective: The loss.
        parameters: All parameters by name. Nothing is written to them.
        batch: Arrays of the batch by name, row i of each being example i; may have no rows.
        trained: Names of the parameters to differentiate; the others are constants.
        chunk: Vector-Jacobian products taken at once; changes speed and memory only.

    Returns:
        Losses and gradients, detached; of zero rows for an empty batch.

    Raises:
        ValueError: If `batch` is ragged or the objective is not as its protocol says.
    """
    sizes = {name: len(value) for name, value in batch.items()}
    if len(set(sizes.values())) != 1:
        raise ValueError(f"batch has rows {sizes}; valid is one number of rows for all arrays")
    size = next(iter(sizes.values()))
    leaves = {name: parameters[name].detach() for name in trained}
    if size == 0:
        # Zero rows of everything, which `vmap` itself cannot produce.
        return PerSampleGradients(
            losses=next(iter(leaves.values())).new_zeros(0),
            gradients={name: leaf.new_zeros((0, *leaf.shape)) for name, leaf in leaves.items()},
        )
    behind = [name for name in leaves if name in objective.encoder_parameters]
    inputs = {name: leaves[name].clone().requires_grad_() for name in behind}
    # Fused attention has no batching rule for its backward pass: `vmap` warns and runs a loop.
    with sdpa_kernel(SDPBackend.MATH):
        with torch.set_grad_enabled(bool(behind)):
            encoded = encode(objective, {**parameters, **leaves, **inputs}, trained)
        losses, direct, cotangents = _head(
            objective, {**parameters, **leaves}, encoded, batch, leaves=leaves
        )
        through = _pull_back(encoded, inputs, cotangents, chunk)
    gradients = {n: direct[n] + through[n] if n in through else direct[n] for n in leaves}
    return PerSampleGradients(losses=losses, gradients=gradients)


def encode(
    objective: Objective, parameters: Mapping[str, Tensor], trained: Collection[str]
) -> dict[str, Tensor]:
    """Run the encoder on the parameters it may read; check that it is differentiable if needed.

    `ValueError` if gradients are wanted and the result depends on no trained parameter.
    """
    encoded = dict(objective.encode(visible(objective, parameters, trained)))
    require_dependent(objective, encoded, trained)
    return encoded


def visible(
    objective: Objective, parameters: Mapping[str, Tensor], trained: Collection[str]
) -> dict[str, Tensor]:
    """Return the parameters that the encoder may read.

    A trained parameter that is read without being declared would lose a part of its gradient
    unnoticed; such parameters are withheld, so that reading one is a `KeyError`.
    """
    declared = objective.encoder_parameters
    return {n: t for n, t in parameters.items() if n in declared or n not in trained}


def require_dependent(
    objective: Objective, encoded: Mapping[str, Tensor], trained: Collection[str]
) -> None:
    """Raise `ValueError` if gradients are wanted and the encoding has none."""
    declared = objective.encoder_parameters
    wanted = torch.is_grad_enabled() and not declared.isdisjoint(trained)
    if wanted and not any(t.requires_grad for t in encoded.values()):
        raise ValueError(
            f"encode declares the trained parameters {sorted(declared.intersection(trained))} but "
            "returns nothing that depends on them; do not detach them or disable gradients"
        )


def require_one_loss_each(losses: Tensor, size: int) -> None:
    """Raise `ValueError` unless there is exactly one loss per example.

    An objective that takes a mean, for example, returns another shape.
    """
    if losses.shape != (size,):
        raise ValueError(
            f"losses returned shape {tuple(losses.shape)} for {size} examples; "
            f"valid is ({size},), one loss per example"
        )


def _head(
    objective: Objective,
    parameters: Mapping[str, Tensor],
    encoded: Mapping[str, Tensor],
    batch: Mapping[str, Tensor],
    *,
    leaves: dict[str, Tensor],
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Return losses (B,), gradients at fixed encoding, and cotangents on what is pulled back."""
    constants = {name: tensor.detach() for name, tensor in encoded.items()}
    sources = {name: constants[name] for name, t in encoded.items() if t.requires_grad}

    def loss_fn(
        moving: Mapping[str, Tensor], source: Mapping[str, Tensor], example: Mapping[str, Tensor]
    ) -> Tensor:
        single = {name: value.unsqueeze(0) for name, value in example.items()}
        losses = objective.losses({**parameters, **moving}, {**constants, **source}, single)
        require_one_loss_each(losses, 1)
        return losses[0]

    # In pieces: where the head holds an encoder itself, an example can take gigabytes.
    each = vmap(
        grad_and_value(loss_fn, argnums=(0, 1)), in_dims=(None, None, 0), chunk_size=HEADS_AT_ONCE
    )
    (direct, cotangents), losses = each(leaves, sources, dict(batch))
    return losses, direct, cotangents


def _pull_back(
    encoded: Mapping[str, Tensor],
    inputs: Mapping[str, Tensor],
    cotangents: Mapping[str, Tensor],
    chunk: int,
) -> dict[str, Tensor]:
    """Apply the encoder's transposed Jacobian to each example's cotangents."""
    if not inputs:
        return {}
    outputs = [encoded[name] for name in cotangents]
    pieces = zip(*(torch.split(rows, chunk) for rows in cotangents.values()), strict=True)
    parts = [_products(outputs, list(inputs.values()), piece) for piece in pieces]
    return {
        name: torch.cat(part) for name, part in zip(inputs, zip(*parts, strict=True), strict=True)
    }


def _products(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], rows: Sequence[Tensor]
) -> list[Tensor]:
    """Return one chunk of vector-Jacobian products; an input that nothing depends on gets zeros."""
    found = torch.autograd.grad(
        outputs, inputs, rows, retain_graph=True, allow_unused=True, is_grads_batched=True
    )
    size = len(rows[0])
    return [
        t.new_zeros((size, *t.shape)) if g is None else g
        for g, t in zip(found, inputs, strict=True)
    ]
