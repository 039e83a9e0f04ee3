"""CCST: clients swap image styles once, then train on their images in other clients' styles.

Chen et al. 2023, "Federated Domain Generalization for Image Recognition via Cross-Client Style
Transfer" (WACV), by its published code (JeremyCJM/CCST, commit 87c3e44): the text was not
available. A client's *overall* style is the mean and the standard deviation of each channel of a
feature map, over all positions of all its images. Before the first round each client gives its
style (the collection, `PoolPolicy.when`). Then clients restyle every image to others' styles by

    AdaIN(f) = s_sd (f - mean f) / sd f + s_mean,    sd f unbiased, over the image's own positions

and train on the result by FedAvg with uniform weights. Each image draws `styles` of the clients'
styles without replacement; its owner's style leaves the image unchanged. So the training set grows
by the factor `styles`. A client keeps the seed of its draw, so all rounds use the same draw. Each
variance gets 1e-5 added. Restyled images stay with the client; predictions use unchanged images.

Where this departs from the code:

- Its maps are VGG-19's up to relu4_1, and a decoder turns them back into pixels; neither network's
  weights can ship. `space: patches` restyles the first feature map of CLIP's image tower (a
  transformer's patch embeddings) within the network in training, without a decoder. Styles are
  those of the first broadcast; with `lora_rank` that layer never moves. `space: pixels` restyles
  the three colours of the pixels as the network takes them.
- A client sends a style as mean and second moment, both means over images; the receiver computes
  the standard deviation. `pool.clipping_norm` bounds both as one vector.
- *Single* styles, each image's own statistics for all clients, would be a release for each image.
  Noise on a client's one entry does not cover that, so they are refused.

`dp_sgd` is refused: noised steps do not cover the styles, and an image is in several rows, so a
bound on one row's gradient does not bound the image's effect. Without other clients' styles the
method is FedAvg with uniform weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Le
from numpy.typing import NDArray
from torch import Tensor

from methods.errors import MethodError
from methods.fedavg import FedAvg
from methods.interface import method as m
from methods.interface.method import CountsUpTo
from methods.networks.extractors import ClipTower, NetworkConfig
from methods.networks.layers import Parameters
from methods.networks.method import MAPS, blocks

MEAN, SQUARE = "style.mean", "style.square"
"""Names of an entry's arrays, (W,) each."""
TARGET_MEAN, TARGET_DEVIATION, IS_OWN = "style_mean", "style_deviation", "is_own_style"
DRAW = "draw"
EPSILON = 1e-5
COLOURS = 3

READING = (
    "restyled are the first map of CLIP's image tower, or pixels, where the authors restyle maps "
    "of VGG-19 and decode them to images"
)
VARIANTS = ({"network": "cnn", "space": "pixels", "lora_rank": None},)


@dataclass(frozen=True)
class Config(NetworkConfig):
    """Options.

    Attributes:
        network: One that takes images.
        space: Where images are restyled: `patches`, the first map of CLIP's image tower, or
            `pixels`.
        style: A client's `overall` style; `single` styles of its images are refused.
        styles: K, the number of styles of each image, drawn from all clients' styles.
    """

    network: Literal["cnn", "clip"] = "cnn"
    space: Literal["patches", "pixels"] = "patches"
    style: Literal["overall", "single"] = "overall"
    styles: Annotated[
        int,
        Ge(1),
        Le(1000),
        CountsUpTo("task.clients", "each image is given all styles that there are"),
    ] = 3


