"""Word table: clients say which public words CLIP reads in their images of each class name.

Each party knows a list of words. A client reads every image as the word whose text feature is
nearest, and marks the pair of class name and word in a table, (names, words). The server adds the
tables up and gives each name the word that was read most, or a word of its own (`match:
one_to_one`, an assignment of the largest sum). A name's images are then recognised by the text
feature of its word. So CLIP brings all knowledge of images, and clients tell only what a name
means: a table of C x W numbers, whatever the width of the features. Ours; the nearest published
relative is the search for descriptions (Menon & Vondrick 2023, "Visual Classification via
Description from Large Language Models", ICLR), which has no federation.

No number of a table is negative, so replacing a client moves it by sqrt(2) C, not 2 C (ADR 31).

With private experts (`pool.kind: groups`), each starts with the names behind one prefix at random,
and a client picks, in secret, the prefix that suits its images: a search for a word, which costs no
privacy and which a client alone can do as well. `memory` below 1 forgets the tables of clients that
have left an expert.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import numpy as np
import torch
from annotated_types import Ge, Le
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from methods.errors import MethodError
from methods.interface import method as m
from methods.interface.defaults import CLIENT_ONLY, MethodDefaults
from methods.networks.method import columns_of
from methods.prompts.prompt import Captions, as_tensor, cosine_logits, require_backbone

TABLE: Final = "table"
MATCHED: Final = "matched"
"""What the server broadcasts: the index of each name's word, (C,)."""

READING = "the word of an image is the one word with the nearest text feature, of any class name"
VARIANTS = ({"prefixes": ("red", "blue"), "match": "one_to_one", "memory": 0.5},)


@dataclass(frozen=True)
class Config:
    """Options.

    Attributes:
        words: Words, or short phrases; null for the class names.
        prefixes: Words before each of them, each pair being a phrase; empty for none.
        presence: Whether a pair counts once for a client, or as often as it was read.
        match: Whether two names may have one word.
        memory: Factor of the earlier tables in each round.
        template: Caption with `{}` where the word goes.
    """

    words: tuple[str, ...] | None = None
    prefixes: tuple[str, ...] = ()
    presence: Literal["once", "count"] = "once"
    match: Literal["best", "one_to_one"] = "best"
    memory: Annotated[float, Ge(0.0), Le(1.0)] = 1.0
    template: str = "a photo of a {}."


@dataclass(frozen=True)
class WordTable(MethodDefaults):
    """A table of names and words, and the words that the server makes of it."""

    config: Config
    classes: tuple[str, ...]
    words: tuple[str, ...]
    captions: Captions
    units = CLIENT_ONLY
    has_personal_state = False
    closed_classes = True

    @property
    def text(self) -> Tensor:
        """Text features of the words, (W, d)."""
        return self.captions.features(self.words)

    def shared_spec(self) -> Mapping[str, m.TensorSpec]:
        """Return the table (C, W)."""
        shape = (len(self.classes), len(self.words))
        spec = m.TensorSpec(shape, weighting=m.Weighting.UNIFORM, source=m.Source.STATISTIC, cone=1)
        return {TABLE: spec}

    def init_server(self, rng: m.Rng) -> m.Arrays:
        """Return an empty table, and words at random; where there are prefixes, all behind one."""
        names, words = len(self.classes), len(self.words)
        if self.config.prefixes and self.config.words is None:
            drawn = rng.integers(len(self.config.prefixes)) * names + np.arange(names)
        else:
            drawn = rng.choice(words, names, replace=names > words)
        return {TABLE: np.zeros((names, words), np.float32), MATCHED: drawn.astype(np.int64)}

    def broadcast(self, state: m.Arrays, client: str | None = None) -> m.Arrays:
        """Return the names' words."""
        return {MATCHED: state[MATCHED]}

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Send the table of the client's images."""
        scores = as_tensor(data.arrays["features"], self.captions.backbone) @ self.text.T
        read = scores.argmax(dim=1).cpu().numpy()
        table = np.zeros((len(self.classes), len(self.words)), np.float32)
        np.add.at(table, (data.arrays["labels"], read), 1.0)
        if self.config.presence == "once":
            table = np.minimum(table, 1.0)
        return m.LocalResult({TABLE: table}, None, {})

    def server_update(
        self, state: m.Arrays, aggregate: m.Aggregate, pool: Sequence[m.Arrays], rng: m.Rng
    ) -> m.Arrays:
        """Add the round's tables, and match names and words anew."""
        table = self.config.memory * state[TABLE] + aggregate.values[TABLE]
        if self.config.match == "best":
            matched = table.argmax(axis=1)
        else:
            matched = linear_sum_assignment(table, maximize=True)[1]
        return {TABLE: table.astype(np.float32), MATCHED: matched.astype(np.int64)}

    def predict(self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]) -> m.Logits:
        """Return CLIP's logits (n, len(classes)) for the names' words; refuse an unknown name."""
        chosen = view.broadcast[MATCHED][columns_of(classes, self.classes)]
        text = self.text[torch.as_tensor(np.array(chosen)).to(self.text.device)]
        return cosine_logits(text, batch, self.captions.backbone)


def build(config: Config, task: m.Task) -> m.Method:
    """Build the method; refuse fewer words than names where each needs its own."""
    words = task.classes if config.words is None else config.words
    if config.prefixes:
        words = tuple(f"{prefix} {word}" for prefix in config.prefixes for word in words)
    least = len(task.classes) if config.match == "one_to_one" else 2
    if len(words) < least:
        raise MethodError(f"method.words: {len(words)} words are too few; valid: {least} or more")
    captions = Captions(require_backbone(task), config.template)
    captions.require_room(words)
    return WordTable(config, task.classes, words, captions)
