"""What runs of one process share: the shipped model and rendered images, made once a process.

Either costs a small run as much as its rounds. A backbone is frozen, and shared images are
read-only, so no run changes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from methods.clip import adapter, tiny
from platform.data.dataset import Indices, Split
from platform.data.shapes import Part, Rendering

load_anew = adapter.load_backbone
load_once = cache(load_anew)


def load_backbone(
    name: str, pretrained: str | None = None, device: str = "cpu"
) -> adapter.Backbone:
    """Does what the function that it stands for does, and loads the shipped model once."""
    load = load_once if name == tiny.NAME else load_anew
    return load(name, pretrained, device)


render_anew = Rendering.split
rendered: dict[tuple[Any, ...], Split] = {}


def split(self: Rendering, part: Part, labels: Indices, outlines: Indices) -> Split:
    """Does what the method that it stands for does, once for the same images."""
    images = (self.seed, self.image_size, tuple(self.domains), self.stream, part)
    key = (*images, labels.tobytes(), outlines.tobytes())
    if key not in rendered:
        rendered[key] = render_anew(self, part, labels, outlines)
        np.asarray(rendered[key].images).flags.writeable = False
    return rendered[key]


@contextmanager
def one_shipped_model() -> Iterator[None]:
    """Within it all runs share the shipped model, which must stay as it was, and images."""
    adapter.load_backbone = load_backbone
    Rendering.split = split  # type: ignore[method-assign]
    try:
        yield
    finally:
        adapter.load_backbone = load_anew
        Rendering.split = render_anew  # type: ignore[method-assign]
        shared = load_once(tiny.NAME)
        assert shared.fingerprint == adapter.fingerprint_of(shared._model)
