"""Feature extractors: the part of a network below its head.

There are four: the 4-layer CNN and the fastText-style classifier of the PM-MoE paper's experiments
(Feng et al. 2025, "Experimental Details"; widths as in its published code); one layer on frozen
CLIP features, so that methods for small networks also work on CLIP's data sets; and CLIP's own
image tower (`ClipTower`). No extractor uses statistics of a batch, so an example's features depend
on that example alone.

`ClipTower` starts where CLIP is, so a federation on it trains the whole model. The linear head
starts as the text features of "a photo of a {class}." times CLIP's factor on cosines: before any
training the network predicts as zero-shot CLIP does (Wortsman et al. 2022, "Robust fine-tuning of
zero-shot models", section 2, starts so). The text tower runs only for this start. With a rank r,
each weight matrix W of the blocks stays, and a product of two trained matrices is added (Hu et
al. 2022, "LoRA: Low-Rank Adaptation of Large Language Models", Eq. 3),

    W + (alpha / r) B A,    B zero and A uniform at the start,

so that (o + i) r numbers leave a client in place of o i. The paper adapts the matrices of the
attention, this file all matrices of a block. The paper sets alpha to the first r that it tries and
tunes the rate alone; here alpha is r. The paper draws A from a normal distribution of unstated
width; here A starts as a linear layer does, as in the paper's code. There is no dropout. Batch
normalisation, which CLIP's ResNets have, keeps the statistics that CLIP was trained with.
"""

from __future__ import annotations

import copy
import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
import torch
from annotated_types import Ge, Le
from numpy.typing import NDArray
from open_clip.transformer import VisionTransformer
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from methods.errors import BackboneError, MethodError
from methods.interface import method as m
from methods.interface.method import CountsWith
from methods.networks.layers import Layer, Layers, Parameters, linear, linear_layers

if TYPE_CHECKING:
    from methods.clip.adapter import Backbone


_PREFIX: Final = "extractor."
_BLOCKS: Final = "transformer.resblocks."
_FIRST: Final = "conv1"
_TRANSFORMER: Final = "transformer"

Change = Callable[[Tensor], Tensor]
"""A change of a feature map (B, W, h, w)."""


