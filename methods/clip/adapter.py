"""The frozen CLIP adapter: one small interface over every open_clip model and the tiny one.

Nothing here trains the model: parameters are frozen and in evaluation mode. Gradients flow only
with respect to token embeddings, which prompt learning differentiates (Zhou et al. 2022, "Learning
to Prompt for Vision-Language Models", section 3.2).

This module runs the text tower itself instead of open_clip's `encode_text`, for three savings that
do not change the result. Under a causal mask a position sees only earlier positions, so the
sequence may end with the last end-of-text token. Only the end-of-text row is pooled, so the last
block computes only that row. A prefix that all texts share has the same hidden states in all of
them, so it is computed once (`Backbone.encode_behind`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import open_clip
import torch
from numpy.typing import NDArray
from open_clip.transform import PreprocessCfg
from torch import Tensor, nn
from torch.nn import functional

from methods.clip import tiny
from methods.clip.image_tower import ImageTower, fit, side_of, to_pixels
from methods.clip.text_tower import Following, TextTower
from methods.errors import BackboneError

Setting = bool | int | float | str


def _settings(module: nn.Module) -> dict[str, Setting]:
    # Loading and running change these two settings, and the forward pass does not use them.
    passing = {"training", "grad_checkpointing"}
    return {
        name: value
        for name, value in sorted(vars(module).items())
        if isinstance(value, Setting) and name not in passing and not name.startswith("__")
    }


def require_known(name: str, pretrained: str | None) -> None:
    """Refuse a built-in model or weights that open_clip does not have, before anything is loaded.

    `pretrained` is one of its tags, or the path of a local checkpoint. Weights trained with another
    activation than the model's are refused too: all results would be wrong, and open_clip only
    warns.
    """
    if name not in open_clip.list_models():
        raise BackboneError(
            f"task.model.name is {name!r}; valid is {', '.join(tiny.SHIPPED)}, 'local-dir:FOLDER' "
            "or one of open_clip's models, such as 'ViT-B-16-quickgelu'."
        )
    tags = open_clip.list_pretrained_tags_by_model(name)
    if not pretrained or (pretrained not in tags and not os.path.isfile(pretrained)):
        raise BackboneError(
            f"task.model.pretrained is {pretrained!r}, neither a file nor a tag of {name!r}; valid "
            f"is the path of a local checkpoint or one of: {', '.join(tags) or '(no tags)'}."
        )
    if pretrained in tags:
        has = bool((open_clip.get_model_config(name) or {}).get("quick_gelu"))
        wants = bool((open_clip.get_pretrained_cfg(name, pretrained) or {}).get("quick_gelu"))
        if has != wants:
            fitting = f"{name}-quickgelu" if wants else name.removesuffix("-quickgelu")
            raise BackboneError(
                f"task.model.name is {name!r}, which computes another activation than the weights "
                f"{pretrained!r} were trained with; valid with them is {fitting!r}."
            )


def is_listed(name: str, pretrained: str | None) -> bool:
    """Return whether name and tag identify a model: a listed name, not a path or an address."""
    if name in tiny.SHIPPED:
        return pretrained in (None, "", name)
    return name in open_clip.list_models() and (
        pretrained in open_clip.list_pretrained_tags_by_model(name)
    )


def is_taken(name: str) -> bool:
    """Return whether a name is that of a shipped model or of one of open_clip's."""
    return name in tiny.SHIPPED or name in open_clip.list_models()


@dataclass(frozen=True)
class TokenisedText:
    """Texts as the text tower takes them.

    Attributes:
        embeddings: Token embeddings without positions, float32 (n, L, token_dim). L is the longest
            text's length, so columns behind a shorter text's end are padding.
        end_of_text: Position of each text's end-of-text token, int64 (n,).
    """

    embeddings: Tensor
    end_of_text: Tensor


