"""Both towers of a frozen CLIP with learned vectors in the first layers, as MaPLe has them.

Khattak et al. 2023, "MaPLe: Multi-modal Prompt Learning" (CVPR), section 3.2. In the text tower the
prompts stand behind the start token, in the image tower behind the patch tokens. Before layer i of
the first J, layer i's own prompts fill these places and replace the output of the layer before.
From layer J on the places are ordinary positions.

    [start, _, W_i] = L_i([start, P_i, W_{i-1}])   for i = 1..J,  afterwards  [.] = L_i([.])
    [c_i, E_i, _]   = V_i([c_{i-1}, E_{i-1}, Q_i]) for i = 1..J,  afterwards  [.] = V_i([.])

Outputs that the next prompts replace are not computed: such a place is a key and a value in its
layer and never a query. Under the text tower's causal mask, positions before the class names are
the same for all classes, so they are computed once, as in `methods.clip.text_tower`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from open_clip.transformer import ResidualAttentionBlock, VisionTransformer
from torch import Tensor, nn
from torch.nn import functional

from methods.clip.image_tower import ImageTower
from methods.clip.text_tower import (
    beside,
    causal_mask,
    heads,
    joined,
    last_step,
    packed,
    residual,
    step,
)
from methods.errors import BackboneError
from methods.prompts.prompt import CONTEXT_STANDARD_DEVIATION

if TYPE_CHECKING:
    from methods.clip.adapter import Backbone, TokenisedText

PATCHES = "patches"
IMAGES_AT_ONCE = 128
"""Images that torch encodes in one pass of a prediction; changes memory only."""


class DeepTextEncoder:
    """Text features behind prompts that are renewed in the first layers."""

    def __init__(self, backbone: Backbone, context_tokens: int, opening: str | None) -> None:
        """Take the frozen model and the words before a class name.

        Args:
            backbone: The frozen model.
            context_tokens: Number l of prompts in a layer.
            opening: Words before the class name. The prompts replace their first l tokens; the
                others stay. None for prompts alone.

        Raises:
            BackboneError: If the words have fewer than l tokens.
        """
        self.backbone = backbone
        self.context_tokens = context_tokens
        self._words = opening
        self._opening = "X " * context_tokens if opening is None else f"{opening} "
        self._tokens = lru_cache(maxsize=8)(self._embed)
        if opening is not None:
            length = int(backbone.embed_tokens([opening]).end_of_text[0]) - 1
            if length < context_tokens:
                raise BackboneError(
                    f"method.context_init: {opening!r} has {length} tokens, fewer than "
                    f"method.context_tokens = {context_tokens}; valid is at least as many"
                )

    @property
    def depth(self) -> int:
        """Number of the text tower's layers."""
        return len(self.backbone.text_tower.blocks)

    def require_room(self, classes: Sequence[str]) -> None:
        """Refuse prompts and class names that do not fit into the backbone."""
        self._tokens(tuple(classes))

    def init_contexts(self, rng: np.random.Generator, depth: int) -> NDArray[np.float32]:
        """Return prompts of the first `depth` layers, (depth, l, token width).

        The first layer's start at the embeddings of the opening's first l tokens, if there is an
        opening; all others are drawn from N(0, 0.02^2).
        """
        shape = (depth, self.context_tokens, self.backbone.token_dim)
        contexts = rng.normal(0.0, CONTEXT_STANDARD_DEVIATION, shape).astype(np.float32)
        if self._words is not None:
            embeddings = self.backbone.embed_tokens([self._words]).embeddings
            first = embeddings[0, 1 : 1 + self.context_tokens]
            contexts[0] = first.detach().cpu().numpy()
        return contexts

    def text_features(self, contexts: Tensor, classes: Sequence[str]) -> Tensor:
        """Return L2-normalised text features (C, d), differentiable in contexts (J, l, w)."""
        tokens = self._tokens(tuple(classes))
        tower = self.backbone.text_tower
        if all(isinstance(block, ResidualAttentionBlock) for block in tower.blocks):
            before = 1 + contexts.shape[1]
            following = tower.follow(before, tokens.embeddings[:, before:], tokens.end_of_text)
            shared = torch.cat((tokens.embeddings[:1, :1], contexts[:1]), dim=1)
            x = beside(shared + tower.positional_embedding[:before], following.states)
            for index, block in enumerate(tower.blocks[:-1]):
                x = step(block, x, packed(block, x), following.places)
                if index + 1 < len(contexts):
                    # The start token sees only itself.
                    x = torch.cat((x[:, :1], contexts[index + 1 : index + 2], x[:, before:]), dim=1)
            last = tower.blocks[-1]
            return tower._finish(last_step(last, x, packed(last, x), following.places))[0]
        before, (count, length) = 1 + contexts.shape[1], tokens.embeddings.shape[:2]
        mask = torch.zeros((length, length), device=contexts.device)
        mask = mask.masked_fill(causal_mask(length, contexts.device), float("-inf"))
        places, x = tower.positional_embedding[:length], tokens.embeddings
        for index, block in enumerate(tower.blocks):
            if index < len(contexts):
                filled = contexts[index] + places[1:before] if index == 0 else contexts[index]
                x = x + places if index == 0 else x
                x = torch.cat((x[:, :1], filled.expand(count, -1, -1), x[:, before:]), dim=1)
            x = block(x, attn_mask=mask)
        rows = torch.arange(count, device=x.device)
        return tower._finish(x[rows, tokens.end_of_text])

    def _embed(self, classes: tuple[str, ...]) -> TokenisedText:
        return self.backbone.embed_tokens([f"{self._opening}{name}." for name in classes])


