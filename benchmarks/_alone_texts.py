"""Public texts for `alone.py`, and CoOp of many clients at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import torch
from _alone import Candidates, Head, Shots, linear
from _sizes import sized
from numpy.typing import NDArray
from safetensors import safe_open

from methods.clip import tiny
from methods.clip.adapter import Backbone
from methods.errors import BackboneError
from methods.interface.method import Task
from methods.prompts.prompt import PromptConfig, PromptEncoder, build_encoder
from platform.data.shapes import CLASSES as OUTLINES

USUAL: Final = "a photo of a {}."
TEMPLATES: Final = (
    USUAL,
    *("a picture of a {}.", "an image of a {}.", "{}.", "one of many pictures that show a {}."),
    # The seven of CLIP's notebook that do best on ImageNet.
    *("itap of a {}.", "a bad photo of the {}.", "a origami {}.", "a photo of the large {}."),
    *("a {} in a video game.", "art of the {}.", "a photo of the small {}."),
)
WORDS: Final = tuple(
    "bad good large small big little cropped bright dark clean dirty blurry pixelated cool nice "
    "weird old new plain plastic toy cartoon embroidered origami rendered printed written drawn "
    "handwritten typed bold thin thick italic slanted upright wide narrow tall short light heavy "
    "black white grey red green blue yellow noisy smooth sharp soft digital single centered".split()
)
"""Words of CLIP's 80 templates and for the look of a picture, where a model brings none."""
SUBJECTS: Final = {tiny.NAME: OUTLINES}
"""What a model's captions were about; its recipe is public. Other models take the words."""
TOGETHER: Final = 400
"""Captions that CoOp encodes at once, over clients."""


def known_words(backbone: Backbone) -> tuple[str, ...]:
    """Whole words whose tokens the model has learned; a list of ours for a model without one."""
    path = tiny.WEIGHTS.with_name(f"{backbone.name}.safetensors")
    if not path.is_file():
        return WORDS
    with safe_open(path, framework="np") as file:
        rows = file.get_tensor("token_embedding.row_ids").tolist()
    tokens = [tiny.tokenizer().decoder[row] for row in rows]
    whole = [token.removesuffix("</w>") for token in tokens if token.endswith("</w>")]
    return tuple(sorted(word for word in whole if word.isalpha()))


@lru_cache(maxsize=1)
def candidates(
    backbone: Backbone, classes: tuple[str, ...], words: tuple[str, ...] = ()
) -> Candidates:
    """Templates, and words before the class name in the usual caption; texts too long are left."""
    words = words or known_words(backbone)
    made: list[NDArray[np.float64]] = []
    templates = 0
    for template in (*TEMPLATES, *(USUAL.replace("{}", f"{word} {{}}") for word in words)):
        try:
            made.append(_encoded(backbone, [template.format(name) for name in classes]))
        except BackboneError:
            continue
        templates += template in TEMPLATES
    shown = SUBJECTS.get(backbone.name) or tuple(word for word in words if word not in classes)
    return Candidates(
        np.stack(made),
        templates,
        _encoded(backbone, [USUAL.format(word) for word in shown]),
        backbone.logit_scale,
    )


def _encoded(backbone: Backbone, texts: Sequence[str]) -> NDArray[np.float64]:
    return backbone.encode_texts(texts).cpu().numpy().astype(np.float64)


STARTS: Final = (
    *((PromptConfig(4, "a photo of a"), rate) for rate in (0.002, 0.02)),
    *((PromptConfig(number), 0.002) for number in (1, 4, 16)),
)
"""CoOp's starts, each with a rate. 0.002 is the published one."""


def coop(
    backbone: Backbone, classes: Sequence[str], clients: Sequence[Shots], rng: np.random.Generator
) -> Iterator[tuple[str, list[Head]]]:
    """CoOp (2109.01134) of every client alone: an arm's name, and a head of each client.

    SGD with momentum 0.9, decay 5e-4 and a cosine; full batches, in as many steps as the published
    epochs: 50, 100 and 200 for 1, 2 to 4, and more shots of a class.
    """
    if not clients:
        return
    task = Task(tuple(classes), (), len(clients), backbone)
    each = np.median([len(shots.labels) / np.count_nonzero(shots.counts) for shots in clients])
    steps = sized(50 if each <= 1 else 100 if each <= 4 else 200, 1)
    size = max(TOGETHER // len(classes), 1)
    for config, rate in STARTS:
        try:
            encoder = build_encoder(config, task)
            starts = [encoder.init_context(rng, config.context_init) for _ in clients]
        except BackboneError:
            # The context, or the words' number of tokens, does not fit this model.
            continue
        heads: list[Head] = []
        for first in range(0, len(clients), size):
            part = slice(first, first + size)
            contexts = torch.tensor(np.stack(starts[part]), device=backbone.device)
            texts = _descend(encoder, classes, contexts, clients[part], rate, steps)
            heads += [linear(backbone.logit_scale * text) for text in texts]
        start = config.context_init or f"{config.context_tokens} random"
        yield f"CoOp, {start}, rate {rate}", heads


def _descend(
    encoder: PromptEncoder,
    classes: Sequence[str],
    contexts: torch.Tensor,
    clients: Sequence[Shots],
    rate: float,
    steps: int,
) -> NDArray[np.float64]:
    """Text features (U, C, d) after training each context on its client's shots."""
    backbone = encoder.backbone
    owner = np.concatenate([np.full(len(s.labels), u) for u, s in enumerate(clients)])
    rows = torch.from_numpy(owner).to(backbone.device)
    images = torch.tensor(
        np.concatenate([s.features for s in clients]), dtype=torch.float32, device=backbone.device
    )
    labels = torch.tensor(np.concatenate([s.labels for s in clients]), device=backbone.device)
    # Each client's loss is the mean over its own shots.
    weights = (1.0 / torch.bincount(rows))[rows]
    contexts.requires_grad_(True)
    descent = torch.optim.SGD([contexts], lr=rate, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(descent, steps)
    for _ in range(steps):
        texts = encoder.text_features_each(contexts, classes)
        scores = backbone.logit_scale * torch.einsum("nd,ncd->nc", images, texts[rows])
        losses = torch.nn.functional.cross_entropy(scores, labels, reduction="none")
        descent.zero_grad()
        (weights * losses).sum().backward()  # type: ignore[no-untyped-call]
        descent.step()
        schedule.step()
    with torch.no_grad():
        found = encoder.text_features_each(contexts, classes)
    return found.cpu().numpy().astype(np.float64)