@dataclass(frozen=True, eq=False)
class Backbone:
    """A frozen CLIP model. Made by `load_backbone`.

    Attributes:
        name: The model's name.
        fingerprint: SHA-256 in hexadecimal of the weights (names, shapes, float32 values) and of
            the computation (modules, activations, numbers of heads, ...).
        transform_digest: SHA-256 of the image preprocessing's settings in hexadecimal.
        embed_dim: Width d of image and text features.
        token_dim: Width of token embeddings.
        context_length: Largest number of tokens of one text, start and end included.
        image_size: Side of the square that the image tower takes, in pixels.
        logit_scale: Factor on cosines before the softmax, already exponentiated.
        device: Where the model is, e.g. "cpu" or "cuda:0".
    """

    name: str
    fingerprint: str
    transform_digest: str
    embed_dim: int
    token_dim: int
    context_length: int
    image_size: int
    logit_scale: float
    device: str
    _model: nn.Module = field(repr=False)
    _text: TextTower = field(repr=False)
    _tokenizer: Any = field(repr=False)
    _preprocess: PreprocessCfg = field(repr=False)

    def encode_images(
        self, images: NDArray[np.uint8], *, batch_size: int = 256
    ) -> NDArray[np.float32]:
        """Encode images.

        Args:
            images: RGB images, uint8 (n, H, W, 3). Images of another size than the model's are
                resized as open_clip does for this model.
            batch_size: Number of images per pass.

        Returns:
            Features of length one, float32 (n, embed_dim).

        Raises:
            BackboneError: The array has another shape or dtype.
        """
        features = np.empty((len(images), self.embed_dim), dtype=np.float32)
        with torch.inference_mode():
            for rows, pixels in self._batches(images, batch_size):
                encoded = self._model.encode_image(pixels, normalize=True)  # type: ignore[operator]
                features[rows] = encoded.cpu().numpy()
        return features

    def encode_tokens(
        self, images: NDArray[np.uint8], *, batch_size: int = 256
    ) -> NDArray[np.float32]:
        """Encode images as far as the image tower's last hidden states.

        Args:
            images: RGB images, uint8 (n, H, W, 3), resized as for `encode_images`.
            batch_size: Number of images per pass.

        Returns:
            Tokens, float32 (n, T, token width); see `methods.clip.image_tower`.

        Raises:
            BackboneError: The array has another shape or dtype, or the tower gives no tokens.
        """
        tower = self.image_tower
        with torch.inference_mode():
            parts = [tower.tokens(p).cpu().numpy() for _, p in self._batches(images, batch_size)]
        empty = np.empty((0, 1, tower.token_width), dtype=np.float32)
        return np.concatenate(parts) if parts else empty

    def project_tokens(self, tokens: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return features of length one (n, M, embed_dim), one a patch, of tokens (n, T, width)."""
        with torch.inference_mode():
            states = torch.tensor(tokens, device=self.device)
            local = functional.normalize(self.image_tower.project(states), dim=-1)
        return np.asarray(local.cpu().numpy(), np.float32)

    @property
    def text_tower(self) -> TextTower:
        """The text tower, taken apart."""
        return self._text

    @property
    def image_tower(self) -> ImageTower:
        """The image tower, taken apart; refuses a tower that gives no tokens."""
        return ImageTower.of(self._model, self.name)

    @property
    def image_module(self) -> nn.Module:
        """The image tower as torch runs it: normalised pixels to features of any length."""
        return self._model.visual  # type: ignore[return-value]

    @property
    def image_parameters(self) -> Mapping[str, Tensor]:
        """The learned parameters of `image_module`, by name."""
        return dict(self.image_module.named_parameters())

    @property
    def normalisation(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of colours in [0, 1], (3, 1, 1) each."""
        shown = self._preprocess
        return tuple(torch.tensor(v).view(3, 1, 1) for v in (shown.mean, shown.std))  # type: ignore[return-value]

    def fit(self, images: NDArray[np.uint8] | Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
        """Return images (H, W, 3) of any sizes at the model's own, uint8 (n, S, S, 3)."""
        return fit(images, self._preprocess)

    def to_pixels(self, images: NDArray[np.uint8]) -> Tensor:
        """Return images (n, H, W, 3) resized and normalised for the image tower, (n, 3, S, S)."""
        return to_pixels(images, self._preprocess).to(self.device)

    def _batches(
        self, images: NDArray[np.uint8], batch_size: int
    ) -> Iterator[tuple[slice, Tensor]]:
        if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8:
            raise BackboneError(
                f"images has shape {images.shape} and dtype {images.dtype}; "
                "valid is (n, H, W, 3) and uint8."
            )
        for start in range(0, len(images), batch_size):
            rows = slice(start, start + batch_size)
            yield rows, self.to_pixels(images[rows])

    def embed_tokens(self, texts: Sequence[str]) -> TokenisedText:
        """Return embeddings of texts, cut after the last end-of-text token; refuse longer ones."""
        if not texts:
            raise BackboneError("texts has 0 entries; valid is at least 1.")
        if isinstance(self._tokenizer, open_clip.SimpleTokenizer):
            # open_clip cuts a long text silently, and usually loses the class name.
            lengths = {text: len(self._tokenizer.encode(text)) + 2 for text in texts}
            longest = max(lengths, key=lambda text: lengths[text])
            self._require_length(lengths[longest], f"The text {longest!r}")
        ids = self._tokenizer(list(texts)).to(self.device)
        end_of_text = self._text.end_of_text(ids)
        ids = ids[:, : int(end_of_text.max()) + 1]
        with torch.no_grad():
            return TokenisedText(self._text.token_embedding(ids).float(), end_of_text)

    def encode_embeddings(self, embeddings: Tensor, end_of_text: Tensor) -> Tensor:
        """Encode token embeddings without positions (n, L, token_dim); differentiable in them.

        `end_of_text` has the position of each row's end-of-text token, int64 (n,). Features have
        length one, float32 (n, embed_dim). Refuses more positions than the context has.
        """
        self._require_length(embeddings.shape[1])
        return self._text.encode(embeddings, end_of_text)

    def follow(self, before: int, suffixes: Tensor, end_of_text: Tensor) -> Following:
        """Return all parts of the texts that do not depend on the prefix of P = `before` positions.

        Suffixes are embeddings (n, S, token_dim), P + S at most `context_length`; `end_of_text` has
        positions within the whole text, int64 (n,), each at least P.
        """
        self._require_length(before + suffixes.shape[1])
        return self._text.follow(before, suffixes, end_of_text)

    def encode_behind(self, prefixes: Tensor, following: Following) -> Tensor:
        """Return features (U, n, embed_dim) of the texts that follow behind each of U prefixes.

        Differentiable; equals `encode_embeddings` of each prefix (U, P, token_dim), start token
        included, before every suffix, at a fraction of the cost. `following` comes from `follow`.
        """
        return self._text.encode_behind(prefixes, following)

    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        """Return features of length one, float32 (n, embed_dim), of fixed texts, no gradients."""
        tokenised = self.embed_tokens(texts)
        with torch.no_grad():
            return self.encode_embeddings(tokenised.embeddings, tokenised.end_of_text)

    def _require_length(self, positions: int, what: str = "A text") -> None:
        if positions > self.context_length:
            raise BackboneError(
                f"{what} has {positions} tokens; model.name {self.name!r} takes at most "
                f"{self.context_length}, start and end included."
            )


def load_backbone(name: str, pretrained: str | None = None, device: str = "cpu") -> Backbone:
    """Load a CLIP model and freeze it.

    Args:
        name: "sotto-tiny" or "sotto-glyphs", which ship with the package, or a model of open_clip:
            a built-in name such as "ViT-B-16", or "local-dir:FOLDER" holding
            open_clip_config.json and weights.
        pretrained: For built-in names one of open_clip's tags, or the path of a local checkpoint
            (safetensors, or a torch file, of which only tensors are read). Without a local copy,
            open_clip's loader fetches a tag. None where the name alone identifies the model.
        device: A torch device.

    Raises:
        BackboneError: The name, tag, file or device does not exist or does not fit.
    """
    target = device_of(device)
    model, tokenizer = (
        _shipped(name, pretrained) if name in tiny.SHIPPED else _any(name, pretrained)
    )
    model = model.eval().requires_grad_(False).float().to(target)
    preprocess = PreprocessCfg(**open_clip.get_model_preprocess_cfg(model))
    settings = json.dumps(preprocess.__dict__, sort_keys=True)
    text = TextTower.of(model, name)
    return Backbone(
        name=name,
        fingerprint=fingerprint_of(model),
        transform_digest=hashlib.sha256(settings.encode()).hexdigest(),
        embed_dim=text.embed_dim,
        token_dim=text.token_embedding.embedding_dim,
        context_length=text.context_length,
        image_size=side_of(preprocess.size),
        logit_scale=float(model.logit_scale.exp()),  # type: ignore[operator]
        device=str(target),
        _model=model,
        _text=text,
        _tokenizer=tokenizer,
        _preprocess=preprocess,
    )


def _shipped(name: str, pretrained: str | None) -> tuple[nn.Module, Any]:
    if pretrained not in (None, "", name):
        raise BackboneError(
            f"task.model.pretrained: {pretrained!r} means nothing, as {name} brings its own "
            "weights; valid: null."
        )
    return tiny.load(tiny.SHIPPED[name]), tiny.tokenizer()


def _any(name: str, pretrained: str | None) -> tuple[nn.Module, Any]:
    if ":" not in name:
        require_known(name, pretrained)
    try:
        model = open_clip.create_model(
            name, pretrained=pretrained, require_pretrained=True, weights_only=True
        )
        return model, open_clip.get_tokenizer(name)
    # open_clip, torch, safetensors and the hub's client raise many kinds of errors; the user needs
    # one sentence for all of them.
    except Exception as error:
        raise BackboneError(
            f"The weights {pretrained or name!r} of task.model.name {name!r} cannot be loaded "
            f"({type(error).__name__}); valid is a cached or reachable tag, or a local checkpoint "
            "of this architecture (safetensors, or a torch file that holds tensors only)."
        ) from error


def device_of(device: str) -> torch.device:
    """Return torch's device of a name, or `BackboneError`."""
    try:
        target = torch.device(device)
        torch.empty(0, device=target)
    except (RuntimeError, AssertionError) as error:
        raise BackboneError(
            f"device is {device!r}, which this machine or build of torch lacks; valid is 'cpu', or "
            "e.g. 'cuda' where there is one."
        ) from error
    return target


def fingerprint_of(model: nn.Module) -> str:
    """Return the digest of weights and computation that `Backbone.fingerprint` states."""
    # The weights do not show the activation, the number of heads, or how tokens are pooled.
    architecture = [
        (path, type(module).__qualname__, module.extra_repr(), _settings(module))
        for path, module in model.named_modules()
    ]
    digest = hashlib.sha256(json.dumps(architecture).encode())
    state: Mapping[str, Tensor] = model.state_dict()
    for key in sorted(state):
        array = np.ascontiguousarray(state[key].cpu().numpy())
        digest.update(f"{key}{array.shape}{array.dtype.str}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
