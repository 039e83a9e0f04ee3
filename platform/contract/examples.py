"""What methods are tried on: a small task, and examples and experts that are drawn at random.

Everything is read-only, so that whoever writes to it raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from methods import Arrays, Examples, Method, Task
from methods.clip.adapter import Backbone
from platform.contract.cases import PIXELS
from platform.contract.small_clip import EMBED_DIM

CLASSES: Final = ("circle", "ring", "red square", "star")
DOMAINS: Final = ("ink", "chalk")
POPULATION: Final = 10
TOKENS, TOKEN_WIDTH = 5, 32
WORDS: Final = (
    *("river", "market", "goal", "engine", "the", "of", "a", "Senate", "café", "2-1", "$5."),
)


def small_task(backbone: Backbone) -> Task:
    """Return four classes in two domains for ten clients."""
    return Task(CLASSES, DOMAINS, POPULATION, backbone)


def draw_raw(method: Method, seed: int, count: int = 8) -> Arrays:
    """Return what a data layer would hand to `Method.prepare`."""
    rng = np.random.default_rng([99, seed])
    features = rng.normal(size=(count, EMBED_DIM)).astype(np.float32)
    side = method.pixel_size or PIXELS
    arrays: dict[str, NDArray[Any]] = {
        "features": features / np.linalg.norm(features, axis=1, keepdims=True),
        "tokens": rng.normal(size=(count, TOKENS, TOKEN_WIDTH)).astype(np.float32),
        "pixels": rng.integers(0, 256, (count, side, side, 3), dtype=np.uint8),
        "text": np.array([" ".join(rng.choice(WORDS, 6)) for _ in range(count)]),
    }
    return frozen({name: arrays[name] for name in sorted(method.needs - {"domains"})})


def draw_examples(method: Method, seed: int, count: int = 8) -> Examples:
    """Return training examples as the platform would hand them to this method."""
    rng = np.random.default_rng([98, seed])
    known: dict[str, NDArray[Any]] = {"labels": rng.integers(0, len(CLASSES), count)}
    if "domains" in method.needs:
        known["domains"] = rng.integers(0, len(DOMAINS), count)
    return Examples(frozen({**method.prepare(draw_raw(method, seed, count)), **known}))


def draw_batch(method: Method, seed: int, count: int = 5) -> Arrays:
    """Return what `predict` is handed: neither labels nor domains."""
    return frozen(dict(method.prepare(draw_raw(method, seed, count))))


def draw_experts(method: Method, count: int | None = None) -> tuple[Arrays, ...]:
    """Return pool entries as the platform would hand them out: as many as the method asks for."""
    policy = method.pool_policy()
    if policy is None:
        return ()
    rng = np.random.default_rng(17)
    number = policy.k if count is None else count
    return tuple(
        frozen({n: rng.normal(0, 0.3, s.shape).astype(s.dtype) for n, s in policy.spec.items()})
        for _ in range(number)
    )


def handed_out(method: Method) -> tuple[Arrays, ...]:
    """Return the experts of a round; of a pool that is made after them a client refuses any."""
    policy = method.pool_policy()
    return () if policy is None or policy.closes else draw_experts(method)


def frozen(arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return the arrays, read-only."""
    for value in arrays.values():
        value.flags.writeable = False
    return arrays
