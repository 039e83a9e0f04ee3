"""Attention blocks of a frozen open_clip transformer, run on texts behind prefixes they share.

The rows of a pass are those of a prefix and, behind them, those of all texts: (U, P + n S, width)
for U prefixes of P positions and n texts of S. Every text sees the prefix and itself, so the prefix
is computed once and never copied. What looks at one row alone (norms, projections, the MLP) is
one call for all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, eq=False)
class Places:
    """Who sees whom, which is alike in all blocks and passes.

    Masks are added to scores: 0 where a position is seen, else minus infinity.

    Attributes:
        count: Number n of texts.
        before: Number P of a prefix's positions.
        rows: Where texts end, (n,), among all rows of a pass.
        in_prefix: (P, P).
        in_texts: (S, P + S), alike for all texts.
        at_ends: (n, 1, P + S), for the end of each.
    """

    count: int
    before: int
    rows: Tensor
    in_prefix: Tensor
    in_texts: Tensor
    at_ends: Tensor

    @classmethod
    def of(cls, before: int, ends: Tensor, length: int) -> Places:
        """Place texts of `length` positions, which end at `ends` (n,), behind a prefix."""
        count, device = len(ends), ends.device
        columns = torch.arange(before + length, device=device)
        seen = _added(causal_mask(before + length, device))
        return cls(
            count=count,
            before=before,
            rows=before + torch.arange(count, device=device) * length + ends,
            in_prefix=seen[:before, :before],
            in_texts=seen[before:],
            at_ends=_added(columns > (ends + before)[:, None, None]),
        )


def causal_mask(length: int, device: torch.device) -> Tensor:
    """Return true where a position must not be seen, (length, length)."""
    return torch.ones((length, length), dtype=torch.bool, device=device).triu(1)


def packed(block: Any, x: Tensor) -> Tensor:
    """Return queries, keys and values of x (..., positions, width), (..., positions, 3 width)."""
    attention = block.attn
    normed = block.ln_1(x)
    return functional.linear(normed, attention.in_proj_weight, attention.in_proj_bias)


def unpacked(block: Any, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return scaled queries, keys and values, each (..., heads, positions, head width)."""
    attention = block.attn
    shape = (*rows.shape[:-1], 3, attention.num_heads, attention.head_dim)
    split = rows.view(shape).movedim(-3, 0)
    queries, keys, values = split.transpose(-3, -2)
    return queries * attention.head_dim**-0.5, keys, values


def heads(block: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys, values (..., heads, positions, h) of x (..., positions, width)."""
    return unpacked(block, packed(block, x))


def step(block: Any, x: Tensor, rows: Tensor, places: Places) -> Tensor:
    """Return a whole block.

    Args:
        block: The block.
        x: All rows that enter it, (U, P + n S, width).
        rows: Their `packed` ones.
        places: Who sees whom.

    Returns:
        (U, P + n S, width).
    """
    queries, keys, values = unpacked(block, rows)
    sizes = [places.before, x.shape[-2] - places.before]
    first, following = queries.split_with_sizes(sizes, dim=-2)
    (past_keys, own_keys), (past_values, own_values) = (
        whole.split_with_sizes(sizes, dim=-2) for whole in (keys, values)
    )
    scores = first @ past_keys.transpose(-2, -1) + places.in_prefix
    past, own = (past_keys, past_values), (own_keys, own_values)
    texts = _behind(following, past, own, mask=places.in_texts, places=places)
    mixed = torch.cat((scores.softmax(dim=-1) @ past_values, texts), dim=-2)
    return residual(block, x, joined(block, mixed))


def last_step(block: Any, x: Tensor, rows: Tensor, places: Places) -> Tensor:
    """Return the last block at the end of each text alone, (U, n, width); see `step`."""
    queries, keys, values = unpacked(block, rows)
    sizes = [places.before, x.shape[-2] - places.before]
    (past_keys, own_keys), (past_values, own_values) = (
        whole.split_with_sizes(sizes, dim=-2) for whole in (keys, values)
    )
    ends = queries[..., places.rows, :]
    past, own = (past_keys, past_values), (own_keys, own_values)
    mixed = _behind(ends, past, own, mask=places.at_ends, places=places)
    return residual(block, x[..., places.rows, :], joined(block, mixed))


def joined(block: Any, mixed: Tensor) -> Tensor:
    """Return the attention's output projection, (..., positions, width), of its heads."""
    projected: Tensor = block.attn.out_proj(mixed.transpose(-3, -2).flatten(-2))
    return projected


def residual(block: Any, x: Tensor, attended: Tensor) -> Tensor:
    """Return the block's output from its input and attention, (..., positions, width)."""
    x = x + block.ls_1(attended)
    result: Tensor = x + block.ls_2(block.mlp(block.ln_2(x)))
    return result


def _behind(
    queries: Tensor,
    past: tuple[Tensor, Tensor],
    own: tuple[Tensor, Tensor],
    *,
    mask: Tensor,
    places: Places,
) -> Tensor:
    """Return attention of texts to the prefixes that they follow and to themselves.

    Args:
        queries: Of s positions of each text, (U, heads, n s, head width).
        past: Keys and values of the prefixes, (U, heads, P, head width).
        own: Keys and values of the texts, (U, heads, n S, head width).
        mask: (s, P + S), or (n, s, P + S).
        places: Who sees whom.

    Returns:
        (U, heads, n s, head width).
    """
    # Written out: for a few dozen positions torch's fused kernels cost more than they save. All
    # texts behind a prefix meet it in one product, so its keys are never copied for each.
    asked, keys, values = (
        t.reshape(*t.shape[:2], places.count, -1, t.shape[-1]) for t in (queries, *own)
    )
    to_past = (queries @ past[0].transpose(-2, -1)).reshape(*asked.shape[:-1], places.before)
    scores = torch.cat((to_past, asked @ keys.transpose(-2, -1)), dim=-1) + mask
    weights = scores.softmax(dim=-1)
    on_past, on_own = weights.split_with_sizes([places.before, keys.shape[-2]], dim=-1)
    from_past = on_past.reshape(*queries.shape[:-1], places.before) @ past[1]
    mixed: Tensor = from_past + (on_own @ values).reshape(queries.shape)
    return mixed


def _added(hidden: Tensor) -> Tensor:
    """Return 0 where nothing is hidden, else minus infinity."""
    return torch.zeros(hidden.shape, device=hidden.device).masked_fill(hidden, float("-inf"))
