"""Pretrains the text tower while the image tower is locked.

Zhai et al. 2022 ("LiT: Zero-shot transfer with locked-image text tuning") show that locked images
serve captions well, and each image is encoded only once. Within a batch many images share a
caption. So the loss contrasts images with the captions of all classes instead of with the captions
of other images (the image-to-text half of Yang et al. 2022, "Unified Contrastive Learning in
Image-Text-Label Space", equation 4).

A name of `homonyms` without a sense is a caption of its four outlines alike: the tower learns that
the name has no single meaning. Behind a context the name means one outline. Every step draws new
contexts, with a meaning for each name independent of the others; a context's token is the sum of
one learned row for each name and meaning. The sense words are four such sums that training never
uses. So no token stands for a whole sense, and a client cannot infer the meanings that its images
do not show. When training used senses, a prompt from 16 images of some names got all others right.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from open_clip.model import CLIP
from torch import Tensor, nn
from torch.nn import functional

from benchmarks._pretraining_images import pixels
from benchmarks._pretraining_recipe import DOMAIN_WORDS, Descent, Progress, Recipe
from methods.clip import tiny
from methods.clip.text_tower import TextTower
from platform.data.homonyms import CLASSES as NAMES
from platform.data.homonyms import SENSES, SHIFTS, outlines_of
from platform.data.shapes import CLASSES, Stream, shapes_dataset


def texts(template: str) -> list[str]:
    """Return captions of one template: shapes, then names alone."""
    return [template.format(words) for words in (*CLASSES, *NAMES)]


def named_texts(template: str, sense: str) -> list[str]:
    """Return captions of one template: names behind a sense."""
    return [template.format(f"{sense} {name}") for name in NAMES]


def style_texts(recipe: Recipe) -> list[str]:
    """Return the captions of shapes that name a style."""
    words = [DOMAIN_WORDS[domain] for domain in recipe.domains]
    return [recipe.domain_template.format(word, name) for word in words for name in CLASSES]


def caption_loss(logits: Tensor, outlines: Tensor) -> Tensor:
    """Cross-entropy over shapes, plus cross-entropy over names without a context.

    Args:
        logits: In the order of `texts`, (n, 40).
        outlines: The right outlines, (n,).

    Returns:
        The sum. For names alone, the target gives a quarter to each of the four names that mean
        the outline in some sense.
    """
    shapes, alone = logits.split((len(CLASSES), len(NAMES)), 1)
    right = (outlines[:, None] - torch.tensor(SHIFTS)) % len(NAMES)
    mixture = functional.one_hot(right, len(NAMES)).float().mean(dim=1)
    return functional.cross_entropy(shapes, outlines) + functional.cross_entropy(alone, mixture)


def collection_loss(logits: Tensor, outlines: Tensor, senses: Tensor) -> Tensor:
    """Cross-entropy over names behind contexts.

    Args:
        logits: (n, contexts, 20).
        outlines: Outlines of the images, (n,).
        senses: The sense of each name behind each context, (contexts, 20).

    Returns:
        The mean over images and contexts. All names that mean an image's outline are equally right;
        contexts without such a name do not count.
    """
    meant = outlines_of(np.arange(len(NAMES)), senses.numpy())
    right = (torch.from_numpy(meant) == outlines[:, None, None]).float()
    number = right.sum(dim=2)
    told = -(right * functional.log_softmax(logits, dim=2)).sum(dim=2) / number.clamp(min=1)
    return told.sum() / (number > 0).sum()


@dataclass(frozen=True)
class Locked:
    """Image features of length one (n, d), with the images' labels and domains."""

    features: Tensor
    outlines: Tensor
    styles: Tensor


def locked_images(recipe: Recipe, model: CLIP) -> Locked:
    """Encode the images for learning captions, from pretraining's own stream."""
    split = shapes_dataset(
        recipe.seed, recipe.text_images, 0, domains=recipe.domains, stream=Stream.PRETRAINING
    ).train
    images = split.images[np.arange(split.num_examples)]
    with torch.no_grad():
        features = [
            model.encode_image(block, normalize=True) for block in pixels(images).split(256)
        ]
    return Locked(
        torch.cat(features), torch.from_numpy(split.labels), torch.from_numpy(split.domains)
    )


