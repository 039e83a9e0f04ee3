"""Zero-shot CLIP: the frozen model with a hand-written prompt, nothing learned, nothing shared.

Radford et al. 2021, "Learning Transferable Visual Models From Natural Language Supervision",
section 3.1.4; the template is the one that pFedMoAP compares with (its section 5.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from methods.interface import method as m
from methods.interface.defaults import MethodDefaults
from methods.prompts.prompt import Captions, cosine_logits, require_backbone

SENDS_NOTHING = True


@dataclass(frozen=True)
class Config:
    """Options.

    Attributes:
        template: Caption with `{}` where the class name goes.
    """

    template: str = "a photo of a {}."


@dataclass(frozen=True)
class ZeroShot(MethodDefaults):
    """CLIP as it was trained."""

    captions: Captions
    has_personal_state = False
    learns = False

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Learn nothing."""
        return m.LocalResult({}, None, {})

    def predict(self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]) -> m.Logits:
        """Return CLIP's logits (n, C) under the template."""
        text = self.captions.features(classes)
        return cosine_logits(text, batch, self.captions.backbone)


def build(config: Config, task: m.Task) -> m.Method:
    """Build the method; refuse a template without `{}`."""
    captions = Captions(require_backbone(task), config.template)
    captions.require_room(task.classes)
    return ZeroShot(captions)