class Ccst(FedAvg):
    """Cross-client style transfer."""

    weighting: ClassVar[m.Weighting] = m.Weighting.UNIFORM
    config: Config
    couples_examples = True
    has_personal_state = True

    def pool_policy(self) -> m.PoolPolicy:
        """Return all clients' styles, given once, before the first round."""
        style = m.TensorSpec((self.style_width,))
        policy = serving(self.config, self.task.population)
        return replace(policy, spec={MEAN: style, SQUARE: style})

    @property
    def style_width(self) -> int:
        """W, the channels of the restyled map."""
        if self.config.space == "pixels":
            return COLOURS
        return self._tower.first_width

    def init_client(self, shared_rng: m.Rng, client_rng: m.Rng) -> m.Arrays:
        """Return the seed of the client's draws."""
        return {DRAW: np.array(client_rng.integers(2**62), np.int64)}

    def contribute(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Return the client's overall style under the first broadcast."""
        images, model = data.arrays["pixels"], self.tensors(view.broadcast)
        sums = np.zeros((2, self.style_width))
        with torch.no_grad():
            for some in blocks({"pixels": images}, MAPS):
                inputs = self.extractor.inputs(self.tensors(some))
                is_pixels = self.config.space == "pixels"
                found = inputs if is_pixels else self._tower.first_map(model, inputs)
                found = found.to(torch.float64)
                # Each image has as many positions, so a mean of means is the mean over positions.
                moments = [(found**power).mean((-2, -1)).sum(0) for power in (1, 2)]
                sums += torch.stack(moments).cpu().numpy()
        mean, square = (sums / len(images)).astype(np.float32)
        return m.LocalResult({}, {MEAN: mean, SQUARE: square}, view.personal)

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train the network on the images in others' styles and their own."""
        styled = m.Examples(self.restyled(data.arrays, view))
        update = self.result(view, self.train(view, styled, trainer, rng)).update
        return m.LocalResult(update, None, {DRAW: view.personal[DRAW]})

    def restyled(self, arrays: m.Arrays, view: m.ClientView) -> dict[str, NDArray[np.generic]]:
        """Return K rows of each example, each in a style; fewer where there are fewer styles."""
        count, others = len(arrays["labels"]), len(view.experts)
        drawn = drawn_styles(count, others, self.config.styles, int(view.personal[DRAW]))
        if not others:
            return dict(arrays)
        # The client's own style is the last, and its numbers are never used.
        blank = {MEAN: np.zeros(self.style_width), SQUARE: np.ones(self.style_width)}
        styles = [*view.experts, blank]
        means, deviations = (
            np.stack([part(style) for style in styles]).astype(np.float32)
            for part in (lambda style: style[MEAN], deviation_of)
        )
        picked, each = drawn.ravel(), drawn.shape[1]
        return {
            **{name: np.repeat(array, each, axis=0) for name, array in arrays.items()},
            TARGET_MEAN: means[picked],
            TARGET_DEVIATION: deviations[picked],
            IS_OWN: picked == others,
        }

    def features(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return features (B, D), in the styles that the batch asks for, if any."""
        if TARGET_MEAN not in batch:
            return super().features(parameters, batch)
        inputs = self.extractor.inputs(batch)

        def change(found: Tensor) -> Tensor:
            return styled(found, batch[TARGET_MEAN], batch[TARGET_DEVIATION], batch[IS_OWN])

        if self.config.space == "pixels":
            return self.extractor.features(parameters, change(inputs))
        return self._tower.features_after(parameters, inputs, change)

    @property
    def _tower(self) -> ClipTower:
        if not isinstance(self.extractor, ClipTower):
            raise MethodError(
                "method.space: 'patches' needs a first layer that has learned something before the "
                f"first round, and network {self.config.network!r} has not; valid: pixels, or "
                "network clip"
            )
        return self.extractor


def drawn_styles(count: int, others: int, styles: int, seed: int) -> NDArray[np.int64]:
    """Return the styles of `count` images, (count, min(K, others + 1)), without replacement.

    Other clients' styles have numbers from 0; the client's own style follows them. The seed is the
    same in all rounds.
    """
    rng = np.random.default_rng(seed)
    order = rng.random((count, others + 1)).argsort(axis=1)
    return order[:, : min(styles, others + 1)]


def deviation_of(style: m.Arrays) -> NDArray[np.float64]:
    """Return standard deviations (W,) from a style's moments, which may carry noise."""
    mean = np.asarray(style[MEAN], np.float64)
    variance = np.asarray(style[SQUARE], np.float64) - mean**2
    return np.asarray(np.sqrt(np.maximum(variance, 0.0) + EPSILON))


def styled(found: Tensor, mean: Tensor, deviation: Tensor, is_own: Tensor) -> Tensor:
    """Return maps (B, W, h, w) in styles (B, W) by AdaIN; those with `is_own` (B,) as they are."""
    centred = found - found.mean((-2, -1), keepdim=True)
    spread = (found.var((-2, -1), keepdim=True) + EPSILON).sqrt()
    there = deviation[..., None, None] * centred / spread + mean[..., None, None]
    return torch.where(is_own[..., None, None, None], found, there)


def serving(config: object, clients: int) -> m.PoolPolicy:
    """Return the pool's use, without an entry's tensors; known before the method is built."""
    return m.PoolPolicy({}, clients, select="all", fixed=True, when="before")


def build(config: Config, task: m.Task) -> m.Method:
    """Build the method; refuse single styles, or a network whose first layer they do not fit."""
    if config.style == "single":
        raise MethodError(
            "method.style: 'single' hands each image's own statistics to all clients; a bound on a "
            "client's one entry does not cover a release for each image; valid: overall"
        )
    method = Ccst.built(config, task)
    # This raises for an unfit network at once, not later on a client.
    _ = method.style_width
    return method