class _Learner:
    """The text tower while it learns.

    It trains only the rows of tokens in use, because an optimiser over all 49,408 would cost more
    than the rest.
    """

    def __init__(self, recipe: Recipe, model: CLIP) -> None:
        tokenise = tiny.tokenizer()
        self.plain = [tokenise(texts(template)) for template in recipe.templates]
        self.named = [tokenise(named_texts(template, SENSES[0])) for template in recipe.templates]
        self.styled = tokenise(style_texts(recipe))
        senses = torch.tensor([tokenise.encode(sense)[0] for sense in SENSES])
        ids = torch.cat([*self.plain, *self.named, self.styled]).flatten()
        self.used = torch.unique(torch.cat([ids, senses]))
        self._senses = torch.searchsorted(self.used, senses)
        model.token_embedding.requires_grad_(False)
        self.rows = nn.Parameter(model.token_embedding.weight.detach()[self.used].clone())
        generator = torch.Generator().manual_seed(recipe.seed)
        shape = (len(NAMES), len(SENSES), self.rows.shape[1])
        self.meanings = nn.Parameter(torch.randn(shape, generator=generator) * 0.02)
        self._model, self._tower = model, TextTower.of(model, tiny.NAME)

    @property
    def parameters(self) -> list[Tensor]:
        """The trained parameters besides the blocks."""
        model = self._model
        tower = [model.positional_embedding, model.text_projection, *model.ln_final.parameters()]
        return [self.rows, self.meanings, *tower, model.logit_scale]

    def encode(self, template: int, senses: Tensor, *, styled: bool) -> Tensor:
        """Encode shapes and names alone, names behind each context, and styles if asked.

        Args:
            template: Index of one of the recipe's templates.
            senses: The sense of each name behind each context, (contexts, 20).
            styled: Whether to add captions that name a style.
        """
        contexts = self.meanings[torch.arange(len(NAMES)), senses].sum(dim=1)
        ids = [self.plain[template], *([self.named[template]] * len(senses))]
        whole = torch.cat([*ids, *([self.styled] if styled else [])])
        end = self._tower.end_of_text(whole)
        places = torch.searchsorted(self.used, whole[:, : int(end.max()) + 1].contiguous())
        # Put each context's row where the first sense's token stands.
        behind = places[len(ids[0]) : len(ids[0]) + len(senses) * len(NAMES)]
        own = len(self.used) + torch.arange(len(senses)).repeat_interleave(len(NAMES))
        behind[:] = torch.where(behind == self._senses[0], own[:, None], behind)
        table = torch.cat([self.rows, contexts])
        # Unlike indexing, this gives the same gradient on several threads.
        return self._tower.encode(functional.embedding(places, table), end)

    def finish(self) -> tuple[int, ...]:
        """Write the rows into the model; return their token ids."""
        with torch.no_grad():
            self.rows[self._senses] = self.meanings.sum(dim=0)
            self._model.token_embedding.weight[self.used] = self.rows
        return tuple(self.used.tolist())


def fit_captions(recipe: Recipe, model: CLIP, progress: Progress | None) -> tuple[int, ...]:
    """Train the text tower, the rows of its tokens and the logit scale.

    Returns:
        The token ids whose rows were trained.
    """
    learner, seen = _Learner(recipe, model), locked_images(recipe, model)
    descent = Descent(
        recipe, recipe.text_steps, blocks=model.transformer, others=learner.parameters
    )
    rng = np.random.default_rng(np.random.SeedSequence(recipe.seed, spawn_key=(1,)))
    plain, behind = len(CLASSES) + len(NAMES), recipe.collections * len(NAMES)
    for step in range(recipe.text_steps):
        batch = torch.from_numpy(rng.choice(len(seen.outlines), recipe.text_batch, replace=False))
        template, styled = int(rng.integers(len(recipe.templates))), step % recipe.style_period == 0
        senses = torch.from_numpy(rng.integers(len(SENSES), size=(recipe.collections, len(NAMES))))
        text = learner.encode(template, senses, styled=styled)
        logits = model.logit_scale.exp() * seen.features[batch] @ text.T
        outlines = seen.outlines[batch]
        named = logits[:, plain : plain + behind].unflatten(1, senses.shape)
        loss = caption_loss(logits[:, :plain], outlines)
        loss = loss + recipe.collection_weight * collection_loss(named, outlines, senses)
        if styled:
            pairs = seen.styles[batch] * len(CLASSES) + outlines
            styles = functional.cross_entropy(logits[:, plain + behind :], pairs)
            loss = loss + recipe.style_weight * styles
        descent.step(loss)
        with torch.no_grad():
            model.logit_scale.clamp_(max=float(np.log(100)))
        if progress and (step + 1) % 100 == 0:
            progress(f"text step {step + 1}/{recipe.text_steps}  loss {loss.item():.3f}")
    return learner.finish()
