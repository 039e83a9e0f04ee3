"""The frozen image tower of an open_clip model: images to pixels, to tokens, to features.

A token is the last hidden state at one position: for a vision transformer the last block's output,
class token first, before the final norm and the projection; for CLIP's ResNets the last feature
map's positions. `project` maps tokens to text space: each patch's own feature.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from open_clip.modified_resnet import ModifiedResNet
from open_clip.transform import MaybeToTensor, PreprocessCfg, image_transform_v2
from open_clip.transformer import VisionTransformer
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from methods.errors import BackboneError


def fit(
    images: NDArray[np.uint8] | Sequence[NDArray[np.uint8]], preprocess: PreprocessCfg
) -> NDArray[np.uint8]:
    """Return images (H, W, 3) of any sizes, fitted as open_clip does, uint8 (n, S, S, 3)."""
    side = side_of(preprocess.size)
    if isinstance(images, np.ndarray) and images.shape[1:3] == (side, side):
        return images
    steps = image_transform_v2(preprocess, is_train=False).transforms
    # The steps that change an image's size come before the step that makes a tensor of it.
    geometry = steps[: [isinstance(step, MaybeToTensor) for step in steps].index(True)]
    fitted = np.empty((len(images), side, side, 3), np.uint8)
    for row, image in enumerate(images):
        shown = Image.fromarray(image)
        for step in geometry:
            shown = step(shown)
        fitted[row] = np.asarray(shown)
    return fitted


def fit_square(
    images: NDArray[np.uint8] | Sequence[NDArray[np.uint8]], side: int
) -> NDArray[np.uint8]:
    """Return images of any sizes as squares of the caller's side, (n, side, side, 3).

    This is open_clip's default, for networks without a model's own size: it resizes the shorter
    side to `side`, bicubic and antialiased, and keeps the middle of the longer side.
    """
    return fit(images, square_preprocessing(side))


def square_preprocessing(side: int) -> PreprocessCfg:
    """Return the preprocessing of `fit_square`, as open_clip describes it."""
    return PreprocessCfg(size=side)


def to_pixels(images: NDArray[np.uint8], preprocess: PreprocessCfg) -> Tensor:
    """Return images (n, H, W, 3), fitted and normalised, float32 (n, 3, S, S), on the CPU."""
    images = fit(images, preprocess)
    mean, std = torch.tensor(preprocess.mean), torch.tensor(preprocess.std)
    # A copy: images may be a read-only view of a file, which torch warns about.
    scaled = torch.from_numpy(np.array(images)).float().div_(255.0)
    return scaled.sub_(mean).div_(std).permute(0, 3, 1, 2).contiguous()


def side_of(size: int | Sequence[int]) -> int:
    """Return the side, in pixels, of the squares that a model takes; refuse other rectangles."""
    sides = {size} if isinstance(size, int) else set(size)
    if len(sides) != 1:
        raise BackboneError(f"The model takes images of size {size}; valid are squares.")
    return sides.pop()


@dataclass(frozen=True, eq=False)
class ImageTower:
    """The parts of an image tower.

    Attributes:
        tokens: Normalised pixels (n, 3, H, W) to tokens (n, T, token_width).
        pool: Tokens to the image's feature before scaling to length one, (n, embed_dim).
        project: Tokens to local features (n, M, embed_dim) before scaling to length one, one for
            each patch or position of the map, without the class token.
    """

    token_width: int
    tokens: Callable[[Tensor], Tensor]
    pool: Callable[[Tensor], Tensor]
    project: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, model: Any, name: str) -> ImageTower:
        """Take a model's image tower apart, and share its tensors; refuse one without tokens."""
        visual = model.visual
        if isinstance(visual, VisionTransformer) and visual.attn_pool is None:
            return _transformer(visual)
        if isinstance(visual, ModifiedResNet):
            return _resnet(visual)
        raise BackboneError(
            f"task.model.name is {name!r}, whose image tower gives no tokens; valid for this "
            "method are open_clip's vision transformers without attentional pooling and CLIP's "
            "ResNets."
        )


def _transformer(visual: VisionTransformer) -> ImageTower:
    def tokens(pixels: Tensor) -> Tensor:
        states: Tensor = visual.transformer(visual._embeds(pixels))
        return states

    def pool(states: Tensor) -> Tensor:
        return _times(visual._pool(states)[0], visual.proj)

    def project(states: Tensor) -> Tensor:
        return _times(visual.ln_post(states[:, 1:]), visual.proj)

    return ImageTower(visual.class_embedding.shape[0], tokens, pool, project)


def _resnet(visual: ModifiedResNet) -> ImageTower:
    attention: Any = visual.attnpool

    def tokens(pixels: Tensor) -> Tensor:
        x = visual.stem(pixels)
        for layer in (visual.layer1, visual.layer2, visual.layer3, visual.layer4):
            x = layer(x)
        states: Tensor = x.flatten(2).transpose(1, 2)
        return states

    def attended(states: Tensor) -> Tensor:
        """Return attention pooling at all positions, the pooled one first, (n, 1 + M, d)."""
        x = torch.cat((states.mean(1, keepdim=True), states), dim=1)
        return _attention_pool(attention, x + attention.positional_embedding)

    def pool(states: Tensor) -> Tensor:
        return attended(states)[:, 0]

    def project(states: Tensor) -> Tensor:
        return attended(states)[:, 1:]

    return ImageTower(attention.c_proj.in_features, tokens, pool, project)


def _attention_pool(attention: Any, x: Tensor) -> Tensor:
    heads = attention.num_heads

    def split(layer: nn.Linear) -> Tensor:
        projected: Tensor = layer(x)
        return projected.reshape(*projected.shape[:2], heads, -1).transpose(1, 2)

    mixed = functional.scaled_dot_product_attention(
        split(attention.q_proj), split(attention.k_proj), split(attention.v_proj)
    )
    result: Tensor = attention.c_proj(mixed.transpose(1, 2).flatten(2))
    return result


def _times(x: Tensor, projection: Tensor | None) -> Tensor:
    return x if projection is None else x @ projection
