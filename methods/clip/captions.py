"""Frozen text features of class names under a hand-written template."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from torch import Tensor

from methods.errors import MethodError

if TYPE_CHECKING:
    from methods.clip.adapter import Backbone


class Captions:
    """One caption for each class name, whose features are never learned."""

    def __init__(self, backbone: Backbone, template: str) -> None:
        """Take the backbone and a template with `{}` where the class name goes.

        Raises:
            MethodError: If the template does not contain `{}` exactly once.
        """
        if template.count("{}") != 1:
            raise MethodError(
                f"method.template: {template!r} is not valid; it must contain {{}} exactly once"
            )
        self.backbone = backbone
        self._template = template
        # A list of names is encoded once: all clients and rounds ask for the same few.
        self._kept = lru_cache(maxsize=8)(self._encode)

    def require_room(self, classes: Sequence[str]) -> None:
        """Check that all captions fit into the backbone.

        Raises:
            BackboneError: If one does not.
        """
        self.backbone.embed_tokens(self._texts(classes))

    def features(self, classes: Sequence[str]) -> Tensor:
        """Return text features of length one, (C, d), constants.

        Raises:
            BackboneError: If a caption does not fit into the backbone.
        """
        return self._kept(tuple(classes))

    def _texts(self, classes: Sequence[str]) -> list[str]:
        return [self._template.replace("{}", name) for name in classes]

    def _encode(self, classes: tuple[str, ...]) -> Tensor:
        return self.backbone.encode_texts(self._texts(classes))
