"""Full garbage collections while rounds are held, of what rounds have made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def only_of_rounds() -> Iterator[None]:
    """Leave out of garbage collections what is there already: it lives as long as the run.

    With torch and its models loaded a full collection takes half a second and more, and a masked
    round among a hundred clients makes enough objects for one in every dozen rounds.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
