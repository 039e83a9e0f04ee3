"""The shipped model, loaded once a process: that costs a small run as much as its rounds.

A backbone is frozen and no run changes it, so the runs of one process may share it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from methods.clip import adapter, tiny

load_anew = adapter.load_backbone
load_once = cache(load_anew)


def load_backbone(
    name: str, pretrained: str | None = None, device: str = "cpu"
) -> adapter.Backbone:
    """Does what the function that it stands for does, and loads the shipped model once."""
    load = load_once if name == tiny.NAME else load_anew
    return load(name, pretrained, device)


@contextmanager
def one_shipped_model() -> Iterator[None]:
    """Within it all runs of this process have one shipped model, which must stay as it was."""
    adapter.load_backbone = load_backbone
    try:
        yield
    finally:
        adapter.load_backbone = load_anew
        shared = load_once(tiny.NAME)
        assert shared.fingerprint == adapter._fingerprint(shared._model)