@dataclass(frozen=True, eq=False)
class DeepImageEncoder:
    """A frozen vision transformer whose first layers see prompts behind the patch tokens.

    `tower` holds the parts of `visual`.
    """

    visual: VisionTransformer
    tower: ImageTower

    @classmethod
    def of(cls, backbone: Backbone) -> DeepImageEncoder:
        """Take the backbone's image tower; refuse a tower that takes no prompts."""
        visual = backbone._model.visual
        if not isinstance(visual, VisionTransformer) or visual.attn_pool is not None:
            raise BackboneError(
                f"task.model.name is {backbone.name!r}, whose image tower takes no prompts; valid "
                "for this method are open_clip's vision transformers without attentional pooling."
            )
        return cls(visual, backbone.image_tower)

    @property
    def width(self) -> int:
        """Width of a token."""
        return self.tower.token_width

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.visual.transformer.resblocks)

    def embed(self, pixels: Tensor) -> Tensor:
        """Return class token and patches (n, 1 + P, width) of pixels (n, 3, H, W)."""
        embedded: Tensor = self.visual._embeds(pixels)
        return embedded

    def image_features(self, patches: Tensor, prompts: Tensor) -> Tensor:
        """Return L2-normalised image features (n, d), differentiable in the prompts."""
        return functional.normalize(self.pooled_features(patches, prompts), dim=-1)

    def pooled_features(self, patches: Tensor, prompts: Tensor) -> Tensor:
        """Return image features (n, d) of any length, of patches from `embed`.

        The prompts (J, l, width) of the first J layers have no positions; l may be 0. The first
        layer's prompts pass the norm before it with all other rows (the published code). Pooling
        leaves prompts out: CLIP takes the class token's row, and a tower that averages takes the
        mean over its patches.
        """
        blocks, size = self.visual.transformer.resblocks, patches.shape[1]
        state = beside(patches, self.visual.ln_pre(prompts[0]))
        for index, block in enumerate(blocks):
            if index + 1 == len(blocks):
                state = _first_rows(block, state, 1 if self.visual.pool_type == "tok" else size)
            elif index + 1 < len(prompts):
                state = beside(_first_rows(block, state, size), prompts[index + 1])
            else:
                state = _first_rows(block, state, state.shape[1])
        return self.tower.pool(state)


def patches_of(
    backbone: Backbone, image: DeepImageEncoder, pixels: NDArray[np.uint8]
) -> dict[str, NDArray[np.float32]]:
    """Return class token and patches of images as they enter the image tower's first layer."""
    # A copy, since torch takes no read-only memory and images may be mapped from a file.
    with torch.no_grad():
        embedded = image.embed(backbone.to_pixels(np.array(pixels)))
    return {PATCHES: embedded.cpu().numpy().astype(np.float32)}


def _first_rows(block: nn.Module, state: Tensor, count: int) -> Tensor:
    """Return what a block makes of the first `count` positions of (n, T, width)."""
    if not isinstance(block, ResidualAttentionBlock):
        whole: Tensor = block(state)
        return whole[:, :count]
    queries, keys, values = heads(block, state)
    mixed: Any = functional.scaled_dot_product_attention(
        queries[..., :count, :], keys, values, scale=1.0
    )
    return residual(block, state[:, :count], joined(block, mixed))
