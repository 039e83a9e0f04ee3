"""Feature extractors: the part of a network below its head.

Four of them: the 4-layer CNN and the fastText-style classifier of the PM-MoE paper's experiments
(Feng et al. 2025, "Experimental Details"; widths as in its published code), one layer on frozen
CLIP features, so that what works on small networks also works on CLIP's data sets, and CLIP's own
image tower (`methods.networks.towers`). None uses a statistic of a batch, so one example's features
are its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor
from torch.nn import functional

from methods.errors import BackboneError, MethodError
from methods.interface.method import Arrays, CountsWith, Need, Task
from methods.networks.layers import Layer, Layers, Parameters, linear, linear_layers
from methods.networks.towers import Change, ClipTower
from methods.networks.words import word_numbers

KERNEL = 5


@dataclass(frozen=True)
class NetworkConfig:
    """Options of the network that a method trains.

    Attributes:
        network: `cnn` on images, `fasttext` on texts, `features` on frozen CLIP features, `clip`
            for CLIP's image tower itself, which is trained.
        image_size: Side of the images that the CNN takes; the papers have 28, 32 and 64.
        channels: Channels of the CNN's two convolutions.
        feature_width: Width D of the features; None for 512 (`cnn`), 32 (`fasttext`), or as wide
            as the CLIP features (`features`).
        buckets: Words that fastText tells apart: its table has as many rows.
        fasttext: Features of texts: a linear layer on the mean embedding of a text's words; or, as
            PFLlib's code, the log-softmax of it on the sum of embeddings over the padded length.
        lora_rank: With `clip`, the rank of what is added to each matrix of the tower; None trains
            the tower itself.
    """

    network: Literal["cnn", "fasttext", "features", "clip"] = "cnn"
    image_size: Annotated[int, Ge(16), Le(1024), CountsWith("network", ("cnn",))] = 28
    channels: Annotated[
        tuple[Annotated[int, Ge(1), Le(4096)], Annotated[int, Ge(1), Le(4096)]],
        CountsWith("network", ("cnn",)),
    ] = (32, 64)
    feature_width: Annotated[
        Annotated[int, Ge(1), Le(16384)] | None,
        CountsWith("network", ("cnn", "fasttext", "features")),
    ] = None
    buckets: Annotated[int, Ge(2), Le(1048576), CountsWith("network", ("fasttext",))] = 98_635
    fasttext: Annotated[Literal["plain", "published"], CountsWith("network", ("fasttext",))] = (
        "plain"
    )
    lora_rank: Annotated[int, Ge(1), Le(1024)] | None = None


class Extractor(Protocol):
    """A feature extractor without state."""

    @property
    def needs(self) -> frozenset[Need]:
        """What the data layer must provide."""
        ...

    @property
    def pixel_size(self) -> int | None:
        """Side of the images, None where it takes none."""
        ...

    @property
    def width(self) -> int:
        """D, the width of the features."""
        ...

    @property
    def flat_width(self) -> int:
        """G, the width of `flat`."""
        ...

    @property
    def layers(self) -> Layers:
        """Its arrays by name, each name beginning with `extractor.`."""
        ...

    def head_layers(self, prefix: str, classes: Sequence[str]) -> Layers:
        """Return a linear head from its features to classes, where it starts."""
        ...

    def prepare(self, arrays: Arrays) -> Arrays:
        """Return what is kept of each example."""
        ...

    def inputs(self, batch: Parameters) -> Tensor:
        """Return what `features` is fed, row i being example i."""
        ...

    def features(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Return features (B, D) of inputs."""
        ...

    def flat(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Return inputs as one vector each, (B, G): what a gate sees that chooses extractors."""
        ...


class _FreshHead:
    """An extractor whose head is a fresh linear layer."""

    width: int

    def head_layers(self, prefix: str, classes: Sequence[str]) -> Layers:
        """Return a linear head from its features to classes."""
        return linear_layers(prefix, self.width, len(classes))


@dataclass(frozen=True)
class Cnn(_FreshHead):
    """Two convolutions 5x5 with ReLU and max pooling 2x2, then a linear layer with ReLU.

    Attributes:
        size: Side of the images.
        channels: Of the two convolutions.
        width: D.
    """

    size: int
    channels: tuple[int, int]
    width: int
    needs: frozenset[Need] = frozenset({"pixels"})

    @property
    def pixel_size(self) -> int | None:
        """Side of the images."""
        return self.size

    @property
    def flat_width(self) -> int:
        """Three colours of each pixel."""
        return 3 * self.size**2

    @property
    def layers(self) -> Layers:
        """Both convolutions and the linear layer."""
        (first, _), (second, positions) = self.map_sizes
        return {
            **_convolution("extractor.conv1", 3, first),
            **_convolution("extractor.conv2", first, second),
            **linear_layers("extractor.fc", second * positions, self.width),
        }

    def prepare(self, arrays: Arrays) -> Arrays:
        """Return pixels (n, 3, S, S) uint8."""
        return {"pixels": np.ascontiguousarray(arrays["pixels"].transpose(0, 3, 1, 2))}

    def inputs(self, batch: Parameters) -> Tensor:
        """Return pixels (B, 3, S, S) in [-1, 1]."""
        return batch["pixels"].to(torch.float32) / 127.5 - 1.0

    def features(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Return features (B, D)."""
        return self.through(parameters, inputs, {})[0]

    @property
    def map_sizes(self) -> tuple[tuple[int, int], ...]:
        """Channels and positions of what each convolution gives."""
        first = (self.size - KERNEL + 1) // 2
        second = (first - KERNEL + 1) // 2
        return (self.channels[0], first**2), (self.channels[1], second**2)

    def through(
        self, parameters: Parameters, inputs: Tensor, changes: Mapping[int, Change]
    ) -> tuple[Tensor, Tensor]:
        """Return features (B, D) and the last map (B, W, h, w), maps being changed on the way.

        Args:
            parameters: The network's.
            inputs: (B, 3, S, S).
            changes: Of what a convolution gives, by its number, from 1.
        """
        hidden = inputs
        for layer, name in enumerate(("conv1", "conv2"), start=1):
            hidden = _convolve(parameters, f"extractor.{name}", hidden)
            hidden = changes[layer](hidden) if layer in changes else hidden
        flat = linear(parameters, "extractor.fc", hidden.flatten(1))
        return functional.relu(flat), hidden

    def flat(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Return the pixels."""
        return inputs.flatten(1)


@dataclass(frozen=True)
class FastText(_FreshHead):
    """The mean of a text's word embeddings, then a linear layer (Joulin et al. 2017).

    Words are hashed to rows of the table: a vocabulary of everybody's words would be a statistic
    of all texts that somebody would have to gather.

    Attributes:
        buckets: Rows of the table; row 0 is for padding and counts for nothing.
        width: D, also the width of an embedding.
        published: Whether padding counts in the mean, as zeros (PFLlib's embedding holds its row
            for padding at zero), and features are log-softmax of the linear layer.
    """

    buckets: int
    width: int
    published: bool = False
    needs: frozenset[Need] = frozenset({"text"})
    pixel_size: int | None = None

    @property
    def flat_width(self) -> int:
        """An embedding's width."""
        return self.width

    @property
    def layers(self) -> Layers:
        """The table and the linear layer."""
        return {
            "extractor.embedding": Layer((self.buckets, self.width), None),
            **linear_layers("extractor.fc", self.width, self.width),
        }

    def prepare(self, arrays: Arrays) -> Arrays:
        """Return row numbers of each text's words, (n, L) int64."""
        return {"words": word_numbers(arrays["text"], self.buckets)}

    def inputs(self, batch: Parameters) -> Tensor:
        """Return row numbers (B, L)."""
        return batch["words"]

    def features(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Return features (B, D)."""
        features = linear(parameters, "extractor.fc", self.flat(parameters, inputs))
        return functional.log_softmax(features, dim=-1) if self.published else features

    def flat(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Return mean embedding (B, D) of each text's words; zero without words.

        As published of all places of the padded text, of which those without a word are zero.
        """
        known = (inputs > 0).to(torch.float32).unsqueeze(-1)
        rows = functional.embedding(inputs, parameters["extractor.embedding"])
        count = float(inputs.shape[-1]) if self.published else known.sum(-2).clamp(min=1.0)
        mean: Tensor = (rows * known).sum(-2) / count
        return mean


@dataclass(frozen=True)
class OnFeatures(_FreshHead):
    """One linear layer with ReLU on frozen CLIP features.

    Attributes:
        given: Width of the CLIP features.
        width: D.
    """

    given: int
    width: int
    needs: frozenset[Need] = frozenset({"features"})
    pixel_size: int | None = None

    @property
    def flat_width(self) -> int:
        """Width of the CLIP features."""
        return self.given

    @property
    def layers(self) -> Layers:
        """The linear layer."""
        return linear_layers("extractor.fc", self.given, self.width)

    def prepare(self, arrays: Arrays) -> Arrays:
        """Return features (n, d) as they are."""
        return arrays

    def inputs(self, batch: Parameters) -> Tensor:
        """Return CLIP features (B, d), scaled to unit mean square.

        As they come each is of length 1.
        """
        return batch["features"] * math.sqrt(self.given)

    def features(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Return features (B, D)."""
        return functional.relu(linear(parameters, "extractor.fc", inputs))

    def flat(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Return the CLIP features."""
        return inputs


def build_extractor(config: NetworkConfig, task: Task) -> Extractor:
    """Return the extractor that the options ask for.

    Raises:
        BackboneError: If it works on a CLIP model and the task has none.
        MethodError: If there is a rank for a network that takes none.
    """
    if config.lora_rank is not None and config.network != "clip":
        raise MethodError(
            f"method.lora_rank: {config.lora_rank} means nothing with network {config.network!r}; "
            "valid is null, or network clip"
        )
    if config.network == "cnn":
        return Cnn(config.image_size, config.channels, config.feature_width or 512)
    if config.network == "fasttext":
        published = config.fasttext == "published"
        return FastText(config.buckets, config.feature_width or 32, published)
    if task.backbone is None:
        raise BackboneError(
            f"method.network: {config.network!r} works on a CLIP model, and task.model is null; "
            "valid without one: cnn, fasttext"
        )
    if config.network == "clip":
        return ClipTower(task.backbone, config.lora_rank)
    given = task.backbone.embed_dim
    return OnFeatures(given, config.feature_width or given)


def _convolution(prefix: str, inputs: int, outputs: int) -> dict[str, Layer]:
    fan_in = inputs * KERNEL**2
    return {
        f"{prefix}.weight": Layer((outputs, inputs, KERNEL, KERNEL), fan_in),
        f"{prefix}.bias": Layer((outputs,), fan_in),
    }


def _convolve(parameters: Parameters, prefix: str, images: Tensor) -> Tensor:
    weight, bias = parameters[f"{prefix}.weight"], parameters[f"{prefix}.bias"]
    rectified = functional.relu(functional.conv2d(images, weight, bias))
    return torch.max_pool2d(rectified, 2)
