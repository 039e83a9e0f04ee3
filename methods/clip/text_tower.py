"""The frozen text tower of an open_clip model, run from token embeddings behind shared prefixes.

The rows of a pass are those of a prefix and, behind them, those of all texts: (U, P + n S, width)
for U prefixes of P positions and n texts of S. Every text sees the prefix and itself, so the prefix
is computed once and never copied. Operations on single rows (norms, projections, the MLP) are one
call for all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from open_clip.transformer import ResidualAttentionBlock, Transformer
from torch import Tensor, nn
from torch.nn import functional

from methods.errors import BackboneError


@dataclass(frozen=True, eq=False)
class Places:
    """Which positions each position sees: the same in all blocks and passes.

    Masks are added to scores: 0 for a position that is seen, else minus infinity.

    Attributes:
        count: Number n of texts.
        before: Number P of a prefix's positions.
        rows: Ends of the texts, (n,), among all rows of a pass.
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
    """Return a whole block's output (U, P + n S, width).

    `x` holds the rows that enter the block, `rows` their queries, keys and values from `packed`.
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
    """Return attention of texts to their prefixes and themselves, (U, heads, n s, head width).

    Args:
        queries: Of s positions of each text, (U, heads, n s, head width).
        past: Keys and values of the prefixes, (U, heads, P, head width).
        own: Keys and values of the texts, (U, heads, n S, head width).
        mask: (s, P + S), or (n, s, P + S).
        places: The positions that each position sees.
    """
    # For a few dozen positions torch's fused kernels cost more than they save. One product serves
    # all texts behind a prefix, so the prefix's keys are never copied for each text.
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
    """Return 0 where a position is seen, minus infinity where it is hidden."""
    return torch.zeros(hidden.shape, device=hidden.device).masked_fill(hidden, float("-inf"))


@dataclass(frozen=True, eq=False)
class Following:
    """The parts of n texts behind a prefix that do not depend on the prefix.

    Attributes:
        suffixes: (n, S, token_dim), without positions.
        end_of_text: Positions within the whole text, (n,).
        places: The positions that each position sees.
        states: The suffixes with their positions, (1, n S, token_dim).
        opened: The first block's result before its attention; None for a tower with blocks of
            open_clip's other kinds.
    """

    suffixes: Tensor
    end_of_text: Tensor
    places: Places
    states: Tensor
    opened: Tensor | None


@dataclass(frozen=True, eq=False)
class TextTower:
    """The parts of a causal text transformer that pools at the end-of-text token.

    Attributes:
        token_embedding: Vocabulary to (token_dim,).
        positional_embedding: (context_length, token_dim).
        blocks: The transformer's residual attention blocks.
        projection: Matrix (token_dim, embed_dim), a linear layer, or None.
        pools_largest_id: Whether the end of a text is its largest id, else the id `end_id`.
        end_id: The end-of-text token's id where `pools_largest_id` is false.
    """

    token_embedding: nn.Embedding
    positional_embedding: Tensor
    blocks: Sequence[nn.Module]
    final_norm: nn.Module
    projection: Tensor | nn.Linear | None
    pools_largest_id: bool
    end_id: int
    embed_dim: int

    @classmethod
    def of(cls, model: Any, name: str) -> TextTower:
        """Take a model's text tower out; refuse one whose prompts cannot be cut or pooled here."""
        source = getattr(model, "text", model)
        pool = getattr(source, "pool_type", None) or getattr(source, "text_pool_type", None)
        causal = getattr(source, "attn_mask", None) is not None
        plain = isinstance(getattr(source, "transformer", None), Transformer)
        has_class_token = getattr(source, "cls_emb", None) is not None
        if not (plain and causal and pool in ("argmax", "eos")) or has_class_token:
            raise BackboneError(
                f"task.model.name is {name!r}, whose text tower is not supported; valid are "
                "open_clip models with a causal text transformer pooled at the end-of-text token."
            )
        end_id = getattr(source, "eos_id", getattr(source, "text_eos_id", 0))
        return cls(
            token_embedding=source.token_embedding,
            positional_embedding=source.positional_embedding,
            blocks=tuple(source.transformer.resblocks),
            final_norm=source.ln_final,
            projection=source.text_projection,
            pools_largest_id=pool == "argmax",
            end_id=int(end_id),
            embed_dim=_width(source.text_projection, source.ln_final),
        )

    @property
    def context_length(self) -> int:
        """Number of positions."""
        return len(self.positional_embedding)

    def end_of_text(self, ids: Tensor) -> Tensor:
        """Return the end (n,) of each text of ids (n, context_length), as open_clip pools it."""
        if self.pools_largest_id:
            return ids.argmax(dim=-1)
        return (ids == self.end_id).int().argmax(dim=-1)

    def encode(self, embeddings: Tensor, end_of_text: Tensor) -> Tensor:
        """Encode whole texts (n, L, token_dim), without positions, to features (n, embed_dim)."""
        empty = embeddings.new_zeros((1, 0, embeddings.shape[2]))
        return self.encode_behind(empty, self.follow(0, embeddings, end_of_text))[0]

    def follow(self, before: int, suffixes: Tensor, end_of_text: Tensor) -> Following:
        """Return all that does not depend on the prefix of `before` positions, for many passes."""
        length = before + suffixes.shape[1]
        places = Places.of(before, end_of_text - before, suffixes.shape[1])
        x = (suffixes + self.positional_embedding[before:length]).flatten(0, 1).unsqueeze(0)
        # Before the first attention, the texts are the same behind every prefix.
        is_plain = all(isinstance(block, ResidualAttentionBlock) for block in self.blocks)
        opened = packed(self.blocks[0], x) if is_plain else None
        return Following(suffixes, end_of_text, places, x, opened)

    def encode_behind(self, prefixes: Tensor, following: Following) -> Tensor:
        """Encode every text that follows behind every prefix; see `Backbone.encode_behind`."""
        if following.opened is None:
            texts = (following.suffixes, following.end_of_text)
            return self._finish(self._encode_whole(prefixes, *texts))
        shared = prefixes + self.positional_embedding[: following.places.before]
        x = beside(shared, following.states)
        rows = beside(packed(self.blocks[0], shared), following.opened)
        for block, upper in pairwise(self.blocks):
            x = step(block, x, rows, following.places)
            rows = packed(upper, x)
        return self._finish(last_step(self.blocks[-1], x, rows, following.places))

    def _encode_whole(self, prefixes: Tensor, suffixes: Tensor, end_of_text: Tensor) -> Tensor:
        sizes = (len(prefixes), len(suffixes), -1, -1)
        rows = (prefixes.unsqueeze(1).expand(sizes), suffixes.unsqueeze(0).expand(sizes))
        whole = torch.cat(rows, dim=2).flatten(0, 1)
        ends = end_of_text.repeat(len(prefixes))
        # Blocks of open_clip's other kinds are called as they are.
        length = whole.shape[1]
        x = whole + self.positional_embedding[:length]
        mask = torch.zeros((length, length), device=x.device)
        mask.masked_fill_(causal_mask(length, x.device), float("-inf"))
        for block in self.blocks:
            x = block(x, attn_mask=mask)
        return x[torch.arange(len(x), device=x.device), ends].reshape(*sizes[:2], -1)

    def _finish(self, pooled: Tensor) -> Tensor:
        found: Tensor = self.final_norm(pooled)
        if isinstance(self.projection, nn.Linear):
            found = functional.linear(found, self.projection.weight, self.projection.bias)
        elif self.projection is not None:
            found = found @ self.projection
        return functional.normalize(found, dim=-1)


def beside(prefixes: Tensor, texts: Tensor) -> Tensor:
    """Return the rows of texts (1, n S, k) behind those of each prefix, (U, P + n S, k)."""
    return torch.cat((prefixes, texts.expand(len(prefixes), -1, -1)), dim=1)


def _width(projection: Tensor | nn.Linear | None, norm: Any) -> int:
    if projection is None:
        return int(norm.weight.shape[0])
    if isinstance(projection, nn.Linear):
        return projection.out_features
    return int(projection.shape[1])
