"""A frozen model from outside: any network with features of images, in place of a CLIP.

A plug-in of the kind `model` is a module with

    SIZE      the side of its images in pixels
    load()    a `torch.nn.Module` from images (B, 3, SIZE, SIZE), values from 0 to 1, to features
              (B, D), or to the logits of other classes, which serve as features

It has no text tower and gives no tokens: a method that asks for these is refused. Features are
brought to length one, as those of a CLIP.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, cast

import torch
from open_clip.transform import PreprocessCfg
from torch import Tensor, nn
from torch.nn import functional

from methods.clip.adapter import Backbone, device_of, fingerprint_of, is_taken
from methods.errors import BackboneError, BrokenPlugin
from methods.plugins import Outside, Plugins, calling

LOGIT_SCALE = 100.0
"""Factor on cosines, as that of the published CLIPs."""
LARGEST = 4096


class _Lacking:
    """Stands in for the text tower and refuses whatever is asked of it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, part: str) -> Any:
        raise BackboneError(
            f"task.model.name: {self._name!r} gives features of images and no texts, which this "
            "method needs; valid: a CLIP model, or a method that needs features alone"
        )

    def __call__(self, *args: object) -> Any:
        return self.__getattr__("call")


class _Encoder(nn.Module):
    """The network as `Backbone` calls a CLIP."""

    def __init__(self, visual: nn.Module, source: Outside) -> None:
        super().__init__()
        self.visual, self._source = visual, source

    def encode_image(self, pixels: Tensor, normalize: bool = False) -> Tensor:
        """Return features (B, D) of pixels (B, 3, S, S)."""
        with calling(self._source, "forward"):
            found = self.visual(pixels)
        is_fitting = isinstance(found, Tensor) and found.ndim == 2 and len(found) == len(pixels)
        if not is_fitting or not found.is_floating_point() or not bool(found.isfinite().all()):
            told = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise BrokenPlugin(
                f"task.model.name: {self._source.name!r} is {self._source.where}, and its forward "
                f"returns {told} for images {tuple(pixels.shape)}; valid: finite features (B, D)"
            )
        return functional.normalize(found, dim=-1) if normalize else cast("Tensor", found)


def own_model(name: str, pretrained: str | None, device: str, plugins: Plugins) -> Backbone:
    """Load the model of a plug-in and freeze it.

    Raises:
        BackboneError: The device does not exist, or `pretrained` is given, which means nothing.
        BrokenPlugin: The plug-in is not as its kind must be.
    """
    source, module = plugins.of("model")[name], plugins.load("model", name)
    if is_taken(name):
        raise BrokenPlugin(
            f"task.model.name: {name!r} is a model of Sotto or open_clip and {source.where}; valid "
            "is another name for the second"
        )
    if pretrained is not None:
        raise BackboneError(
            f"task.model.pretrained: {pretrained!r} means nothing, as {name} brings its own "
            "weights; valid: null"
        )
    side = module.SIZE
    if not isinstance(side, int) or not 1 <= side <= LARGEST:
        raise BrokenPlugin(
            f"task.model.name: {name!r} is {source.where}, and its SIZE is {side!r}; valid: the "
            f"side of its images in pixels, 1 to {LARGEST}"
        )
    with calling(source, "load"):
        network = module.load()
    if not isinstance(network, nn.Module):
        raise BrokenPlugin(
            f"task.model.name: {name!r} is {source.where}, and its load returns "
            f"{type(network).__name__}; valid: a torch.nn.Module"
        )
    target = device_of(device)
    model = _Encoder(network, source).eval().requires_grad_(False).float().to(target)
    with torch.inference_mode():
        width = model.encode_image(torch.zeros((2, 3, side, side), device=target)).shape[1]
    preprocess = PreprocessCfg(size=side, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    settings = json.dumps(preprocess.__dict__, sort_keys=True)
    # Weights and modules do not show what `forward` computes; the plug-in's file does.
    known = f"{fingerprint_of(network)} {source.origin().sha256}"
    return Backbone(
        name=name,
        fingerprint=hashlib.sha256(known.encode()).hexdigest(),
        transform_digest=hashlib.sha256(settings.encode()).hexdigest(),
        embed_dim=width,
        # Of a usual text tower: the first text that is asked for is what is refused.
        token_dim=512,
        context_length=77,
        image_size=side,
        logit_scale=LOGIT_SCALE,
        device=str(target),
        _model=model,
        _text=cast("Any", _Lacking(name)),
        _tokenizer=_Lacking(name),
        _preprocess=preprocess,
    )