@dataclass(frozen=True)
class ClipTower:
    """The image tower of a CLIP model, trained; `rank` None trains the tower itself.

    Members for maps and tokens raise `BackboneError` where the tower has none: `first_*` and
    `features_after` need a first convolution, the others a transformer that takes prompts.
    """

    backbone: Backbone
    rank: int | None = None
    needs: frozenset[m.Need] = frozenset({"pixels"})
    pixel_size: int | None = None

    @property
    def width(self) -> int:
        """Width of the model's features."""
        return self.backbone.embed_dim

    @property
    def flat_width(self) -> int:
        """Three colours of each pixel."""
        return 3 * self.backbone.image_size**2

    @property
    def layers(self) -> Layers:
        """The tower's arrays where CLIP left them, or two for each matrix of its blocks."""
        if self.rank is None:
            return {
                f"{_PREFIX}{name}": Layer(tuple(held.shape), 0, values=held.cpu().numpy())
                for name, held in self.backbone.image_parameters.items()
            }
        found: dict[str, Layer] = {}
        for name, held in self._matrices().items():
            outputs, inputs = held.shape
            # A's range is that of a linear layer, as where the paper's own code starts it.
            found[f"{_PREFIX}{name}.a"] = Layer((self.rank, inputs), inputs)
            found[f"{_PREFIX}{name}.b"] = Layer((outputs, self.rank), 0)
        return found

    def head_layers(self, prefix: str, classes: Sequence[str]) -> Layers:
        """Return the head that predicts as zero-shot CLIP does."""
        text = self.backbone.encode_texts([f"a photo of a {name}." for name in classes])
        rows = (self.backbone.logit_scale * text).cpu().numpy()
        return {
            f"{prefix}.weight": Layer(rows.shape, 0, values=rows),
            f"{prefix}.bias": Layer((len(classes),), 0),
        }

    def prepare(self, arrays: m.Arrays) -> m.Arrays:
        """Return pixels (n, 3, S, S) uint8 at the model's size."""
        fitted = self.backbone.fit(np.asarray(arrays["pixels"]))
        return {"pixels": np.ascontiguousarray(fitted.transpose(0, 3, 1, 2))}

    def inputs(self, batch: Parameters) -> Tensor:
        """Return pixels (B, 3, S, S), normalised as the model takes them."""
        mean, deviation = self.backbone.normalisation
        pixels = batch["pixels"].to(torch.float32) / 255.0
        return (pixels - mean.to(pixels.device)) / deviation.to(pixels.device)

    def features(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Return features of length one, (B, D)."""
        module = self.backbone.image_module
        found: Tensor = functional_call(module, self._trained(parameters), (inputs,))
        return functional.normalize(found, dim=-1)

    @property
    def first_width(self) -> int:
        """W, the channels of the first feature map."""
        return self._first().out_channels

    def first_map(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Return the first convolution's map (B, W, h, w): a transformer's patch embeddings."""
        prefix, trained = f"{_FIRST}.", self._trained(parameters)
        own = {n.removeprefix(prefix): w for n, w in trained.items() if n.startswith(prefix)}
        found: Tensor = functional_call(self._first(), own, (inputs,))
        return found

    def features_after(self, parameters: Parameters, inputs: Tensor, change: Change) -> Tensor:
        """Return features (B, D) after a change of the first map."""
        return self._features_with(_FIRST, _Changed(self._first(), change), parameters, inputs)

    @property
    def token_width(self) -> int:
        """Width w of a transformer's tokens."""
        self.require_tokens()
        return self.backbone.image_tower.token_width

    @property
    def depth(self) -> int:
        """Number of a transformer's layers."""
        self.require_tokens()
        return len(self.backbone.image_module.transformer.resblocks)  # type: ignore[union-attr, arg-type]

    def features_beside(self, parameters: Parameters, inputs: Tensor, *prompts: Tensor) -> Tensor:
        """Return features (B, D) where every layer sees prompts beside the patches.

        Prompts have no position, pass no norm before the first layer, and are not pooled.

        Args:
            parameters: The network's.
            inputs: (B, 3, S, S).
            prompts: (B, l, w), of each image, for the first layer; each further tensor replaces
                the prompts before the next layer.
        """
        self.require_tokens()
        beside = _Beside(self.backbone.image_module._modules[_TRANSFORMER], prompts)
        return self._features_with(_TRANSFORMER, beside, parameters, inputs)

    @property
    def map_sizes(self) -> tuple[tuple[int, int], ...]:
        """Width and number of the patches' tokens after each of a transformer's layers."""
        return ((self.token_width, math.prod(self._grid)),) * self.depth

    def through(
        self, parameters: Parameters, inputs: Tensor, changes: Mapping[int, Change]
    ) -> tuple[Tensor, Tensor]:
        """Return features (B, D) and the last map (B, D, h, w), after changes of maps.

        A map holds the patches' tokens. The last map is projected as features are, each token to
        length one. `changes` has changes of the map (B, w, h, w') after a layer of the transformer,
        by the layer's number from 1.
        """
        self.require_tokens()
        module = copy.copy(self.backbone.image_module)
        module._modules = dict(module._modules)
        module.output_tokens = True  # type: ignore[assignment]
        module._modules[_TRANSFORMER] = _changed_after(
            module._modules[_TRANSFORMER], changes, self._grid
        )
        trained = self._trained(parameters)
        found, tokens = functional_call(module, trained, (inputs,))
        if module.proj is not None:
            tokens = tokens @ trained.get("proj", module.proj)
        last = functional.normalize(tokens, dim=-1).transpose(1, 2)
        return functional.normalize(found, dim=-1), last.reshape(*last.shape[:2], *self._grid)

    @property
    def _grid(self) -> tuple[int, int]:
        height, width = self.backbone.image_module.grid_size  # type: ignore[misc]
        return int(height), int(width)

    def require_tokens(self) -> None:
        """Refuse a tower that takes no tokens beside those of its patches."""
        module = self.backbone.image_module
        if not isinstance(module, VisionTransformer) or module.attn_pool is not None:
            raise BackboneError(
                f"task.model.name: the image tower of {self.backbone.name!r} takes no prompts; "
                "valid are open_clip's vision transformers without attentional pooling"
            )

    def flat(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Return the pixels."""
        return inputs.flatten(1)

    def _features_with(
        self, part: str, around: nn.Module, parameters: Parameters, inputs: Tensor
    ) -> Tensor:
        """Return features (B, D) where a module stands around one part, its `layer`."""
        # A copy for this call, as all clients share the module; the layers are shared.
        module = copy.copy(self.backbone.image_module)
        module._modules = {**module._modules, part: around}
        trained = {
            name.replace(part, f"{part}.layer", 1) if name.startswith(f"{part}.") else name: w
            for name, w in self._trained(parameters).items()
        }
        found: Tensor = functional_call(module, trained, (inputs,))
        return functional.normalize(found, dim=-1)

    def _trained(self, parameters: Parameters) -> dict[str, Tensor]:
        if self.rank is None:
            return {n: parameters[f"{_PREFIX}{n}"] for n in self.backbone.image_parameters}
        return {
            name: held + parameters[f"{_PREFIX}{name}.b"] @ parameters[f"{_PREFIX}{name}.a"]
            for name, held in self._matrices().items()
        }

    def _first(self) -> nn.Conv2d:
        first = getattr(self.backbone.image_module, _FIRST, None)
        if not isinstance(first, nn.Conv2d):
            raise BackboneError(
                f"task.model.name: the image tower of {self.backbone.name!r} does not begin with a "
                "convolution; valid are CLIP's vision transformers and ResNets"
            )
        return first

    def _matrices(self) -> Mapping[str, Tensor]:
        held = self.backbone.image_parameters
        found = {n: w for n, w in held.items() if n.startswith(_BLOCKS) and w.ndim == 2}
        if not found:
            raise BackboneError(
                f"method.lora_rank: the image tower of {self.backbone.name!r} has no transformer "
                "blocks to add to; valid is null"
            )
        return found


class _Changed(nn.Module):
    """A layer with a changed output."""

    def __init__(self, layer: nn.Module, change: Change) -> None:
        super().__init__()
        self.layer, self._change = layer, change

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the changed output."""
        return self._change(self.layer(inputs))


def _changed_after(transformer: Any, changes: Mapping[int, Change], grid: tuple[int, int]) -> Any:
    """Return a transformer that changes its patches after some of its layers, numbered from 1.

    It is a copy, as all clients share the module; its layers keep their names and parameters.
    """

    def with_change(block: Any, change: Change) -> Any:
        changed, as_it_was = copy.copy(block), block.forward

        def forward(*given: Any, **named: Any) -> Tensor:
            state: Tensor = as_it_was(*given, **named)
            rows = state if transformer.batch_first else state.transpose(0, 1)
            # The class token is not a patch and comes first.
            patches = rows[:, 1:].transpose(1, 2)
            there = change(patches.reshape(*patches.shape[:2], *grid)).flatten(2).transpose(1, 2)
            rows = torch.cat((rows[:, :1], there), dim=1)
            return rows if transformer.batch_first else rows.transpose(0, 1)

        changed.forward = forward
        return changed

    copied = copy.copy(transformer)
    blocks = [
        with_change(block, changes[number]) if number in changes else block
        for number, block in enumerate(transformer.resblocks, start=1)
    ]
    copied._modules = {**transformer._modules, "resblocks": nn.ModuleList(blocks)}
    return copied


class _Beside(nn.Module):
    """Layers that see more tokens than they get and return."""

    def __init__(self, layer: Any, prompts: Sequence[Tensor]) -> None:
        super().__init__()
        self.layer, self._prompts = layer, prompts

    def forward(self, inputs: Tensor) -> Tensor:
        """Return what the layers make of the tokens (B, T, w)."""
        rows, first, later = inputs.shape[1], self._prompts[0], self._prompts[1:]
        state = torch.cat((inputs, first), dim=1)
        if not later:
            whole: Tensor = self.layer(state)
            return whole[:, :rows]
        for index, block in enumerate(self.layer.resblocks):
            if 0 < index <= len(later):
                state = torch.cat((state[:, :rows], later[index - 1]), dim=1)
            if self.layer.batch_first:
                state = block(state)
            else:
                state = block(state.transpose(0, 1)).transpose(0, 1)
        return state[:, :rows]


LONGEST: Final = 200
"""Most words of a text that count; the published code pads and cuts AG News at this length."""
_WORD: Final = re.compile(r"\w+")


def word_numbers(texts: NDArray[Any], buckets: int) -> NDArray[np.int64]:
    """Return the words of texts (n,) as row numbers, (n, 200).

    Words are runs of letters, digits and underscores, in lower case. CRC-32 of a word's UTF-8
    gives its row, from 1 to `buckets - 1`; two words may share a row by chance. Row 0 is padding.
    """
    numbers = np.zeros((len(texts), LONGEST), np.int64)
    for row, text in enumerate(texts):
        words = _WORD.findall(str(text).lower())[:LONGEST]
        codes = [zlib.crc32(word.encode()) for word in words]
        numbers[row, : len(codes)] = np.asarray(codes, np.int64) % (buckets - 1) + 1
    return numbers


KERNEL = 5


@dataclass(frozen=True)
class NetworkConfig:
    """Options of the network that a method trains.

    Attributes:
        network: `cnn` on images, `fasttext` on texts, `features` on frozen CLIP features, `clip`
            for CLIP's image tower itself, which is trained.
        image_size: Side of the images that the CNN takes; the papers have 28, 32 and 64.
        channels: Channels of the CNN's two convolutions.
        feature_width: Width D of the features; None for 512 (`cnn`), 32 (`fasttext`), or the width
            of the CLIP features (`features`).
        buckets: Rows of fastText's table: the words that it tells apart.
        fasttext: Features of texts: a linear layer on the mean embedding of a text's words; or, as
            PFLlib's code, its log-softmax on the sum of embeddings over the padded length.
        lora_rank: With `clip`, the rank of the product added to each matrix of the tower; None
            trains the tower itself.
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


class _FreshHead:
    """An extractor of features (B, D) whose head is a fresh linear layer.

    All extractors have: `needs` and `pixel_size` for the data layer; `layers`, whose names begin
    with `extractor.`; `prepare`, what is kept of an example; `inputs`, what `features` gets; and
    `flat`, the inputs as one vector each (B, G), for a gate that chooses extractors.
    """

    width: int

    def head_layers(self, prefix: str, classes: Sequence[str]) -> Layers:
        """Return a linear head from its features to classes."""
        return linear_layers(prefix, self.width, len(classes))

    def flat(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Return all numbers of an input."""
        return inputs.flatten(1)


@dataclass(frozen=True)
class Cnn(_FreshHead):
    """Two convolutions 5x5 with ReLU and max pooling 2x2, then a linear layer with ReLU."""

    size: int
    channels: tuple[int, int]
    width: int
    needs: frozenset[m.Need] = frozenset({"pixels"})

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

    def prepare(self, arrays: m.Arrays) -> m.Arrays:
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
        """Return features (B, D) and the last map (B, W, h, w), after changes of numbered maps."""
        hidden = inputs
        for layer, name in enumerate(("conv1", "conv2"), start=1):
            weight, bias = (parameters[f"extractor.{name}.{part}"] for part in ("weight", "bias"))
            hidden = torch.max_pool2d(functional.relu(functional.conv2d(hidden, weight, bias)), 2)
            hidden = changes[layer](hidden) if layer in changes else hidden
        flat = linear(parameters, "extractor.fc", hidden.flatten(1))
        return functional.relu(flat), hidden


@dataclass(frozen=True)
class FastText(_FreshHead):
    """The mean of a text's word embeddings, then a linear layer (Joulin et al. 2017).

    Words are hashed to rows of the table: a common vocabulary would be a statistic of all texts,
    and a party would have to gather it.

    Attributes:
        buckets: Rows of the table; row 0 is padding and has no effect.
        width: D, also the width of an embedding.
        published: Whether padding counts in the mean, as zeros (PFLlib's embedding holds its row
            for padding at zero), and features are the log-softmax of the linear layer.
    """

    buckets: int
    width: int
    published: bool = False
    needs: frozenset[m.Need] = frozenset({"text"})
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

    def prepare(self, arrays: m.Arrays) -> m.Arrays:
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
        """Return mean embedding (B, D) of each text's words; zero for a text without words."""
        known = (inputs > 0).to(torch.float32).unsqueeze(-1)
        rows = functional.embedding(inputs, parameters["extractor.embedding"])
        count = float(inputs.shape[-1]) if self.published else known.sum(-2).clamp(min=1.0)
        mean: Tensor = (rows * known).sum(-2) / count
        return mean


@dataclass(frozen=True)
class OnFeatures(_FreshHead):
    """One linear layer with ReLU on frozen CLIP features, `given` being their width."""

    given: int
    width: int
    needs: frozenset[m.Need] = frozenset({"features"})
    pixel_size: int | None = None

    @property
    def flat_width(self) -> int:
        """Width of the CLIP features."""
        return self.given

    @property
    def layers(self) -> Layers:
        """The linear layer."""
        return linear_layers("extractor.fc", self.given, self.width)

    def prepare(self, arrays: m.Arrays) -> m.Arrays:
        """Return features (n, d) as they are."""
        return arrays

    def inputs(self, batch: Parameters) -> Tensor:
        """Return CLIP features (B, d) at unit mean square; before, each has length 1."""
        return batch["features"] * math.sqrt(self.given)

    def features(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Return features (B, D)."""
        return functional.relu(linear(parameters, "extractor.fc", inputs))


Extractor = Cnn | FastText | OnFeatures | ClipTower


def build_extractor(config: NetworkConfig, task: m.Task) -> Extractor:
    """Return the extractor that the options ask for; refuse a rank that it does not take."""
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
