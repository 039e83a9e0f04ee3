"""Attention blocks of a frozen open_clip transformer, run behind prefixes that texts share.

A block's hidden states may have any dimensions before (positions, width). What is *past* are the
queries, keys and values of prefixes, which all texts behind a prefix meet without copies.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def causal_mask(length: int, device: torch.device) -> Tensor:
    """Return true where a position must not be seen, (length, length)."""
    return torch.ones((length, length), dtype=torch.bool, device=device).triu(1)


def heads(block: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys, values (..., heads, positions, h) of x (..., positions, width)."""
    attention = block.attn
    packed = functional.linear(block.ln_1(x), attention.in_proj_weight, attention.in_proj_bias)
    shape = (*packed.shape[:-1], 3, attention.num_heads, attention.head_dim)
    split = packed.view(shape).movedim(-3, 0)
    queries, keys, values = split.transpose(-3, -2)
    return queries * attention.head_dim**-0.5, keys, values


def behind(
    queries: Tensor, past: tuple[Tensor, Tensor, Tensor], own: tuple[Tensor, Tensor], hidden: Tensor
) -> Tensor:
    """Return attention of texts to the prefixes that they follow and to themselves.

    Args:
        queries: Scaled, (U or 1, n, heads, S, head width).
        past: Of the prefixes, (U, heads, P, head width) each.
        own: Keys and values of the texts, as the queries but for their positions.
        hidden: True where a position must not be seen, its last dimension P + positions.

    Returns:
        (U, n, heads, S, head width).
    """
    # Written out: for a few dozen positions torch's fused kernels cost more than they save. All
    # texts behind a prefix meet it in one product, so its keys are never copied for each.
    before, (_, past_keys, past_values) = past[1].shape[-2], past
    rows = queries.transpose(1, 2)
    to_past = rows.flatten(2, 3) @ past_keys.transpose(-2, -1)
    to_past = to_past.reshape(len(past_keys), *rows.shape[1:4], before).transpose(1, 2)
    to_own = (queries @ own[0].transpose(-2, -1)).expand(*to_past.shape[:-1], -1)
    scores = torch.cat((to_past, to_own), dim=-1)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
    on_past = weights[..., :before].transpose(1, 2)
    from_past = (on_past.flatten(2, 3) @ past_values).reshape(*on_past.shape[:4], -1)
    mixed: Tensor = from_past.transpose(1, 2) + weights[..., before:] @ own[1]
    return mixed


def joined(block: Any, mixed: Tensor) -> Tensor:
    """Return the attention's output projection, (..., positions, width), of its heads."""
    projected: Tensor = block.attn.out_proj(mixed.transpose(-3, -2).flatten(-2))
    return projected


def residual(block: Any, x: Tensor, attended: Tensor) -> Tensor:
    """Return the block's output from its input and attention, (..., positions, width)."""
    x = x + block.ls_1(attended)
    result: Tensor = x + block.ls_2(block.mlp(block.ln_2(x)))
    return result


def step(
    block: Any, x: Tensor, *, past: tuple[Tensor, Tensor, Tensor] | None, hidden: Tensor
) -> Tensor:
    """Return a whole block, with what stands before x in `past`, (..., positions, width)."""
    queries, keys, values = heads(block, x)
    if past is None:
        scores = queries @ keys.transpose(-2, -1)
        mixed = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1) @ values
    else:
        mixed = behind(queries, past, (keys, values), hidden)
    return residual(block, x, joined(block, mixed))


def last_step(
    block: Any, x: Tensor, *, past: tuple[Tensor, Tensor, Tensor], ends: Tensor
) -> Tensor:
    """Return the last block at one position of each text, (U, n, width)."""
    queries, keys, values = heads(block, x)
    before = past[1].shape[-2]
    columns = torch.arange(before + keys.shape[-2], device=x.device)
    hidden = (columns > (ends + before)[:, None])[:, None, None, :]
    rows = torch.arange(x.shape[1], device=x.device)
    one = queries.movedim(-2, 2)[:, rows, ends].unsqueeze(-2)
    mixed = behind(one, past, (keys, values), hidden)
    return residual(block, x[:, rows, ends].unsqueeze(-2), joined(block, mixed)).squeeze(-2)
